"""What is stored of a conversation for training, and how it becomes a batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from trajectories import talk, trajectory

from echo_env.errors import ConfigError
from echo_env.trainers.trajectory import (
    Reply,
    Retokenised,
    TokenSequence,
    Trajectory,
    collate,
    grown,
    micro_batches,
    reward_table,
)

replies = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=5)
"""User tokens before a reply, tokens of the reply."""


def test_a_second_turn_grows_the_sequence() -> None:
    first = grown(None, [5, 6], [1, 2], [-0.5, -0.25], "end")
    second = grown(first, [5, 6, 1, 2, 7, 8], [3], [-2.0], "length")
    assert second.ids == (5, 6, 1, 2, 7, 8, 3)
    assert [(r.turn, r.start, r.end, r.stop) for r in second.replies] == [(0, 2, 4, "end"), (1, 6, 7, "length")]
    assert second.replies[0].logprobs == (-0.5, -0.25)


@pytest.mark.parametrize("prompt", [[5, 6, 1, 9, 7], [5, 6, 1]])
def test_a_prompt_that_rewrites_the_history_is_refused(prompt: list[int]) -> None:
    first = grown(None, [5, 6], [1, 2], [-0.5, -0.25], "end")
    with pytest.raises(Retokenised, match="from token 3 of 4") as e:
        grown(first, prompt, [3], [-2.0], "end")
    assert "rerender" in e.value.hint


@given(replies)
def test_spans_masks_and_logprobs_have_one_length(turns: list[tuple[int, int]]) -> None:
    sequence = None
    for user, own in turns:
        prompt = [*(sequence.ids if sequence else ()), *[7] * user]
        sequence = grown(sequence, prompt, [1] * own, [-1.0] * own, "end")
    assert sequence is not None
    one = Trajectory(
        group="g", sequences=(sequence,), rewards=(0.0,) * len(turns), verdict=0.0, score=0.0, ended="truncated"
    )
    batch = collate([one])
    assert one.policy_tokens == sum(own for _, own in turns) == batch.policy_BT.sum()
    assert batch.ids_BT.shape == batch.turn_BT.shape == batch.sampled_BT.shape == batch.attention_BT.shape
    assert torch.equal(batch.policy_BT, batch.sampled_BT == -1.0)
    assert torch.equal(batch.policy_BT, batch.ids_BT == 1), "the user's tokens are no policy tokens"
    assert [(batch.turn_BT == k).sum().item() for k in range(len(turns))] == [own for _, own in turns]


@pytest.mark.parametrize(
    "change",
    [{"start": 0}, {"end": 1}, {"logprobs": (-1.0,)}, {"logprobs": (-1.0, math.nan)}, {"turn": -1}],
)
def test_a_reply_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"turn": 0, "start": 1, "end": 3, "logprobs": (-1.0, -1.0), "stop": "end"}
    Reply(**fields)
    with pytest.raises(ValidationError):
        Reply(**{**fields, **change})


def test_replies_follow_each_other_inside_the_ids() -> None:
    a = Reply(turn=0, start=1, end=3, logprobs=(-1.0, -1.0), stop="end")
    b = a.model_copy(update={"turn": 1})
    for ids, spans in ([1, 2], (a,)), ([1, 2, 3], (a, b)), ([1, 2, 3], ()):
        with pytest.raises(ValidationError):
            TokenSequence(ids=tuple(ids), replies=spans)


def test_a_trajectory_has_a_reward_or_none_for_each_turn() -> None:
    with pytest.raises(ValidationError, match="each of its turns once"):
        trajectory([1.0], lengths=[2, 2])
    with pytest.raises(ValidationError, match="finite"):
        trajectory([math.nan])
    with pytest.raises(ValidationError):
        Trajectory(group="g", sequences=(), rewards=(), verdict=None, score=None, ended="truncated")
    assert trajectory([None, 1.0]).rewards == (None, 1.0)


def test_rerendered_turns_are_rows_of_one_trajectory() -> None:
    turns = tuple(grown(None, [7] * (k + 1), [1], [-1.0], "end", turn=k) for k in range(3))
    one = Trajectory(group="g", sequences=turns, rewards=(0.0, 0.0, 1.0), verdict=1.0, score=1.0, ended="terminated")
    batch = collate([trajectory([0.5]), one])
    assert batch.trajectory_B.tolist() == [0, 1, 1, 1]
    assert [row[row >= 0].tolist() for row in batch.turn_BT] == [[0, 0], [0], [1], [2]]


def test_a_record_survives_json() -> None:
    one = trajectory([0.25, None, 1.0], lengths=[1, 4, 2])
    assert Trajectory.model_validate_json(one.model_dump_json()) == one


def test_padding_is_told_by_the_mask_not_by_the_id() -> None:
    batch = collate([trajectory([1.0], lengths=[2]), trajectory([1.0], lengths=[4])], pad=1)
    assert batch.attention_BT.sum(1).tolist() == [5, 7]
    assert batch.policy_BT.sum(1).tolist() == [2, 4]


def test_taken_rows_are_cut_to_the_longest() -> None:
    batch = collate([trajectory([1.0], lengths=[n]) for n in (2, 9, 4)]).take(torch.tensor([2, 0]))
    assert batch.ids_BT.shape == (2, 7)
    assert batch.trajectory_B.tolist() == [2, 0]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(1, 60))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batch = collate([trajectory([1.0], lengths=[n]) for n in lengths])
    packs = micro_batches(batch, budget)
    assert sorted(torch.cat(packs).tolist()) == list(range(len(lengths)))
    assert all(len(p) == 1 or batch.take(p).ids_BT.numel() <= budget for p in packs)


def test_rewards_become_a_table_in_which_missing_is_nan() -> None:
    table = reward_table(
        [trajectory([1.0, None, 2.0], group="b"), trajectory([3.0], group="a"), trajectory([0.0], group="b")]
    )
    nan = math.nan
    expected = torch.tensor([[1, nan, 2], [3, nan, nan], [0, nan, nan]], dtype=torch.float64)
    assert torch.equal(table.values_NK.nan_to_num(-9), expected.nan_to_num(-9))
    assert table.turns_N.tolist() == [3, 1, 1]
    assert table.groups_N.tolist() == [0, 1, 0]


def test_nothing_to_collate_is_said() -> None:
    with pytest.raises(ConfigError, match="no trajectory"):
        collate([])


def test_talk_counts_only_its_own_words() -> None:
    assert trajectory([0.0, 0.0], lengths=[4, 4], user=6).policy_tokens == 8
    assert len(talk([4, 4], user=6).ids) == 20
