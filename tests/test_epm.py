"""The EPM arithmetic: goldens by hand, and the properties that the scorers promise."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from echo_env import epm
from echo_env.epm import INDEX_NAMES, EpmState, Scorer
from echo_env.errors import ConfigError, ScenarioError
from echo_env.metrics import compose
from echo_env.scorers import PaperScorer, get_scorer
from echo_env.types import Levels, NullTurn, Vector

STRICT, OFFICIAL, PAPER = (get_scorer(name) for name in ("strict", "official", "paper"))
SCORERS = pytest.mark.parametrize("scorer", [STRICT, OFFICIAL, PAPER], ids=lambda s: s.name)

ZERO = Levels()
GOOD = Levels(2, 0, 2, 0, 2, 0)
BAD = Levels(0, -1, 0, -2, 0, -1)

prog, neg = st.integers(0, 2), st.integers(-2, 0)
levels_of_a_turn = st.builds(Levels, prog, neg, prog, neg, prog, neg)
episodes = st.lists(levels_of_a_turn, min_size=1, max_size=45)
axis_deficit = st.integers(-27, 0).map(float)
deficits = st.tuples(axis_deficit, axis_deficit, axis_deficit).filter(lambda p0: min(p0) < -1)


def play(scorer: Scorer, p0: Vector, turns: Sequence[Levels | NullTurn | None]) -> EpmState:
    state = scorer.start(p0)
    for levels in turns:
        state = scorer.advance(state, levels)
    return state


def epm_q(scorer: Scorer, state: EpmState) -> float:
    indices = scorer.indices(state)
    assert indices is not None
    return compose(indices).epm_q


# --- the space


def test_action_vector_maps_every_level_to_its_points() -> None:
    assert epm.action_vector(Levels(1, 0, 2, 0, 0, 0)) == (1, 3, 0)
    assert epm.action_vector(Levels(0, -1, 0, -1, 0, -1)) == (-2, -2, -2)
    assert epm.action_vector(Levels(0, -2, 0, -2, 0, -2)) == (-4, -5, -5)
    assert epm.action_vector(Levels(2, -1, 1, -2, 2, -2)) == (3 - 2, 1 - 5, 3 - 5)


@pytest.mark.parametrize("levels", [Levels(3), Levels(c_neg=1), Levels(p_neg=-3), Levels(a_prog=-1)])
def test_a_level_out_of_range_is_refused(levels: Levels) -> None:
    with pytest.raises(ValueError, match="prog levels are 0, 1 or 2"):
        epm.action_vector(levels)


def test_distances() -> None:
    assert epm.norm((-2, -3, -6)) == 7  # sqrt(4 + 9 + 36)
    assert epm.zone_distance((-4, -1, -5)) == 5  # sqrt(3^2 + 0 + 4^2)
    assert epm.zone_distance((2, -1, 9)) == 0
    assert epm.towards_origin((-2, -3, -6)) == (2 / 7, 3 / 7, 6 / 7)
    assert epm.towards_origin((0, 0, 0)) == (0, 0, 0)


# --- one short episode by hand, P0 = (-2, -3, -6), |P0| = 7, d(P0) = sqrt(1 + 4 + 25) = 5.477226

P0: Vector = (-2.0, -3.0, -6.0)
EPISODE = [GOOD, Levels(p_neg=-1), Levels(p_prog=2, p_neg=-1)]  # v = (3, 3, 3), (0, 0, -2), (0, 0, 1)


def test_strict_by_hand() -> None:
    state = play(STRICT, P0, EPISODE)
    assert state.path == (P0, (0, 0, -3), (0, 0, -5), (0, 0, -4))
    assert state.works == (7 - 3, 3 - 5, 5 - 4)
    assert state.energy == 3
    indices = STRICT.indices(state)
    assert indices is not None
    # gain = 2+3+3, 0, 1; loss = 0, 2, 0; K = T = 3, since |P_T| = 4 > 0.7; gate = 2/3; Neg levels sum to -2;
    # the third turn wins 3 points on P and costs 2: its gain is 1, its harm 2
    expected = {
        "rdi": (math.sqrt(30) - 3) / math.sqrt(30),
        "e_total": 3 / 7,
        "s_net": (9 - 2) / 11,
        "rho": (3 / 3) / 2.5,
        "s_proj": (7 / 3) / (2.5 * math.sqrt(3)),
        "tau": 3 / (4 + 2 + 1),
        "r_pos": 2 / 3,
        "align": (1 + 0 + 1 / 3) / 3 * (2 / 3),
        "r_pen": (2 / 3) * (3 - 2 / 3) / 3,
    }
    assert indices.model_dump() == pytest.approx({name: share * 100 for name, share in expected.items()})
    # version 1 saw the net of the third turn alone
    first = get_scorer("strict-1").indices(state)
    assert first is not None
    assert first.model_dump() == pytest.approx({**indices.model_dump(), "align": (1 + 0 + 1) / 3 * (2 / 3) * 100})


def test_official_by_hand() -> None:
    state = play(OFFICIAL, P0, EPISODE)
    assert state.path == (P0, (1, 0, -3), (1, 0, -5), (1, 0, -4))
    # v* = (2, 3, 6)/7
    assert state.works == pytest.approx((33 / 7, -12 / 7, 6 / 7))
    # 33 / 7 / sqrt(27), -6 / 7 and 6 / 7, to the published code's four decimals
    assert state.cosines == (0.9073, -0.8571, 0.8571)
    indices = OFFICIAL.indices(state)
    assert indices is not None
    r0, energy, path = math.sqrt(30), 27 / 7, math.sqrt(27) + 2 + 1
    expected = {
        "rdi": ((r0 - 3) / r0 * 100 + 100) / 2,
        "e_total": energy / (1.2 * r0) * 100,
        "s_net": (6 - 1 + 1) / (1.5 * r0) * 100,
        "rho": energy / 3 / 2.5 * 100,
        "s_proj": energy / 4 / 2.5 * 100,
        "tau": (3 - path / math.sqrt(9 + 9 + 4)) / 2 * 100,
        "r_pos": 2 / 4 * 100,
        "align": (0.9073 / 4 + 1) / 2 * 100,
        "r_pen": (3 - 2 / 4) / 3 * 100,
    }
    assert indices.model_dump() == pytest.approx(expected)


def test_paper_takes_its_direction_anew_each_turn() -> None:
    state = play(PAPER, P0, EPISODE)
    # (2, 3, 6)/7 . (3, 3, 3); (-1, 0, 3)/sqrt(10) . (0, 0, -2); (-1, 0, 5)/sqrt(26) . (0, 0, 1)
    assert state.works == pytest.approx((33 / 7, -6 / math.sqrt(10), 5 / math.sqrt(26)))
    at_origin = play(PAPER, (-3.0, -3.0, -3.0), [GOOD, GOOD])
    assert at_origin.works == pytest.approx((math.sqrt(27), 0))


def test_delta_tells_the_last_turn() -> None:
    state = STRICT.start(P0)
    assert STRICT.delta(state) is None
    state = STRICT.advance(state, GOOD)
    delta = STRICT.delta(state)
    assert delta is not None
    assert (delta.position, delta.delta, delta.work, delta.energy, delta.distance) == ((0, 0, -3), (3, 3, 3), 4, 4, 3)
    assert delta.cos == pytest.approx(33 / 7 / math.sqrt(27))
    assert not delta.healed
    assert STRICT.delta(STRICT.advance(state, None)) is None


def test_a_return_to_the_start_counts_as_straight_for_official_as_published() -> None:
    there_and_back = [Levels(c_prog=1, a_prog=1)] * 2 + [Levels(c_neg=-1, a_neg=-1)]
    state = play(OFFICIAL, (-10.0, -10.0, 0.0), there_and_back)
    assert state.position == state.p0
    indices = OFFICIAL.indices(state)
    assert indices is not None
    assert indices.tau == 100


# --- ends


def test_success_waits_for_the_minimum_turn_and_then_stays() -> None:
    state = play(STRICT, (-6.0, -6.0, -6.0), [GOOD] * 11)
    assert STRICT.healed(state)
    assert state.end is None
    state = STRICT.advance(state, ZERO)
    assert (state.end, state.ended_at) == ("success", 12)
    for _ in range(6):
        state = STRICT.advance(state, BAD)
    assert (state.end, state.ended_at, state.turns) == ("success", 12, 18)


def test_strict_refuses_an_axis_left_behind() -> None:
    # |P| = 2 <= 0.1 * |P0| = 2.7, but axis C, which began at -1, may not end below -1
    p0 = (-1.0, -27.0, 0.0)
    harm_c = [Levels(c_neg=-1, a_prog=2)] + [Levels(a_prog=2)] * 11
    state = play(STRICT, p0, harm_c)
    assert state.position == (-3, 0, 0)
    state = STRICT.advance(state, Levels(c_prog=1))
    assert state.position == (-2, 0, 0)
    assert state.end is None
    assert STRICT.advance(state, Levels(c_prog=1)).end == "success"


@SCORERS
def test_five_turns_of_regress_collapse(scorer: Scorer) -> None:
    state = play(scorer, (-10.0, -18.0, -12.0), [BAD] * 12)
    assert (state.end, state.ended_at) == ("collapse", 12)


@SCORERS
def test_small_losses_around_one_place_stagnate(scorer: Scorer) -> None:
    # three turns lose a point on P and the fourth wins one; P is a small part of |P|, so that costs about 0.3 a turn:
    # never five in a row, six of the last eight, 4 * 0.3 > 1 in sum, and |P| hardly moves
    lose, win = Levels(p_prog=1, p_neg=-1), Levels(p_prog=1)
    state = play(scorer, (-1.0, -30.0, -8.0), [lose, lose, lose, win] * 3)
    assert (state.end, state.ended_at) == ("stagnation", 12)


def test_oscillation_is_official_only() -> None:
    turns = [Levels(a_prog=1), Levels(a_prog=1), Levels(a_neg=-1)] * 4
    ends = {s.name: play(s, (-5.0, -20.0, -5.0), turns).end for s in (STRICT, OFFICIAL, PAPER)}
    assert ends == {"strict": None, "official": "oscillation", "paper": None}


@SCORERS
def test_patience_runs_out_and_belongs_to_the_task(scorer: Scorer) -> None:
    turns = [Levels(a_prog=1, c_neg=-1), Levels(c_prog=1)] * 23
    state = play(scorer, (-10.0, -40.0, -10.0), turns)
    assert (state.end, state.ended_at) == ("patience", 45)
    brief = replace(scorer, max_turns=20)
    assert brief.id == scorer.id
    assert play(brief, (-10.0, -40.0, -10.0), turns).ended_at == 20


@SCORERS
def test_silence_of_the_judge_ends_by_patience_alone(scorer: Scorer) -> None:
    state = play(scorer, (-10.0, -18.0, -12.0), [None] * 50)
    assert (state.end, state.ended_at, state.unjudged, state.position) == ("patience", 45, 50, (-10, -18, -12))
    assert scorer.indices(state) is None


def test_official_tells_geometric_from_positional() -> None:
    near = play(OFFICIAL, (-12.0, -12.0, -12.0), [Levels(1, 0, 1, 0, 1, 0)] * 12)
    past = play(OFFICIAL, (-12.0, -12.0, -12.0), [GOOD] * 12)
    assert (near.end, near.end_detail) == ("success", "geometric")
    assert (past.end, past.end_detail) == ("success", "positional")
    assert play(STRICT, (-12.0, -12.0, -12.0), [GOOD] * 12).end_detail is None


def test_paper_wants_more_energy_than_the_deficit() -> None:
    # P0 = (-3, 0, 0): to the origin E = 3, which is not more than |P0|; at the origin the direction is 0
    p0 = (-3.0, 0.0, 0.0)
    there = [Levels(c_prog=2)] + [ZERO] * 11
    assert play(PAPER, p0, there).end is None
    # past it to +3, then -2 back is energy again: E = 3 + 0 + 2 > 3; |P| = 1 >= 0.3; cosines 1, 0, 1 over 12 turns
    around = [Levels(c_prog=2), Levels(c_prog=2), Levels(c_neg=-1)]
    assert play(PAPER, p0, around + [ZERO] * 9).end is None
    lax = PaperScorer(tau_align=0.1)
    state = play(lax, p0, around + [ZERO] * 9)
    assert (state.end, state.end_detail) == ("success", "geometric")
    # one out and back more: E = 3 + 0 + 2 - 1 + 2 = 6, and P = 0 is near; the cosines 1, 0, 1, -1, 1 average 2/12
    back = [*around, Levels(c_prog=1), Levels(c_neg=-1)]
    state = play(PAPER, p0, back + [ZERO] * 7)
    assert state.position == (0, 0, 0)
    assert (state.end, state.end_detail) == ("success", "positional")


# --- what cannot be scored, names, ids


@SCORERS
@pytest.mark.parametrize("p0", [(0.0, 0.0, 0.0), (1.0, -5.0, -5.0), (math.nan, -5.0, -5.0), (-math.inf, 0.0, 0.0)])
def test_a_deficit_that_cannot_be_scored_is_refused(scorer: Scorer, p0: Vector) -> None:
    with pytest.raises(ScenarioError):
        scorer.start(p0)


def test_strict_refuses_a_deficit_inside_the_zone() -> None:
    with pytest.raises(ScenarioError, match="target zone"):
        STRICT.start((-1.0, -1.0, -1.0))
    assert OFFICIAL.indices(play(OFFICIAL, (-1.0, -1.0, -1.0), [ZERO])) is not None  # r0 falls back to 1, as published


def test_get_scorer() -> None:
    assert get_scorer() is get_scorer("strict") is get_scorer("strict-2")
    assert get_scorer("strict-1").id == "strict-1"
    assert [get_scorer(n).id for n in ("official", "paper-1")] == ["official-2", "paper-1"]
    with pytest.raises(ConfigError, match="did you mean 'strict'"):
        get_scorer("strikt")
    with pytest.raises(ConfigError, match="known: official, official-2, paper"):
        get_scorer("strict-3")


def test_a_changed_setting_shows_in_the_id() -> None:
    assert replace(OFFICIAL, alpha=0.05).id == "official-2(alpha=0.05)"
    assert PaperScorer(tau_align=0.6, min_turns=2).id == "paper-1(min_turns=2,tau_align=0.6)"
    with pytest.raises(ConfigError, match="min_turns <= max_turns"):
        replace(STRICT, max_turns=8)


# --- unjudged turns


def test_only_official_replays_a_null_turn_and_counts_it() -> None:
    null = NullTurn((-1.0, -4.0, 1.0), Levels(c_neg=-1))
    replayed = play(OFFICIAL, P0, [GOOD, null])
    assert replayed.position == (0, -4, -2)
    assert (replayed.judged, replayed.replayed_nulls) == (2, 1)
    for scorer in (STRICT, PAPER):
        skipped = play(scorer, P0, [GOOD, null])
        assert (skipped.judged, skipped.unjudged, skipped.replayed_nulls) == (1, 1, 0)


def test_strict_leaves_more_than_a_tenth_unjudged_unscored() -> None:
    assert STRICT.indices(play(STRICT, P0, [GOOD] * 9 + [None])) is not None
    assert STRICT.indices(play(STRICT, P0, [GOOD] * 8 + [None])) is None
    assert OFFICIAL.indices(play(OFFICIAL, P0, [GOOD] + [None] * 8)) is not None


@SCORERS
@given(p0=deficits, turns=episodes, where=st.integers(0, 44))
@settings(max_examples=50, deadline=None)
def test_an_unjudged_turn_moves_nothing(scorer: Scorer, p0: Vector, turns: list[Levels], where: int) -> None:
    with_gap: list[Levels | None] = [*turns[:where], None, *turns[where:]]
    plain, gapped = play(scorer, p0, turns), play(scorer, p0, with_gap)
    assert gapped.path == plain.path
    assert gapped.energy == plain.energy
    assert (gapped.judged, gapped.unjudged, gapped.turns) == (plain.judged, 1, plain.turns + 1)
    if (indices := scorer.indices(gapped)) is not None:
        assert indices == scorer.indices(plain)


# --- properties


@SCORERS
@given(p0=deficits, turns=episodes)
@settings(max_examples=50, deadline=None)
def test_advance_is_pure(scorer: Scorer, p0: Vector, turns: list[Levels]) -> None:
    before = play(scorer, p0, turns[:-1])
    copy = pickle.loads(pickle.dumps(before))
    first, second = scorer.advance(before, turns[-1]), scorer.advance(before, turns[-1])
    assert before == copy
    assert first == second
    assert hash(first) == hash(second)
    with pytest.raises(FrozenInstanceError):
        before.turns = 3  # type: ignore[misc]


@given(p0=deficits, turns=episodes)
@settings(max_examples=200, deadline=None)
def test_strict_indices_stay_within_0_and_100_and_work_is_the_distance_closed(p0: Vector, turns: list[Levels]) -> None:
    state = play(STRICT, p0, turns)
    assert state.energy == pytest.approx(epm.norm(p0) - epm.norm(state.position), abs=1e-9)
    assert max(state.position) <= 0
    indices = STRICT.indices(state)
    assert indices is not None
    assert all(0 <= getattr(indices, name) <= 100 for name in INDEX_NAMES)


@given(p0=deficits, count=st.integers(1, 60))
@settings(max_examples=50, deadline=None)
def test_saying_nothing_scores_0_under_strict(p0: Vector, count: int) -> None:
    state = play(STRICT, p0, [ZERO] * count)
    indices = STRICT.indices(state)
    assert indices is not None
    assert set(indices.model_dump().values()) == {0.0}


def test_saying_nothing_scores_a_third_under_official() -> None:
    assert epm_q(OFFICIAL, play(OFFICIAL, (-10.0, -18.0, -12.0), [ZERO] * 45)) == pytest.approx(100 / 3)


@pytest.mark.parametrize(
    ("p0", "levels"),
    [
        ((-10.0, -24.0, -10.0), Levels(1, -1, 2, 0, 1, -1)),
        ((0.0, -27.0, 0.0), Levels(1, -1, 2, 0, 1, -1)),
        ((-6.0, -24.0, -6.0), Levels(0, -1, 2, 0, 0, -1)),
    ],
)
@pytest.mark.parametrize("length", [12, 20, 45])
def test_healing_one_axis_by_harming_two_stays_under_10(p0: Vector, levels: Levels, length: int) -> None:
    state = play(STRICT, p0, [levels] * length)
    assert state.end != "success"
    if length == 45:
        assert state.end == "collapse"
        assert epm_q(STRICT, state) < 10


@given(p0=deficits, turns=episodes, data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_better_turn_never_lowers_outcome_and_a_better_last_turn_never_lowers_epm_q(
    p0: Vector, turns: list[Levels], data: st.DataObject
) -> None:
    where, field = data.draw(st.integers(0, len(turns) - 1)), data.draw(st.integers(0, 5))
    level = turns[where][field]
    assume(level < (2 if field % 2 == 0 else 0))
    better = [*turns[:where], Levels(*(x + (i == field) for i, x in enumerate(turns[where]))), *turns[where + 1 :]]
    plain, improved = (STRICT.indices(play(STRICT, p0, episode)) for episode in (turns, better))
    assert plain is not None
    assert improved is not None
    assert compose(improved).outcome >= compose(plain).outcome - 1e-9
    if where == len(turns) - 1:
        assert compose(improved).epm_q >= compose(plain).epm_q - 1e-9


@given(fast=st.integers(0, 40))
@settings(max_examples=20, deadline=None)
def test_turns_after_arrival_cost_nothing(fast: int) -> None:
    healed_early = play(STRICT, (-10.0, -18.0, -12.0), [GOOD] * 6)
    later = play(STRICT, (-10.0, -18.0, -12.0), [GOOD] * 6 + [ZERO] * fast)
    assert STRICT.indices(later) == STRICT.indices(healed_early)


# --- harm that progress covers: what version 2 of strict closes


def test_a_talk_does_not_end_well_on_a_reply_that_hurts() -> None:
    # 11 turns heal all three axes; a wound of 2 points on C is within 0.1 * |P0| = 2.37 and within max(1, 0.2 * 10)
    state = play(STRICT, (-10.0, -18.0, -12.0), [GOOD] * 11 + [Levels(c_neg=-1)])
    assert epm.norm(state.position) == 2
    assert (state.end, STRICT.healed(state)) == (None, False)
    assert play(get_scorer("strict-1"), (-10.0, -18.0, -12.0), [GOOD] * 11 + [Levels(c_neg=-1)]).end == "success"
    assert STRICT.advance(state, ZERO).end == "success"


def stability(scorer: Scorer, p0: Vector, turns: list[Levels]) -> float:
    indices = scorer.indices(play(scorer, p0, turns))
    assert indices is not None
    return compose(indices).stability


def test_wounding_and_soothing_on_one_axis_is_not_aligned() -> None:
    # each turn wins 3 points on A and costs 2: gain 1, harm 2
    turns = [Levels(a_prog=2, a_neg=-1)] * 12
    indices, first = (
        get_scorer(n).indices(play(get_scorer(n), (0.0, -27.0, 0.0), turns)) for n in ("strict", "strict-1")
    )
    assert indices is not None
    assert first is not None
    assert (indices.align, first.align) == (pytest.approx(100 / 3), 100)


def test_harm_where_the_axis_is_healed_is_seen() -> None:
    # A is healed and saturated: +3 - 2 moves nothing there, while C heals
    turns = [Levels(c_prog=1, a_prog=2, a_neg=-1)] * 8
    assert stability(STRICT, (-20.0, 0.0, 0.0), turns) < stability(get_scorer("strict-1"), (-20.0, 0.0, 0.0), turns)


def test_harm_after_arrival_is_seen() -> None:
    calm, rude = [GOOD] * 6 + [ZERO] * 6, [GOOD] * 6 + [ZERO] * 3 + [Levels(c_neg=-1)] + [ZERO] * 2
    p0 = (-10.0, -18.0, -12.0)
    assert stability(STRICT, p0, rude) < stability(STRICT, p0, calm)


@given(p0=deficits, turns=episodes, data=st.data())
@settings(max_examples=200, deadline=None)
def test_harm_never_pays(p0: Vector, turns: list[Levels], data: st.DataObject) -> None:
    where, field = data.draw(st.integers(0, len(turns) - 1)), data.draw(st.sampled_from([1, 3, 5]))
    assume(turns[where][field] > -2)
    worse = [*turns[:where], Levels(*(x - (i == field) for i, x in enumerate(turns[where]))), *turns[where + 1 :]]
    plain_state, worse_state = play(STRICT, p0, turns), play(STRICT, p0, worse)
    plain, hurt = STRICT.indices(plain_state), STRICT.indices(worse_state)
    assert plain is not None
    assert hurt is not None
    assert hurt.e_total <= plain.e_total + 1e-9
    assert worse_state.end != "success" or plain_state.end == "success"


@given(p0=deficits, turns=episodes)
@settings(max_examples=100, deadline=None)
def test_official_projection_is_energy_less_deficit_and_nothing_is_clipped(p0: Vector, turns: list[Levels]) -> None:
    state = play(OFFICIAL, p0, turns)
    projection = epm.dot(state.position, OFFICIAL.direction(state))
    assert projection == pytest.approx(state.energy - epm.norm(p0), abs=1e-9)
    for axis in range(3):
        assert state.position[axis] == p0[axis] + sum(move[axis] for move in state.moves)
