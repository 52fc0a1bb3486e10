"""How much may be asked of one model at a time: calls in flight, requests and tokens a minute.

Everything here is shared by all threads and event loops of the process. Waiters are futures of their own loop, and a
bucket is arithmetic on one clock, so that nothing is bound to a loop that may be gone.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from echo_env.agents.llm.config import ModelConfig

MINUTE = 60.0


class Bucket:
    """A token bucket whose holders queue by arithmetic: who takes more than is there is told how long to wait.

    The bucket holds a tenth of the limit and fills at such a rate that no minute sees more than the limit.

    Args:
        limit: Units a minute.
        clock: Seconds, monotonic.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = max(1.0, limit / 10)
        self.rate = (limit - self.size + 1) / MINUTE
        self._level, self._at = self.size, clock()
        self._clock, self._lock = clock, threading.Lock()

    def take(self, amount: float) -> float:
        """Take units, now or in advance, and return the seconds to wait until they are there.

        More than the bucket holds is let through once it is full, and paid off after.
        """
        with self._lock:
            now = self._clock()
            self._level = min(self.size, self._level + (now - self._at) * self.rate)
            self._at = now
            short = min(amount, self.size) - self._level
            self._level -= amount
            return max(0.0, short / self.rate)

    def give(self, amount: float) -> None:
        """Give back units that were not used; a negative amount takes what was used beyond."""
        with self._lock:
            self._level += amount


@dataclass(eq=False, slots=True)
class _Waiter:
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]
    ceiling: int


class Slots:
    """Calls in flight, first come, first served."""

    def __init__(self) -> None:
        self._taken = 0
        self._waiting: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    async def acquire(self, ceiling: int) -> None:
        """Wait until fewer than so many are in flight, and take a slot."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if not self._waiting and self._taken < ceiling:
                self._taken += 1
                return
            waiter = _Waiter(loop, loop.create_future(), ceiling)
            self._waiting.append(waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    def release(self) -> None:
        """Give a slot back."""
        with self._lock:
            self._taken -= 1
            self._admit()

    def _leave(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:  # it had been let in, from another thread perhaps, before it heard of it
                self._taken -= 1
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._taken < self._waiting[0].ceiling:
            waiter = self._waiting.popleft()
            try:
                waiter.loop.call_soon_threadsafe(_wake, waiter.future)
            except RuntimeError:  # its loop is closed: nobody waits
                continue
            self._taken += 1


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Lane:
    """The limits of one model on one server."""

    def __init__(self) -> None:
        self.slots = Slots()
        self._buckets: dict[tuple[str, int], Bucket] = {}
        self._closed_until = 0.0

    def bucket(self, unit: str, limit: int | None) -> Bucket | None:
        """Return the bucket of a limit; roles that name the same limit share it."""
        return None if limit is None else self._buckets.setdefault((unit, limit), Bucket(limit))

    def close_for(self, seconds: float) -> None:
        """Let nobody in for so long: the server asked for it."""
        self._closed_until = max(self._closed_until, time.monotonic() + seconds)

    @asynccontextmanager
    async def enter(self, config: ModelConfig, tokens: int) -> AsyncIterator[Callable[[int], None]]:
        """Hold a slot, after the limits a minute allowed it.

        Args:
            config: Whose limits.
            tokens: What the call is expected to take, its answer included.

        Yields:
            A function to call with the tokens that it took.
        """
        requests = self.bucket("requests", config.requests_per_minute)
        spent = self.bucket("tokens", config.tokens_per_minute)
        await self.slots.acquire(config.concurrency)
        try:
            wait = max(requests.take(1) if requests else 0.0, spent.take(tokens) if spent else 0.0)
            while (left := max(wait, self._closed_until - time.monotonic())) > 0:
                await asyncio.sleep(left)
                wait = 0.0
            yield lambda used: spent.give(tokens - used) if spent else None
        finally:
            self.slots.release()


_lanes: dict[tuple[int, str, str | None], Lane] = {}


def lane(config: ModelConfig) -> Lane:
    """Return the lane of a model, the same for everybody in the process; a fork has its own."""
    return _lanes.setdefault((os.getpid(), config.model, config.api_base), Lane())
