"""What the reward service counts, for Prometheus: requests, replies, failures, and what judges cost.

A registry of its own, none of the process: two services in one process do not mix. What language models took is read
from the network client's books at the moment of the scrape, so that an answer from the cache costs nothing here either.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echo_env.agents.scoring import Scored

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from echo_env.usage import RoleUsage

SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 5.0, 15.0, 60.0, 150.0)
"""Bounds of the latency histogram: from a reply judged in process to a batch that waited for a model."""
_FAULT = re.compile(r"([\w-]{1,40}): (?:(\w{1,60}): )?")


@dataclass(slots=True)
class Answered:
    """What a request was answered with; 500 until something says otherwise."""

    code: int = 500
    begun: bool = False
    """Whether the answer's head is on its way."""


class ServiceMetrics:
    """The counters of one service."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        own = self.registry
        self._requests = Counter("echo_env_requests", "Requests answered.", ("route", "code"), registry=own)
        self._seconds = Histogram(
            "echo_env_request_seconds", "From the request's first byte to its answer.", ("route",), buckets=SECONDS,
            registry=own,
        )  # fmt: skip
        self._inside = Gauge("echo_env_in_flight", "Requests under way, queued ones included.", registry=own)
        self._replies = Counter("echo_env_replies", "Replies scored.", ("rewarded",), registry=own)
        self._failures = Counter(
            "echo_env_failures", "What was missing, by who failed.", ("role", "kind"), registry=own
        )
        own.register(LlmBooks())

    @contextmanager
    def request(self, route: str) -> Iterator[Answered]:
        """Count a request and the time that it takes."""
        answered = Answered()
        with self._inside.track_inprogress(), self._seconds.labels(route).time():
            try:
                yield answered
            finally:
                self._requests.labels(route, str(answered.code)).inc()

    def scored(self, results: Sequence[Scored]) -> None:
        """Count scored replies, those without a reward apart, and what they lacked."""
        for result in results:
            self._replies.labels("no" if result.reward is None else "yes").inc()
            if result.reward is None:
                for role, kind in faults(result):
                    self._failures.labels(role, kind).inc()

    def page(self) -> bytes:
        """Return the counters in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)


def faults(result: Scored) -> list[tuple[str, str]]:
    """Return who failed at a reply, and of what kind that was: ("judge", "RoleFailure")."""
    texts = [v.failure for v in result.verdicts if v.failure] or [result.failure]
    found = [_FAULT.match(text) for text in texts]
    return [(m.group(1), m.group(2) or "missing") if m else ("recipe", "missing") for m in found]


class LlmBooks:
    """Collects what language models took in this process; nothing where none was asked."""

    def collect(self) -> Iterable[Metric]:
        """Yield calls, tokens, cost and failures by role."""
        from prometheus_client.core import CounterMetricFamily as Family

        calls = Family("echo_env_llm_calls", "Calls that a model answered.", labels=("role",))
        tokens = Family("echo_env_llm_tokens", "Tokens of those calls.", labels=("role", "side"))
        cost = Family("echo_env_llm_cost_dollars", "Their cost, where prices are known.", labels=("role",))
        cached = Family("echo_env_llm_cached", "Answers that were there already.", labels=("role",))
        failures = Family("echo_env_llm_failures", "Asks without a usable answer.", labels=("role", "kind"))
        for role, usage in llm_usage().items():
            calls.add_metric((role,), usage.spent.calls)
            tokens.add_metric((role, "prompt"), usage.spent.prompt_tokens)
            tokens.add_metric((role, "completion"), usage.spent.completion_tokens)
            if usage.spent.cost is not None:
                cost.add_metric((role,), usage.spent.cost)
            cached.add_metric((role,), usage.cached)
            for kind, count in usage.failures.items():
                failures.add_metric((role, kind), count)
        return (calls, tokens, cost, cached, failures)


def llm_usage() -> dict[str, RoleUsage]:
    """Return the books of this process's network clients, by role; empty where none was built."""
    if "echo_env.agents.llm.client" not in sys.modules:
        return {}
    from echo_env.agents.llm.client import usage_of_all

    return usage_of_all()
