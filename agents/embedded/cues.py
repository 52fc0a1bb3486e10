"""Plain cues by which the embedded person takes a reply, from `sim_profiles/reactions/cues.yaml` and its like."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal

from echo_env.profiles import data_root
from echo_env.yamlfiles import read_yaml

Cue = Literal["blame", "slight", "offhand", "beside", "lecture", "advice", "request", "tag", "open"]
Fact = Literal["age", "name", "job", "place", "family"]


@lru_cache(maxsize=32)
def cue(kind: Cue, language: str = "en") -> re.Pattern[str]:
    """Return what finds a cue in plain lower-case text."""
    return re.compile("|".join(reactions("cues", language)[kind]))


@lru_cache(maxsize=4)
def personal(language: str = "en") -> tuple[tuple[Fact, re.Pattern[str]], ...]:
    """Return what finds questions about the person, by fact."""
    found = reactions("cues", language)["personal"]
    return tuple((fact, re.compile("|".join(forms))) for fact, forms in found.items())


@lru_cache(maxsize=8)
def reactions(name: str, language: str = "en") -> dict[str, Any]:
    """Read a file of `sim_profiles/reactions/` in a language."""
    stem = name if language == "en" else f"{name}_{language}"
    found: dict[str, Any] = read_yaml(data_root() / "reactions" / f"{stem}.yaml")
    return found
