"""What a run remembers from update to update, and what a checkpoint therefore holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from echo_env.errors import RecordError
from echo_env.trainers import checkpoints, monitors
from echo_env.trainers.ahead import Ahead
from echo_env.trainers.job import NEVER_TRAINED, Job
from echo_env.trainers.learner import Learner
from echo_env.trainers.runs import Run
from echo_env.trainers.tasks import Order


@dataclass(slots=True)
class RunState:
    """What a checkpoint remembers beside weights and optimiser."""

    subjects: str
    """`Order.digest`."""
    position: int = 0
    """Place in the data after the last update that was finished."""
    elapsed: float = 0.0
    """Seconds of training, over all starts."""
    history: list[monitors.Update] = field(default_factory=list)
    raised: set[str] = field(default_factory=set)
    """Alarms that were shown."""
    random: dict[str, Any] = field(default_factory=checkpoints.random_states)
    """Of the generators, after that update."""
    last: dict[str, Any] = field(default_factory=dict)
    """Figures of that update."""

    def passed(self, position: int, seconds: float) -> None:
        """Note the end of an update, and the place in the data after it."""
        self.position, self.random = position, checkpoints.random_states()
        self.elapsed += seconds

    def dump(self) -> dict[str, Any]:
        """Return it as plain data, for a file."""
        return {
            "subjects": self.subjects,
            "position": self.position, "elapsed": self.elapsed, "raised": sorted(self.raised), "random": self.random,
            "history": [u.model_dump() for u in self.history], "last": self.last,
        }  # fmt: skip


def begin(run: Run, learner: Learner, order: Order, start: Path | None, ahead: Ahead[Any] | None = None) -> RunState:
    """Go on where a checkpoint ends, or begin anew.

    Raises:
        RecordError: The checkpoint was trained on something else.
    """
    if start is None:
        run.back_to(0)
        return RunState(order.digest)
    stored = checkpoints.load_state(start)
    saved = stored["progress"]
    if saved.get("subjects", order.digest) != order.digest:
        raise RecordError(
            f"{run.path} was trained on other people or prompts under the same names",
            "put the old files (and the old version of echo-env) back, or begin anew in another folder",
        )
    learner.load_state_dict(stored["learner"])
    if ahead:
        ahead.policy.load_state_dict(stored["ahead"])
    run.back_to(learner.done)
    order.position = saved["position"]
    checkpoints.restore_random_states(saved["random"])
    history = [monitors.Update.model_validate(u) for u in saved["history"]]
    kept = {key: saved[key] for key in ("position", "elapsed", "random", "last")}
    return RunState(order.digest, history=history, raised=set(saved["raised"]), **kept)


def save(run: Run, job: Job, learner: Learner, state: RunState, ahead: Ahead[Any] | None = None) -> None:
    """Write a checkpoint; how good it is tells the evaluation, else the mean score of the update.

    A checkpoint is never picked by a split that measures: what it shows would no longer be held out. Of rollouts that
    run ahead it holds the weights that play them: the next update is played again, to the same end.
    """

    def fill(folder: Path) -> None:
        learner.save_hf(folder)
        stored = {"learner": learner.state_dict(), "progress": state.dump()}
        torch.save(stored | ({"ahead": ahead.policy.state_dict()} if ahead else {}), folder / "state.pt")

    evaluated = job.monitor.eval_every and job.monitor.eval_split not in NEVER_TRAINED
    merit = state.last.get("eval_score" if evaluated else "score")
    checkpoints.save(run.checkpoints, learner.done, fill, keep=job.checkpoints.keep, merit=merit)
