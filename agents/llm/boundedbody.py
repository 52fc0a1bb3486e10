"""A bound on what one response may hold, so that a broken server cannot fill the memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import ClientResponse
    from aiohttp.client_reqrep import Connection

LARGEST = 8_000_000
"""Bytes of a response's body, unpacked; 32,000 tokens of Chinese, escaped, take a quarter of it."""


class TooLarge(Exception):
    """A response's body is larger than `LARGEST`."""


class _Counted:
    """A response's stream that ends with `TooLarge` where it runs on."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield the body in pieces of at most so many bytes, as LiteLLM reads it."""
        got = 0
        async for chunk in self._stream.iter_chunked(size):
            got += len(chunk)
            if got > LARGEST:
                raise TooLarge
            yield chunk


@cache
def bounded_response() -> type[ClientResponse]:
    """Return the class of responses for a session to use."""
    from aiohttp import ClientResponse

    class Bounded(ClientResponse):  # type: ignore[misc]  # mypy does not read aiohttp
        async def start(self, connection: Connection) -> ClientResponse:
            started = await super().start(connection)  # this response itself
            started.content = _Counted(started.content)
            return started

    return Bounded
