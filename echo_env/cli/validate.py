"""The command line's `echo-env validate ...`: how far judges and actors can be trusted, measured against people."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echo_env.cli.options import Format

if TYPE_CHECKING:
    from echo_env.agents.validation.validate import Validation
    from echo_env.humanrecords import Part

app = typer.Typer(
    name="validate",
    help="Measure how far judges and actors can be trusted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    pass


@app.command("data")
def data_() -> None:
    """List the data sets that judges can be validated on: what they are, their licences, where to get them."""
    from echo_env.humanrecords import SOURCES

    for s in SOURCES.values():
        typer.echo(f"{s.name}\n  {s.what}\n  licence: {s.licence}\n  from:    {s.where}\n  --data:  {s.files}")


@app.command()
def judge(
    dataset: Annotated[str, typer.Argument(help="epitome, esconv, failed, muffin, pairs or sage.")],
    data: Annotated[Path, typer.Option(help="Its file or folder; see  echo-env validate data.")],
    judge: Annotated[str, typer.Option(help="Registered name or module:attribute.")] = "embedded",
    as_is: Annotated[
        bool, typer.Option("--as-is", help="Not its form for open talk, where it has one, but the judge itself.")
    ] = False,
    part: Annotated[str, typer.Option(help="working, test (read it once) or all.")] = "working",
    limit: Annotated[int | None, typer.Option(min=1, help="So many conversations, replies or pairs.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw and of the bootstrap.")] = 0,
    supervised: Annotated[
        bool, typer.Option("--supervised", help="Fit a TF-IDF model to the labels as a yardstick (needs scikit-learn).")
    ] = False,
    format_: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.text,
) -> None:
    """Judge what people wrote and rated, and print how far the judge agrees with them."""
    from echo_env.humanrecords import need_part, source

    source(dataset)
    found = _with_bar(dataset, data, judge, as_is, need_part(part), limit, seed, supervised)
    if format_ is Format.json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        _print(found)
    if not found.trusted:
        typer.echo(f"error: {found.unjudged} of {found.n} replies went unjudged: {found.failures[0]}", err=True)
        raise typer.Exit(3)


def _with_bar(
    dataset: str, data: Path, judge: str, as_is: bool, part: Part, limit: int | None, seed: int, supervised: bool
) -> Validation:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from echo_env.agents.validation.validate import validate

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"judging {dataset}", total=None)
        return validate(
            dataset, data, judge=judge, as_is=as_is, part=part, limit=limit, seed=seed, supervised=supervised,
            tell=lambda done, total: bar.update(task, total=total, completed=done),
        )  # fmt: skip


def _print(found: Validation) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, title_justify="left")
    for name in ("measure", "value", "95 % interval", "n", "baselines", "ceiling"):
        table.add_column(name, justify="right" if name in ("value", "n", "ceiling") else "left", overflow="fold")
    for name, m in found.measures.items():
        between = f"{_figure(m.low)} .. {_figure(m.high)}" if m.low is not None else "-"
        trivial = ", ".join(f"{k} {_figure(v)}" for k, v in m.baselines.items())
        table.add_row(name, _figure(m.value), between, str(m.n), trivial, _figure(m.ceiling))
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"{found.dataset}, part {found.part} (split seed {found.split_seed}), judge {found.judge}: "
                  f"{found.n} replies, {found.unjudged} unjudged", highlight=False)  # fmt: skip
    console.print(f"licence: {found.licence}", highlight=False)
    console.print(table)
    notes = dict.fromkeys(f"{name}: {m.note}" for name, m in found.measures.items() if m.note)
    console.print("\n".join(notes), highlight=False)


def _figure(x: float | None) -> str:
    return "-" if x is None else f"{x:.3f}"
