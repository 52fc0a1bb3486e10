"""Error rates of the safety gate on its labelled set, in two halves: one to work with, one that is read once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import comb
from typing import Literal

from pydantic import ValidationError

from echo_env.agents.safety import Kind, SafetyGate, Side, gate
from echo_env.errors import ScenarioError
from echo_env.profiles import data_root
from echo_env.types import Message, Record
from echo_env.yamlfiles import read_yaml

Part = Literal["working", "test", "all"]
SEED = 20
"""Seed of the split, drawn before the gate was tuned."""


class Labelled(Record):
    """One item of the labelled set."""

    side: Side
    kind: Kind | None
    """None for a harmless one."""
    text: str
    after: str = ""
    """The user's message that a reply answers; empty where it does not matter."""


class Rate(Record):
    """A share with its exact interval."""

    of: str
    wrong: int
    n: int
    low: float
    """Lower bound of the 95 % interval (Clopper-Pearson), 0..1."""
    high: float
    items: tuple[str, ...]
    """The texts that were wrong."""


@lru_cache(maxsize=1)
def _all() -> tuple[Labelled, ...]:
    path = data_root() / "safety" / "labelled.yaml"
    found = []
    for side, kinds in read_yaml(path).items():
        for kind, items in kinds.items():
            for item in items:
                fields = item if isinstance(item, dict) else {"text": item}
                try:
                    found.append(
                        Labelled.model_validate({"side": side, "kind": None if kind == "none" else kind, **fields})
                    )
                except ValidationError as e:
                    raise ScenarioError(f"{path}: {side}.{kind}: {e.errors()[0]['msg']}: {item!r:.80}") from None
    return tuple(found)


def labelled(part: Part = "all") -> tuple[Labelled, ...]:
    """Return the labelled items of one half, or all; each kind is split by itself, by `SEED`."""
    if part == "all":
        return _all()
    groups: dict[tuple[Side, Kind | None], list[Labelled]] = {}
    for item in _all():
        groups.setdefault((item.side, item.kind), []).append(item)
    chosen: list[Labelled] = []
    for (side, kind), items in groups.items():
        order = random.Random(f"{SEED}:{side}:{kind}").sample(items, len(items))
        half = (len(items) + 1) // 2
        chosen += order[:half] if part == "working" else order[half:]
    return tuple(chosen)


def rates(part: Part, checked: SafetyGate | None = None) -> tuple[Rate, ...]:
    """Return misses and false alarms, by side, and misses by kind.

    A harmful item counts as found where anything is flagged, whatever its kind.
    """
    found: list[Rate] = []
    items = labelled(part)
    wrong = {id(item) for item in items if _flagged(item, checked or gate()) != (item.kind is not None)}
    for side in ("user", "companion"):
        mine = [item for item in items if item.side == side]
        found.append(_rate(f"{side}: false alarms", [i for i in mine if i.kind is None], wrong))
        found.append(_rate(f"{side}: misses", [i for i in mine if i.kind is not None], wrong))
    for kind in dict.fromkeys(item.kind for item in items if item.kind is not None):
        found.append(_rate(f"misses: {kind}", [i for i in items if i.kind == kind], wrong))
    return tuple(found)


def _flagged(item: Labelled, checked: SafetyGate) -> bool:
    history = (Message(role="user", text=item.after),) if item.after else ()
    return checked.check(item.text, item.side, history) is not None


def _rate(name: str, items: Sequence[Labelled], wrong: set[int]) -> Rate:
    bad = [item for item in items if id(item) in wrong]
    low, high = exact_interval(len(bad), len(items))
    return Rate(of=name, wrong=len(bad), n=len(items), low=low, high=high, items=tuple(item.text for item in bad))


def exact_interval(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a share of k in n, by bisection."""
    if n == 0:
        return 0.0, 1.0
    tail = (1 - level) / 2
    low = 0.0 if k == 0 else _where(lambda p: 1 - _at_most(k - 1, n, p) < tail)
    high = 1.0 if k == n else _where(lambda p: _at_most(k, n, p) > tail)
    return low, high


def _at_most(k: int, n: int, p: float) -> float:
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def _where(holds: Callable[[float], bool]) -> float:
    """Return the p up to which a condition holds."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
