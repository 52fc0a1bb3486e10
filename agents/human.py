"""A person at the keyboard, as a policy: `echo-env run --policy human`, and what `echo-env play` reads with."""

from __future__ import annotations

import io
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from echo_env.env import MAX_ACTION
from echo_env.roles import Observation
from echo_env.types import storable

PASTED = 0.05
"""Seconds within which a further line belongs to the same paste."""


def read_reply(prompt: str = "you: ") -> str:
    """Return what a person types, or the next line of a pipe.

    On a terminal, lines that are pasted at once are one reply, and an empty line asks again; in a pipe each line is a
    reply, an empty one is silence. What is no UTF-8 becomes replacement signs; what is far too long is cut.

    Raises:
        EOFError: There is no more.
        KeyboardInterrupt: Ctrl-C.
    """
    if sys.stdin is None or sys.stdin.closed:
        raise EOFError
    if isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.errors != "replace":  # before the first read only
        sys.stdin.reconfigure(errors="replace")
    text = _typed(prompt) if sys.stdin.isatty() else input()
    if len(text) > MAX_ACTION:
        sys.stderr.write(f"(cut to the first {MAX_ACTION:,} of {len(text):,} characters)\n")
    return storable(text[:MAX_ACTION]).strip()


def _typed(prompt: str) -> str:
    """Return what is typed on a terminal."""
    _edit_lines()
    while True:
        lines = [input(prompt)]
        while _more():
            lines.append(input())
        text = "\n".join(lines)
        if text.strip():
            return text
        sys.stderr.write("(nothing typed; Ctrl-D leaves)\n")


def _edit_lines() -> None:
    """Let lines be edited, and be longer than a terminal's own 4,095 bytes, where the system can."""
    try:
        import readline  # noqa: F401  importing it is what does it
    except ImportError:
        return


def _more() -> bool:
    """Whether further input is there already: the rest of a paste."""
    try:
        return bool(select.select([sys.stdin], [], [], PASTED)[0])
    except (OSError, ValueError):  # a system that cannot tell
        return False


class Human:
    """A person who types; the talk is shown on stderr."""

    id = "human"
    alone = True
    """Nobody can hold several conversations at once."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    async def respond(self, observation: Observation) -> str:
        """Return what is typed.

        Raises:
            KeyboardInterrupt: They left.
        """
        if len(observation.messages) == 1:
            sys.stderr.write("\nSomebody writes to you. Ctrl-D leaves; --resume goes on.\n")
        sys.stderr.write(f"them: {printable(observation.user)}\n")
        try:
            with _interruptible():
                return read_reply()
        except EOFError:
            raise KeyboardInterrupt from None


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the reading: an event loop's own handler would only take note of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def printable(text: str) -> str:
    """Return a text without control characters, which a terminal would obey."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")
