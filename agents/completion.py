"""One call to a model through LiteLLM: the only place that knows it, and that a key passes."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from echo_env.agents.asks import ChatMessage, Failure
from echo_env.agents.modelconfig import ModelConfig
from echo_env.errors import ConfigError, missing_extra, redact
from echo_env.types import Usage

TRANSIENT: frozenset[Failure] = frozenset({"timeout", "rate_limit", "server", "connection", "cut"})
"""What another try may cure."""
NO_KEY = "none"
"""Sent to an own server for which no key is named: it must not get one that is meant for somebody else."""
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Request:
    """What goes to the model, beside what its configuration says."""

    messages: tuple[ChatMessage, ...]
    temperature: float
    max_tokens: int
    seed: int | None
    form: dict[str, Any]
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


@dataclass(frozen=True, slots=True)
class Fault:
    """Why nothing came back."""

    kind: Failure
    message: str
    retry_after: float | None = None
    """Seconds that the server asked for."""


@cache
def litellm() -> ModuleType:
    """Import LiteLLM so that it is quiet, and asks nobody on the network.

    Raises:
        MissingExtra: It is not installed.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else the import fetches prices
    try:
        import litellm as module
    except ImportError:
        raise missing_extra("litellm", "llm") from None
    module.suppress_debug_info = True
    module.telemetry = False
    return module


def key_of(config: ModelConfig) -> str | None:
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
    found = str(text)[: 20 * _SHOWN]
    key = os.environ.get(config.api_key_env or "", "").strip()
    found = redact(found.replace(key, "[redacted]") if key else found)
    return found if len(found) <= _SHOWN else found[:_SHOWN] + " ..."


async def complete(config: ModelConfig, request: Request) -> Completion | Fault:
    """Ask once.

    Raises:
        ConfigError: There is no key.
        MissingExtra: LiteLLM is not installed.
    """
    module = litellm()
    arguments = _arguments(config, request)
    try:
        async with asyncio.timeout(config.timeout):
            response = await module.acompletion(**arguments)
    except Exception as e:
        return _fault(e, config)
    try:
        return _completion(response, config)
    except Exception as e:
        return Fault("format", f"the response is not a chat completion: {shown(e, config)}")


def _arguments(config: ModelConfig, request: Request) -> dict[str, Any]:
    return {
        "model": config.model,
        "messages": [{"role": m.role, "content": m.content} for m in request.messages],
        "api_base": config.api_base,
        "api_key": key_of(config),
        "temperature": request.temperature,
        "top_p": config.top_p,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "timeout": config.timeout,
        "max_retries": 0,
        "num_retries": 0,
        "drop_params": True,  # what a provider does not know, `seed` for example, is left out
        **request.form,
        **config.extra,
    }


def _completion(response: Any, config: ModelConfig) -> Completion:
    choice = response.choices[0]
    message = choice.message
    calls = tuple((c.function.name or "", c.function.arguments or "") for c in message.tool_calls or ())
    used = getattr(response, "usage", None)
    cost = (getattr(response, "_hidden_params", None) or {}).get("response_cost")
    return Completion(
        text=message.content or "",
        thinking=getattr(message, "reasoning_content", None) or "",
        calls=calls,
        finish=choice.finish_reason or "",
        usage=Usage(
            calls=1,
            prompt_tokens=getattr(used, "prompt_tokens", 0) or 0,
            completion_tokens=getattr(used, "completion_tokens", 0) or 0,
            cost=cost,
        ),
    )


def _fault(error: Exception, config: ModelConfig) -> Fault:
    kind = _kind(error)
    if kind == "auth" and config.api_key_env is None and config.api_base is None:
        raise ConfigError(f"the model '{config.model}' needs a key: {shown(error, config)}", "name it in api_key_env")
    return Fault(kind, shown(error, config) or type(error).__name__, _retry_after(error))


def _kind(error: Exception) -> Failure:
    name = type(error).__name__
    status = getattr(error, "status_code", None)
    if name in ("Timeout", "TimeoutError", "APITimeoutError") or status == 408:
        return "timeout"
    if name == "APIConnectionError":
        return "connection"
    if name == "ContentPolicyViolationError":
        return "refused"
    if not isinstance(status, int):
        return "other"
    by_status: dict[int, Failure] = {401: "auth", 403: "auth", 429: "rate_limit"}
    return by_status.get(status, "server" if status >= 500 else "refused" if status >= 400 else "other")


def _retry_after(error: Exception) -> float | None:
    response = getattr(error, "response", None)
    for headers in (getattr(error, "litellm_response_headers", None), getattr(response, "headers", None)):
        value = (headers or {}).get("retry-after")
        try:
            if value is not None:
                return max(0.0, float(value))
        except ValueError:  # a date: the usual wait will do
            continue
    return None
