"""Rollouts that run ahead: while an update is trained, a frozen copy of the policy plays the next one, in a thread.

torch lets go of the interpreter while it computes, so two cores are used. The copy takes the policy's weights at one
point only: when the rollouts of an update are at hand and its training has not begun. So update 1 is played by the
weights that it trains, and every later one by those of one update before, whatever takes how long.

The thread plays and nothing else; whoever else wants the world (an evaluation, another judge) lets it rest meanwhile,
since a world's parts may be made for one thread.

What is trained is then a little off-policy; `learner.py` holds the ratio against the log-probabilities that were stored
at sampling.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch

from echo_env.trainers.outcomes import Progress, Rollout, Tell

T = TypeVar("T")
AHEAD = 1
"""Updates that the weights which play are behind those which train."""


class Stopped(Exception):
    """Nobody waits for these rollouts any more; raised in the thread, where nothing is half done."""


class Behind:
    """A frozen copy of a policy, as it was some updates ago. Weights that are never trained (LoRA) are shared with it.

    Args:
        model: The policy, bare or under peft.
    """

    version: int
    """Updates that the copy has seen."""

    def __init__(self, model: Any) -> None:
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
        shared = {id(p): p for p in model.parameters() if not p.requires_grad}
        self.model, self.version = copy.deepcopy(model, shared).requires_grad_(False), 0
        self._weights = {name: p for name, p in self.model.named_parameters() if name in trained}

    def follow(self, model: Any, version: int) -> None:
        """Take a policy's weights as they are now."""
        self._take({name: p for name, p in model.named_parameters() if p.requires_grad}, version)

    def state_dict(self) -> dict[str, Any]:
        """Return weights and version. Not a copy: good until it follows again."""
        return {"version": self.version, "weights": {name: p.detach() for name, p in self._weights.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to what `state_dict` returned."""
        self._take(state["weights"], int(state["version"]))

    @torch.no_grad()
    def _take(self, weights: dict[str, torch.Tensor], version: int) -> None:
        for name, own in self._weights.items():
            own.copy_(weights[name])
        self.version = version


class Ahead(Generic[T]):
    """Plays one update ahead, in a thread. A context manager: at its end the thread stops, after a turn at most.

    Args:
        policy: The copy that plays.
        play: Plays an update with it, given its version and who is told. Whatever `tell` raises has to come through.
    """

    def __init__(self, policy: Behind, play: Callable[[int, Tell], T]) -> None:
        self.policy, self._play = policy, play
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._pending: Future[T] | None = None
        self._between = threading.Condition()
        """Two turns: where the thread rests or stops. It guards the three below."""
        self._rest = self._rests = self._stop = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._between:
            self._stop = True
        self._thread.shutdown(cancel_futures=True)

    def next(self, model: Any, version: int, tell: Tell, *, more: bool) -> T:
        """Wait for the next update's rollouts, let the copy take the policy's weights, and start the update after it.

        Args:
            model: The policy in training, between two updates.
            version: Updates that it has seen.
            tell: Told after every turn, in the thread. What it raises is raised here.
            more: Whether there is an update after this one.

        Raises:
            Exception: Whatever went wrong in the thread. The copy is then as it was.
        """
        batch = (self._pending or self._begun(tell)).result()
        self.policy.follow(model, version)
        self._pending = self._begun(tell) if more else None
        return batch

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Let the thread rest, from the end of its turn on: the world is the caller's."""
        try:
            with self._between:
                self._rest = True
                self._between.wait_for(lambda: self._rests or self._pending is None or self._pending.done())
            yield
        finally:
            with self._between:
                self._rest = False
                self._between.notify_all()

    def _begun(self, tell: Tell) -> Future[T]:
        def heard(progress: Progress) -> None:
            with self._between:
                self._rests = True
                self._between.notify_all()
                self._between.wait_for(lambda: not self._rest)
                self._rests = False
                if self._stop:
                    raise Stopped
            tell(progress)

        def ended(pending: Future[T]) -> None:
            with self._between:
                self._between.notify_all()

        pending = self._thread.submit(self._play, self.policy.version, heard)
        pending.add_done_callback(ended)
        return pending


def staleness(rollouts: Sequence[Rollout], done: int) -> int | None:
    """Return by how many updates the weights that played are behind; None where nothing was played to its end.

    Args:
        rollouts: Of the next update.
        done: Updates behind the policy in training.

    Raises:
        RuntimeError: Other weights played than should have.
    """
    behind = {done - r.trajectory.policy_version for r in rollouts if r.trajectory is not None}
    if behind - {min(AHEAD, done)}:
        raise RuntimeError(f"update {done + 1} was played by weights {sorted(behind)} updates behind")
    return min(AHEAD, done) if behind else None
