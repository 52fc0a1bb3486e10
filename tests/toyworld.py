"""A world of one reply for the tests of the loop: a toy task that can be learnt."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from echo_env.trainers.display import Display
from echo_env.trainers.job import Job, make_job
from echo_env.trainers.learner import Learner
from echo_env.trainers.outcomes import Progress, Rollout, Task, draw_seed
from echo_env.trainers.sampler import Sampler
from echo_env.trainers.trajectory import Trajectory, grown


def job_of(tiny: Path, out: Path, **changes: Any) -> Job:
    settings: dict[str, Any] = {
        "name": "t", "out": out, "updates": 2, "groups": 2, "model": {"path": str(tiny), "system": ""},
        "mode": {"reply_tokens": 8}, "world": {"max_turns": 2}, "optim": {"lr": 1e-3},
        "algo": {"name": "dapo", "group": 2, "score": "distance", "dynamic_sampling": True},
        "monitor": {"samples_every": 1}, "engine": {"threads": 1},
    }  # fmt: skip
    for key, value in changes.items():
        settings[key] = {**settings[key], **value} if isinstance(value, dict) and key in settings else value
    return make_job(settings)


def silent() -> Display:
    return Display("t", 2, Console(quiet=True))


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


class Toy:
    """A world of one reply: the reward is the share of tokens with an even id. `score` changes what filters read."""

    def __init__(
        self, learner: Learner, score: Callable[[Task, float], float | None] = lambda task, r: r, model: Any = None
    ) -> None:
        self.sampler, self.score = Sampler(learner.model if model is None else model, frozenset({0})), score
        self.asked: list[str] = []

    def collect(
        self, tasks: Sequence[Task], version: int = 0, tell: Callable[[Progress], None] = lambda progress: None
    ) -> list[Rollout]:
        self.asked += [t.group for t in tasks]
        tell(Progress(0, len(tasks), 0, 0, 0))
        prompts = [[2 + t.seed % 50, 9, 4] for t in tasks]
        samples = self.sampler.sample(prompts, 6, [draw_seed(t, 0, version) for t in tasks])
        made = []
        for task, sample in zip(tasks, samples, strict=True):
            reward = sum(i % 2 == 0 for i in sample.ids) / len(sample.ids)
            sequence = grown(None, sample.prompt, sample.ids, sample.logprobs, sample.stop)
            trajectory = Trajectory(
                group=task.group, sequences=(sequence,), rewards=(reward,), verdict=reward,
                score=self.score(task, reward), ended="terminated", policy_version=version,
            )  # fmt: skip
            made.append(Rollout(task, trajectory, parts=({"even": reward},)))
        return made


def toy_job(tiny: Path, out: Path, **changes: Any) -> Job:
    given: dict[str, Any] = {"monitor": {"samples": 0, "detectors_every": 0}, "checkpoints": {"every": 0}, "groups": 3}
    return job_of(tiny, out, **{**given, **changes})
