"""A Chinese scenario for tests, made from an English one: every text another Chinese sentence."""

from __future__ import annotations

import random
from typing import Any

from echo_env.profiles import Scenario, get_scenario

_CHARACTERS = [chr(c) for c in range(0x4E00, 0x9000)]
KEPT = {"id", "language", "split", "domain", "threshold", "axis", "kind", "feeling", "register", "defensiveness"}


def chinese() -> Scenario:
    """Return `career-01` with texts of Chinese characters drawn by chance, so that no two share a pair."""
    drawn = random.Random(0)

    def sentence() -> str:
        return "".join(drawn.sample(_CHARACTERS, 14)) + "\u3002"

    def told(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: told(v, k) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [told(v, key) for v in value]
        return sentence() if isinstance(value, str) and key not in KEPT else value

    data = told(get_scenario("career-01").model_dump(by_alias=True))
    return Scenario.model_validate({**data, "id": "zh-made", "language": "zh", "split": "benchmark-zh"})
