"""One call to a model: what is sent, what comes back, and what can go wrong; the one place that a key passes."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from echo_env.agents.llm.asks import ChatMessage, Failure
from echo_env.agents.llm.boundedbody import LARGEST
from echo_env.agents.llm.config import ModelConfig
from echo_env.agents.llm.quiet import completion, litellm, ready
from echo_env.errors import ConfigError, redact
from echo_env.types import Usage, storable

NO_KEY = "none"
"""Sent to an own server for which no key is named: it must not get one that is meant for somebody else."""
SHOWN = 300
"""Characters of a foreign text that an error shows."""

_BY_CAUSE: dict[str, Failure] = {
    "TooLarge": "too_long",
    "ClientPayloadError": "cut",
    "TimeoutError": "timeout",
    "Timeout": "timeout",
    "APITimeoutError": "timeout",
    "ContentPolicyViolationError": "refused",
    "ReadError": "connection",
    "WriteError": "connection",
    "ConnectError": "connection",
    "RemoteProtocolError": "connection",
    "ServerDisconnectedError": "connection",
    "ConnectionResetError": "connection",
    "JSONDecodeError": "format",
}
"""What went wrong, by the name of an error in the chain of causes, the first of these that is in it."""
_KEYLESS = re.compile(r"missing credentials|api[_ ]key", re.IGNORECASE)
_BY_STATUS: dict[int, Failure] = {401: "auth", 403: "auth", 408: "timeout", 429: "rate_limit"}


@dataclass(frozen=True, slots=True)
class Request:
    """What goes to the model, beside what its configuration says."""

    messages: tuple[ChatMessage, ...]
    temperature: float
    max_tokens: int
    seed: int | None = None
    form: dict[str, Any] = field(default_factory=dict)
    """Response format, or tools and their choice; as OpenAI's interface names them."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back."""

    text: str
    thinking: str
    calls: tuple[tuple[str, str], ...]
    """Name and arguments, as text, of each called tool."""
    finish: str
    usage: Usage
    tries: int = 1
    """Calls up to this one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why nothing came back."""

    kind: Failure
    message: str
    retry_after: float | None = None
    """Seconds that the server asked for."""

    @property
    def transient(self) -> bool:
        """Whether another try may cure it; a response that is no JSON is a broken server's, and not the model's."""
        return self.kind in ("timeout", "rate_limit", "server", "connection", "cut", "format")


def secret_of(config: ModelConfig) -> str | None:
    """Return the key that a model is asked with; None leaves it to LiteLLM's own variables.

    Raises:
        ConfigError: The named variable is not set.
    """
    if config.api_key_env is None:
        return NO_KEY if config.api_base else None
    key = os.environ.get(config.api_key_env, "").strip()
    if not key:
        raise ConfigError(
            f"the model '{config.model}' needs a key, and the environment variable {config.api_key_env} is not set",
            f"export {config.api_key_env}=...",
        )
    return key


def shown(text: object, config: ModelConfig) -> str:
    """Return a short text without keys, for an error or a record."""
    found = redact(_clean(str(text)[: 20 * SHOWN].partition("Traceback (most recent")[0].strip(), config))
    return found if len(found) <= SHOWN else found[:SHOWN] + " ..."


def _clean(text: str | None, config: ModelConfig) -> str:
    """Return what a server said as a record may hold it: storable, and without the key, should it repeat that."""
    found, key = storable(text or ""), os.environ.get(config.api_key_env or "", "").strip()
    return found.replace(key, "[redacted]") if key and key in found else found


async def complete(config: ModelConfig, request: Request) -> Completion | Fault:
    """Ask once.

    Raises:
        ConfigError: There is no key.
        MissingExtra: LiteLLM is not installed.
    """
    ready(
        config.model
    )  # out here: that LiteLLM is not installed is no failure of a call, and to import it takes no call's time
    messages = [{"role": m.role, "content": storable(m.content)} for m in request.messages]
    key = secret_of(config)
    lost: Exception
    try:
        async with asyncio.timeout(config.timeout):
            response = await completion(
                config.model, messages, _fields(config, request), config.extra,
                api_base=config.api_base, api_key=key, timeout=config.timeout,
            )  # fmt: skip
        return _completion(response, config)
    except Exception as e:
        lost = e
    # outside of the handler: an error raised there would carry LiteLLM's, and with it the request and its key
    if _wants_a_key(lost, config):
        raise ConfigError(
            f"the model '{config.model}' needs a key: {shown(lost, config)}",
            "set the provider's variable, or name one in api_key_env",
        )
    return _fault(lost, config)


def _fields(config: ModelConfig, request: Request) -> dict[str, Any]:
    fields = {"temperature": request.temperature, "max_tokens": request.max_tokens, **request.form}
    if config.top_p < 1:  # some models refuse it beside a temperature
        fields["top_p"] = config.top_p
    if request.seed is not None:
        fields["seed"] = request.seed
    return fields


def _completion(response: Any, config: ModelConfig) -> Completion | Fault:
    if not response.choices:
        return Fault("format", "the response holds no choice")
    choice = response.choices[0]
    message, used = choice.message, getattr(response, "usage", None)
    usage = Usage(
        calls=1,
        prompt_tokens=getattr(used, "prompt_tokens", 0) or 0,
        completion_tokens=getattr(used, "completion_tokens", 0) or 0,
        cost=_cost(response, config),
    )
    called = [c.function for c in message.tool_calls or ()]
    return Completion(
        text=_clean(message.content, config),
        thinking=_clean(getattr(message, "reasoning_content", None), config),
        calls=tuple((_clean(c.name, config), _clean(c.arguments, config)) for c in called),
        finish=choice.finish_reason or "",
        usage=usage,
    )


def _cost(response: Any, config: ModelConfig) -> float | None:
    """Return what a call cost, in US dollars; None where LiteLLM's map holds no price of the model."""
    if not _is_priced(config.model):
        return None
    try:
        cost = float(litellm().completion_cost(completion_response=response, model=config.model))
        return cost if math.isfinite(cost) else None
    except Exception:  # a price that LiteLLM cannot work out is one that is not known
        return None


@lru_cache(maxsize=64)
def _is_priced(model: str) -> bool:
    prices = litellm().model_cost
    return model in prices or (model.startswith("openai/") and model.removeprefix("openai/") in prices)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _fault(error: Exception, config: ModelConfig) -> Fault:
    kind = _kind(error)
    own_words: dict[Failure, str] = {  # what the libraries say differs from run to run
        "timeout": f"no answer within {config.timeout:g} seconds",
        "connection": "the connection could not be made, or was lost",
        "cut": "the response ended before its end",
        "too_long": f"more than {LARGEST:,} bytes came",
    }
    if "LLM Provider NOT provided" in str(error):
        told = f"LiteLLM knows no model '{config.model}'; write PROVIDER/MODEL, or hosted_vllm/MODEL@URL for a server"
        return Fault(kind, told)
    return Fault(kind, own_words.get(kind) or shown(error, config) or type(error).__name__, _retry_after(error))


def _kind(error: Exception) -> Failure:
    names = {type(e).__name__ for e in _chain(error)}
    for name, kind in _BY_CAUSE.items():
        if name in names:
            return kind
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return "format" if "Invalid response object" in str(error) else "other"  # JSON, but no chat completion
    return _BY_STATUS.get(status, "server" if status >= 500 else "refused" if status >= 400 else "other")


def _wants_a_key(error: Exception, config: ModelConfig) -> bool:
    """Whether LiteLLM found no key; a server that refuses one is a failure like others."""
    if config.api_key_env is not None or config.api_base is not None:
        return False
    asked = any(type(e).__name__ == "HTTPStatusError" for e in _chain(error))
    return not asked and (_kind(error) == "auth" or bool(_KEYLESS.search(str(error))))


def _retry_after(error: Exception) -> float | None:
    for cause in _chain(error):
        answered = getattr(cause, "response", None)
        for place, name in ((cause, "headers"), (answered, "headers"), (cause, "litellm_response_headers")):
            headers = getattr(place, name, None)
            try:
                return max(0.0, float(headers["retry-after"]))  # type: ignore[index]
            except (TypeError, KeyError, ValueError):  # no headers, not said, or a date: the usual wait will do
                continue
    return None
