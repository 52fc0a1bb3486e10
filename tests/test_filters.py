"""Filters of groups and prompts, and what a long reply costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import trajectory

from echo_env.errors import ConfigError
from echo_env.trainers import filters

scores = st.lists(st.none() | st.sampled_from([0.0, 1.0]), max_size=8)


@pytest.mark.parametrize(
    ("group", "kept"),
    [
        ([1, 1, 1], False), ([0, 1, 0], True), ([0.1, 0.1 + 1e-9], True), ([], False), ([1], False),
        ([1, None, 1], False), ([1, None], False), ([None, 0, 1], True),
    ],
)  # fmt: skip
def test_a_group_needs_spread_among_its_scores(group: list[float | None], kept: bool) -> None:
    assert filters.has_spread(group) is kept


@given(scores)
def test_on_zeros_and_ones_spread_is_dapos_range(group: list[float | None]) -> None:
    assert filters.has_spread(group) == filters.within(group)


def test_the_good_groups_stay_when_no_other_can_replace_the_flat_one() -> None:
    """OpenRLHF issue 1310. Groups interleaved; the flat one goes whole, and nothing else."""
    made = [trajectory([r], group=g) for r in (0.0, 1.0) for g in ("a", "flat", "b")]
    made[4] = trajectory([0.0], group="flat")
    kept = filters.keep_groups(made)
    assert [(t.group, t.score) for t in kept] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert filters.keep_groups(made, lambda scores: True) == made


def test_a_shaped_reward_would_keep_what_the_verdict_drops() -> None:
    """NeMo-RL issue 2431: all right, but of different lengths."""
    verdicts = [1.0, 1.0]
    shaped = [v + filters.length_penalty(n, 10) for v, n in zip(verdicts, [2, 9], strict=True)]
    assert filters.has_spread(shaped)
    assert not filters.has_spread(verdicts)


@pytest.mark.parametrize(
    ("group", "dropped"),
    [
        ([1] * 8, True), ([1] * 7 + [0], False), ([0.95, 0.9, 0.85], True), ([0] * 8, False), ([None, None], False),
        ([1, None, 1], True), ([], False),
    ],
)  # fmt: skip
def test_prompts_that_are_won_every_time_are_dropped(group: list[float | None], dropped: bool) -> None:
    # seven of eight: mean 0.875, below 0.9
    assert filters.too_easy(group) is dropped


def test_high_scores_that_spread_are_kept() -> None:
    assert not filters.too_easy([1, 1, 0.5], mean=0.8)  # mean 0.83, deviation 0.236
    assert filters.too_easy([1, 1, 0.5], mean=0.8, spread=0.25)


@pytest.mark.parametrize(("length", "penalty"), [(0, 0), (6, 0), (7, -0.25), (8, -0.5), (10, -1), (99, -1)])
def test_the_overlong_slope_of_a_cap_of_ten_and_a_cache_of_four(length: int, penalty: float) -> None:
    assert filters.overlong_penalty(length, cap=10, cache=4) == penalty
    assert filters.overlong_penalty(length, cap=10, cache=4, factor=0.1) == pytest.approx(0.1 * penalty)


def test_the_users_words_are_nobodys_length() -> None:
    """OpenRLHF issue 1243: two replies of 4 tokens with 6 of the user between, cap 10, cache 4. From end to end: 14."""
    one = trajectory([0.0, 0.0], lengths=[4, 4], user=6)
    assert filters.overlong_penalty(one.policy_tokens, cap=10, cache=4) == -0.5
    assert filters.overlong_penalty(one.policy_tokens, cap=12, cache=4) == 0
    assert all(filters.overlong_penalty(r.end - r.start, cap=10, cache=4) == 0 for r in one.replies())


@given(st.integers(0, 200), st.integers(1, 50), st.integers(0, 50))
def test_penalties_stay_within_their_factor(length: int, cache: int, rest: int) -> None:
    cap = cache + rest
    soft, plain = filters.overlong_penalty(length, cap, cache), filters.length_penalty(length, cap)
    assert -1 <= soft <= 0
    assert -0.1 <= plain <= 0
    assert filters.overlong_penalty(length + 1, cap, cache) <= soft
    if length >= cap:
        assert (soft, plain) == (-1, -0.1)


def test_cut_replies() -> None:
    assert filters.unfinished(2.0, 0.5) == 1
    assert filters.unfinished(2.0, -0.5) == -0.5
    for call in (lambda: filters.unfinished(1.0, 2), lambda: filters.overlong_penalty(1, 4, 5)):
        with pytest.raises(ConfigError):
            call()
    with pytest.raises(ConfigError):
        filters.length_penalty(1, 0)
