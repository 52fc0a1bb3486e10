"""`echo-env rate`: the nine IEDR items of a new person, rated by a language model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def rate(
    file: Annotated[Path, typer.Argument(help="A text that tells of the person: any form.")],
    models: Annotated[str, typer.Option(help="A models file, MODEL or MODEL@URL.")],
    language: Annotated[str, typer.Option(help="en or zh.")] = "en",
) -> None:
    """Print the field `iedr` of a scenario, rated from a text, and the deficit that follows."""
    import asyncio

    import yaml

    from echo_env import registry
    from echo_env.errors import ConfigError
    from echo_env.profiles import Rating, iedr_deficit

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"'{file}' cannot be read: {e}") from None
    client_of, asked = registry.load("echo_env.agents.llm.client:client_of"), registry.load("echo_env.agents.iedr:rate")
    assert callable(client_of)
    assert callable(asked)
    ratings: dict[str, Rating] = asyncio.run(asked(client_of(models), text, language))
    shown = {"iedr": {item: one.model_dump() for item, one in ratings.items()}}
    typer.echo(yaml.safe_dump(shown, allow_unicode=True, sort_keys=False, width=10_000).rstrip())
    c, a, p = (int(x) for x in iedr_deficit({item: one.level for item, one in ratings.items()}))
    typer.echo(f"P0 ({c}, {a}, {p})", err=True)
