"""LiteLLM as this project uses it: quiet, without its own record of calls, and closed with the event loop.

Two things are done to be quick (`python benchmarks/llm_client.py` shows what they save). Neither patches LiteLLM; where
a version of it does not have what they need, calls go its plain way, slower.

- LiteLLM keeps books on every call: prices looked up by trial, payloads for callbacks, a worker that logs later. That
  is a third of its processor time, and copies of messages and keys in places that nobody here looks after. It takes the
  object that keeps them as an argument, `litellm_logging_obj`; ours keeps none.
- Half of the rest goes, at each call, into finding out which of a hundred providers is meant and what its parameters
  are called, in a thread, since some providers block there. An own server spoken to in OpenAI's language needs none of
  that: it is asked through the layer below, LiteLLM's translation and HTTP handler of that provider.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from echo_env.agents.llm.boundedbody import bounded_response
from echo_env.errors import missing_extra

if TYPE_CHECKING:
    from aiohttp import ClientSession


@cache
def litellm() -> Any:
    """Import LiteLLM so that it is quiet, and asks nobody on the network.

    Raises:
        MissingExtra: It is not installed.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else the import fetches prices
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import litellm as module
    except ImportError:
        raise missing_extra("litellm", "llm") from None
    # else they tell of every call, with its URL, where another library has set the root's level to INFO
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx", "openai"):
        if logging.getLogger(name).level == logging.NOTSET:
            logging.getLogger(name).setLevel(logging.WARNING)
    module.suppress_debug_info = True  # else it prints where to file issues
    if "LITELLM_LOG" not in os.environ:  # else it tells of every call
        logging.getLogger("LiteLLM").setLevel(logging.WARNING)
    # at its first calls it imports more of itself, and pydantic is not happy with some of that
    warnings.filterwarnings("ignore", ".* on TypedDict class ", UserWarning, "pydantic")
    return module


@cache
def _silent() -> Callable[[str], Any] | None:
    """Return what makes a call's silent books, None where LiteLLM does not take them."""
    litellm()
    try:
        from litellm.litellm_core_utils.litellm_logging import Logging

        class Silent(Logging):  # type: ignore[misc]
            """Keeps no books. What is overridden is all that a successful or failed call does with them."""

            def pre_call(self, *args: Any, **kwargs: Any) -> None: ...
            def post_call(self, *args: Any, **kwargs: Any) -> None: ...
            def response_cost_calculator(self, *args: Any, **kwargs: Any) -> None: ...
            def set_per_call_pricing(self, *args: Any, **kwargs: Any) -> None: ...
            def handle_sync_success_callbacks_for_async_calls(self, *args: Any, **kwargs: Any) -> None: ...
            def failure_handler(self, *args: Any, **kwargs: Any) -> None: ...
            async def async_failure_handler(self, *args: Any, **kwargs: Any) -> None: ...
            async def async_success_handler(self, *args: Any, **kwargs: Any) -> None: ...

            def claim_async_success_log(self) -> bool:
                return False

        def make(model: str) -> Any:
            return Silent(
                model=model, messages=[], stream=False, call_type="acompletion",
                start_time=datetime.now(UTC).replace(tzinfo=None), litellm_call_id="-", function_id="-",
                litellm_trace_id="-",
            )  # fmt: skip

        make("any")
    except Exception:  # another version's books: leave them to it
        return None
    return make


@cache
def _straight(model: str) -> Callable[..., Coroutine[Any, Any, Any]] | None:
    """Return what asks an own server through LiteLLM's layer below; None where that cannot be done."""
    make = _silent()
    provider, _, name = model.partition("/")
    if make is None or provider not in ("hosted_vllm", "openai"):
        return None
    try:
        from litellm import LlmProviders, ModelResponse, Usage
        from litellm.llms.custom_httpx.llm_http_handler import BaseLLMHTTPHandler
        from litellm.utils import ProviderConfigManager

        handler = BaseLLMHTTPHandler()
        language = ProviderConfigManager.get_provider_chat_config(model=name, provider=LlmProviders(provider))

        def start(
            messages: list[dict[str, str]], fields: dict[str, Any], extra: dict[str, Any], **way: Any
        ) -> Coroutine[Any, Any, Any]:
            empty = ModelResponse()
            empty.usage = Usage()
            named = language.map_openai_params(dict(fields), {}, name, drop_params=True)
            return handler.completion(  # type: ignore[no-any-return]
                model=name, custom_llm_provider=provider, messages=messages, model_response=empty, encoding=None,
                optional_params={**named, **extra}, litellm_params={}, headers={}, provider_config=language,
                logging_obj=make(model), acompletion=True, **way,
            )  # fmt: skip

        message = {"role": "user", "content": "?"}
        start([message], {"seed": 0}, {}, api_base="http://127.0.0.1:9/v1", api_key="-", timeout=1.0).close()  # a trial
    except Exception:  # another version's inside: go the plain way
        return None
    return start


def ready(model: str) -> None:
    """Import LiteLLM, and find out how a model can be asked; a few seconds at the first call.

    Raises:
        MissingExtra: It is not installed.
    """
    litellm()
    _straight(model)
    _leave_alone()


@cache
def _leave_alone() -> None:
    """Keep the collector from going through all that LiteLLM brought, which stays: a sixth of a busy run's time."""
    gc.collect()
    gc.freeze()


async def completion(
    model: str,
    messages: list[dict[str, str]],
    fields: dict[str, Any],
    extra: dict[str, Any],
    *,
    api_base: str | None,
    api_key: str | None,
    timeout: float,
) -> Any:
    """Return LiteLLM's response to one call; its errors pass.

    Args:
        model: LiteLLM's name of the model.
        messages: As OpenAI's interface has them.
        fields: Sampling and form of the answer, in that interface's names.
        extra: Whatever else LiteLLM takes.
        api_base: URL of an own server.
        api_key: The key; None leaves it to LiteLLM's own variables.
        timeout: Seconds.
    """
    way = {"api_base": api_base, "api_key": api_key, "timeout": timeout, "shared_session": await session()}
    straight = _straight(model)
    if straight is not None and api_base is not None and extra.keys() <= {"extra_body"}:
        return await straight(messages, fields, extra, **way)
    make = _silent()
    if make is not None:
        way |= {"litellm_logging_obj": make(model), "litellm_call_id": "-"}
    # what a provider does not know, `seed` for example, is dropped
    way |= {"max_retries": 0, "num_retries": 0, "drop_params": True}
    return await litellm().acompletion(model=model, messages=messages, **{**way, **fields, **extra})


_sessions: dict[asyncio.AbstractEventLoop, tuple[ClientSession, AsyncGenerator[None, None]]] = {}


async def session() -> ClientSession:
    """Return the running loop's HTTP session, for all calls on it; it is closed when the loop shuts down.

    How many calls may be in flight is not its business (`limits`).
    """
    loop = asyncio.get_running_loop()
    known = _sessions.get(loop)
    if known is not None and not known[0].closed:
        return known[0]
    from aiohttp import ClientSession, DummyCookieJar, TCPConnector

    for dead in [other for other in list(_sessions) if other.is_closed()]:
        _sessions.pop(dead, None)
    made = ClientSession(
        connector=TCPConnector(limit=0), cookie_jar=DummyCookieJar(), response_class=bounded_response()
    )
    end = _at_the_end(loop, made)
    _sessions[loop] = (made, end)
    await anext(end)
    return made


async def _at_the_end(loop: asyncio.AbstractEventLoop, made: ClientSession) -> AsyncGenerator[None, None]:
    """Wait suspended until `asyncio.run` closes the loop's generators, the one hook that a loop's end has."""
    try:
        yield
    finally:
        _sessions.pop(loop, None)
        await made.close()
