"""Ctrl-C during training: a wish that is granted where nothing is half done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def wish_to_stop() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a wish, and yield what tells whether there is one; the second one ends at once.

    Outside the main thread, which alone hears of signals, there never is one: whoever called hears Ctrl-C.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
