"""What a synthesis will take, before it starts: calls, tokens, and dollars where the price is known.

The prompts are rendered with the facets that were drawn; how long answers get is assumed (`USER`, `COMPANION`,
`DIRECTION`), without thinking. A token is taken for four ASCII characters, or one other.
"""

from __future__ import annotations

from dataclasses import dataclass

from echo_env.agents.llm.config import ModelConfig, ModelsConfig
from echo_env.agents.llm.quiet import litellm
from echo_env.agents.synthesis.facets import Plan
from echo_env.types import Record

USER, COMPANION, DIRECTION = 35, 60, 35
"""Tokens of one answer of each agent."""
FUNCTIONS = 150
"""Tokens of the director's functions as the model is told of them."""
SAMPLE = 200
"""Plans that are looked at; every facet comes as often as any other, so the rest are like them."""


class Estimate(Record):
    """What is to be expected."""

    conversations: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """US dollars; None where a price is not known."""
    unpriced: tuple[str, ...] = ()
    """Models whose price is not known."""


@dataclass(slots=True)
class _Sum:
    calls: float = 0.0
    read: float = 0.0
    written: float = 0.0

    def add(self, calls: float, read: float, written: float) -> None:
        self.calls, self.read, self.written = self.calls + calls, self.read + read, self.written + calls * written


def tokens_of(text: str) -> float:
    """Return about how many tokens a text has."""
    other = sum(not c.isascii() for c in text)
    return (len(text) - other) / 4 + other


def price_of(config: ModelConfig) -> tuple[float, float] | None:
    """Return what a token costs, read and written, in US dollars; None where it is not known.

    An own server that is sent no key costs nothing.

    Raises:
        MissingExtra: LiteLLM, which knows the prices, is not installed.
    """
    if config.api_base is not None and config.api_key_env is None:
        return (0.0, 0.0)
    prices = litellm().model_cost
    found = prices.get(config.model) or prices.get(config.model.removeprefix("openai/")) or {}
    read, written = found.get("input_cost_per_token"), found.get("output_cost_per_token")
    return None if read is None or written is None else (float(read), float(written))


def estimate(plans: list[Plan], models: ModelsConfig) -> Estimate:
    """Return what conversations will take.

    Raises:
        MissingExtra: LiteLLM, which knows the prices, is not installed.
    """
    sums = {role: _Sum() for role in ("user", "companion", "director")}
    for plan in plans[:SAMPLE]:
        _add(sums, plan)
    scale = len(plans) / max(1, min(len(plans), SAMPLE))
    cost: float | None = 0.0
    unpriced = []
    for role, found in sums.items():
        config = models.of(role)
        price = price_of(config)
        if price is None:
            unpriced.append(config.model)
        elif cost is not None:
            cost += scale * (found.read * price[0] + found.written * price[1])
    total = list(sums.values())
    return Estimate(
        conversations=len(plans),
        calls=round(scale * sum(s.calls for s in total)),
        prompt_tokens=round(scale * sum(s.read for s in total)),
        completion_tokens=round(scale * sum(s.written for s in total)),
        cost=None if unpriced else cost,
        unpriced=tuple(dict.fromkeys(unpriced)),
    )


def _add(sums: dict[str, _Sum], plan: Plan) -> None:
    """Add one conversation: with each exchange, every agent reads one exchange more."""
    n, exchange = (plan.shortest + plan.longest) / 2, USER + COMPANION
    before = exchange * n * (n - 1) / 2
    """Tokens of talk that lie before each exchange, over all of them."""
    user = sum(tokens_of(m.content) for m in plan.user_messages(plan.topics[0], "", "")) + DIRECTION
    director = sum(tokens_of(m.content) for m in plan.director_messages(0, 1, "", "")) + FUNCTIONS
    companion = tokens_of(plan.companion_system().content) + USER
    sums["user"].add(n, n * user + before, USER)
    sums["companion"].add(n, n * companion + before, COMPANION)
    sums["director"].add(n - 1, (n - 1) * director + before, DIRECTION)
