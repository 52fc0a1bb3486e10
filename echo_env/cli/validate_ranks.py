"""The command `echo-env validate ranks`: whether judges put policies in the same order."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echo_env.cli.options import Format
from echo_env.errors import ConfigError

if TYPE_CHECKING:
    from echo_env.agents.validation.ranking import Ranking


def ranks(
    judge: Annotated[
        list[str] | None,
        typer.Option(help="Registered name. The first is what others are held to; 'deaf' is a baseline."),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Registered name, or a pattern such as 'attack:*'. Repeatable.")
    ] = None,
    split: Annotated[str, typer.Option(help="benchmark, benchmark-zh, train or dev.")] = "benchmark",
    scenario: Annotated[list[str] | None, typer.Option(help="Ids or YAML files, in place of a split.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many scenarios.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    scorer: Annotated[str, typer.Option(help="strict, official or paper.")] = "strict",
    out: Annotated[Path | None, typer.Option(help="Keep the played runs here, a folder for each judge.")] = None,
    format_: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.text,
) -> None:
    """Let policies talk under several judges, judge the first one's words by the others, and compare the orders."""
    from echo_env.agents.validation.ranking import REFERENCES, RankConfig, rank

    judges = tuple(judge or ("embedded", "second", "deaf"))
    policies = _matching(policy) if policy else REFERENCES
    if len(judges) < 2 or len(policies) < 3:
        raise ConfigError(
            f"an order of {len(policies)} policies by {len(judges)} judge(s) tells nothing",
            "give --judge twice, and three policies or more",
        )
    config = RankConfig(
        judges=judges,
        policies=policies,
        split=split,
        scenarios=tuple(scenario or ()),
        limit=limit,
        seed=seed,
        scorer=scorer,
    )
    found = rank(config, out, tell=lambda line: typer.echo(line, err=True))
    typer.echo(found.model_dump_json(indent=1) if format_ is Format.json else _text(found))


def _matching(patterns: list[str]) -> tuple[str, ...]:
    """Return the policies that are meant; a pattern stands for all registered names that it matches.

    Of two names for the same policy the first stays: counted twice, it would agree with itself.
    """
    from echo_env import registry

    known = registry.names("policy")
    found: dict[object, str] = {}
    for pattern in patterns:
        hits = [n for n in known if fnmatchcase(n, pattern)] if set("*?[") & set(pattern) else [pattern]
        if not hits:
            raise ConfigError(f"no policy matches '{pattern}'", "see  echo-env list policy")
        for name in hits:
            found.setdefault(registry.resolve("policy", name) if name in known else name, name)
    return tuple(found.values())


def _text(found: Ranking) -> str:
    head = f"{'policy':24}" + "".join(f"{j:>22}" for j in found.judges)
    lines = [f"{len(found.scenarios)} scenarios", head]
    lines.append(f"{'':24}" + f"{'return  progress':>22}" * len(found.judges))
    rows = {(s.policy, s.judge): s for s in found.standings}
    policies = dict.fromkeys(s.policy for s in found.standings)
    for name in sorted(policies, key=lambda p: -(rows[p, found.judges[0]].mean_return or 0.0)):
        cells = (rows[name, judge] for judge in found.judges)
        lines.append(f"{name:24}" + "".join(f"{_number(s.mean_return):>12}{_number(s.progress):>10}" for s in cells))
    for a in found.agreements:
        lines.append(
            f"{found.judges[0]} and {a.judge}: Spearman's rho {_number(a.steered)} where each steers; "
            f"{_number(a.same_words)} on the same words (95 % {_number(a.low)} to {_number(a.high)})"
        )
    unjudged = sum(s.unjudged for s in found.standings)
    if unjudged:
        lines.append(f"{unjudged} turns were left unjudged")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
