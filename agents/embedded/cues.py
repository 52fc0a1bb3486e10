"""Plain cues by which the embedded person takes a reply, from `sim_profiles/reactions/cues.yaml`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal

from echo_env.profiles import data_root
from echo_env.yamlfiles import read_yaml

Cue = Literal["blame", "slight", "offhand", "beside", "lecture", "advice", "request", "tag", "open"]
Fact = Literal["age", "name", "job", "place", "family"]


@lru_cache(maxsize=16)
def cue(kind: Cue) -> re.Pattern[str]:
    """Return what finds a cue in plain lower-case text."""
    return re.compile("|".join(_data()[kind]))


@lru_cache(maxsize=1)
def personal() -> tuple[tuple[Fact, re.Pattern[str]], ...]:
    """Return what finds questions about the person, by fact."""
    return tuple((fact, re.compile("|".join(forms))) for fact, forms in _data()["personal"].items())


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    found: dict[str, Any] = read_yaml(data_root() / "reactions" / "cues.yaml")
    return found
