"""Driving coroutines from synchronous code: `env.step()` over roles that answer at once, or wait for a remote model.

A role that waits says so with `waits = True`. Roles that never wait are driven on the spot, without an event loop,
which also works where one is running already (a notebook). The others run on one loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")


def waits(*roles: object) -> bool:
    """Return whether any of these roles may wait for something outside this process."""
    return any(getattr(role, "waits", False) for role in roles)


def drive(coroutine: Coroutine[Any, Any, T], *, waiting: bool) -> T:
    """Run a coroutine to its end from synchronous code.

    Args:
        coroutine: What to run.
        waiting: Whether it may wait; else it is run on the spot.
    """
    if not waiting:
        return run_now(coroutine)
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop(os.getpid()))
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


@lru_cache(maxsize=1)
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Return this process's loop for `drive`; a fork starts its own, since threads do not survive one."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="echo-env-loop", daemon=True).start()
    return loop


async def both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U], *, waiting: bool) -> tuple[T, U]:
    """Await two coroutines: at once where one may wait, else one after the other and without a loop."""
    if waiting:
        first, second = await asyncio.gather(one, other)
        return first, second
    return await one, await other


async def all_or_none(workers: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run workers at once; a bug in one ends them all, and is raised as it is."""
    tasks = [asyncio.ensure_future(worker) for worker in workers]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, without an event loop (which a notebook has running already).

    Raises:
        RuntimeError: It did wait, on a remote role for example.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError(
        "this conversation waits for a role that does not say so: give the role  waits = True,"
        " or drive it with 'await session.reply(...)'"
    )
