"""Names to implementations. Nothing is imported until it is asked for.

A target is "module:attribute". Three ways to add one: `register`, an entry point in the group `echo_env.<kind>`, or
giving "module:attribute" itself wherever a name is taken.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Literal

from echo_env.errors import ConfigError, unknown_name

RegisteredKind = Literal["backend", "judge", "actor", "director", "policy", "recipe"]

KINDS: tuple[RegisteredKind, ...] = ("backend", "judge", "actor", "director", "policy", "recipe")

_TARGETS: dict[str, dict[str, str]] = {
    "backend": {"embedded": "echo_env.agents.embedded:cast"},
    "judge": {"embedded": "echo_env.agents.gated:embedded"},
    "actor": {"embedded": "echo_env.agents.embedded.actor:EmbeddedActor"},
    "director": {"embedded": "echo_env.agents.embedded.director:EmbeddedDirector"},
    "policy": {
        "silent": "echo_env.agents.embedded.policies:Silent",
        "template": "echo_env.agents.embedded.policies:Template",
        "adviser": "echo_env.agents.embedded.policies:Adviser",
        "lecturer": "echo_env.agents.embedded.policies:Lecturer",
        "stuffer": "echo_env.agents.embedded.policies:Stuffer",
        "parrot": "echo_env.agents.embedded.policies:Parrot",
        "skilled": "echo_env.agents.embedded.skilled:Skilled",
        "smollm2-135m": "echo_env.agents.smollm2:smollm2_135m",
    },
    "recipe": {"epm": "echo_env.rewards:epm"},
}


def register(kind: RegisteredKind, name: str, target: str) -> None:
    """Add or replace a name.

    Args:
        kind: What it is.
        name: How configurations and the command line call it.
        target: "module:attribute".
    """
    if ":" not in target:
        raise ConfigError(f"the target '{target}' of {kind} '{name}' is not of the form 'module:attribute'")
    _TARGETS[kind][name] = target


def names(kind: RegisteredKind) -> list[str]:
    """Return the known names of a kind, entry points included, sorted."""
    return sorted({*_TARGETS[kind], *(e.name for e in entry_points(group=f"echo_env.{kind}"))})


def resolve(kind: RegisteredKind, name: str) -> object:
    """Import and return what a name stands for.

    Raises:
        ConfigError: The name is unknown (with the nearest spelling), or its target cannot be imported.
    """
    target = _TARGETS[kind].get(name) or (name if ":" in name else None)
    if target is None:
        found = [e.value for e in entry_points(group=f"echo_env.{kind}", name=name)]
        if not found:
            raise unknown_name(kind, name, names(kind))
        target = found[0]
    try:
        return load(target)
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"{kind} '{name}' cannot be loaded from '{target}': {e}") from e


def load(target: str) -> object:
    """Import "module:attribute". The one way in which `echo_env` reaches into the layers above it."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
