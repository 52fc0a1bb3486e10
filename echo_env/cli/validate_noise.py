"""The command `echo-env validate noise`: whether a judge says the same twice, and what its levels mean."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from echo_env.cli.options import Format
from echo_env.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from echo_env.agents.validation.calibration import OrderSwap, PairwiseJudge, Reliability, Repeats
    from echo_env.roles import Judge, JudgeView


def noise(
    judge: Annotated[str, typer.Option(help="Registered name, or ensemble:NAME,NAME.")] = "embedded",
    repeats: Annotated[int, typer.Option(min=2, help="How often each reply is judged.")] = 5,
    reference: Annotated[str | None, typer.Option(help="Compare the levels with this judge's.")] = None,
    pairwise: Annotated[
        str | None, typer.Option(help="A judge of pairs, module:attribute; else --judge's own points compared.")
    ] = None,
    runs: Annotated[Path | None, typer.Option(help="Take the replies of these recorded runs.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many people, or recorded conversations.")] = 4,
    turns: Annotated[int, typer.Option(min=2, help="So many turns of each conversation.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of the conversations.")] = 0,
    format_: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.text,
) -> None:
    """Judge the same replies several times, show pairs of them both ways round, and compare with a reference."""
    from echo_env import registry
    from echo_env.agents.validation import calibration

    make = cast("Callable[[], Judge]", registry.resolve("judge", judge))
    other = cast("Callable[[], Judge]", registry.resolve("judge", reference)) if reference else None
    pairs = cast("Callable[[], PairwiseJudge]", registry.load(pairwise)) if pairwise else None
    talks = _recorded(runs, limit, turns) if runs else calibration.reference_talks(limit=limit, turns=turns, seed=seed)
    again = calibration.repeat_agreement(make, talks, repeats)
    swap = calibration.order_swap(
        pairs() if pairs else calibration.WorkPairwise(make), list(calibration.pairs_of(talks))
    )
    tables: tuple[Reliability, ...] = ()
    if other is not None:
        own, theirs = (asyncio.run(calibration.judged_all(m, talks)) for m in (make, other))
        tables = calibration.reliability(own, theirs)
    if format_ is Format.json:
        found: dict[str, Any] = {"repeats": again.model_dump(), "order_swap": swap.model_dump()}
        found["reliability"] = {t.level: t.model_dump() for t in tables}
        typer.echo(json.dumps(found, indent=1, allow_nan=False))
        return
    typer.echo("\n".join([*_repeats(again), "", *_swap(swap)]))
    if tables:
        typer.echo("\n".join(["", *_tables(tables, judge, str(reference))]))


def _recorded(folder: Path, limit: int, turns: int) -> list[list[JudgeView]]:
    from echo_env.agents.validation.calibration import views_of
    from echo_env.record import find_runs

    episodes = [e for run in find_runs(folder) for e in run.episodes()][:limit]
    talks = [views_of(e, turns) for e in episodes if e.turns]
    if not talks:
        raise RecordError(f"{folder} holds no conversation", "give the --out folder of  echo-env run")
    return talks


def _repeats(found: Repeats) -> list[str]:
    lines = [
        f"{found.judge}: {found.views} replies judged {found.repeats} times; all six levels the same on "
        f"{_number(found.identical)} of {found.compared}; {found.unjudged} judgements missing",
        f"{'level':8}{'same':>8}{'apart':>8}{'alpha':>8}",
    ]
    return lines + [
        f"{s.level:8}{_number(s.same):>8}{_number(s.difference):>8}{_number(s.alpha):>8}" for s in found.levels
    ]


def _swap(found: OrderSwap) -> list[str]:
    return [
        f"{found.judge}: {found.pairs} pairs both ways round; the same winner on {_number(found.consistent)}; "
        f"shown first wins {_number(found.first)}; ties {_number(found.ties)}; {found.unjudged} pairs unjudged"
    ]


def _tables(found: tuple[Reliability, ...], judge: str, reference: str) -> list[str]:
    lines = [f"{judge} against {reference}; under each level of {judge}: mean level of {reference} (how often)"]
    for t in found:
        cells = "  ".join(f"{own:+d}: {t.means[own]:+.2f} ({sum(t.counts[own].values())})" for own in sorted(t.counts))
        lines.append(f"{t.level:8}{cells}")
    lines.append(f"{'level':8}{'same':>8}{'apart':>8}{'bias':>8}{'kappa':>8}")
    for t in found:
        lines.append(f"{t.level:8}{t.same:8.3f}{t.difference:8.3f}{t.bias:8.3f}{_number(t.kappa):>8}")
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
