"""What the calls of each role came to: asked, spent, retried, lost."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from pydantic import Field

from echo_env.agents.asks import Failure
from echo_env.types import Record, Usage


class RoleUsage(Record):
    """What one role's requests came to."""

    spent: Usage = Usage()
    """What models were paid for in this process; nothing for what came from the cache."""
    asks: int = 0
    """Requests of the role, answered or not."""
    cached: int = 0
    """Answers that were there already, on the disk or from a call under way."""
    retries: dict[str, int] = Field(default_factory=dict)
    """Further calls, by what had gone wrong before; `format`, `check`, `empty` and `cut` also count repairs."""
    failures: dict[str, int] = Field(default_factory=dict)
    """Asks without a usable answer in the end, by kind."""

    def __add__(self, other: RoleUsage) -> RoleUsage:
        """Return the sum."""
        return RoleUsage(
            spent=self.spent + other.spent,
            asks=self.asks + other.asks,
            cached=self.cached + other.cached,
            retries=dict(Counter(self.retries) + Counter(other.retries)),
            failures=dict(Counter(self.failures) + Counter(other.failures)),
        )


@dataclass(slots=True)
class _Count:
    spent: Usage = field(default_factory=Usage)
    asks: int = 0
    cached: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)


class Tally:
    """Counts by role; threads may share it."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}
        self._lock = threading.Lock()

    def answered(self, role: str, cached: bool) -> None:
        """Count an answered ask."""
        with self._lock:
            count = self._of(role)
            count.asks += 1
            count.cached += cached

    def failed(self, role: str, kind: Failure) -> None:
        """Count an ask that came to nothing."""
        with self._lock:
            count = self._of(role)
            count.asks += 1
            count.failures[kind] += 1

    def retried(self, role: str, kind: Failure) -> None:
        """Count another try, or a repair."""
        with self._lock:
            self._of(role).retries[kind] += 1

    def spent(self, role: str, usage: Usage) -> None:
        """Count what a call took."""
        with self._lock:
            count = self._of(role)
            count.spent = count.spent + usage

    def by_role(self) -> dict[str, RoleUsage]:
        """Return the counts up to now."""
        with self._lock:
            return {
                role: RoleUsage(
                    spent=c.spent, asks=c.asks, cached=c.cached, retries=dict(sorted(c.retries.items())),
                    failures=dict(sorted(c.failures.items())),
                )
                for role, c in sorted(self._counts.items())
            }  # fmt: skip

    def _of(self, role: str) -> _Count:
        return self._counts.setdefault(role, _Count())
