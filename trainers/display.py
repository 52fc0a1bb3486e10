"""What a person sees of a run, on stderr: a live line on a terminal, a plain line for each update elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from echo_env.trainers.outcomes import Progress as Played

SHOWN = ("reward", "success", "score", "length_mean", "entropy", "kl", "held_out", "eval_success", "seconds")
"""Figures on the line of an update, where they are measured."""


class Display:
    """Tells how a run goes. A context manager.

    Args:
        name: Of the run.
        updates: How many there are to be.
        console: Where to; stderr by default.
    """

    def __init__(self, name: str, updates: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"), console=self._console, disable=not self._console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task(name, total=updates, now="")

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.stop()

    def now(self, what: str) -> None:
        """Show what is going on within an update."""
        self._bar.update(self._task, now=what)

    def played(self, progress: Played) -> None:
        """Show how far the rollouts are."""
        self.now(f"conversations {progress.done}/{progress.total}, {progress.tokens} tokens")

    def updated(self, figures: Mapping[str, Any]) -> None:
        """Show an update's figures."""
        self._bar.update(self._task, completed=figures["update"])
        told = [f"{key} {figures[key]:.3g}" for key in SHOWN if figures.get(key) is not None]
        self.say(f"update {figures['update']}: {', '.join(told)}")

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False)
