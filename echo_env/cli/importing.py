"""`echo-env import`: other projects' people as scenarios, their recorded conversations as runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from echo_env.importers.people import Person, Rater
    from echo_env.importers.runs import ImportedRun
    from echo_env.profiles import Scenario

app = typer.Typer(
    name="import",
    help="Make scenarios of other projects' people, and runs of their recorded conversations. See docs/importing.md.",
    no_args_is_help=True,
)

Source = Annotated[Path, typer.Argument(help="A file, or a folder of them.")]
Out = Annotated[Path, typer.Option(help="Folder for what is made.")]
RaterName = Annotated[str | None, typer.Option("--rater", help="Judge that rates the people, in place of defaults.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


@app.command()
def sage(path: Source, out: Out, rater: RaterName = None, overwrite: Overwrite = False) -> None:
    """SAGE or RLVER: profiles to scenarios, recordings (*_result.jsonl) to runs of unjudged turns."""
    from echo_env.importers import sage as source

    if source.holds_recordings(path):
        _write_runs(source.load_recordings(path, _rater(rater)), out, overwrite)
    else:
        _write_people(source.load_people(path, _rater(rater)), out, overwrite)


@app.command()
def moodsona(path: Source, out: Out, rater: RaterName = None, overwrite: Overwrite = False) -> None:
    """Personas of moodsona to scenarios."""
    from echo_env.importers import moodsona as source

    _write_people(source.load_people(path, _rater(rater)), out, overwrite)


@app.command()
def empa(path: Source, out: Out, overwrite: Overwrite = False) -> None:
    """EMPA: result files (script_*_result.json) to runs that `score` and `report` read."""
    from echo_env.importers import empa as source

    _write_runs(source.load_runs(path), out, overwrite)


def _rater(name: str | None) -> Rater | None:
    from echo_env.importers.people import load_rater

    return None if name is None else load_rater(name)


def _write_people(people: Sequence[tuple[Scenario, Person]], out: Path, overwrite: bool) -> None:
    from echo_env.importers.people import write_scenario

    for scenario, person in people:
        path = write_scenario(scenario, out, person.notes, overwrite=overwrite)
        c, a, p = (int(x) for x in scenario.p0)
        typer.echo(f"{path}  {scenario.dominant}-first  P0 ({c}, {a}, {p})  {scenario.persona.name}")


def _write_runs(runs: Sequence[ImportedRun], out: Path, overwrite: bool) -> None:
    from echo_env.importers.runs import write_run

    for run in runs:
        folder = write_run(run, out, overwrite=overwrite)
        turns = [turn for episode in run.episodes for turn in episode.turns]
        unjudged = sum(turn.judgement is None for turn in turns)
        typer.echo(
            f"{folder.path}  {len(run.episodes)} conversations, {len(turns)} turns, {unjudged} without a judgement"
        )
