"""Prompts of RL on single replies: where they come from, the file, and the Best-of-N filter (Echo-N1 section 2.4)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("hydra", reason="the extra `train` is not installed")

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from echo_env.agents.scoring import score_replies
from echo_env.agents.service.labels import label_of, prompt_of
from echo_env.build import WorldConfig, build_policy
from echo_env.driving import run_now
from echo_env.errors import ConfigError, RecordError, RoleFailure
from echo_env.rewards import ReplyView
from echo_env.roles import Observation
from echo_env.trainers import commandline, promptdata, prompts
from echo_env.trainers.promptdata import MIX, Draw, RlPrompt, default_prompts, draw, load_prompts, read_lines
from echo_env.trainers.prompts import BestOf, PromptsJob, Samples, too_easy_for, write
from echo_env.types import Verdict

ROOT = Path(__file__).resolve().parent.parent
HERE = "test_prompts"
SPLITS = ("train", "chitchat")


class Echoing:
    """A start policy that says its seed and turn; counts how often it was asked."""

    id = "echoing-1"
    asked = 0

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def for_episode(self, seed: int) -> Echoing:
        return Echoing(seed)

    async def respond(self, observation: Observation) -> str:
        Echoing.asked += 1
        if self.seed % 5 == 0:
            raise RoleFailure("out of words")
        return f"seed {self.seed} turn {len(observation.messages)}"


class Seedy:
    """An empathy judge: better where the seed is even, fails where 3 divides it."""

    id = "seedy-1"

    async def verdict(self, view: ReplyView) -> Verdict:
        assert view.reference  # there is something to compare with
        seed = int(view.judged.exchange.reply.split()[1])
        if seed % 3 == 0:
            raise RoleFailure("no idea")
        return Verdict(kind="empathy", judge=self.id, value=float(seed % 2 == 0))


def small(out: Path, **changes: Any) -> PromptsJob:
    given: dict[str, Any] = {
        "out": out,
        "count": 24,
        "max_turns": 5,
        "recipe_options": {"empathy": f"{HERE}:Seedy"},
        "best_of": {"policy": f"{HERE}:Echoing", "samples": 3},
    }
    return PromptsJob.model_validate(given | changes)


@pytest.fixture(scope="module")
def defaults() -> list[RlPrompt]:
    return default_prompts(60, seed=3)


def test_the_same_seed_gives_the_same_prompts_and_another_gives_others(defaults: list[RlPrompt]) -> None:
    assert default_prompts(60, seed=3) == defaults
    assert {p.id for p in default_prompts(60, seed=4)} != {p.id for p in defaults}


def test_prompts_are_points_in_conversations_of_people_that_may_be_trained_on(defaults: list[RlPrompt]) -> None:
    assert {p.scenario.rpartition("-")[0] for p in defaults if p.scenario} == {*SPLITS}
    assert len({p.id for p in defaults}) == len({(p.scenario, p.history, p.user) for p in defaults}) == 60
    assert len({len(p.history) for p in defaults}) > 8  # early and late
    for p in defaults:
        assert int(p.id.rpartition(".")[2]) == len(p.history) < 16


def test_a_history_is_what_the_named_policy_really_said(defaults: list[RlPrompt]) -> None:
    parrots = [p for p in defaults if p.policy == "parrot" and p.history]
    assert parrots
    for p in parrots:
        said = run_now(build_policy("parrot").respond(RlPrompt(echo_env=1, id="x", user=p.history[0].user).observation))
        assert p.history[0].reply == said


def test_empathetic_prompts_bring_the_reply_that_the_recipe_would_compare_with(defaults: list[RlPrompt]) -> None:
    asked = [p for p in defaults if not p.chitchat][:4]
    with_reference = run_now(score_replies(WorldConfig(recipe="echo_n1"), [(p.scorable(), "I see.") for p in asked]))
    bare = [(p.model_copy(update={"reference": None}).scorable(), "I see.") for p in asked]
    assert all(p.reference for p in asked)
    assert with_reference == run_now(score_replies(WorldConfig(recipe="echo_n1"), bare))


def test_chit_chat_gets_the_humanlike_reward_alone_and_has_nothing_to_beat(defaults: list[RlPrompt]) -> None:
    one_of_each = [next(p for p in defaults if p.chitchat is chatty) for chatty in (True, False)]
    asked = [(p.scorable(), "Ha, same here!") for p in one_of_each]
    scored = run_now(score_replies(WorldConfig(recipe="echo_n1"), asked))
    assert [set(s.parts) for s in scored] == [{"humanlike"}, {"humanlike", "empathy"}]
    assert all((p.reference is None) == p.chitchat for p in defaults)


def test_shares_are_exact(defaults: list[RlPrompt]) -> None:
    assert Counter(p.chitchat for p in defaults) == {False: 45, True: 15}
    # 45 prompts over weights 3:2:2:2:1 of 10 are 13.5, 9, 9, 9, 4.5; of two equal remainders the first named wins
    assert Counter(p.policy for p in defaults if not p.chitchat) == {
        "adviser": 14, "template": 9, "lecturer": 9, "skilled": 9, "parrot": 4,
    }  # fmt: skip
    assert set(MIX) == {p.policy for p in defaults}


@settings(max_examples=8)
@given(st.integers(1, 12), st.floats(0, 1), st.integers(1, 4), st.integers(0, 99))
def test_there_are_as_many_as_were_asked_for(count: int, chitchat: float, points: int, seed: int) -> None:
    job = Draw(count=count, chitchat=chitchat, mix={"parrot": 1, "template": 2}, points=points, max_turns=4, seed=seed)
    found = asyncio.run(draw(job, lambda *_: None))
    assert len(found) == count
    assert sum(p.chitchat for p in found) == round(count * chitchat)


@pytest.mark.parametrize("split", ["benchmark", "dev", "benchmark-zh"])
def test_what_is_measured_on_gives_no_prompts(split: str) -> None:
    with pytest.raises(ConfigError, match="nothing is trained on it"):
        asyncio.run(draw(Draw(count=2, split=split), lambda *_: None))


def test_too_few_different_points_are_told() -> None:
    job = Draw(count=5, chitchat=0, mix={"silent": 1}, max_turns=4, points=5)
    with pytest.raises(ConfigError, match=r"'silent' hold 4 different points, not 5"):
        asyncio.run(draw(job, lambda *_: None))


def test_a_prompt_survives_the_file_and_the_label_of_a_data_row(defaults: list[RlPrompt], tmp_path: Path) -> None:
    promptdata.write_lines(tmp_path / "p.jsonl", defaults)
    assert load_prompts(tmp_path / "p.jsonl") == defaults
    for p in defaults:
        assert prompt_of(label_of(p.scorable())).scorable() == p.scorable()


def line(**changes: Any) -> str:
    return json.dumps({"echo_env": 1, "id": "a", "user": "Hello."} | changes)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([line(), "{"], r"p\.jsonl, line 2: no RlPrompt: Invalid JSON"),
        ([line(), line(id="b", user="")], r"line 2: no RlPrompt: user: "),
        ([line(), line(id="b", typo=1)], r"line 2: no RlPrompt: typo: "),
        ([line(), line(id="b", scenario="health-04")], r"line 2: scenario 'health-04' is for measuring"),
        ([line(scenario="dev-0001")], r"line 1: scenario 'dev-0001' is for measuring"),
        ([line(), line(id="b"), line()], r"line 3: the id 'a' stands in line 1 already"),
        ([line(), "", line(id="b")], r"line 2: no RlPrompt: "),
        ([], r"p\.jsonl holds no prompt"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_line(tmp_path: Path, lines: list[str], told: str) -> None:
    (tmp_path / "p.jsonl").write_text("".join(f"{text}\n" for text in lines))
    with pytest.raises(ConfigError, match=told):
        load_prompts(tmp_path / "p.jsonl")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none cannot be read: No such file"):
        load_prompts(tmp_path / "none")


def test_the_filter_drops_high_means_with_low_spread_and_counts_no_missing_verdict() -> None:
    def of(name: str, *scores: float | None) -> tuple[RlPrompt, Samples]:
        return RlPrompt(echo_env=1, id=name, user="Hi."), Samples(id=name, replies=("x",) * len(scores), scores=scores)

    cases = [
        of("always", 1, 1, 1, 1),
        of("always where judged", 1, None, 1, None),
        of("nearly", 1, 1, 1, 0),  # mean 0.75, spread 0.43
        of("never", 0, 0, 0, 0),
        of("unjudged", None, None, None, None),
    ]
    asked, samples = [p for p, _ in cases], [s for _, s in cases]
    dropped = too_easy_for(BestOf(), asked, samples)
    assert [d.id for d in dropped] == ["always", "always where judged"]
    assert dropped[1].why == "too easy: mean 1.00 of 2 >= 0.9, spread 0.00 <= 0.2"
    # other thresholds, the same samples
    assert [d.id for d in too_easy_for(BestOf(mean=0.75, spread=0.44), asked, samples)][-1] == "nearly"
    assert not too_easy_for(BestOf(), asked, [])  # nothing sampled, nothing easy


def test_what_was_sampled_and_dropped_is_on_the_disk_and_the_filter_runs_again_without_sampling(tmp_path: Path) -> None:
    out = tmp_path / "p"
    kept, dropped = write(small(out))
    samples = read_lines(out / "samples.jsonl", Samples)
    candidates = load_prompts(out / "candidates.jsonl")
    assert dropped
    assert load_prompts(out / "prompts.jsonl") == kept == [p for p in candidates if p.id not in {d.id for d in dropped}]
    assert read_lines(out / "dropped.jsonl", prompts.Dropped) == dropped
    assert {s.id for s in samples} == {p.id for p in candidates if not p.chitchat}
    seen: Counter[str] = Counter()
    for s in samples:
        assert len(s.replies) == len(s.scores) == 3
        assert len({r for r in s.replies if r}) == sum(r is not None for r in s.replies)  # draws of their own
        assert len(s.failures) == sum(score is None for score in s.scores)
        for reply, score in zip(s.replies, s.scores, strict=True):
            seed = int(reply.split()[1]) if reply else 0
            assert score == (None if seed % 3 == 0 else float(seed % 2 == 0))
            seen[str(score)] += 1
    assert len(seen) == 3
    before, Echoing.asked = Echoing.asked, 0
    again, none = write(small(out, resume=True, best_of=small(out).best_of.model_dump() | {"mean": 1.0, "spread": 0.0}))
    assert before
    assert Echoing.asked == 0
    assert {d.id for d in none} <= {d.id for d in dropped}
    assert again == load_prompts(out / "prompts.jsonl")


def test_a_killed_run_goes_on_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    write(small(whole))

    def killed(what: str, done: int, total: int) -> None:
        if what == "prompts sampled":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(small(cut), killed)
    assert not (cut / "prompts.jsonl").exists()  # no half of a file
    with (cut / "samples.jsonl").open("a") as file:
        file.write('{"id":"torn')
    Echoing.asked = 0
    write(small(cut, resume=True))
    assert Echoing.asked == 3 * (18 - prompts.CHUNK)
    for name in ("candidates", "samples", "dropped", "prompts"):
        assert (cut / f"{name}.jsonl").read_bytes() == (whole / f"{name}.jsonl").read_bytes()


def test_a_folder_is_not_written_over_nor_mixed(tmp_path: Path) -> None:
    write(small(tmp_path / "p", best_of={}))
    with pytest.raises(RecordError, match="holds prompts already"):
        write(small(tmp_path / "p", best_of={}))
    with pytest.raises(RecordError, match=r"different: best_of\.samples, seed"):
        write(small(tmp_path / "p", resume=True, seed=1, best_of={"samples": 4}))
    kept, dropped = write(small(tmp_path / "p", best_of={}, seed=1, overwrite=True))
    assert (len(kept), dropped) == (24, [])


def test_a_recipe_without_the_verdict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'humanlike' gives no verdict 'empathy'"):
        write(small(tmp_path / "p", recipe="humanlike", recipe_options={}))


def test_a_judge_that_always_fails_drops_nothing(tmp_path: Path) -> None:
    best = {"policy": "skilled", "samples": 2}
    options = {"empathy": f"{HERE}:Failing"}
    kept, dropped = write(small(tmp_path / "p", count=6, recipe_options=options, best_of=best))
    assert (len(kept), dropped) == (6, [])
    assert {s for r in read_lines(tmp_path / "p" / "samples.jsonl", Samples) for s in r.scores} == {None}


class Failing:
    id = "failing-1"

    async def verdict(self, view: ReplyView) -> Verdict:
        raise ValueError("broken")


def test_the_configuration_says_what_the_model_says() -> None:
    with initialize_config_dir(str(ROOT / "configs"), version_base=None):
        config = OmegaConf.to_container(compose("prompts", overrides=["out=somewhere"]), resolve=True)
    assert isinstance(config, dict)
    assert PromptsJob.model_validate(config) == PromptsJob(out=Path("somewhere"))


def test_the_command_writes_and_tells_mistakes_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["prompts.py", *words])
        code = 0
        try:
            commandline.main("prompts", prompts.run)
        except SystemExit as e:
            code = int(e.code or 0)
        return code, *capsys.readouterr()

    code, said, _ = run("out=p", "count=6", "max_turns=3", "best_of.policy=skilled", "best_of.samples=2")
    kept = load_prompts(tmp_path / "p" / "prompts.jsonl")
    dropped = read_lines(tmp_path / "p" / "dropped.jsonl", prompts.Dropped)
    assert (code, len(kept) + len(dropped)) == (0, 6)
    assert f"{len(kept)} prompts" in said
    assert {f.name for f in tmp_path.iterdir()} == {"p"}  # nothing of Hydra's
    for words, told in (
        (("out=q", "split=benchmark"), "nothing is trained on it"),
        (("out=q", "chitchat=2"), "setting 'chitchat': Input should be less than or equal to 1"),
        ((), "setting 'out'"),
        (("out=p",), "resume=true goes on with it"),
    ):
        code, said, mistake = run(*words)
        assert (code, said) == (2, "")
        assert told in mistake
        assert "Traceback" not in mistake
