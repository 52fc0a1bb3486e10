"""engine=local: the loop, whole. A tiny random model in the embedded world, and a toy task that can be learnt."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tinypolicy import save_tiny
from toyworld import Toy, job_of, lines, silent, toy_job

from echo_env.errors import ConfigError, RecordError, RoleFailure
from echo_env.profiles import get_scenario
from echo_env.record import read_episode
from echo_env.trainers import checkpoints, local
from echo_env.trainers.display import Display
from echo_env.trainers.job import Job
from echo_env.trainers.learner import Diverged, Learner
from echo_env.trainers.monitors import Alarm
from echo_env.trainers.outcomes import Rollout, Task
from echo_env.trainers.redundancy import reweighed
from echo_env.trainers.tasks import Order, subjects
from echo_env.trainers.trajectory import Trajectory, grown
from echo_env.trainers.watching import Watch
from echo_env.types import Turn

ALWAYS = {
    "update", "reward", "parts", "judge_failures", "failed", "length_mean", "length_p95", "at_cap", "entropy", "kl",
    "clip_low", "clip_high", "cut", "mismatch", "mismatch_abs", "zero_spread", "distinct_1", "distinct_2", "similarity",
    "judge", "held_out", "detectors", "flags", "alarms", "eval_success", "eval_reward", "success", "score", "loss",
    "grad_norm", "lr", "tokens", "generated", "rollout_s", "score_s", "train_s", "seconds", "elapsed_s", "groups_kept",
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


# ---- a toy task -----------------------------------------------------------------------------------------------------


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> list[Toy]:
    """Let runs take place in the toy world; every world that was made is returned."""
    made: list[Toy] = []

    def make(job: Job, engine: Any, learner: Learner) -> Toy:
        made.append(Toy(learner))
        return made[-1]

    monkeypatch.setattr(local, "make_world", make)
    monkeypatch.setattr(local, "subjects", lambda job: [(f"train-{k:04d}", None) for k in range(5)])
    return made


def test_a_task_that_can_be_learnt_is(tiny: Path, tmp_path: Path, toy: list[Toy]) -> None:
    job = toy_job(tiny, tmp_path / "r", updates=12, groups=4, optim={"lr": 1e-2}, algo={"group": 8})
    local.train(job, silent())
    scores = [line["score"] for line in lines(tmp_path / "r")]
    assert sum(scores[-3:]) / 3 > sum(scores[:3]) / 3 + 0.2


def test_stopped_and_resumed_is_unbroken(tiny: Path, tmp_path: Path, toy: list[Toy]) -> None:
    """Two of five, then the rest: the same prompts in the same order, the same figures, the same weights."""
    changes: dict[str, Any] = {
        "algo": {"minibatches": 2, "epochs": 2}, "optim": {"lr": 1e-3, "warmup": 3}, "checkpoints": {"every": 1},
    }  # fmt: skip
    local.train(toy_job(tiny, tmp_path / "whole", updates=5, **changes), silent())
    local.train(toy_job(tiny, tmp_path / "parts", updates=2, **changes), silent())
    torch.rand(3)  # what another library draws meanwhile is no matter
    local.train(toy_job(tiny, tmp_path / "parts", updates=5, resume=True, **changes), silent())
    whole, first, rest = toy
    assert first.asked + rest.asked == whole.asked
    assert len(set(whole.asked[:30])) > 5
    timed = {"rollout_s", "score_s", "train_s", "seconds", "elapsed_s"}
    a, b = ([{k: v for k, v in x.items() if k not in timed} for x in lines(tmp_path / n)] for n in ("whole", "parts"))
    assert [x["update"] for x in b] == [1, 2, 3, 4, 5]
    for one, other in zip(a, b, strict=True):
        numbers = [{k: v for k, v in x.items() if isinstance(v, float)} for x in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-6)
        assert {k: v for k, v in one.items() if k not in numbers[0]} == {
            k: v for k, v in other.items() if k not in numbers[1]
        }
    weights = [load_file(tmp_path / n / "checkpoints" / "latest" / "model.safetensors") for n in ("whole", "parts")]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], atol=1e-6, rtol=0)


def test_a_broken_checkpoint_is_told_at_resume(tiny: Path, tmp_path: Path, toy: list[Toy]) -> None:
    local.train(toy_job(tiny, tmp_path / "r", checkpoints={"every": 1}), silent())
    weights = tmp_path / "r" / "checkpoints" / "step-000002" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(RecordError, match="the last good one is step-000001"):
        local.train(toy_job(tiny, tmp_path / "r", updates=3, resume=True, checkpoints={"every": 1}), silent())


def test_ctrl_c_saves_what_was_finished(
    tiny: Path, tmp_path: Path, toy: list[Toy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the third update's rollouts: two updates are saved, and going on gives what an unbroken run gives."""
    local.train(toy_job(tiny, tmp_path / "whole", updates=4), silent())
    inner = Toy.collect

    def interrupted(self: Toy, tasks: Sequence[Task], version: int = 0, tell: Any = None) -> list[Rollout]:
        if version == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return inner(self, tasks, version, tell)

    monkeypatch.setattr(Toy, "collect", interrupted)
    done = local.train(toy_job(tiny, tmp_path / "r", updates=4), silent())
    assert (done.reason, done.updates) == ("interrupted", 2)
    monkeypatch.setattr(Toy, "collect", inner)
    local.train(toy_job(tiny, tmp_path / "r", updates=4, resume=True), silent())
    losses = [[line["loss"] for line in lines(tmp_path / name)] for name in ("whole", "r")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_the_time_limit_stops_cleanly_and_counts_what_was(tiny: Path, tmp_path: Path, toy: list[Toy]) -> None:
    done = local.train(toy_job(tiny, tmp_path / "r", updates=50, minutes=1e-6), silent())
    assert (done.reason, done.updates) == ("time", 1)
    assert (tmp_path / "r" / "checkpoints" / "step-000001" / "config.json").exists()


def test_resuming_does_not_stretch_the_time_limit(tiny: Path, tmp_path: Path, toy: list[Toy]) -> None:
    """Stopped since another update would go beyond the limit: so it would after a resume."""
    local.train(toy_job(tiny, tmp_path / "r", updates=50, minutes=1e-6), silent())
    took = lines(tmp_path / "r")[0]
    limit = (took["elapsed_s"] + took["seconds"] / 2) / 60
    done = local.train(toy_job(tiny, tmp_path / "r", updates=50, minutes=limit, resume=True), silent())
    assert (done.reason, done.updates) == ("time", 1)


def test_where_nobody_can_be_talked_to_the_run_ends(
    tiny: Path, tmp_path: Path, toy: list[Toy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One update is trained, in the next all conversations fail: the first is saved, and what was wrong is told."""
    inner = Toy.collect

    def failing(self: Toy, tasks: Sequence[Task], version: int = 0, tell: Any = None) -> list[Rollout]:
        return [Rollout(t, None, failure="no route to host") for t in tasks] if version else inner(self, tasks, 0, tell)

    monkeypatch.setattr(Toy, "collect", failing)
    with pytest.raises(RoleFailure, match="no route to host"):
        local.train(toy_job(tiny, tmp_path / "r", updates=3), silent())
    assert len(lines(tmp_path / "r")) == 1
    assert (tmp_path / "r" / "checkpoints" / "latest").resolve().name == "step-000001"


def test_a_loss_that_is_no_number_leaves_the_last_checkpoint(
    tiny: Path, tmp_path: Path, toy: list[Toy], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Learner._loss

    def broken(self: Learner, *given: Any) -> Any:
        terms, apart = inner(self, *given)
        return (terms if self.done < 1 else terms._replace(loss=terms.loss * float("nan"))), apart

    monkeypatch.setattr(Learner, "_loss", broken)
    with pytest.raises(Diverged, match="update 2: the loss is nan"):
        local.train(toy_job(tiny, tmp_path / "r", updates=3, checkpoints={"every": 1}), silent())
    assert checkpoints.newest(tmp_path / "r" / "checkpoints") == tmp_path / "r" / "checkpoints" / "step-000001"
    assert len(lines(tmp_path / "r")) == 1


def test_an_alarm_is_logged_and_can_end_the_run(
    tiny: Path, tmp_path: Path, toy: list[Toy], monkeypatch: pytest.MonkeyPatch
) -> None:
    def alarms(history: Sequence[Any]) -> list[Alarm]:
        return [Alarm(name="length", severity="alarm", message="longer and longer")] if len(history) == 2 else []

    monkeypatch.setattr("echo_env.trainers.monitors.alarms", alarms)
    goes_on = local.train(toy_job(tiny, tmp_path / "a", updates=3), silent())
    ends = local.train(
        toy_job(tiny, tmp_path / "b", updates=3, monitor={"stop_on": ["length"], "samples": 0}), silent()
    )
    assert (goes_on.reason, ends.reason, ends.updates) == ("done", "alarm", 2)
    assert [line["alarms"] for line in lines(tmp_path / "a")] == [[], ["length"], []]


# ---- dynamic sampling -----------------------------------------------------------------------------------------------


def filtered(tiny: Path, flat: Callable[[str], bool], **algo: Any) -> local.Collected:
    """Collect one update where some groups have no spread."""
    job = toy_job(tiny, Path("unused"), algo={"group": 3, "max_extra": 1.0, **algo})
    learner = local.make_learner(job, local.LocalEngine(threads=1))
    world: Any = Toy(learner, lambda task, reward: 0.0 if flat(task.group) else float(task.number))
    order = Order([(f"train-{k:04d}", None) for k in range(9)], 0)  # type: ignore[misc]
    return local.collect(world, order, job, 0, lambda progress: None)


def test_groups_without_spread_are_replaced(tiny: Path) -> None:
    batch = filtered(tiny, lambda group: group.endswith("@1"))
    assert {t.group.partition("@")[2] for t in batch.trained} == {"0", "2", "3"}
    assert (batch.groups, batch.kept, len(batch.rollouts)) == (4, 3, 12)


def test_good_groups_are_trained_on_when_the_limit_is_reached(tiny: Path) -> None:
    batch = filtered(tiny, lambda group: not group.endswith(("@0", "@4")))
    assert {t.group.partition("@")[2] for t in batch.trained} == {"0", "4"}
    assert (batch.groups, batch.kept) == (6, 2)


def test_without_the_filter_all_are_trained_on(tiny: Path) -> None:
    batch = filtered(tiny, lambda group: True, dynamic_sampling=False)
    assert (batch.groups, len(batch.trained)) == (3, 9)


# ---- what is trained on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["career-01", "zh-career-01", "dev-0003"])
def test_people_who_measure_are_never_trained_on(tiny: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="never trained on"):
        subjects(job_of(tiny, Path("unused"), data={"scenarios": ["train-0000", name]}))


@pytest.mark.parametrize("name", ["career-01", "dev-0003"])
def test_a_copy_of_somebody_who_measures_is_known_by_its_content(tiny: Path, tmp_path: Path, name: str) -> None:
    told = json.loads(get_scenario(name).model_dump_json(by_alias=True))
    for change in ({}, {"id": "train-9999", "split": "train"}, {"id": "mine-01", "split": "imported"}):
        file = tmp_path / "copy.yaml"
        file.write_text(json.dumps({**told, **change}))
        get_scenario.cache_clear()
        with pytest.raises(ConfigError, match="never trained on"):
            subjects(job_of(tiny, Path("unused"), data={"scenarios": [str(file)]}))


def test_other_people_under_the_same_names_are_not_gone_on_with(
    tiny: Path, tmp_path: Path, toy: list[Toy], monkeypatch: pytest.MonkeyPatch
) -> None:
    local.train(toy_job(tiny, tmp_path / "r"), silent())
    before = (tmp_path / "r" / "metrics.jsonl").read_text()
    monkeypatch.setattr(local, "subjects", lambda job: [(f"train-{k:04d}", "changed") for k in range(5)])
    with pytest.raises(RecordError, match="other people or prompts"):
        local.train(toy_job(tiny, tmp_path / "r", updates=3, resume=True), silent())
    assert (tmp_path / "r" / "metrics.jsonl").read_text() == before


def test_the_order_is_the_seeds_and_each_lap_another() -> None:
    given: Any = [(f"train-{k:04d}", get_scenario("train-0000")) for k in range(6)]
    order = Order(given, 3)
    keys = [t.group.partition("@")[0] for t in order.take(12, 1)]
    assert sorted(keys[:6]) == sorted(keys[6:]) == [key for key, _ in given]
    assert keys[:6] != keys[6:]
    later = Order(given, 3)
    later.position = 7
    assert [t.group for t in later.take(5, 1)] == [t.group for t in Order(given, 3).take(12, 1)][7:]
    assert [t.group.partition("@")[0] for t in Order(given, 4).take(6, 1)] != keys[:6]


def test_siblings_share_the_seed_and_no_other_group_does() -> None:
    given: Any = [(f"train-{k:04d}", get_scenario("train-0000")) for k in range(4)]
    tasks = Order(given, 0).take(8, 3)
    seeds = {task.group: {t.seed for t in tasks if t.group == task.group} for task in tasks}
    assert all(len(own) == 1 for own in seeds.values())
    assert len({next(iter(own)) for own in seeds.values()}) == 8
    assert [t.number for t in tasks[:3]] == [0, 1, 2]


# ---- redundancy -----------------------------------------------------------------------------------------------------


def spoken(number: int, replies: Sequence[str], rewards: Sequence[float | None]) -> Rollout:
    sequence = None
    for reply in replies:
        ids = [*(sequence.ids if sequence else ()), 5, 6]
        sequence = grown(sequence, ids, [1] * 5 * len(reply.split()), [-1.0] * 5 * len(reply.split()), "end")
    assert sequence is not None
    trajectory = Trajectory(
        group="g", sequences=(sequence,), rewards=tuple(rewards), verdict=1.0, score=1.0, ended="terminated"
    )
    bare: dict[str, Any] = {"judgement": None, "epm": None, "direction": None, "reward": None}
    said = [(f"My boat sank in harbour number {k}.", reply) for k, reply in enumerate(replies)]
    turns = [Turn(index=k, user=user, reply=reply, **bare) for k, (user, reply) in enumerate(said, start=1)]
    return Rollout(Task("g", 0, get_scenario("train-0000"), None, number), trajectory, tuple(turns))


def test_saying_the_same_is_worth_less() -> None:
    """Two siblings say the same, a third something else: they keep less of their reward; a lone reply keeps most."""
    same = "That sounds like a very heavy week for you and your family."
    group = [
        spoken(0, [same], [1.0]), spoken(1, [same], [1.0]), spoken(2, ["Purple elephants dance quietly."], [1.0]),
        spoken(3, [same], [None]),
    ]  # fmt: skip
    rewards = [t.rewards[0] for t in reweighed(group)]
    assert rewards[0] == pytest.approx(rewards[1])
    assert rewards[0] is not None
    assert rewards[2] is not None
    assert rewards[0] < rewards[2] <= 1.0
    assert rewards[3] is None


def test_saying_it_again_is_worth_less() -> None:
    same = "That sounds like a very heavy week for you and your family."
    (again,) = reweighed([spoken(0, [same, same], [1.0, 1.0])])
    (fresh,) = reweighed([spoken(0, [same, "Purple elephants dance quietly."], [1.0, 1.0])])
    assert again.rewards[1] is not None
    assert fresh.rewards[1] is not None
    assert again.rewards[1] < fresh.rewards[1]


def test_a_negative_reward_is_refused() -> None:
    with pytest.raises(ConfigError, match="rewards >= 0"):
        reweighed([spoken(0, ["One."], [-1.0]), spoken(1, ["Two."], [1.0])])


# ---- in the embedded world ------------------------------------------------------------------------------------------


def test_two_updates_in_the_world_leave_everything_behind(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    watched = {
        "held_out": "deaf", "held_out_sample": 2, "held_out_every": 2, "detectors_every": 2, "eval_every": 2,
        "eval_scenarios": 2,
    }  # fmt: skip
    console = Console(file=(tmp_path / "shown").open("w"), width=200)
    job = job_of(tiny, out, monitor=watched, algo={"overlong": {}}, checkpoints={"every": 1})
    done = local.train(job, Display("t", 2, console))
    first, second = lines(out)
    assert first.keys() == second.keys()
    assert first.keys() >= ALWAYS
    assert {"overlong", "shaping", "terminal"} <= first["parts"].keys() == second["parts"].keys()
    assert first["held_out"] is first["detectors"] is first["eval_reward"] is None
    assert second["held_out"] is not None
    assert "template_share" in second["detectors"]
    assert second["eval_reward"] is not None
    assert second["mismatch_abs"] < 1e-4  # engine and trainer agree
    assert first["kl"] == pytest.approx(0.0, abs=1e-6)
    assert 0 < first["length_mean"] <= 8
    assert done.last == second
    assert (out / "checkpoints" / "best").resolve().name == "step-000002"
    text = (out / "samples" / "000002" / "samples.txt").read_text()
    assert text.count("# train-") == 2
    for file in (out / "samples" / "000002").glob("*.jsonl"):
        episode = read_episode(file)
        assert episode.header.split == "train"
        assert len(episode.turns) <= 2
    header = json.loads((out / "header.jsonl").read_text())
    assert header["config"]["seed"] == 0
    assert len(header["scenarios"]) == 400
    assert "update 2:" in (tmp_path / "shown").read_text()


def test_an_evaluation_changes_nothing_in_training_and_the_benchmark_picks_no_checkpoint(
    tiny: Path, tmp_path: Path
) -> None:
    for name, watched in {"a": {}, "b": {"eval_every": 1, "eval_scenarios": 1, "eval_split": "benchmark"}}.items():
        job = job_of(tiny, tmp_path / name, groups=1, monitor={"samples": 0, **watched}, checkpoints={"every": 0})
        local.train(job, silent())
    a, b = (load_file(tmp_path / n / "checkpoints" / "latest" / "model.safetensors") for n in "ab")
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())
    last = lines(tmp_path / "b")[-1]
    manifest = json.loads((tmp_path / "b" / "checkpoints" / "latest" / "manifest.json").read_text())
    assert last["eval_score"] is not None
    assert manifest["merit"] == last["score"]


def test_a_run_with_somebody_who_speaks_chinese(tiny: Path, tmp_path: Path) -> None:
    """Byte-level tokens cut through characters: ids, masks and text still belong together."""
    told = json.loads(get_scenario("zh-career-01").model_dump_json(by_alias=True))
    file = tmp_path / "mine.yaml"
    told["persona"]["age"] += 1  # somebody else, then
    file.write_text(json.dumps({**told, "id": "mine-01", "split": "imported"}))
    job = job_of(
        tiny, tmp_path / "r", updates=1, groups=1, data={"scenarios": [str(file)]},
        monitor={"detectors_every": 1, "held_out": "second", "held_out_every": 1}, algo={"dynamic_sampling": False},
    )  # fmt: skip
    console = Console(file=(tmp_path / "shown").open("w"), width=200)
    local.train(job, Display("t", 1, console))
    (figures,) = lines(tmp_path / "r")
    assert figures["failed"] == 0
    assert figures["detectors"] is not None
    assert figures["mismatch_abs"] < 1e-4
    assert figures["held_out"] is None
    assert "second judged nothing" in (tmp_path / "shown").read_text()  # it knows English alone, and that is told
    kept = (tmp_path / "r" / "samples" / "000001" / "samples.txt").read_text(encoding="utf-8")
    assert re.search("user    .*[\u4e00-\u9fff]{4}", kept)


def test_a_judge_is_not_held_out_from_itself(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="the judge that trains"):
        Watch(job_of(tiny, Path("unused"), world={"judge": "second"}, monitor={"held_out": "second"}))


def test_a_checkpoint_is_an_ordinary_policy(tiny: Path, tmp_path: Path) -> None:
    """What is saved under LoRA loads as any model folder does, and speaks."""
    from echo_env.agents.policy import LocalModel
    from echo_env.roles import Observation
    from echo_env.types import Message

    out = tmp_path / "r"
    model = {"lora": {"rank": 2, "alpha": 4}}
    local.train(job_of(tiny, out, updates=1, groups=1, model=model, monitor={"samples": 0}), silent())
    assert (out / "checkpoints" / "latest" / "adapter" / "adapter_config.json").exists()
    policy = LocalModel(out / "checkpoints" / "latest", max_new_tokens=4)
    assert isinstance(policy.respond_batch([Observation((Message(role="user", text="Hello."),), "en")])[0], str)
    local.train(job_of(tiny, out, updates=2, groups=1, model=model, resume=True, monitor={"samples": 0}), silent())
    assert len(lines(out)) == 2


def test_a_model_that_is_not_there_is_told_before_there_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        local.train(job_of(tmp_path / "no" / "model", tmp_path / "r"), silent())
    assert not (tmp_path / "r").exists()
