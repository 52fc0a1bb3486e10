"""The command `echo-env redteam`: attacks on a judge and a scorer."""

from __future__ import annotations

import asyncio
import json
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from echo_env.cli.options import Format
from echo_env.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from echo_env.agents.redteam.regression import Replay
    from echo_env.agents.redteam.report import AttackResult, RedteamConfig, RedteamReport
    from echo_env.agents.redteam.search import SearchConfig, SearchResult
    from echo_env.build import WorldConfig


class PoolName(StrEnum):
    """What the searcher builds replies from."""

    plain = "plain"
    slots = "slots"


def redteam(
    attack: Annotated[
        list[str] | None, typer.Option(help="Only this attack: a name of  echo-env list policy. Repeatable.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Another judge than the embedded one, by registered name.")] = None,
    scorer: Annotated[str | None, typer.Option(help="strict (the default), official or paper.")] = None,
    recipe: Annotated[str, typer.Option(help="Reward recipe.")] = "epm",
    split: Annotated[str, typer.Option(help="benchmark, benchmark-zh, train or dev.")] = "benchmark",
    scenario: Annotated[
        list[str] | None, typer.Option(help="Ids or YAML files, in place of a split. Repeatable.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many scenarios.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Keep transcripts and regression files in this folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the runs in the folder.")] = False,
    replay: Annotated[Path | None, typer.Option(help="Say the replies of a regression file again.")] = None,
    search: Annotated[
        int | None, typer.Option(min=1, help="Search for a script that pays, with so many judge calls a scenario.")
    ] = None,
    pool: Annotated[PoolName, typer.Option(help="Fixed fragments, or slots for nouns too.")] = PoolName.plain,
    joint: Annotated[bool, typer.Option("--joint", help="Search for one script for all scenarios at once.")] = False,
    format_: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.text,
) -> None:
    """Play attacks against a judge and a scorer, and report what they earn."""
    from echo_env.build import WorldConfig

    if replay is not None:
        _replay(replay, judge, scorer, format_)
        return
    if out is None and (resume or overwrite):
        raise ConfigError("--resume and --overwrite go with --out")
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite exclude each other")
    world = WorldConfig(judge=judge, scorer=scorer or "strict", recipe=recipe)
    keep = Keep(out, workers, resume, overwrite)
    if search is None:
        _suite(tuple(attack or ()), split, tuple(scenario or ()), limit, seed, world, keep, format_)
    else:
        _search(_searches(search, pool, joint, split, tuple(scenario or ()), limit, seed, world), keep, format_)


class Keep(NamedTuple):
    """Where records go, and how they are made."""

    out: Path | None
    workers: int
    resume: bool
    overwrite: bool


def _suite(
    attacks: tuple[str, ...],
    split: str,
    scenarios: tuple[str, ...],
    limit: int | None,
    seed: int,
    world: WorldConfig,
    keep: Keep,
    format_: Format,
) -> None:
    from echo_env.agents.redteam.report import RedteamConfig

    config = RedteamConfig(attacks=attacks, split=split, scenarios=scenarios, limit=limit, seed=seed, world=world)
    if keep.out is None:
        with tempfile.TemporaryDirectory(prefix="echo-env-redteam-") as folder:
            report = _play(config, Path(folder), keep).without_transcripts()
    else:
        report = _play(config, keep.out, keep)
        (keep.out / "redteam.json").write_text(_json(report) + "\n", encoding="utf-8")
    typer.echo(_json(report) if format_ is Format.json else _text(report))


def _searches(
    budget: int,
    pool: PoolName,
    joint: bool,
    split: str,
    scenarios: tuple[str, ...],
    limit: int | None,
    seed: int,
    world: WorldConfig,
) -> list[SearchConfig]:
    from echo_env.agents.redteam.search import SearchConfig
    from echo_env.profiles import scenario_ids

    names = (scenarios or tuple(scenario_ids(split)))[:limit]
    groups = [names] if joint else [(name,) for name in names]
    return [SearchConfig(scenarios=g, budget=budget, pool=pool.value, seed=seed, world=world) for g in groups]


def _play(config: RedteamConfig, out: Path, keep: Keep) -> RedteamReport:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from echo_env.agents.redteam.report import attack_names
    from echo_env.agents.redteam.report import redteam as play

    columns = (TextColumn("{task.description:26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        total = len(attack_names(config.attacks)) + len(config.references)
        task = bar.add_task("", total=total)
        done: dict[str, float] = {}

        def tell(name: str, finished: int, of: int) -> None:
            done[name] = finished / of if of else 1.0
            bar.update(task, description=name, completed=round(sum(done.values()), 2))

        try:
            return play(config, out, workers=keep.workers, resume=keep.resume, overwrite=keep.overwrite, tell=tell)
        except KeyboardInterrupt:
            bar.stop()
            typer.echo("interrupted; with --out, --resume goes on from there", err=True)
            raise typer.Exit(130) from None


def _json(report: RedteamReport) -> str:
    return json.dumps(report.model_dump(mode="json"), indent=1, allow_nan=False)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


_COLUMNS = f"{'':20} {'success':>8} {'EPM-Q':>6} {'return':>7} {'gained':>7} {'turns':>5}  best conversation"


def _row(result: AttackResult) -> str:
    mark = "" if result.below_adviser is not False else "  not below adviser"
    left = f"  {result.failed} failed" if result.failed else ""
    left += f"  {result.unscored} unscored" if result.unscored else ""
    left += f"  {result.unjudged_turns} turns unjudged" if result.unjudged_turns else ""
    worst = f"{result.worst.earned:+.2f} {result.worst.scenario} ({result.worst.end})" if result.worst else "-"
    return (
        f"{result.name:20} {_number(result.success_rate, '8.0%')} {_number(result.epm_q, '6.1f')} "
        f"{_number(result.mean_return, '+7.2f')} {_number(result.gained, '+7.2f')} "
        f"{_number(result.mean_turns, '5.1f')}  {worst}{mark}{left}"
    )


def _text(report: RedteamReport) -> str:
    head = f"judge {report.judge}, scorer {report.scorer}, recipe {report.recipe}, {report.scenarios} scenarios"
    rows = [head, _COLUMNS, *map(_row, report.attacks), "", *map(_row, report.references), ""]
    succeeded = [a.name for a in report.attacks if a.successes]
    above = [a.name for a in report.attacks if a.below_adviser is False]
    rows.append(f"attacks that succeeded somewhere: {', '.join(succeeded) or 'none'}")
    rows.append(f"attacks that earn no less than the adviser: {', '.join(above) or 'none'}")
    return "\n".join(rows)


def _replay(file: Path, judge: str | None, scorer: str | None, format_: Format) -> None:
    from echo_env.agents.redteam.regression import read_regression
    from echo_env.agents.redteam.regression import replay as play

    regression = read_regression(file)
    changes = {"judge": judge, "scorer": scorer}
    world = regression.world.model_copy(update={k: v for k, v in changes.items() if v is not None})
    found = asyncio.run(play(regression, world))
    typer.echo(found.model_dump_json(indent=1) if format_ is Format.json else _replayed(found))
    if found.pays:
        raise typer.Exit(3)


def _replayed(found: Replay) -> str:
    then = found.regression
    return (
        f"{then.attack} with {then.scenario}\n"
        f"then: {then.earned:+.3f}, {then.end}, under {then.judge} and {then.scorer}\n"
        f"now:  {found.earned:+.3f}, {found.end or 'not ended'} after {found.turns} turns, "
        f"under {found.judge} and {found.scorer}"
    )


def _search(configs: list[SearchConfig], keep: Keep, format_: Format) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from echo_env.agents.redteam.curves import searches, write_plot

    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results: list[SearchResult] = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=sum(c.budget for c in configs))
        spent: dict[tuple[str, ...], int] = {}

        def tell(config: SearchConfig, calls: int, best: float | None) -> None:
            spent[config.scenarios] = calls
            bar.update(
                task, completed=sum(spent.values()), description=f"{config.scenarios[0]} {_number(best, '+.2f')}"
            )

        try:
            results += searches(
                configs,
                keep.out,
                workers=keep.workers,
                resume=keep.resume,
                overwrite=keep.overwrite,
                tell=tell,
            )
        except KeyboardInterrupt:
            bar.stop()
            typer.echo("interrupted; with --out, --resume takes over the searches that are finished", err=True)
            raise typer.Exit(130) from None
    results.sort(key=lambda r: r.config.scenarios)
    if format_ is Format.json:
        typer.echo(json.dumps([r.model_dump(mode="json") for r in results], indent=1, allow_nan=False))
    else:
        typer.echo(_searched(results))
    if keep.out is not None:
        try:
            write_plot(keep.out / "search.html", results)
        except MissingExtra as e:
            typer.echo(f"no plot: {e}", err=True)


def _searched(results: list[SearchResult]) -> str:
    from echo_env.agents.redteam.curves import sparkline

    one = results[0]
    rows = [
        f"judge {one.judge}, scorer {one.scorer}, pool {one.config.pool}, {one.config.budget} judge calls each",
        f"{'':20} {'return':>7} {'succeeds':>8} {'first at':>8}  best return at 10, 20, 50, ... calls, from -2.5 to 2",
    ]
    for r in results:
        name = r.config.scenarios[0] if len(r.config.scenarios) == 1 else f"{len(r.config.scenarios)} scenarios"
        left = f"  {r.unjudged} unjudged" if r.unjudged else ""
        rows.append(
            f"{name:20} {_number(r.best_return, '+7.2f')} {r.successes:>8} {r.first_success or '-':>8}  "
            f"{sparkline(r)}{left}"
        )
    rows.append(f"\nscenarios in which a script succeeded: {sum(r.successes for r in results)}")
    return "\n".join(rows)
