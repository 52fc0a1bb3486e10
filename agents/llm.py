"""The one network client: every role that a language model plays asks through it.

It limits, retries, repairs, shares and keeps: see `LlmClient.ask`. Everything that goes wrong on the way is an
`LlmFailure` with its kind; only what the user must mend (`ConfigError`, `MissingExtra`) and cancellation are not.
"""

from __future__ import annotations

import asyncio
import random
import threading

from echo_env.agents.asks import Answer, Ask, ChatMessage, Failure, LlmFailure, RoleUsage, Tool
from echo_env.agents.completion import TRANSIENT, Completion, Fault, Request, complete, shown
from echo_env.agents.limits import lane
from echo_env.agents.modelconfig import ModelConfig, ModelsConfig, models_config
from echo_env.agents.structured import Reading, form_of, read, repair, worded
from echo_env.types import Usage

__all__ = ["Answer", "Ask", "ChatMessage", "LlmClient", "LlmFailure", "RoleUsage", "Tool", "client_of"]

FIRST_WAIT = 0.5
"""Seconds before the second try, at most; it doubles with every further one."""
LONGEST_WAIT = 30.0
"""Seconds between two tries at most, whatever a server asks for."""


class LlmClient:
    """Asks the models of one configuration.

    Args:
        models: Which model plays which role.
    """

    def __init__(self, models: ModelsConfig) -> None:
        self.models = models
        self._random = random.Random()  # for waits alone
        self._tally: dict[str, RoleUsage] = {}
        self._lock = threading.Lock()

    def usage(self) -> dict[str, RoleUsage]:
        """Return by role what was asked, spent, retried and lost up to now."""
        with self._lock:
            return dict(self._tally)

    async def ask(self, ask: Ask, model: ModelConfig | None = None) -> Answer:
        """Return a usable answer.

        Args:
            ask: What is asked.
            model: Whom; None is the model of the ask's role.

        Raises:
            LlmFailure: There is none, after all tries and one repair.
            ConfigError: No key is there for the model.
            MissingExtra: LiteLLM is not installed.
        """
        config = model or self.models.of(ask.role)
        messages = worded(ask, config.structured)
        reading, usage = await self._read(ask, config, messages)
        attempts = 1
        if reading.kind in ("empty", "format", "check", "cut"):
            self._count(ask.role, retries=reading.kind)
            reading, more = await self._read(ask, config, repair(messages, reading, ask))
            usage, attempts = usage + more, 2
        if reading.kind is not None:
            raise LlmFailure(shown(reading.fault, config), kind=reading.kind, attempts=attempts)
        return Answer(reading.text, reading.parsed, reading.tool, reading.thinking, usage)

    async def _read(self, ask: Ask, config: ModelConfig, messages: tuple[ChatMessage, ...]) -> tuple[Reading, Usage]:
        request = Request(
            messages,
            config.temperature if ask.temperature is None else ask.temperature,
            ask.max_tokens or config.max_tokens,
            ask.seed,
            form_of(ask, config.structured),
        )
        got = await self._complete(ask.role, config, request)
        return read(ask, got, request.max_tokens), got.usage

    async def _complete(self, role: str, config: ModelConfig, request: Request) -> Completion:
        tokens = sum(len(m.content) for m in request.messages) // 4 + request.max_tokens
        for attempt in range(config.retries + 1):
            async with lane(config).enter(config, tokens) as took:
                got = await complete(config, request)
                if isinstance(got, Completion):
                    took(got.usage.prompt_tokens + got.usage.completion_tokens)
                    return got
            if got.kind not in TRANSIENT or attempt == config.retries:
                break
            self._count(role, retries=got.kind)
            await asyncio.sleep(self._wait(attempt, got))
        raise LlmFailure(got.message, kind=got.kind, attempts=attempt + 1)

    def _wait(self, attempt: int, fault: Fault) -> float:
        wait = FIRST_WAIT * 2**attempt * (0.5 + self._random.random() / 2)
        return min(max(wait, fault.retry_after or 0.0), LONGEST_WAIT)

    def _count(self, role: str, retries: Failure | None = None) -> None:
        pass


_clients: dict[str, LlmClient] = {}


def client_of(name_or_config: str | ModelsConfig) -> LlmClient:
    """Return the client of a configuration: one for all roles and conversations of the process."""
    config = models_config(name_or_config) if isinstance(name_or_config, str) else name_or_config
    return _clients.setdefault(config.model_dump_json(), LlmClient(config))
