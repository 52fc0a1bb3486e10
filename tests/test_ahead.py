"""Rollouts that run ahead: exactly one update, whatever takes how long; in a toy world, once in the embedded one."""

from __future__ import annotations

import copy
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_learner import SGD_LIKE, learner, resampled, trajectories
from tinypolicy import save_tiny, tiny_model
from toyworld import Toy, job_of, lines, silent, toy_job

from echo_env.errors import ConfigError, EchoError
from echo_env.trainers import local
from echo_env.trainers.ahead import Ahead, Behind, staleness
from echo_env.trainers.job import Algorithm, Job, Lora
from echo_env.trainers.learner import Learner, with_adapter
from echo_env.trainers.losses import Clip, Correction, Objective
from echo_env.trainers.outcomes import Progress, Rollout, Task

PLAIN = {"minibatches": 2, "dynamic_sampling": False}
AHEAD = {"engine": {"ahead": 1}, "checkpoints": {"every": 1, "keep": 9}, "algo": PLAIN}
TIMED = {"rollout_s", "score_s", "train_s", "seconds", "elapsed_s"}


class Watched(Toy):
    """Notes who plays what: thread, version, and the sum of the weights. `before` is called first."""

    def __init__(self, learner: Learner, model: Any = None) -> None:
        super().__init__(learner, model=model)
        self.played: list[tuple[str, int, float]] = []
        self.before: Any = lambda version: None

    def collect(self, tasks: Sequence[Task], version: int = 0, tell: Any = lambda progress: None) -> list[Rollout]:
        self.before(version)
        weights = sum(float(p.detach().double().sum()) for p in self.sampler.model.parameters())
        self.played.append((threading.current_thread().name, version, weights))
        rollouts = super().collect(tasks, version, tell)
        assert self.played[-1][2] == sum(float(p.detach().double().sum()) for p in self.sampler.model.parameters())
        return rollouts


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """Every world that a run makes: first the policy's, then its copy's."""
    made: list[Watched] = []

    def make(job: Job, engine: Any, learner: Learner, model: Any = None) -> Watched:
        made.append(Watched(learner, model))
        return made[-1]

    monkeypatch.setattr(local, "make_world", make)
    monkeypatch.setattr(local, "subjects", lambda job: [(f"train-{k:04d}", None) for k in range(5)])
    return made


def untimed(out: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in TIMED} for line in lines(out)]


def weights(out: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(out / "checkpoints" / f"step-{step:06d}" / "model.safetensors")


# ---- which weights play ---------------------------------------------------------------------------------------------


def test_each_update_is_played_by_the_weights_of_one_before(tiny: Path, tmp_path: Path, worlds: list[Watched]) -> None:
    out = tmp_path / "r"
    local.train(toy_job(tiny, out, updates=4, optim={"lr": 1e-2}, **AHEAD), silent())
    own, copied = worlds
    assert own.played == []
    assert [version for _, version, _ in copied.played] == [0, 0, 1, 2]
    assert all(name.startswith("ahead") for name, _, _ in copied.played)
    saved = [sum(float(p.double().sum()) for p in weights(out, step).values()) for step in (1, 2)]
    assert [sums for _, _, sums in copied.played[2:]] == pytest.approx(saved, abs=1e-9)
    assert len({round(sums, 9) for _, _, sums in copied.played}) == 3
    figures = lines(out)
    assert [line["stale"] for line in figures] == [0, 1, 1, 1]
    assert figures[0]["moved"] == pytest.approx(0.0, abs=1e-2)
    assert figures[0]["mismatch_abs"] is not None
    assert figures[1]["mismatch_abs"] is figures[1]["mismatch"] is None  # who sampled is gone: nothing to compare with


def test_what_takes_how_long_is_no_matter(
    tiny: Path, tmp_path: Path, worlds: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now the rollouts are late, now the training."""
    inner = Learner.update

    def dawdling(self: Learner, given: Any) -> Any:
        time.sleep(random.Random(self.done + 7).choice([0.0, 0.1]))
        return inner(self, given)

    local.train(toy_job(tiny, tmp_path / "a", updates=4, **AHEAD), silent())
    monkeypatch.setattr(Learner, "update", dawdling)
    monkeypatch.setattr(Watched, "collect", _slowly(Watched.collect))
    local.train(toy_job(tiny, tmp_path / "b", updates=4, **AHEAD), silent())
    assert untimed(tmp_path / "a") == untimed(tmp_path / "b")
    for name, tensor in weights(tmp_path / "a", 4).items():
        assert torch.equal(tensor, weights(tmp_path / "b", 4)[name])


def _slowly(collect: Any) -> Any:
    def slow(self: Watched, tasks: Any, version: int = 0, tell: Any = None) -> Any:
        time.sleep(random.Random(version).choice([0.0, 0.1]))
        return collect(self, tasks, version, tell)

    return slow


def test_without_it_nothing_is_copied_and_nothing_is_stale(tiny: Path, tmp_path: Path, worlds: list[Watched]) -> None:
    local.train(toy_job(tiny, tmp_path / "a", algo=PLAIN), silent())
    local.train(toy_job(tiny, tmp_path / "b", algo=PLAIN, engine={"ahead": 0}), silent())
    assert untimed(tmp_path / "a") == untimed(tmp_path / "b")
    assert "stale" not in lines(tmp_path / "a")[0]
    assert [[(name, v) for name, v, _ in w.played] for w in worlds] == [[("MainThread", 0), ("MainThread", 1)]] * 2
    stored = torch.load(tmp_path / "b" / "checkpoints" / "latest" / "state.pt", weights_only=True)
    assert stored.keys() == {"learner", "progress"}


def test_rollouts_of_other_weights_are_not_trained_on() -> None:
    def rollout(version: int) -> Rollout:
        return Rollout(Task("g", 0), trajectories()[0].model_copy(update={"policy_version": version}))

    assert staleness([rollout(0)], 0) == 0
    assert staleness([rollout(2), rollout(2), Rollout(Task("g", 0), None, failure="lost")], 3) == 1
    assert staleness([], 3) is None
    for done, versions in ((3, (3,)), (3, (2, 1)), (1, (1,))):
        with pytest.raises(RuntimeError, match=f"update {done + 1} was played by weights"):
            staleness([rollout(v) for v in versions], done)


def test_dynamic_sampling_plays_on_in_the_thread(tiny: Path, tmp_path: Path, worlds: list[Watched]) -> None:
    """Every second group is flat: others take its place, and the next update begins behind them."""
    out, score = tmp_path / "r", lambda task, reward: 0.0 if int(task.group[-1]) % 2 else float(task.number)
    job = toy_job(tiny, out, updates=3, algo={"dynamic_sampling": True, "max_extra": 2.0}, engine={"ahead": 1})
    inner = local.make_world

    def make(*args: Any) -> Any:
        world: Any = inner(*args)
        world.score = score
        return world

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "make_world", make)
        local.train(job, silent())
    assert all(line["groups_kept"] == 3 < line["groups"] for line in lines(out))
    places = [int(group.partition("@")[2]) for group in worlds[1].asked[::2]]
    assert places == list(range(len(places)))
    assert len(places) == sum(line["groups"] for line in lines(out))


# ---- stopping and going on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 4}])
def test_stopped_and_resumed_is_unbroken(
    tiny: Path, tmp_path: Path, worlds: list[Watched], lora: dict[str, int] | None
) -> None:
    changes: dict[str, Any] = {**AHEAD, "optim": {"lr": 1e-2, "warmup": 3}, "model": {"lora": lora}}
    for name, updates, resume in (("whole", 5, False), ("parts", 2, False), ("parts", 5, True)):
        local.train(toy_job(tiny, tmp_path / name, updates=updates, resume=resume, **changes), silent())
    whole, parts = untimed(tmp_path / "whole"), untimed(tmp_path / "parts")
    assert [line["stale"] for line in parts] == [0, 1, 1, 1, 1]
    for one, other in zip(whole, parts, strict=True):
        numbers = [{k: v for k, v in x.items() if isinstance(v, float)} for x in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-6)
    for name, tensor in weights(tmp_path / "whole", 5).items():
        torch.testing.assert_close(tensor, weights(tmp_path / "parts", 5)[name], atol=1e-6, rtol=0)
    assert worlds[3].asked + worlds[5].asked == worlds[1].asked


def test_ctrl_c_stops_both_and_going_on_is_unbroken(
    tiny: Path, tmp_path: Path, worlds: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the thread plays update 4, by the weights of update 2."""
    local.train(toy_job(tiny, tmp_path / "whole", updates=5, **AHEAD), silent())
    inner = Watched.collect

    def interrupted(self: Watched, tasks: Any, version: int = 0, tell: Any = None) -> Any:
        if version == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return inner(self, tasks, version, tell)

    monkeypatch.setattr(Watched, "collect", interrupted)
    done = local.train(toy_job(tiny, tmp_path / "r", updates=5, **AHEAD), silent())
    assert (done.reason, done.updates) == ("interrupted", 3)
    assert not any(t.name.startswith("ahead") for t in threading.enumerate())
    monkeypatch.setattr(Watched, "collect", inner)
    local.train(toy_job(tiny, tmp_path / "r", updates=5, resume=True, **AHEAD), silent())
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "r")


def test_the_time_limit_ends_both(tiny: Path, tmp_path: Path, worlds: list[Watched]) -> None:
    done = local.train(toy_job(tiny, tmp_path / "r", updates=50, minutes=1e-6, **AHEAD), silent())
    assert (done.reason, done.updates) == ("time", 1)
    assert not any(t.name.startswith("ahead") for t in threading.enumerate())


def test_an_error_in_the_thread_is_told(tiny: Path, tmp_path: Path, worlds: list[Watched]) -> None:
    inner = Watched.collect

    def failing(self: Watched, tasks: Any, version: int = 0, tell: Any = None) -> Any:
        if version == 1:
            raise EchoError("the world is on fire")
        return inner(self, tasks, version, tell)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watched, "collect", failing)
        with pytest.raises(EchoError, match="on fire"):
            local.train(toy_job(tiny, tmp_path / "r", updates=5, **AHEAD), silent())
    assert len(lines(tmp_path / "r")) == 2  # update 3 is what could not be played
    assert not any(t.name.startswith("ahead") for t in threading.enumerate())


def test_the_thread_rests_while_another_has_the_world() -> None:
    """Between two turns, and goes on afterwards."""
    turns: list[int] = []
    first = threading.Event()

    def play(version: int, tell: Any) -> int:
        for turn in range(40):
            turns.append(turn)
            first.set()
            tell(Progress(0, 1, 0, turn, 0))
            time.sleep(0.001)
        return version

    model = tiny_model()
    with Ahead(Behind(model), play) as ahead:
        assert ahead.next(model, 1, lambda progress: None, more=True) == 0
        first.clear()
        with ahead.resting():
            held = len(turns)
            time.sleep(0.05)
            assert len(turns) == held
        assert ahead.next(model, 2, lambda progress: None, more=False) == 1
        assert len(turns) == 80
        with ahead.resting():  # nobody plays: nothing to wait for
            pass


def test_the_copy_shares_what_is_not_trained() -> None:
    model = with_adapter(tiny_model(), Lora(rank=2, alpha=4))
    policy = Behind(model)
    pairs = list(zip(model.parameters(), policy.model.parameters(), strict=True))
    assert all((a is b) != a.requires_grad for a, b in pairs)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(1.0)
    stale = copy.deepcopy(policy.state_dict())
    policy.follow(model, 4)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert policy.version == 4
    policy.load_state_dict(stale)
    assert policy.version == 0
    assert not any(torch.equal(a, b) for a, b in pairs if a.requires_grad)


# ---- the loss -------------------------------------------------------------------------------------------------------


def test_the_ratio_is_against_what_was_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled log-probabilities 0.25 above the trainer's: every ratio is e^-0.25 = 0.78, and no pass is needed."""
    model = tiny_model()
    given = resampled(model, trajectories(), shift=0.25)
    one = learner(Algorithm(name="t", objective=Objective(clip=Clip(low=0.2, high=0.28))), model=model)
    monkeypatch.setattr(one, "logprobs", lambda *_, **__: pytest.fail("a pass that was not needed"))
    one.done = 1
    figures = one.update(given)
    assert figures["moved"] == pytest.approx(0.25, abs=1e-5)
    assert figures["clip_low"] is not None
    assert figures["clip_low"] > 0.1  # 0.78 is below the floor of 0.8 wherever the advantage is negative
    assert figures["mismatch_abs"] is None


def test_a_stale_gradient_is_the_fresh_one_times_the_ratio() -> None:
    """Without clipping the loss is -w A: with w = e^-0.1 for every token, so is the gradient."""
    model, wide = tiny_model(), Algorithm(name="t", objective=Objective(clip=Clip(low=0.9, high=9.0)))
    given = resampled(model, trajectories(), shift=0.1)
    fresh = learner(wide, model=copy.deepcopy(model), optim=SGD_LIKE)
    stale = learner(wide, model=copy.deepcopy(model), optim=SGD_LIKE)
    stale.done = 1
    norms = [one.update(given)["grad_norm"] for one in (fresh, stale)]
    assert norms[0] is not None
    assert norms[1] == pytest.approx(norms[0] * 0.904837, rel=1e-3)


def test_a_correction_weighs_the_start_of_the_update_against_the_sampler() -> None:
    """Decoupled: the ratio starts at 1, the weight e^-0.1 is the correction's; the gradient is the same."""
    model = tiny_model()
    given = resampled(model, trajectories(), shift=0.1)
    norms = []
    for correction in (None, Correction(low=0.5, high=5.0)):
        wide = Objective(clip=Clip(low=0.9, high=9.0), correction=correction)
        one = learner(Algorithm(name="t", objective=wide), model=copy.deepcopy(model), optim=SGD_LIKE)
        one.done = 1
        figures = one.update(given)
        norms.append(figures["grad_norm"])
    assert figures["moved"] == pytest.approx(0.0, abs=1e-6)
    assert figures["mismatch"] == pytest.approx(0.1, abs=1e-5)
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_probabilities_that_are_not_the_policys_are_refused(tiny: Path, tmp_path: Path, worlds: list[Watched]) -> None:
    with pytest.raises(ConfigError, match=r"mode\.top_p has to be 1"):
        local.train(toy_job(tiny, tmp_path / "r", mode={"top_p": 0.9}, engine={"ahead": 1}), silent())


# ---- in the embedded world ------------------------------------------------------------------------------------------


def test_an_evaluation_disturbs_nothing(tiny: Path, tmp_path: Path) -> None:
    """Two runs, one of them with an evaluation and a held-out judge after every update: the same training."""
    watched = {"eval_every": 1, "eval_scenarios": 2, "held_out": "deaf", "held_out_every": 1, "held_out_sample": 2}
    for name, monitor in (("plain", {}), ("watched", watched)):
        local.train(job_of(tiny, tmp_path / name, updates=3, engine={"ahead": 1}, monitor=monitor), silent())
    plain, other = untimed(tmp_path / "plain"), untimed(tmp_path / "watched")
    assert other[2]["eval_reward"] is not None
    skipped = ("eval", "held_out", "judge")
    for one, two in zip(plain, other, strict=True):
        for figures in (one, two):
            for key in [k for k in figures if k.startswith(skipped)]:
                figures.pop(key)
        assert one == two
