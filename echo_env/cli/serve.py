"""The command `echo-env serve`: rewards over HTTP."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from echo_env.cli.options import key_values
from echo_env.errors import ConfigError


def serve(
    context: typer.Context,
    recipe: Annotated[str, typer.Option(help="Reward recipe:  echo-env list recipe")] = "epm",
    recipe_option: Annotated[list[str] | None, typer.Option(help="key=value for the recipe. Repeatable.")] = None,
    judge: Annotated[str | None, typer.Option(help="Another EPM judge than the embedded one.")] = None,
    scorer: Annotated[str, typer.Option(help="strict, official or paper.")] = "strict",
    host: Annotated[str, typer.Option(help="Any but loopback needs a token in ECHO_ENV_TOKEN.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any that is free.")] = 8040,
    max_batch: Annotated[int, typer.Option(help="Replies in one request.")] = 64,
    max_body: Annotated[int, typer.Option(help="Bytes of one request.")] = 2_000_000,
    max_text: Annotated[int, typer.Option(help="Characters of one message or reply.")] = 40_000,
    at_once: Annotated[int, typer.Option(help="Requests that are scored at the same time.")] = 8,
    queue: Annotated[int, typer.Option(help="Requests that may wait beside them.")] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds for one request.")] = 150.0,
    grace: Annotated[int, typer.Option(help="Seconds to end what is under way on SIGTERM.")] = 30,
    end: Annotated[list[str] | None, typer.Option(help="A further text that ends the policy's turns.")] = None,
    log_part: Annotated[list[str] | None, typer.Option(help="A part of the reward for OpenRLHF's logs.")] = None,
) -> None:
    """Score replies for trainers in other processes: /score, OpenRLHF's /get_reward, /health, /metrics."""
    from pydantic import ValidationError

    from echo_env.agents.service import ServiceConfig, labels
    from echo_env.agents.service import app as serviceapp

    world = {"recipe": recipe, "recipe_options": key_values(recipe_option or []), "scorer": scorer}
    own = ("host", "port", "max_batch", "max_body", "max_text", "at_once", "queue", "timeout", "grace")
    settings: dict[str, Any] = {
        **{name: context.params[name] for name in own},
        "world": {**world, "judge": judge},
        "token": os.environ.get(serviceapp.TOKEN_VARIABLE) or None,
        "ends": (*labels.ENDS, *(end or ())),
        "log_parts": tuple(log_part or ()),
    }
    try:
        config = ServiceConfig.model_validate(settings)
    except ValidationError as e:
        first = e.errors(include_input=False)[0]
        name = "-".join(str(part) for part in first["loc"]).replace("_", "-")
        raise ConfigError(f"--{name}: {first['msg']}", "see  echo-env serve --help") from None
    try:
        serviceapp.serve(config, tell=lambda url: typer.echo(f"serving {recipe} at {url}"))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
