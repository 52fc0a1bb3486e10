"""What a run's header keeps of the language models that played it: models files, resolved, and prompts' digests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from echo_env.agents.llm.config import models_config
from echo_env.agents.llm.prompting import prompt
from echo_env.agents.llmpolicy import PLAIN
from echo_env.agents.world import ROLES

_NAME = re.compile(r"(?:^|[:,])llm:([^,]+)")
"""A remote model in a name, in that of an ensemble as well."""


def recorded_models(settings: dict[str, Any], languages: Sequence[str]) -> dict[str, Any]:
    """Return each remote model that a run's settings name.

    Args:
        settings: The run's configuration, as JSON.
        languages: Of the scenarios.

    Returns:
        What stands behind `llm:` -> `models`, its configuration (names of key variables, never a key; no folder of this
        machine), and `prompts`, the keys of those that its roles use.

    Raises:
        ConfigError: A models file cannot be read.
    """
    roles: dict[str, set[str]] = {}
    for place, name in _named(settings):
        played: tuple[str, ...] = ROLES if place == "backend" else (place,)
        if place == "policy" and settings.get("policy_options", {}).get("system") != PLAIN:
            played = ()  # bare, or under a prompt that stands in the settings
        roles.setdefault(name, set()).update(played)
    return {
        name: {
            "models": models_config(name).model_dump(mode="json", exclude={"cache": {"folder"}}),
            "prompts": [key for role in sorted(played) for key in _prompts(role, languages)],
        }
        for name, played in sorted(roles.items())
    }


def _named(settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield where a remote model is named, and what stands behind `llm:` there."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _named(value)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield from ((key, name) for name in _NAME.findall(text))


def _prompts(role: str, languages: Sequence[str]) -> list[str]:
    """Return the keys of a role's shipped prompts: those of its own name, and of names that begin with it."""
    files = [f.name.split(".") for f in (resources.files("echo_env.agents") / "prompts").iterdir()]
    names = {(f[0], f[1]) for f in files if len(f) == 3 and f[1] in languages and f"{f[0]}_".startswith(f"{role}_")}
    return [prompt(name, language).key for name, language in sorted(names)]
