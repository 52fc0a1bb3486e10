"""LiteLLM as this project uses it: quiet, without its own record of calls, and closed with the event loop.

Two things are done to be quick (`python benchmarks/llm_client.py` measures both). Neither patches LiteLLM; both are
tried out once, and where a version of it does not work so, calls go the plain way, slower.

- LiteLLM keeps books on every call: prices looked up by trial, payloads for callbacks, a worker that logs later. That
  is a third of its processor time, and copies of messages and keys in places that nobody here looks after. It takes the
  object that keeps them as an argument, `litellm_logging_obj`; ours keeps none.
- `litellm.acompletion` runs `litellm.main.completion`, told to be asynchronous, in a thread, since some providers block
  there. Own servers spoken to in OpenAI's language do not: for them it is called on the spot.
"""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from echo_env.agents.boundedbody import bounded_response
from echo_env.errors import missing_extra

if TYPE_CHECKING:
    from aiohttp import ClientSession


@cache
def litellm() -> ModuleType:
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
    # at its first calls it imports more of itself, and pydantic is not happy with some of that
    warnings.filterwarnings("ignore", ".* on TypedDict class ", UserWarning, "pydantic")
    return module


@cache
def _silent() -> Callable[[str], Any] | None:
    """Return what makes a call's silent books, None where LiteLLM does not take them."""
    litellm()
    try:
        from litellm.litellm_core_utils.litellm_logging import Logging

        class Silent(Logging):
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
def _goes_straight() -> bool:
    """Whether `litellm.main.completion` can be called on the spot: one call without a network says."""
    make = _silent()
    if make is None:
        return False
    try:
        from litellm.main import completion

        said = completion(
            model="hosted_vllm/any", api_base="http://127.0.0.1:9/v1", api_key="-", mock_response="yes",
            messages=[{"role": "user", "content": "?"}], acompletion=True, litellm_logging_obj=make("any"),
            litellm_call_id="-",
        )  # fmt: skip
        return bool(said.choices[0].message.content == "yes")
    except Exception:
        return False


def ready() -> None:
    """Import LiteLLM, and find out how it can be called; a few seconds at the first call.

    Raises:
        MissingExtra: It is not installed.
    """
    litellm()
    _goes_straight()


async def completion(model: str, own_server: bool, **arguments: Any) -> Any:
    """Return LiteLLM's response to one call; its errors pass."""
    arguments["shared_session"] = await session()
    make = _silent()
    if make is not None:
        arguments |= {"litellm_logging_obj": make(model), "litellm_call_id": "-"}
    if own_server and model.startswith(("hosted_vllm/", "openai/")) and _goes_straight():
        from litellm.main import completion as straight

        return await straight(model=model, acompletion=True, **arguments)
    return await litellm().acompletion(model=model, **arguments)


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
