"""`echo-env validate persona`: does a judge hear whose needs it judges for?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from echo_env.cli.options import Format, Part

if TYPE_CHECKING:
    from echo_env.agents.validation.sensitivity import Sensitivity, Share


def persona(
    judge: Annotated[str, typer.Option(help="Registered name or module:attribute.")] = "embedded",
    part: Annotated[Part, typer.Option(help="working, test (read it once) or all.")] = Part.working,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many replies.")] = None,
    cases: Annotated[bool, typer.Option("--cases", help="Print every case.")] = False,
    format_: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.text,
) -> None:
    """Judge hand-written replies for their own person and with only the needs and the defensiveness switched."""
    found = _with_bar(judge, part, limit)
    if format_ is Format.json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        _print(found, cases)
    if found.unjudged:
        typer.echo(f"{len(found.unjudged)} cases went unjudged, the first: {found.unjudged[0]}", err=True)
        if not found.cases:
            raise typer.Exit(3)


def _with_bar(judge: str, part: Part, limit: int | None) -> Sensitivity:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from echo_env.agents.validation.sensitivity import measure

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("judging", total=None)
        return measure(judge, part.value, limit, lambda done, total: bar.update(task, total=total, completed=done))


def _print(found: Sensitivity, cases: bool) -> None:
    typer.echo(f"judge {found.judge}, part {found.part} (split seed {found.seed}), {len(found.cases)} replies")
    typer.echo(
        f"{'':30} {'n':>4} {'falls':>6} {'95 %':>12} {'ties':>6} {'rises':>6} {'own - switched':>15} {'95 %':>15}"
    )
    for share in found.shares:
        typer.echo(_row(share))
    for case in found.cases if cases else ():
        works = "  ".join(f"{name} {work:+.2f}" for name, work in case.switched.items())
        typer.echo(f"{case.scenario:12} {case.turn:3} {case.first}  own {case.own:+.2f}  {works}")


def _row(share: Share) -> str:
    if share.falls is None or share.falls_interval is None or share.difference_interval is None:
        return f"{share.name:30} {share.n:4}"
    falls, difference = share.falls_interval, share.difference_interval
    return (
        f"{share.name:30} {share.n:4} {share.falls:6.3f} {falls.low:5.2f}..{falls.high:4.2f} {share.ties:6.3f}"
        f" {share.rises:6.3f} {share.difference:15.2f} {difference.low:7.2f}..{difference.high:5.2f}"
    )
