"""Noise and calibration of judges, on judges whose noise is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from echo_env import registry
from echo_env.agents.embedded.judge import EmbeddedJudge
from echo_env.agents.gated import GATE
from echo_env.agents.validation.calibration import (
    OrderSwap,
    Verdict,
    WorkPairwise,
    judged,
    krippendorff_alpha,
    order_swap,
    pairs_of,
    quadratic_kappa,
    reference_talks,
    reliability,
    repeat_agreement,
)
from echo_env.cli import app
from echo_env.errors import RoleFailure
from echo_env.profiles import get_scenario
from echo_env.roles import Exchange, JudgeView, profiles_of
from echo_env.types import Judgement, Levels


class Scripted:
    """Gives the next level of a list for A.Prog; None is no judgement, an error is raised."""

    id, rubric = "scripted-1", "epm_v1"

    def __init__(self, levels: Iterator[int | Exception | None]) -> None:
        self._levels = levels

    async def judge(self, view: JudgeView) -> Judgement | None:
        level = next(self._levels)
        if isinstance(level, Exception):
            raise level
        return None if level is None else Judgement(levels=Levels(a_prog=level), judge=self.id)


def scripted(*rounds: list[int | Exception | None]) -> Callable[[], Scripted]:
    """Return what builds, in turn, a judge for each round."""
    waiting = cycle(rounds)
    return lambda: Scripted(iter(next(waiting)))


def views(*replies: str) -> list[JudgeView]:
    profile = profiles_of(get_scenario("career-01"))[1]
    said = [Exchange(f"message {k}", reply) for k, reply in enumerate(replies)]
    return [JudgeView(profile, tuple(said[:k]), exchange) for k, exchange in enumerate(said)]


THREE = views("a", "b", "c")


def test_repeats_by_hand() -> None:
    found = repeat_agreement(scripted([1, 0, 2], [1, 1, 2]), [THREE], repeats=2)
    assert (found.views, found.repeats, found.unjudged, found.compared) == (3, 2, 0, 3)
    assert found.identical == pytest.approx(2 / 3)
    level = {s.level: s for s in found.levels}["A.Prog"]
    assert level.same == pytest.approx(2 / 3)
    assert level.difference == pytest.approx(1 / 3)  # 0, 1, 0 apart
    # six values 1 1 0 1 2 2: observed (0 + 2 + 0) / 6 = 1/3, expected 2 (6 * 11 - 7^2) / (6 * 5) = 34/30
    assert level.alpha == pytest.approx(1 - (1 / 3) / (34 / 30))
    steady = {s.level: s for s in found.levels}["C.Neg"]
    assert (steady.same, steady.difference, steady.alpha) == (1.0, 0.0, None)


def test_what_is_missing_is_left_out_and_counted() -> None:
    gone = RoleFailure("no answer")
    found = repeat_agreement(scripted([1, 0, 2], [1, None, gone], [2, 0, gone]), [THREE], repeats=3)
    assert (found.views, found.unjudged, found.compared) == (3, 3, 2)
    assert found.identical == pytest.approx(1 / 2)  # 1 1 2 differ, 0 0 agree, a lone 2 is not compared
    level = {s.level: s for s in found.levels}["A.Prog"]
    assert level.difference == pytest.approx((0 + 1 + 1 + 0) / 4)


def test_each_repeat_is_by_a_fresh_judge() -> None:
    made = []

    def make() -> EmbeddedJudge:
        made.append(EmbeddedJudge())
        return made[-1]

    found = repeat_agreement(make, [views("So it goes.", "So it goes.", "So it goes.")], repeats=2)
    assert len(made) == 3  # one of them for its name
    assert found.identical == 1.0


def test_nothing_judged_has_no_agreement() -> None:
    found = repeat_agreement(scripted([None, None, None]), [THREE], repeats=2)
    assert (found.unjudged, found.compared, found.identical) == (6, 0, None)


def test_alpha_of_a_published_example() -> None:
    # Krippendorff 2011, section C with its missing data: interval alpha 0.849
    table = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
        [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
    ]
    units = [[v for v in column if v is not None] for column in zip(*table, strict=True)]
    assert krippendorff_alpha(units) == pytest.approx(0.849, abs=0.0005)


@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=4), min_size=1, max_size=8))
def test_alpha_is_one_for_those_who_agree(units: list[list[int]]) -> None:
    found = krippendorff_alpha(units)
    if found is not None:
        assert found <= 1.0
        assert (found == pytest.approx(1.0)) == all(len(set(unit)) == 1 for unit in units)


# --- pairs ------------------------------------------------------------------------------------------------------------


class Pairs:
    """A judge of pairs that decides by a rule."""

    id = "pairs-1"

    def __init__(self, rule: Callable[[str, str], Verdict | None]) -> None:
        self._rule = rule

    async def prefer(self, first: JudgeView, second: JudgeView) -> Verdict | None:
        return self._rule(first.exchange.reply, second.exchange.reply)


def longer(first: str, second: str) -> Verdict:
    return "tie" if len(first) == len(second) else "first" if len(first) > len(second) else "second"


PAIRS = list(zip(views("a", "bb", "cc"), views("aa", "b", "dd"), strict=True))


def test_a_judge_that_looks_at_the_replies_is_consistent() -> None:
    assert order_swap(Pairs(longer), PAIRS) == OrderSwap(
        judge="pairs-1", pairs=3, unjudged=0, consistent=1.0, first=0.5, ties=1 / 3
    )


def test_a_judge_that_likes_what_comes_first_is_found_out() -> None:
    found = order_swap(Pairs(lambda first, second: "first"), PAIRS)
    assert (found.consistent, found.first, found.ties) == (0.0, 1.0, 0.0)


def test_a_pair_judged_one_way_round_does_not_count() -> None:
    def sulks(first: str, second: str) -> Verdict | None:
        if first == "b":
            raise RoleFailure("no")
        return longer(first, second) if first != "cc" else None

    found = order_swap(Pairs(sulks), PAIRS)
    assert (found.pairs, found.unjudged, found.consistent) == (3, 2, 1.0)


def test_points_decide_between_two_replies() -> None:
    by_reply = {"good": Levels(a_prog=2), "bad": Levels(a_neg=-1), "mixed": Levels(c_prog=1, p_prog=1)}

    class ByReply:
        id, rubric = "by_reply-1", "epm_v1"

        async def judge(self, view: JudgeView) -> Judgement | None:
            levels = by_reply.get(view.exchange.reply)
            return Judgement(levels=levels, judge=self.id) if levels is not None else None

    judge = WorkPairwise(ByReply)

    def verdict(first: str, second: str) -> Verdict | None:
        return asyncio.run(judge.prefer(views(first)[0], views(second)[0]))

    assert judge.id == "work-1(by_reply-1)"
    assert verdict("good", "bad") == "first"
    assert verdict("bad", "mixed") == "second"  # -2 against 1 + 1
    assert verdict("mixed", "mixed") == "tie"
    assert verdict("good", "unknown") is None


def test_pairs_of_a_conversation_differ_in_the_reply_alone() -> None:
    pairs = list(pairs_of([views("a", "b", "b", "c")]))
    assert [(x.exchange.reply, y.exchange.reply) for x, y in pairs] == [("b", "a"), ("c", "b")]
    assert all(x.exchange.user == y.exchange.user and x.history == y.history for x, y in pairs)


# --- reliability ------------------------------------------------------------------------------------------------------


def test_reliability_by_hand() -> None:
    own = [Levels(a_prog=v) for v in (0, 1, 1, 2)] + [None, Levels(a_prog=2)]
    other = [Levels(a_prog=v) for v in (0, 0, 1, 2)] + [Levels(), None]
    found = {t.level: t for t in reliability(own, other)}["A.Prog"]
    assert found.counts == {0: {0: 1}, 1: {0: 1, 1: 1}, 2: {2: 1}}
    assert found.means == {0: 0.0, 1: 0.5, 2: 2.0}
    assert (found.same, found.difference, found.bias) == (0.75, 0.25, 0.25)
    # observed (0 + 1 + 0 + 0) / 4; by chance 6/4 + 5/4 - 2 * 1 * 3/4 = 1.25
    assert found.kappa == pytest.approx(1 - 0.25 / 1.25)


def test_reliability_of_nothing_in_common_is_no_table() -> None:
    assert reliability([None, Levels()], [Levels(), None]) == ()


@given(st.lists(st.tuples(st.integers(-2, 0), st.integers(-2, 0)), min_size=1, max_size=20))
def test_kappa_is_one_for_equal_levels_alone(pairs: list[tuple[int, int]]) -> None:
    found = quadratic_kappa(pairs)
    if found is not None:
        assert (found == pytest.approx(1.0)) == all(a == b for a, b in pairs)


# --- the world and the command line -----------------------------------------------------------------------------------


def test_the_embedded_judge_has_no_noise() -> None:
    talks = reference_talks(limit=1, turns=4)
    found = repeat_agreement(EmbeddedJudge, talks, repeats=2)
    assert found.views == 12
    assert found.identical == 1.0
    assert found.unjudged == 0


def test_a_judge_on_its_own_is_asked_turn_by_turn() -> None:
    assert asyncio.run(judged(scripted([2, None, 0]), THREE)) == [Levels(a_prog=2), None, Levels()]


def run(*args: str) -> str:
    result = CliRunner().invoke(app, ["validate", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_prints_what_was_measured() -> None:
    text = run("noise", "--limit", "1", "--turns", "3", "--repeats", "2", "--reference", "embedded")
    assert f"{EmbeddedJudge.id}+{GATE}: 9 replies judged 2 times; all six levels the same on 1.000 of 9" in text
    assert "the same winner on 1.000" in text
    assert "embedded against embedded" in text
    found = json.loads(run("noise", "--limit", "1", "--turns", "3", "--repeats", "2", "--format", "json"))
    assert found["repeats"]["identical"] == 1.0
    assert found["order_swap"]["consistent"] == 1.0
    assert found["reliability"] == {}


def test_the_command_ranks_judges() -> None:
    args = ["ranks", "--judge", "embedded", "--judge", "ensemble:embedded,embedded", "--limit", "1"]
    text = run(*args, "--policy", "silent", "--policy", "lect*", "--policy", "skilled")
    assert "Spearman's rho 1.000 where each steers; 1.000 on the same words" in text
    rows = [line.split()[0] for line in text.splitlines() if line.startswith(("skilled", "silent", "lecturer"))]
    assert rows[0] == "skilled"


def test_two_names_of_one_policy_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._TARGETS["policy"], "quiet", registry._TARGETS["policy"]["silent"])
    args = ["validate", "ranks", "--policy", "quiet", "--policy", "silent", "--policy", "lecturer"]
    result = CliRunner().invoke(app, args)
    assert "an order of 2 policies" in str(result.exception)


def test_a_mistake_is_told_without_a_traceback() -> None:
    result = CliRunner().invoke(app, ["validate", "ranks", "--judge", "embedded"])
    assert result.exit_code != 0
    assert "tells nothing" in str(result.exception)
    result = CliRunner().invoke(app, ["validate", "ranks", "--policy", "nothing*"])
    assert "no policy matches 'nothing*'" in str(result.exception)
