"""The command line's `echo-env validate ...`: how far judges, actors and gates can be trusted."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="validate",
    help="Measure how far a judge can be trusted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    pass
