"""What a role's requests to language models came to, as `usage.json` of a run keeps it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pydantic import Field

from echo_env.types import Record, Usage


class RoleUsage(Record):
    """What one role's requests came to."""

    spent: Usage = Usage()
    """What models were paid for; nothing for what came from the cache."""
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
            retries=_sorted(Counter(self.retries) + Counter(other.retries)),
            failures=_sorted(Counter(self.failures) + Counter(other.failures)),
        )

    def since(self, earlier: RoleUsage) -> RoleUsage:
        """Return what came after an earlier count of the same."""
        return RoleUsage(
            spent=self.spent - earlier.spent,
            asks=self.asks - earlier.asks,
            cached=self.cached - earlier.cached,
            retries=_sorted(Counter(self.retries) - Counter(earlier.retries)),
            failures=_sorted(Counter(self.failures) - Counter(earlier.failures)),
        )

    @property
    def told(self) -> str:
        """All of it in a line."""
        parts = [f"{self.asks:,} asks", f"{self.cached:,} cached", f"{sum(self.retries.values()):,} retries"]
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.failures.items())
        parts.append(f"{sum(self.failures.values()):,} failed" + (f" ({kinds})" if kinds else ""))
        parts.append(f"{self.spent.prompt_tokens:,} + {self.spent.completion_tokens:,} tokens")
        parts.append("cost unknown" if self.spent.cost is None else f"${self.spent.cost:,.4f}")
        return ", ".join(parts)


UsageByRole = Mapping[str, RoleUsage]


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def total(*usages: UsageByRole) -> dict[str, RoleUsage]:
    """Return the sum by role."""
    summed: dict[str, RoleUsage] = {}
    for usage in usages:
        for role, one in usage.items():
            summed[role] = summed[role] + one if role in summed else one
    return dict(sorted(summed.items()))


def since(now: UsageByRole, earlier: UsageByRole) -> dict[str, RoleUsage]:
    """Return by role what came after an earlier count; roles that asked nothing are left out."""
    found = {role: one.since(earlier.get(role, RoleUsage())) for role, one in now.items()}
    return {role: one for role, one in found.items() if one.asks}
