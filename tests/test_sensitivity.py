"""The replies written for one person's needs, and the measure of whether a judge hears the difference."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from echo_env import cli
from echo_env.agents.safety import gate
from echo_env.agents.validation import sensitivity
from echo_env.agents.validation.sensitivity import (
    Case,
    halves,
    measure,
    prefix,
    replies,
    shares,
    switched,
    user_messages,
)
from echo_env.errors import ConfigError, ScenarioError
from echo_env.profiles import benchmark, data_root, get_scenario
from echo_env.roles import JudgeView, profiles_of
from echo_env.types import Judgement, Levels

# --- the replies


def test_two_hundred_replies_over_all_people_early_and_late() -> None:
    found = replies()
    assert len(found) == 200
    assert {r.scenario for r in found} == set(benchmark())
    for name in benchmark():
        mine = [r.turn for r in found if r.scenario == name]
        assert len(mine) in (6, 7)
        assert sum(turn <= 3 for turn in mine) >= 2
        assert sum(6 <= turn <= 14 for turn in mine) >= 2
    assert len({r.text for r in found}) == 200


def runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z0-9']+", text.lower())
    return {tuple(words[i : i + 6]) for i in range(len(words) - 5)}


@pytest.mark.parametrize("other", ["rubrics/epm_v1.yaml", "voices/companion_en.yaml"])
def test_no_six_words_in_a_row_are_the_rubrics_or_the_companions(other: str) -> None:
    known = runs(re.sub(r"[{}\"]", "", (data_root() / other).read_text(encoding="utf-8")))
    assert [(r.scenario, r.turn) for r in replies() if runs(r.text) & known] == []


def test_no_reply_is_harmful() -> None:
    assert [(r.scenario, r.turn) for r in replies() if gate().check(r.text, "companion")] == []


def test_halves_are_apart_and_balanced() -> None:
    parts = halves()
    assert set(parts["working"]) | set(parts["test"]) == set(parts["all"]) == set(benchmark())
    assert not set(parts["working"]) & set(parts["test"])
    for axis in ("C", "A", "P"):
        assert sum(get_scenario(n).dominant == axis for n in parts["working"]) == 5
    assert {r.scenario for r in replies("test")} == set(parts["test"])
    assert len({r.scenario for r in replies("working")[:15]}) == 15, "a limit takes one of each person first"


def test_the_prefix_is_the_persons_story_answered_by_skilled() -> None:
    person = get_scenario("career-01")
    turns = prefix("career-01")
    assert turns[0].user == person.opening.say
    assert all(turn.reply for turn in turns)
    assert len(turns) >= max(r.turn for r in replies() if r.scenario == "career-01")
    assert prefix("career-01") == turns


def test_a_story_may_name_needs_and_nothing_unknown() -> None:
    person = get_scenario("family-01")
    assert user_messages(person, [["need1.0"]]) == [person.needs[1].asks[0]]
    with pytest.raises(ScenarioError, match=r"family-01: there is no line 'beat9\.0'"):
        user_messages(person, [["opening"], ["beat9.0"]])


# --- the switched profiles


@pytest.mark.parametrize("name", list(benchmark())[::7])
def test_only_needs_and_defensiveness_are_switched(name: str) -> None:
    person = get_scenario(name)
    own, others = profiles_of(person)[1], switched(person)
    assert len(others) == 4
    assert len({own.key, *(p.key for p in others.values())}) == 5
    for label, other in others.items():
        assert other.needs[0].axis != own.needs[0].axis
        assert other.persona.defensiveness != own.persona.defensiveness
        back = own.persona.model_copy(update={"defensiveness": other.persona.defensiveness})
        assert vars(replace(other, key=own.key, needs=own.needs)) == vars(replace(own, persona=back))
        assert label.startswith("rotate") == (set(other.needs) == set(own.needs))


# --- the measure


class Deaf:
    """Finds the same for everybody."""

    id, rubric = "deaf-1", "none"

    async def judge(self, view: JudgeView) -> Judgement | None:
        return Judgement(levels=Levels(a_prog=1), judge=self.id)


class Hearing:
    """Finds good on the person's first axis alone, and only where the reply was written for it."""

    id, rubric = "hearing-1", "none"

    async def judge(self, view: JudgeView) -> Judgement | None:
        axis = view.profile.needs[0].axis
        good = ":" not in view.profile.key
        return Judgement(levels=Levels(**{f"{axis.lower()}_prog": 2 if good else 0}), judge=self.id)


class Broken:
    """Fails where the needs are borrowed."""

    id, rubric = "broken-1", "none"

    async def judge(self, view: JudgeView) -> Judgement | None:
        if "borrow" in view.profile.key:
            raise TimeoutError("no answer within 60 s")
        return None if view.history else Judgement(levels=Levels(), judge=self.id)


def all_of(found: sensitivity.Sensitivity) -> sensitivity.Share:
    return next(share for share in found.shares if share.name == "all")


def test_the_levels_of_a_deaf_judge_tie_everywhere() -> None:
    """What is left to fall is the deficit, which goes with the needs."""
    found = measure(f"{__name__}:Deaf", limit=20)
    share = next(s for s in found.shares if s.name == "levels alone, same deficit")
    assert all(case.deaf == case.switched for case in found.cases)
    assert (share.n, share.falls, share.ties, share.rises, share.difference) == (20, 0.0, 1.0, 0.0, 0.0)


def test_a_hearing_judge_falls_until_the_axis_is_healed() -> None:
    found = measure(f"{__name__}:Hearing", limit=20)
    for case in found.cases:
        assert (case.difference > 0) == (case.own > 0)
        assert case.healed or case.own > 0
    assert all_of(found).falls == 1.0
    assert found.judge == "hearing-1"


def test_work_is_the_distance_closed_from_the_state_before() -> None:
    """career-01 starts at (-19, -15, -16); C prog 2 adds 3: sqrt(361+225+256) - sqrt(256+225+256) = 29.017 - 27.148."""
    case = next(c for c in measure(f"{__name__}:Hearing").cases if (c.scenario, c.turn) == ("career-01", 1))
    assert case.own == pytest.approx(842**0.5 - 737**0.5)
    assert case.switched == dict.fromkeys(case.switched, 0.0)


def test_an_unjudged_case_is_counted_and_in_no_share() -> None:
    found = measure(f"{__name__}:Broken", limit=5)
    assert (len(found.cases), len(found.unjudged)) == (0, 5)
    assert "TimeoutError: no answer within 60 s" in found.unjudged[0]
    assert all_of(found).falls is None


def test_an_unknown_judge_is_an_error() -> None:
    with pytest.raises(ConfigError, match="embody"):
        measure("embody")


def case(own: float, *others: float, scenario: str = "a", turn: int = 1) -> Case:
    works = {f"{'rotate' if k < 2 else 'borrow'}-{k}": x for k, x in enumerate(others)}
    return Case(
        scenario=scenario,
        turn=turn,
        first="C",
        healed=False,
        own=own,
        switched=works,
        alone=works,
        deaf=works,
        levels={},
    )


def test_shares_by_hand() -> None:
    """Differences 2-1, 1-1, 0-1 and 3-1.5: falls 2 of 4, ties 1, rises 1; mean (1 + 0 - 1 + 1.5) / 4."""
    cases = [
        case(2, 1, 1, 1, 1),
        case(1, 0, 2, 0, 2),
        case(0, 1, 1, 1, 1, scenario="b"),
        case(3, 1, 2, 1, 2, scenario="b", turn=9),
    ]
    by = {share.name: share for share in shares(cases)}
    found = by["all"]
    assert (found.n, found.falls, found.ties, found.rises) == (4, 0.5, 0.25, 0.25)
    assert found.difference == pytest.approx(0.375)
    assert found.difference_interval is not None
    assert found.difference_interval.low <= 0.375 <= found.difference_interval.high
    assert (by["turns 1-3"].n, by["later turns"].n, by["C first"].n, by["A first"].n) == (3, 1, 4, 0)
    assert by["work found for the own needs"].n == 3


def test_a_kind_of_switch_is_looked_at_by_itself() -> None:
    by = {share.name: share for share in shares([case(1.0, 1.0, 1.0, 0.0, 0.0)])}
    assert (by["rotated needs"].difference, by["borrowed needs"].difference, by["all"].difference) == (0.0, 1.0, 0.5)


# --- the command


def test_the_command_prints_the_share_and_writes_json() -> None:
    done = CliRunner().invoke(cli.app, ["validate", "persona", "--limit", "4", "--format", "json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert (data["part"], len(data["cases"]), data["shares"][0]["name"]) == ("working", 4, "all")
    assert set(data["cases"][0]["levels"]) == {"own", *data["cases"][0]["switched"]}
    text = CliRunner().invoke(cli.app, ["validate", "persona", "--limit", "2", "--cases"]).stdout
    assert "falls" in text
    assert "rotate-1" in text
    broken = ["validate", "persona", "--limit", "2", "--judge", f"{__name__}:Broken"]
    assert CliRunner().invoke(cli.app, broken).exit_code == 3


# --- the embedded judge, on a few


def test_work_falls_more_often_than_it_rises_where_the_needs_are_switched() -> None:
    """One early reply to each person of the working half, and a second: a small version of the whole measure."""
    share = all_of(measure("embedded", limit=30))
    assert share.n == 30
    assert share.falls is not None
    assert share.rises is not None
    assert share.falls > share.rises
    assert share.difference is not None
    assert share.difference > 0
