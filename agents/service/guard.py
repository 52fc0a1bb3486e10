"""What stands before the reward service: who may ask, how much, and how many at once.

Checked in this order, before anything is parsed: the Host header (a browser page that rebinds a name to this machine is
sent away), the bearer token, room in the queue, and the body, which is counted while it arrives. A request that takes
too long is answered so; what it asked for is seen out (`service.Bench`).
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from echo_env.agents.service.metrics import Answered, ServiceMetrics

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]

SCORING = frozenset({"/score", "/get_reward"})
ROUTES = frozenset({*SCORING, "/health", "/metrics"})
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""What a client on this machine calls it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the guard holds a request against."""

    token: str | None
    """Who asks must bear it; None where everybody on this machine may ask."""
    hosts: frozenset[str] | None
    """Names under which the service may be addressed, without ports; None for any."""
    max_body: int
    """Bytes."""
    inside: int
    """Scoring requests under way and waiting, together."""
    timeout: float
    """Seconds from a scoring request's head to its answer."""


class Refusal(Exception):
    """A request is answered without being looked at further."""

    def __init__(self, code: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Gone(Exception):
    """Who asked has hung up."""


class Guard:
    """ASGI middleware.

    Args:
        app: The service.
        limits: What to hold requests against.
        metrics: Where to count them.
    """

    def __init__(self, app: _App, limits: Limits, metrics: ServiceMetrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self._inside = 0

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in ROUTES else "other"
        with self.metrics.request(route) as answered:
            watched = _watch(send, answered)
            try:
                self._check(scope["headers"])
                if route in SCORING and scope["method"] == "POST":
                    await self._score(scope, receive, watched, answered)
                else:
                    await self.app(scope, receive, watched)
            except Refusal as e:
                await _refuse(watched, e)
            except Gone:
                answered.code = 499

    def _check(self, headers: list[tuple[bytes, bytes]]) -> None:
        host = _named(_first(headers, b"host").decode("latin-1"))
        if self.limits.hosts is not None and host not in self.limits.hosts:
            raise Refusal(421, "this service answers to the address that it printed at its start")
        if self.limits.token is not None:
            scheme, _, given = _first(headers, b"authorization").partition(b" ")
            wanted = self.limits.token.encode()
            if not (hmac.compare_digest(given.strip(), wanted) and scheme.lower() == b"bearer"):
                raise Refusal(401, "a bearer token is needed", www_authenticate="Bearer")

    async def _score(self, scope: _Message, receive: _Receive, send: _Send, answered: Answered) -> None:
        if self._inside >= self.limits.inside:
            raise Refusal(503, "too many requests wait already", retry_after="1")
        self._inside += 1
        try:
            async with asyncio.timeout(self.limits.timeout):
                body = await self._body(scope["headers"], receive)
                await self.app(scope, _again(body, receive), send)
        except TimeoutError:
            if answered.begun:
                raise
            late = f"not scored within {self.limits.timeout:g} seconds"
            raise Refusal(504, late, retry_after="1", connection="close") from None
        finally:
            self._inside -= 1

    async def _body(self, headers: list[tuple[bytes, bytes]], receive: _Receive) -> bytes:
        told = _first(headers, b"content-length")
        size = int(told) if told.isdigit() and len(told) < 20 else 0
        chunks: list[bytes] = []
        read, more = 0, True
        while more and max(size, read) <= self.limits.max_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            chunks.append(message.get("body", b""))
            read, more = read + len(chunks[-1]), message.get("more_body", False)
        if max(size, read) > self.limits.max_body:
            raise Refusal(413, f"a body holds at most {self.limits.max_body} bytes", connection="close")
        return b"".join(chunks)


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _first(headers: list[tuple[bytes, bytes]], name: bytes) -> bytes:
    return next((value for key, value in headers if key == name), b"")


def _named(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def _watch(send: _Send, answered: Answered) -> _Send:
    async def watched(message: _Message) -> None:
        if message["type"] == "http.response.start":
            answered.code, answered.begun = message["status"], True
        await send(message)

    return watched


def _again(body: bytes, receive: _Receive) -> _Receive:
    """Return a `receive` that gives a body which was read already, then what comes after it."""
    left = [body]

    async def again() -> _Message:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return again


async def _refuse(send: _Send, refusal: Refusal) -> None:
    body = json.dumps({"detail": refusal.detail}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.code, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
