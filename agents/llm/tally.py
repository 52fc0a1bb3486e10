"""What the calls of each role came to: asked, spent, retried, lost."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from echo_env.agents.llm.asks import Failure
from echo_env.types import Usage
from echo_env.usage import RoleUsage


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
