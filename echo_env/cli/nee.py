"""The command `echo-env nee`: a panel of models reviews recorded conversations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echo_env.cli.options import Format
from echo_env.errors import RecordError

if TYPE_CHECKING:
    from echo_env.agents.nee import Progress
    from echo_env.agents.reviews import NeeModel, NeeResult


def nee(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")],
    models: Annotated[
        list[str],
        typer.Option(help="A models file (its panel), a model, or 'embedded', a stand-in. Repeatable."),
    ],
    scorer: Annotated[str | None, typer.Option(help="Scorer behind EPM-Q; else the recorded one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the result here as JSON.")] = None,
    format_: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.text,
) -> None:
    """Have a panel review whole conversations: diagnosis first, then naturalness, pacing, narrative (NEE)."""
    found = _with_bar(folder, models, scorer)
    text = found.model_dump_json(indent=1)
    if out is not None:
        try:
            out.write_text(text + "\n", encoding="utf-8")
        except OSError as e:
            raise RecordError(f"{out} cannot be written: {e.strerror or e}") from None
    typer.echo(text if format_ is Format.json else _table(found))
    failed = sum(m.failures for m in found.models)
    if failed:
        typer.echo(f"{failed} reviews failed and are in no mean; the same command asks for them again", err=True)
        typer.echo(f"  for example  {_reason(folder, found.panel)}", err=True)


def _reason(folder: Path, panel: tuple[str, ...]) -> str:
    """Return why the first review failed of those that stand beside the runs."""
    from echo_env.agents.reviews import read_reviews
    from echo_env.record import find_runs

    reviews = (r for run in find_runs(folder) for r in read_reviews(run.path))
    return next((f"{r.reviewer}, {r.episode}: {r.failure}" for r in reviews if r.failure and r.reviewer in panel), "")


def _with_bar(folder: Path, models: list[str], scorer: str | None) -> NeeResult:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from echo_env.agents.nee import panel_of, review_runs

    panel = panel_of(models)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, note="")

        def tell(p: Progress) -> None:
            bar.update(task, total=p.total, completed=p.done, note=f"{p.failed} failed" if p.failed else "")

        try:
            return review_runs(folder, panel, scorer, tell)
        except KeyboardInterrupt:
            bar.stop()
            typer.echo("interrupted; the reviews up to here are kept, the same command goes on from there", err=True)
            raise typer.Exit(130) from None


_COLUMNS = ("natural/30", "pacing/40", "narrat./30", "NEE", "sd models", "sd episodes", "EPM-Q", "final")


def _table(found: NeeResult) -> str:
    lines = [f"panel: {', '.join(found.panel)}; EPM-Q by {found.scorer}"]
    if any(member.startswith("embedded-nee") for member in found.panel):
        lines.append("embedded-nee is a stand-in without a model: it leans on the EPM course and reads no meaning")
    lines.append(f"{'model':30}{'talks':>6}" + "".join(f"{c:>12}" for c in _COLUMNS))
    for model in found.models:
        lines += _rows(model)
    return "\n".join(lines)


def _rows(m: NeeModel) -> list[str]:
    values = (
        m.naturalness, m.pacing, m.narrative, m.nee, m.std_over_models, m.std_over_episodes, m.epm_q, m.final,
    )  # fmt: skip
    lines = [_row(m.model, m.episodes, values)]
    for r in m.reviewers if len(m.reviewers) > 1 else ():
        own = (r.naturalness, r.pacing, r.narrative, r.nee, None, r.std_over_episodes)
        lines.append(_row(f"  {r.reviewer}", r.reviews, own))
    missing = {"reviews failed": m.failures, "talks unfinished": m.unfinished}
    notes = [f"{count} {what}" for what, count in missing.items() if count]
    return lines + ([f"  {'; '.join(notes)}"] if notes else [])


def _row(name: str, count: int, values: tuple[float | None, ...]) -> str:
    return f"{name:30}{count:>6}" + "".join(f"{'-' if v is None else f'{v:.2f}':>12}" for v in values)
