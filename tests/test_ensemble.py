"""Several judges as one."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_env import registry
from echo_env.agents.embedded.judge import EmbeddedJudge
from echo_env.agents.ensemble import EnsembleJudge, ensemble_of, median_levels, recorded_spread, spread
from echo_env.agents.gated import GATE
from echo_env.build import WorldConfig, build_session
from echo_env.driving import run_now
from echo_env.errors import ConfigError, RoleFailure
from echo_env.profiles import get_scenario
from echo_env.roles import Exchange, JudgeView, profiles_of
from echo_env.types import Evidence, Judgement, Levels

LEVELS = st.builds(Levels, *(st.integers(0, 2), st.integers(-2, 0)) * 3)


class Says:
    """Gives the same levels whatever it sees, or fails."""

    rubric = "epm_v1"

    def __init__(self, name: str, levels: Levels | None = None, error: Exception | None = None, note: str = "") -> None:
        self.id, self.levels, self.error, self.note = name, levels, error, note

    async def judge(self, view: JudgeView) -> Judgement | None:
        await asyncio.sleep(0)
        return self.now()

    def now(self) -> Judgement | None:
        if self.error:
            raise self.error
        if self.levels is None:
            return None
        found = Evidence(axis="C", direction="prog", level=1, anchor="C.prog.1.reflects", quote="so", reason="it fits")
        return Judgement(levels=self.levels, evidence=(found,), judge=self.id, note=self.note)


class SaysNow(Says):
    """The same without waiting."""

    async def judge(self, view: JudgeView) -> Judgement | None:
        return self.now()


def view() -> JudgeView:
    return JudgeView(profiles_of(get_scenario("career-01"))[1], (), Exchange("hello", "hi"))


def judged(*members: Says) -> Judgement | None:
    return asyncio.run(EnsembleJudge(members).judge(view()))


ONE = Levels(2, 0, 1, -1, 0, 0)
TWO = Levels(1, -2, 1, 0, 0, 0)
THREE = Levels(0, -1, 2, 0, 0, -2)


def test_three_judges_are_their_median() -> None:
    found = judged(Says("one-1", ONE), Says("two-1", TWO), Says("three-1", THREE))
    assert found is not None
    assert found.levels == Levels(1, -1, 1, 0, 0, 0)
    assert found.judge == "ensemble:one-1,two-1,three-1"


def test_of_two_judges_the_one_nearer_to_zero_counts() -> None:
    assert median_levels([ONE, TWO]) == Levels(1, 0, 1, 0, 0, 0)


@given(st.lists(LEVELS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_median_lies_among_the_levels_in_any_order(levels: list[Levels], rnd) -> None:  # type: ignore[no-untyped-def]
    found = median_levels(levels)
    for k, value in enumerate(found):
        column = [one[k] for one in levels]
        assert value in column
        assert 2 * sum(abs(v) >= abs(value) for v in column) >= len(column)
        assert 2 * sum(abs(v) <= abs(value) for v in column) >= len(column)
    rnd.shuffle(levels)
    assert median_levels(levels) == found


def test_disagreement_is_recorded() -> None:
    found = judged(Says("one-1", ONE), Says("two-1", TWO), Says("three-1", THREE))
    assert found is not None
    assert found.note == "spread C.Prog 2, C.Neg 2, A.Prog 1, A.Neg 1, P.Neg 2 of 3 judges"
    assert recorded_spread(found) == spread([ONE, TWO, THREE]) == Levels(2, 2, 1, 1, 0, 2)
    assert recorded_spread(Judgement.model_validate_json(found.model_dump_json())) == recorded_spread(found)


@given(st.lists(LEVELS, min_size=2, max_size=5))
def test_what_was_recorded_is_read_again(levels: list[Levels]) -> None:
    found = judged(*(Says(f"j{k}-1", one) for k, one in enumerate(levels)))
    assert found is not None
    assert recorded_spread(found) == spread(levels)


def test_another_judges_note_is_no_spread() -> None:
    assert recorded_spread(Judgement(levels=ONE, judge="one-1", note="spread C.Prog 2 of 3 judges")) is None


def test_evidence_is_pooled_each_with_its_judge() -> None:
    found = judged(Says("one-1", ONE), Says("two-1", TWO))
    assert found is not None
    assert [e.reason for e in found.evidence] == ["one-1: it fits", "two-1: it fits"]


def test_members_that_fail_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hush-hush-hush")
    broken = Says("two-1", error=RoleFailure("refused with hush-hush-hush"))
    found = judged(Says("one-1", ONE), broken, Says("three-1"), Says("four-1", ONE, note="curt"))
    assert found is not None
    assert found.levels == ONE
    assert found.note == (
        "spread 0 of 2 judges | 2 of 4 failed: two-1: RoleFailure: refused with [redacted]; three-1: no judgement"
        " | four-1: curt"
    )
    assert recorded_spread(found) == Levels()


def test_where_all_fail_there_is_no_judgement() -> None:
    assert judged(Says("one-1"), Says("two-1", error=ValueError("no"))) is None


def test_no_event_loop_is_needed_where_nobody_waits() -> None:
    found = run_now(EnsembleJudge([SaysNow("one-1", ONE), SaysNow("two-1", TWO)]).judge(view()))
    assert found is not None
    assert found.levels == median_levels([ONE, TWO])


def test_an_ensemble_has_a_name_wherever_a_judge_has() -> None:
    session = build_session(WorldConfig(judge="ensemble:embedded,embedded"), get_scenario("career-01"), 0)
    run_now(session.open())
    judgement = run_now(session.reply("")).turn.judgement
    assert judgement is not None
    one = EmbeddedJudge.id
    assert (judgement.judge, session.cast.judge.rubric) == (f"ensemble:{one}+{GATE},{one}+{GATE}", "epm_v1")
    assert judgement.note == f"spread 0 of 2 judges | {one}: silence | {one}: silence"
    assert judgement.levels.a_neg == -1


@pytest.mark.parametrize("name", ["ensemble:", "ensemble:embedded", "ensemble:embedded,"])
def test_an_ensemble_of_one_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="fewer than two judges"):
        registry.resolve("judge", name)
    with pytest.raises(ConfigError, match="two judges or more"):
        EnsembleJudge([Says("one-1", ONE)])


def test_an_unknown_member_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match="unknown judge 'embedded2'"):
        ensemble_of("embedded,embedded2")
