"""Attacks, their report, regression files, forks of conversations, and the searcher."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from echo_env import registry
from echo_env.agents.embedded.anchors import rubric
from echo_env.agents.embedded.judge import EmbeddedJudge
from echo_env.agents.embedded.language import split_sentences
from echo_env.agents.embedded.listening import noun_phrases
from echo_env.agents.embedded.policies import Silent
from echo_env.agents.embedded.skilled import phrases
from echo_env.agents.redteam import attacks as scripted
from echo_env.agents.redteam.curves import log_points, read_result, regression_of, script_of, searches, sparkline
from echo_env.agents.redteam.fork import Branch, fork
from echo_env.agents.redteam.fragments import Breeder, banks, say
from echo_env.agents.redteam.pools import OPPOSITE, Script, fixed_script, pool, read_script, skilled_replies, whose
from echo_env.agents.redteam.regression import Regression, read_regression, replay, write_regression
from echo_env.agents.redteam.report import RedteamConfig, RedteamReport, attack_names, redteam
from echo_env.agents.redteam.search import Point, SearchConfig, Searcher, best_at, search
from echo_env.build import WorldConfig, build_policy, build_session, conversation_seed
from echo_env.cli import app
from echo_env.driving import run_now
from echo_env.errors import ConfigError, RecordError, RoleFailure, ScenarioError
from echo_env.metrics import summarise
from echo_env.profiles import benchmark, get_scenario, scenario_ids
from echo_env.record import read_episode
from echo_env.roles import JudgeView, Observation
from echo_env.scorers import get_scorer
from echo_env.types import AXES, Judgement, Message

ATTACKS = attack_names()
IDS = tuple(scenario_ids("benchmark"))
FEW = (IDS[0], IDS[7])


def bare(*texts: str) -> Observation:
    roles = ("user", "companion")
    return Observation(tuple(Message(role=roles[k % 2], text=text) for k, text in enumerate(texts)))  # type: ignore[arg-type]


def said(name: str, *texts: str, seed: int = 0) -> str:
    return run_now(build_policy(name, seed).respond(bare(*texts)))


OVENS = "My dad sold the ovens on Tuesday, and I found out from a stranger."


# --- the attacks


def test_the_suite_holds_what_it_must() -> None:
    needed = """silent one_word parrot template keyword_stuffing praise sycophancy advice_list lecture noun_slots
    noun_slots_strong fixed_script negated_comfort word_salad very_long small_edits one_axis_c one_axis_a one_axis_p
    noun_question only_questions persona_flip topic_drift prompt_injection fake_transcript foreign_language emoji_wall
    random_good self_disclosure feeling_guess"""
    assert {f"attack:{name}" for name in needed.split()} <= set(ATTACKS)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_a_function_of_the_talk(name: str) -> None:
    """A person whom no file knows; old and new instances, in any order, say the same."""
    talks = [[OVENS, "Oh?"] * k + ["I can't sleep since my aunt called."] for k in range(5)]
    old = build_policy(name, 3)
    first = [run_now(old.respond(bare(*talk))) for talk in talks]
    backwards = [run_now(old.respond(bare(*talk))) for talk in reversed(talks)]
    assert first == list(reversed(backwards)) == [said(name, *talk, seed=3) for talk in talks]
    assert all(first) == (name != "attack:silent")


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("message", ["", "?!", "🙂", "{it} {feeling} %s", "a " * 500, "No."])
def test_an_attack_answers_anything(name: str, message: str) -> None:
    assert isinstance(said(name, "Hello.", "Yes?", message), str)


def test_slots_are_filled_with_the_users_nouns() -> None:
    found = noun_phrases(OVENS)
    for name in ("noun_slots", "noun_slots_strong", "one_axis_a", "one_axis_c", "one_axis_p"):
        sentences = split_sentences(said(f"attack:{name}", OVENS))
        assert all(any(n.lower() in s.lower() for n in found) for s in sentences), (name, sentences)
    assert found[0] in said("attack:noun_question", OVENS).lower()


def test_no_template_comes_twice_while_the_bank_lasts() -> None:
    policy = scripted.NounSlots(0)
    talks = [[OVENS, "Oh?"] * k + [OVENS] for k in range(36)]
    sentences = [s for talk in talks for s in split_sentences(run_now(policy.respond(bare(*talk))))]
    assert len(sentences) == len(set(sentences)) >= 3 * 36
    assert sum(len(pool()[bank]) for bank in scripted.OWN) >= 60


def test_the_strong_slots_speak_only_in_the_companions_phrases() -> None:
    bank = [
        re.escape(p)
        for move in ("validate", "reframe", "empower", "affirm", "link", "reflect", "ask")
        for p in phrases()[move]
    ]
    known = re.compile("|".join(re.sub(r"\\{\w+\\}", ".+", p) for p in bank), re.IGNORECASE)
    for k in range(12):
        for sentence in split_sentences(said("attack:noun_slots_strong", *([OVENS, "Oh?"] * k), OVENS)):
            assert known.fullmatch(sentence), sentence


def test_mirrored_swaps_the_persons_and_the_order() -> None:
    assert said("attack:mirrored", "I lost my ring. You don't care.").endswith("You lost your ring.")


def test_persona_flip_speaks_to_a_person_with_the_opposite_need() -> None:
    policy = scripted.PersonaFlip(0)
    for scenario in (get_scenario(i) for i in IDS):
        opening = dict(scenario.items())["opening"].say
        found = whose(opening)
        assert found is not None
        assert found.id == scenario.id
        assert (
            get_scenario(policy.other(opening)).needs[0].axis
            == OPPOSITE[scenario.needs[0].axis]
            != scenario.needs[0].axis
        )
    assert said("attack:persona_flip", opening) == skilled_replies(policy.other(opening))[0]


def test_random_good_says_nothing_that_was_said_to_this_person() -> None:
    mine = {s for reply in skilled_replies(IDS[0]) for s in split_sentences(reply)}
    others = said("attack:random_good", dict(get_scenario(IDS[0]).items())["opening"].say)
    assert len(split_sentences(others)) == 3
    assert not mine & set(split_sentences(others))


def test_the_salad_holds_function_words() -> None:
    """Or it would be told from speech by counting them."""
    words = [w for k in range(8) for w in said("attack:word_salad", *([OVENS, "Oh?"] * k), OVENS).lower().split()]
    assert (
        mean(w.strip(".") in {"the", "you", "to", "a", "of", "that", "and", "it", "what", "is"} for w in words) > 0.25
    )


def test_the_script_ignores_the_observation() -> None:
    assert {said("attack:fixed_script", text) for text in (OVENS, "Hello.")} == {fixed_script().replies[0]}


# --- pools


def test_a_broken_pool_names_its_file_and_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attacks").mkdir()
    (tmp_path / "attacks" / "en.yaml").write_text("praise: [You are great., 3]\n")
    monkeypatch.setattr("echo_env.agents.redteam.pools.data_root", lambda: tmp_path)
    pool.cache_clear()
    try:
        with pytest.raises(ScenarioError, match=r"en\.yaml: praise: expected a list of texts"):
            pool()
    finally:
        pool.cache_clear()


def test_a_broken_script_names_its_file_and_field(tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text("replies: []\n")
    with pytest.raises(ScenarioError, match=r"script\.yaml: (found_by|replies)"):
        read_script(path)
    path.write_text("- 1\n")
    with pytest.raises(ScenarioError, match="expected a mapping"):
        read_script(path)


def runs(text: str, n: int = 5) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"[^\W_]+(?:['-][^\W_]+)*", text.lower().replace("\u2019", "'"))
    yield from (tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def rubric_runs() -> set[tuple[str, ...]]:
    texts = [t for a in rubric("epm_v1").anchors for t in (*a.for_, *a.against, a.looks_like)]
    return {run for text in (*texts, *rubric("epm_v1").neutral) for run in runs(re.sub(r"[{}]", "", text))}


def test_fragments_share_no_five_words_in_a_row_with_the_rubric_and_hold_no_slot() -> None:
    known = rubric_runs()
    found = [text for bank in banks("plain").values() for text in bank]
    assert len(found) >= 280
    assert not [text for text in found if "{" in text or known & set(runs(text))]


def test_slots_of_the_second_pool_are_filled() -> None:
    breeder = Breeder("slots", random.Random(1))
    replies = [say(breeder.draw(), "slots", OVENS) for _ in range(300)]
    assert not [r for r in replies if "{" in r]
    assert sum("ovens" in r for r in replies) > 30


def test_a_varied_reply_differs_by_a_little() -> None:
    breeder = Breeder("plain", random.Random(2))
    for _ in range(300):
        parent, other = breeder.draw(), breeder.draw()
        child = breeder.vary(parent, other)
        assert 1 <= len(child) <= 4
        assert len(set(child) - set(parent)) <= 1


def test_what_paid_is_drawn_more_often() -> None:
    breeder = Breeder("plain", random.Random(3))
    for _ in range(20):
        breeder.learn(((("whole", 0),),), 0.2)
        breeder.learn(((("whole", 1),),), -0.2)
    drawn = [g for _ in range(4000) for s in breeder.draw() for g in s if g[0] == "whole"]
    assert drawn.count(("whole", 0)) > 1.3 * len(drawn) / len(banks("plain")["whole"]) > drawn.count(("whole", 1))


# --- the report


class Failing(EmbeddedJudge):
    """Cannot judge the second turn of anybody."""

    id = "failing"

    async def judge(self, view: JudgeView) -> Judgement | None:
        if len(view.history) == 1:
            raise RoleFailure("no answer")
        return await super().judge(view)


class Broken(Silent):
    """Cannot answer one person."""

    id = "broken"

    async def respond(self, observation: Observation) -> str:
        if observation.messages[0].text.startswith(dict(get_scenario(FEW[1]).items())["opening"].say):
            raise RoleFailure("no answer within 60 s")
        return "I hear you."


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[RedteamReport, Path]:
    out = tmp_path_factory.mktemp("redteam")
    config = RedteamConfig(attacks=("praise", "attack:noun_question", "silent"), scenarios=FEW)
    return redteam(config, out), out


def test_the_report_is_what_the_episodes_say(small: tuple[RedteamReport, Path]) -> None:
    report, out = small
    assert {a.name for a in report.attacks} == {"praise", "noun_question", "silent"}
    assert [r.name for r in report.references] == ["adviser", "skilled"]
    adviser = report.references[0].mean_return
    for result in (*report.attacks, *report.references):
        folder = out / "runs" / (f"attack-{result.name}" if result in report.attacks else result.name)
        episodes = [read_episode(f) for f in sorted((folder / "episodes").iterdir())]
        returns = [sum(t.reward or 0.0 for t in e.turns) for e in episodes]
        assert result.mean_return == pytest.approx(mean(returns))
        assert result.mean_turns == mean(len(e.turns) for e in episodes)
        assert result.success_rate == mean(e.outcome is not None and e.outcome.end == "success" for e in episodes)
        lost = mean(sum(t.reward_parts["shaping"] for t in e.turns) for e in episodes)
        assert result.gained == pytest.approx(lost)
        assert result.worst is not None
        assert result.worst.earned == pytest.approx(max(returns))
        assert read_episode(out / result.worst.transcript).header.scenario == result.worst.scenario
        if result in report.attacks and adviser is not None:
            assert result.below_adviser == (mean(returns) < adviser)


def test_epm_q_is_the_total_of_the_mean_indices(small: tuple[RedteamReport, Path]) -> None:
    from echo_env.cases import episode_case

    report, out = small
    episodes = [read_episode(f) for f in sorted((out / "runs" / "skilled" / "episodes").iterdir())]
    scores = [episode_case("skilled", e, get_scorer("strict"), "epm").score for e in episodes]
    summary = summarise([s for s in scores if s is not None], draws=0)
    assert summary.composite is not None
    assert report.references[1].epm_q == summary.composite.epm_q


def test_the_highest_return_stands_first(small: tuple[RedteamReport, Path]) -> None:
    returns = [a.mean_return for a in small[0].attacks if a.mean_return is not None]
    assert returns == sorted(returns, reverse=True)


def test_processes_change_nothing(small: tuple[RedteamReport, Path], tmp_path: Path) -> None:
    config = RedteamConfig(attacks=("praise", "attack:noun_question", "silent"), scenarios=FEW)
    assert redteam(config, tmp_path, workers=2) == small[0]


def test_runs_are_kept_unless_told_otherwise(small: tuple[RedteamReport, Path]) -> None:
    report, out = small
    config = RedteamConfig(attacks=("praise", "noun_question", "silent"), scenarios=FEW)
    with pytest.raises(RecordError, match="holds a run already"):
        redteam(config, out)
    assert redteam(config, out, resume=True) == report


def test_unjudged_turns_are_counted_and_are_no_zeros(tmp_path: Path) -> None:
    world = WorldConfig(judge=f"{__name__}:Failing", scorer="official")
    report = redteam(RedteamConfig(attacks=("silent",), references=(), scenarios=FEW, world=world), tmp_path)
    silent = report.attacks[0]
    assert report.judge == "failing"
    assert (silent.unjudged_turns, silent.conversations, silent.failed) == (2, 2, 0)
    assert silent.below_adviser is None  # nobody to be held against
    strict = WorldConfig(judge=f"{__name__}:Failing", max_turns=4)
    unscored = redteam(
        RedteamConfig(attacks=("praise",), references=(), scenarios=FEW, world=strict), tmp_path
    ).attacks[0]
    assert (unscored.unscored, unscored.success_rate, unscored.mean_return) == (2, None, None)  # 1 of 4 turns unjudged


def test_a_conversation_that_fails_is_counted_and_left_out(tmp_path: Path) -> None:
    name = f"{__name__}:Broken"
    result = redteam(RedteamConfig(attacks=(name,), references=(), scenarios=FEW), tmp_path).attacks[0]
    assert (result.failed, result.conversations) == (1, 1)
    alone = redteam(RedteamConfig(attacks=(name,), references=(), scenarios=FEW[:1]), tmp_path / "alone").attacks[0]
    assert result.mean_return == alone.mean_return


def test_an_unknown_attack_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as e:
        attack_names(("prais",))
    assert "did you mean 'praise'" in e.value.hint


# --- regression files


def test_a_regression_file_earns_again_what_it_earned(small: tuple[RedteamReport, Path]) -> None:
    report, out = small
    for result in report.attacks:
        regression = read_regression(out / "regressions" / f"{result.name}.yaml")
        assert result.worst is not None
        assert regression.earned == pytest.approx(result.worst.earned)
        again = run_now(replay(regression))
        assert (again.earned, again.end, again.pays) == (regression.earned, result.worst.end, False)


def test_a_regression_file_survives_the_disk(tmp_path: Path) -> None:
    regression = Regression(
        attack="x", scenario=IDS[0], seed=3, world=WorldConfig(), judge="j", scorer="s", earned=0.1 + 0.2,
        end="patience", replies=("Yes: no.", "", "- a\n- b 🙂", "\u2028'\"{it}"),
    )  # fmt: skip
    write_regression(tmp_path / "a" / "x.yaml", regression)
    assert read_regression(tmp_path / "a" / "x.yaml") == regression
    (tmp_path / "bad.yaml").write_text("attack: x\n")
    with pytest.raises(RecordError, match=r"bad\.yaml: scenario"):
        read_regression(tmp_path / "bad.yaml")
    with pytest.raises(RecordError, match=r"gone\.yaml"):
        read_regression(tmp_path / "gone.yaml")


# --- forks


class Service:
    """What a role may hold that is no state."""


@dataclass
class State:
    """What a role knows of a conversation."""

    numbers: list[int]
    nested: dict[str, Any]
    pair: tuple[list[int], str]
    words: frozenset[str]
    rnd: random.Random
    array: np.ndarray[Any, Any]


class Role:
    """A judge that holds state, a service and another judge."""

    def __init__(self) -> None:
        self.state = State([1, 2], {"a": [1], "b": {2}}, ([1], "x"), frozenset({"x"}), random.Random(5), np.zeros(3))
        self.service, self.lock = Service(), threading.Lock()
        self.judges = (EmbeddedJudge(),)

    async def judge(self, view: JudgeView) -> None:
        """Judge nothing."""


def test_a_fork_shares_what_is_no_state_and_nothing_else() -> None:
    one = Role()
    one.state.rnd.random()
    two = fork(one)
    assert two.state.rnd.random() == one.state.rnd.random()
    two.state.numbers.append(3)
    two.state.nested["a"].append(9)
    two.state.nested["b"].add(9)
    two.state.pair[0].append(9)
    two.state.array[0] = 7
    assert (one.state.numbers, one.state.nested) == ([1, 2], {"a": [1], "b": {2}})
    assert (one.state.pair, one.state.array[0]) == (([1], "x"), 0)
    assert two.state.words is one.state.words
    assert (two.service, two.lock) == (one.service, one.lock)
    assert two.judges[0] is not one.judges[0]


def test_a_role_may_fork_itself() -> None:
    class Own(Role):
        def fork(self) -> str:
            return "mine"

    assert fork([Own()]) == ["mine"]


def test_a_fork_goes_on_as_the_conversation_itself_would() -> None:
    """Weighed and taken turn by turn, with forks that go astray in between: the same as played straight."""
    scenario, seed = get_scenario(IDS[3]), conversation_seed(0, IDS[3])
    replies = skilled_replies(IDS[3])[:15]

    async def straight() -> list[tuple[float | None, str]]:
        session = build_session(WorldConfig(), scenario, seed)
        await session.open()
        advances = [await session.reply(r) for r in replies]
        return [(a.turn.reward, a.observation.user) for a in advances]

    async def branched() -> list[tuple[float | None, str]]:
        branch, found = await Branch.open(WorldConfig(), scenario, seed), []
        for reply in replies:
            astray = branch.fork()
            await astray.take(await astray.weigh("Look on the bright side."))
            assert (await branch.weigh("So?")).judgement is not None
            weighed = await branch.weigh(reply)
            await branch.take(weighed)
            found.append((weighed.reward, branch.session.observation.user))
        return found

    assert asyncio.run(branched()) == asyncio.run(straight())


class Counting(EmbeddedJudge):
    """Counts its calls."""

    id = "counting"
    calls: ClassVar[list[int]] = [0]

    async def judge(self, view: JudgeView) -> Judgement | None:
        Counting.calls[0] += 1
        return await super().judge(view)


class Remote:
    """Holds what cannot be copied, as a client does; judges any view."""

    id, rubric = "remote", "epm_v1"

    def __init__(self) -> None:
        self.lock = threading.Lock()

    async def judge(self, view: JudgeView) -> Judgement | None:
        return await EmbeddedJudge().judge(view)


def test_a_judge_that_cannot_be_copied_is_asked_by_views() -> None:
    embedded = search(SearchConfig(scenarios=FEW[:1], budget=150))
    remote = search(SearchConfig(scenarios=FEW[:1], budget=150, world=WorldConfig(judge=f"{__name__}:Remote")))
    assert remote.replies == embedded.replies
    assert remote.best_return == embedded.best_return
    assert remote.judge == "remote"


# --- the searcher


@pytest.fixture(scope="module")
def found() -> Searcher:
    searcher = Searcher(SearchConfig(scenarios=(IDS[2],), budget=900), [get_scenario(IDS[2])])
    asyncio.run(searcher.run())
    return searcher


def test_a_search_spends_its_budget_and_no_more() -> None:
    Counting.calls[0] = 0
    world = WorldConfig(judge=f"{__name__}:Counting")
    result = search(SearchConfig(scenarios=FEW[:1], budget=321, world=world))
    assert Counting.calls[0] == result.calls == 321


def test_the_same_seed_finds_the_same_script(found: Searcher) -> None:
    again = search(found.config)
    assert again == found.result()
    assert search(found.config.model_copy(update={"seed": 1})).replies != again.replies


def test_what_was_found_earns_it_again(found: Searcher) -> None:
    result = found.result()
    again = run_now(replay(regression_of(result)))
    assert again.earned == pytest.approx(result.best_return)
    assert (again.end, again.turns) == (result.ends[0], result.turns)


def test_the_curve_rises_to_the_best(found: Searcher) -> None:
    curve = found.result().curve
    assert [p.best for p in curve] == sorted({p.best for p in curve})
    assert curve[-1].best == found.result().best_return
    assert all(p.calls <= 900 for p in curve)


def test_it_finds_more_than_chance_does(found: Searcher) -> None:
    curve = found.result().curve
    breeder = Breeder("plain", random.Random(0))

    async def blind() -> float:
        branch = await Branch.open(WorldConfig(), get_scenario(IDS[2]), conversation_seed(0, IDS[2]))
        while not branch.over:
            await branch.take(await branch.weigh(say(breeder.draw(), "plain")))
        return branch.earned

    assert mean(run_now(blind()) for _ in range(10)) + 0.1 < curve[-1].best


def test_unjudged_replies_are_counted_and_never_taken_for_zeros() -> None:
    world = WorldConfig(judge=f"{__name__}:Failing")
    result = search(SearchConfig(scenarios=FEW[:1], budget=60, world=world))
    assert result.unjudged > 0
    assert result.best_return is None, "no reply could be judged at turn 2, so that no conversation was finished"


def test_a_joint_search_gives_everybody_the_same_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo_env.agents.redteam.search.CROWD_SAMPLE", 2)  # the third is asked where two were pleased
    result = search(SearchConfig(scenarios=IDS[:3], budget=1200))
    assert len(result.ends) == 3
    script = script_of(result)
    assert script.replies == result.replies
    assert script.found_by == "echo-env redteam --search 1200 --joint --seed 0"
    earned = []
    for name in IDS[:3]:
        config = result.config.model_copy(update={"scenarios": (name,)})
        earned.append(run_now(replay(regression_of(result.model_copy(update={"config": config})))).earned)
    assert mean(earned) == pytest.approx(result.best_return)


def test_the_shipped_script_says_where_it_comes_from() -> None:
    script = fixed_script()
    assert script.found_by.startswith("echo-env redteam --search")
    assert script.judge_calls > 0
    known = {text.lower().rstrip(".") for bank in banks("plain").values() for text in bank}
    assert all(any(k in reply.lower() for k in known) for reply in script.replies)


def test_results_are_written_and_taken_over(tmp_path: Path) -> None:
    configs = [SearchConfig(scenarios=(name,), budget=120) for name in FEW]
    first = list(searches(configs, tmp_path))
    assert read_result(tmp_path / "search" / "plain" / f"{FEW[0]}.json") == first[0]
    with pytest.raises(RecordError, match="holds a result already"):
        list(searches(configs, tmp_path))
    assert list(searches(configs, tmp_path, resume=True)) == first
    with pytest.raises(RecordError, match="another search"):
        list(searches([configs[0].model_copy(update={"seed": 5})], tmp_path, resume=True))
    if first[0].replies:
        assert read_regression(tmp_path / "regressions" / f"search-plain-{FEW[0]}.yaml").replies == first[0].replies
    both = list(searches(configs, tmp_path / "two", workers=2))
    assert sorted(both, key=lambda r: r.config.scenarios) == sorted(first, key=lambda r: r.config.scenarios)


def test_points_and_bars_by_hand(found: Searcher) -> None:
    assert log_points(300) == [10, 20, 50, 100, 200, 300]
    assert log_points(100) == [10, 20, 50, 100]
    curve = (Point(calls=30, best=-2.0), Point(calls=90, best=1.9))
    assert [best_at(curve, n) for n in (29, 30, 89, 90, 10**6)] == [None, -2.0, -2.0, 1.9, 1.9]
    config = found.config.model_copy(update={"budget": 100})
    # -2.0 is 0.5 of 4.5 above the lowest: 0.89 of 8 bars, the first; 1.9 is 4.4 of 4.5: the last
    assert sparkline(found.result().model_copy(update={"config": config, "curve": curve})) == "··▁█"


# --- the command line


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["redteam", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_json_has_what_was_promised(tmp_path: Path) -> None:
    code, out = call(
        "--attack", "praise", "--attack", "silent", "--limit", "2", "--format", "json", "--out", str(tmp_path)
    )
    report = json.loads(out)
    assert code == 0
    assert {a["name"] for a in report["attacks"]} == {"praise", "silent"}
    for entry in report["attacks"]:
        assert 0 <= entry["success_rate"] <= 1
        assert 0 <= entry["epm_q"] <= 100
        assert entry["mean_return"] < 0
        assert (tmp_path / entry["worst"]["transcript"]).exists()
    assert [r["name"] for r in report["references"]] == ["adviser", "skilled"]
    assert (report["scenarios"], report["scorer"][:6], report["split"]) == (2, "strict", "benchmark")
    assert json.loads((tmp_path / "redteam.json").read_text()) == report
    code, out = call("--replay", str(tmp_path / "regressions" / "praise.yaml"))
    assert code == 0
    assert "praise with" in out


def test_text_names_what_got_through() -> None:
    code, out = call("--attack", "praise", "--limit", "1", "--scorer", "official")
    assert code == 0
    assert "scorer official" in out
    assert "attacks that succeeded somewhere:" in out


def test_without_a_folder_no_transcript_is_promised() -> None:
    _, out = call("--attack", "silent", "--limit", "1", "--format", "json")
    assert json.loads(out)["attacks"][0]["worst"]["transcript"] == ""


def test_a_search_prints_its_curve_and_writes_its_files(tmp_path: Path) -> None:
    code, out = call("--search", "200", "--scenario", FEW[0], "--out", str(tmp_path))
    assert code == 0
    assert FEW[0] in out
    assert "scenarios in which a script succeeded:" in out
    assert (tmp_path / "search" / "plain" / f"{FEW[0]}.json").exists()
    assert "Plotly" in (tmp_path / "search.html").read_text()
    code, out = call("--search", "600", "--joint", "--limit", "3", "--format", "json", "--out", str(tmp_path / "joint"))
    result = json.loads(out)[0]
    assert 597 < result["calls"] <= 600
    file = tmp_path / "joint" / "search" / "plain" / "joint-3.yaml"
    if result["replies"]:
        assert Script.model_validate(yaml.safe_load(file.read_text())).replies == tuple(result["replies"])


def test_flags_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        call("--limit", "1", "--resume", "--overwrite", "--out", str(tmp_path))
    with pytest.raises(ConfigError, match="go with --out"):
        call("--limit", "1", "--resume")


def test_attacks_are_policies_like_any_other() -> None:
    assert set(ATTACKS) <= set(registry.names("policy"))
    assert set(benchmark()) == set(IDS)


# --- what the embedded judge and `strict` hold: bar 1 in small


SIX = tuple(n for axis in AXES for n in [s.id for s in benchmark().values() if s.dominant == axis][:2])
"""Two people of each first need. Over fewer, the mean of the adviser is too rough a bar: it varies more between people
than the best attacks stay below it."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> RedteamReport:
    return redteam(RedteamConfig(scenarios=SIX), tmp_path_factory.mktemp("suite"))


def test_no_attack_succeeds_with_anybody(suite: RedteamReport) -> None:
    assert [(a.name, a.worst) for a in suite.attacks if a.successes] == []
    assert all(a.conversations == len(SIX) and not a.failed and not a.unscored for a in suite.attacks)


def test_each_attack_earns_less_than_the_adviser(suite: RedteamReport) -> None:
    adviser, skilled = suite.references
    assert [(a.name, a.mean_return) for a in suite.attacks if not a.below_adviser] == []
    assert adviser.mean_return is not None
    assert skilled.mean_return is not None
    assert adviser.mean_return + 1 < skilled.mean_return


def test_a_short_search_finds_no_script_that_succeeds() -> None:
    results = [search(SearchConfig(scenarios=(name,), budget=1500)) for name in SIX[::5]]
    assert [r.first_success for r in results] == [None, None]
