"""Options that several commands share."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from echo_env.errors import ConfigError


class Format(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


class Part(StrEnum):
    """Halves of a labelled set: one to look at, one that is read once."""

    working = "working"
    test = "test"
    all = "all"


def key_values(pairs: list[str]) -> dict[str, Any]:
    """Return what `key=value` options say; a value is JSON where it can be, else a text.

    Raises:
        ConfigError: One is not of that form.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.isidentifier():
            raise ConfigError(f"an option is key=value, got '{pair}'", "for example  --option temperature=0.7")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found
