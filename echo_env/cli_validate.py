"""The command line's `echo-env validate ...`: how far judges and actors can be trusted, measured against people."""

from __future__ import annotations

import typer

from echo_env.cli_validate_actor import actor

app = typer.Typer(
    name="validate",
    help="Measure a judge or an actor against people.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    pass


app.command("actor")(actor)
