"""The one network client: every role that a language model plays asks through it.

It limits, retries, repairs, shares and keeps: see `LlmClient.ask`. Everything that goes wrong on the way is an
`LlmFailure` with its kind; only what the user must mend (`ConfigError`, `MissingExtra`) and cancellation are not.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from echo_env.agents.llm.asks import Answer, Ask, ChatMessage, Failure, LlmFailure, Tool
from echo_env.agents.llm.cache import AnswerFolder, Unreadable, key_of, request_of
from echo_env.agents.llm.completion import Completion, Request, complete, shown
from echo_env.agents.llm.config import ModelConfig, ModelsConfig, models_config
from echo_env.agents.llm.limits import lane
from echo_env.agents.llm.structured import checked, form_of, read, repair, worded
from echo_env.agents.llm.tally import Tally
from echo_env.errors import missing_extra
from echo_env.types import Usage
from echo_env.usage import RoleUsage, total

__all__ = ["Answer", "Ask", "ChatMessage", "LlmClient", "LlmFailure", "RoleUsage", "Tool", "client_of", "usage_of_all"]

FIRST_WAIT = 0.5
"""Seconds before the second try, at most; it doubles with every further one."""
REPAIRED: frozenset[Failure] = frozenset({"empty", "format", "check", "cut"})
"""What is wrong with an answer that the model may mend."""
LONGEST_WAIT = 30.0
"""Seconds between two tries at most, whatever a server asks for."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Flight:
    """A request under way, and how many wait for it."""

    task: asyncio.Task[Answer]
    waiting: int = 0


class LlmClient:
    """Asks the models of one configuration; for any number of conversations, threads and event loops.

    Args:
        models: Which model plays which role.
    """

    def __init__(self, models: ModelsConfig) -> None:
        self.models = models
        self.warnings: list[str] = []
        """What went wrong beside the answers, each once: answers that could not be kept."""
        self._folder = AnswerFolder(models.cache.place())
        self._random = random.Random()  # for waits alone
        self._tally = Tally()
        self._flights: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Flight]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Callable[[ModelsConfig], LlmClient], tuple[ModelsConfig]]:
        """Copy and pickle as its configuration: whoever copies an environment under way shares limits and answers."""
        return client_of, (self.models,)

    def usage(self) -> dict[str, RoleUsage]:
        """Return by role what was asked, spent, retried and lost up to now."""
        return self._tally.by_role()

    async def ask(self, ask: Ask, model: ModelConfig | None = None) -> Answer:
        """Return a usable answer.

        It comes from the cache where that holds one; else from a call under way for the same request; else the model is
        asked, again after what another try may cure (429, 5xx, timeouts, lost connections), and once more where its
        answer could not be used, told why. Only what could be used is kept.

        Args:
            ask: What is asked.
            model: Whom; None is the model of the ask's role.

        Raises:
            LlmFailure: There is no usable answer.
            ConfigError: No key is there for the model.
            MissingExtra: LiteLLM is not installed.
        """
        config = model or self.models.of(ask.role)
        request = request_of(ask, config)
        key = key_of(request)
        try:
            answer = self._kept(key, ask)
            cached = answer is not None
            if answer is None:
                answer, cached = await self._shared(key, request, ask, config)
        except LlmFailure as e:
            self._tally.failed(ask.role, e.kind)
            raise
        self._tally.answered(ask.role, cached)
        return answer

    def _kept(self, key: str, ask: Ask) -> Answer | None:
        mode = self.models.cache.mode
        if mode in ("off", "record"):
            return None
        try:
            found = self._folder.find(key, ask)
            wrong = checked(ask, found.parsed) if found is not None and found.parsed is not None else ""
        except Unreadable as e:
            found, wrong = None, f"the cassette holds no readable answer: {e}"
        if mode == "replay" and (found is None or wrong):
            message = wrong or f"the cassette holds no answer to this request of the role '{ask.role}' ({key[:12]})"
            raise LlmFailure(
                message, f"record it: cache mode `auto` or `record`, folder {self._folder.folder}", "replay_miss"
            )
        return None if wrong else found

    async def _shared(self, key: str, request: dict[str, Any], ask: Ask, config: ModelConfig) -> tuple[Answer, bool]:
        """Return the answer of the one call for a request, and whether another ask had started it.

        The call is a task of its own, so that who gives up waiting does not take it from the others; the last to give
        up ends it.
        """
        flights = self._flights.setdefault(asyncio.get_running_loop(), {})
        flight = flights.get(key)
        joined = flight is not None
        if flight is None:
            flight = flights[key] = _Flight(asyncio.create_task(self._ask(key, request, ask, config)))
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task), joined
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                if flights.get(key) is flight:
                    del flights[key]
                await _end(flight.task)

    async def _ask(self, key: str, request: dict[str, Any], ask: Ask, config: ModelConfig) -> Answer:
        messages, usage, tries = worded(ask, config.structured), Usage(), 0
        for last in (False, True):
            got = await self._complete(ask, config, messages, tries)
            tries, usage = got.tries, usage + got.usage
            reading = read(ask, got, ask.max_tokens or config.max_tokens)
            if last or reading.kind not in REPAIRED:
                break
            self._tally.retried(ask.role, reading.kind)
            messages = repair(messages, reading, ask)
        if reading.kind is not None:
            raise LlmFailure(shown(reading.fault, config), kind=reading.kind, attempts=tries)
        answer = Answer(reading.text, reading.parsed, reading.tool, reading.thinking, usage)
        if self.models.cache.mode != "off":
            self._keep(key, request, answer)
        return answer

    def _keep(self, key: str, request: dict[str, Any], answer: Answer) -> None:
        try:
            self._folder.keep(key, request, answer)
        except OSError as e:
            if not self.warnings:
                self.warnings.append(f"answers cannot be kept in {self._folder.folder}: {e.strerror or e}")
                _log.warning("%s", self.warnings[0])

    async def _complete(
        self, ask: Ask, config: ModelConfig, messages: tuple[ChatMessage, ...], tries: int
    ) -> Completion:
        """Ask until the model answers; `tries` is how many calls the ask has made before."""
        request = Request(
            messages,
            config.temperature if ask.temperature is None else ask.temperature,
            ask.max_tokens or config.max_tokens,
            ask.seed,
            form_of(ask, config.structured, own_server=config.api_base is not None),
        )
        tokens = sum(len(m.content) for m in messages) // 4 + request.max_tokens
        way = lane(config)
        for attempt in count():
            async with way.enter(config, tokens) as took:
                got = await complete(config, request)
                took(got.usage.prompt_tokens + got.usage.completion_tokens if isinstance(got, Completion) else 0)
            if isinstance(got, Completion):
                self._tally.spent(ask.role, got.usage)
                return replace(got, tries=tries + attempt + 1)
            if not got.transient or attempt == config.retries:
                raise LlmFailure(got.message, _HINTS.get(got.kind, ""), got.kind, tries + attempt + 1)
            self._tally.retried(ask.role, got.kind)
            if got.kind == "rate_limit" and got.retry_after:
                way.close_for(min(got.retry_after, LONGEST_WAIT))
            await asyncio.sleep(pause(attempt, got.retry_after, self._random.random()))
        raise AssertionError("the loop ends by itself")


def pause(attempt: int, asked: float | None, chance: float) -> float:
    """Return the seconds between a try and the next.

    Args:
        attempt: Number of the try that failed, 0 for the first; the pause doubles with each.
        asked: What the server asked for (Retry-After); never less than that.
        chance: 0 to 1; the pause lies between half and all of its length, so that calls which failed together do not
            come back together.
    """
    doubled = FIRST_WAIT * float(2**attempt)
    return min(max(doubled * (1 + chance) / 2, asked or 0.0), LONGEST_WAIT)


async def _end(task: asyncio.Task[Answer]) -> None:
    """Cancel a task that nobody waits for, unless it is done, and see it out: its slot is free then."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # seen: the loop need not complain that nobody looked


_HINTS: dict[Failure, str] = {
    "connection": "is the server running, and is its address (api_base) right?",
    "timeout": "raise `timeout`, or lower `concurrency`, in the models file",
    "rate_limit": "lower `concurrency`, or set `requests_per_minute`, in the models file",
    "auth": "is the variable that `api_key_env` names the right one?",
}
_clients: dict[str, LlmClient] = {}


def client_of(name_or_config: str | ModelsConfig) -> LlmClient:
    """Return the client of a configuration: one for all roles and conversations of the process.

    Args:
        name_or_config: A configuration, or what stands behind `llm:` (`models_config`).

    Raises:
        ConfigError: The configuration cannot be read.
        MissingExtra: LiteLLM is not installed, and not all answers are to come from the cassette.
    """
    config = models_config(name_or_config) if isinstance(name_or_config, str) else name_or_config
    if config.cache.mode != "replay" and "litellm" not in sys.modules and find_spec("litellm") is None:
        raise missing_extra("litellm", "llm")  # here and not at the first call, where a judge's is a recorded failure
    return _clients.setdefault(config.model_dump_json(), LlmClient(config))


def usage_of_all() -> dict[str, RoleUsage]:
    """Return by role what all clients of this process came to."""
    return total(*(client.usage() for client in list(_clients.values())))
