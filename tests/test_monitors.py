"""Figures of an update by hand; alarms by their rules; and Echo-N1 5.3.1 in miniature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from echo_env.trainers import losses
from echo_env.trainers import monitors as m
from echo_env.trainers.advantages import group_advantages

# ---- figures -------------------------------------------------------------------------------------------------------


def test_figures_by_hand() -> None:
    assert m.failure_share([1.0, None, 0.0, None]) == 0.5
    assert m.failure_share([]) == 0
    assert m.percentile_95([10, 20, 30]) == 29  # 0.95 * 2 = 1.9 steps: 20 + 0.9 * 10
    assert m.zero_spread_share([[1, 1], [0, 1], [None, 1], [0, None, 1]]) == 0.5
    # a b a | a b: five tokens, two different; pairs ab ba ab: two of three
    replies = [[1, 2, 1], [1, 2]]
    assert m.distinct_n(replies, 1) == 2 / 5
    assert m.distinct_n(replies, 2) == 2 / 3
    assert m.distinct_n([[1]], 2) is None
    # {ab, ba} and {ab}: 1/2; with {cd}: 0 and 0
    assert m.group_similarity([replies]) == 0.5
    assert m.group_similarity([[*replies, [3, 4]]]) == pytest.approx(0.5 / 3)
    assert m.group_similarity([[[1, 2]]]) is None
    assert m.judge_gap([1, None, 0.5], [0.5, 1, None]) == (1, 0.5)
    assert m.judge_gap([None], [1]) is None


def test_the_parts_of_a_reward_keep_their_names_when_a_judge_fails() -> None:
    """verl PR 7151: identical keys in every batch."""
    keys = ("empathy", "humanlike")
    assert m.mean_parts([{"empathy": 1.0, "humanlike": None}, {"empathy": 0.0}], keys) == {
        "empathy": 0.5,
        "humanlike": None,
    }
    assert m.mean_parts([], keys) == dict.fromkeys(keys)


@given(st.lists(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=4), max_size=3))
def test_likeness_and_variety_are_shares(groups: list[list[list[int]]]) -> None:
    for found in (m.group_similarity(groups), m.distinct_n([r for g in groups for r in g], 2)):
        assert found is None or 0 <= found <= 1


# ---- rules ---------------------------------------------------------------------------------------------------------


def rising(a: float, b: float, n: int = 20) -> list[float]:
    return [a + (b - a) * i / (n - 1) for i in range(n)]


def test_the_length_alarm_needs_both_to_rise_together() -> None:
    alarm = m.length_alarm(rising(50, 100), rising(0, 1))
    assert alarm is not None
    assert alarm.severity == "alarm"
    # quarters of five: 50 + 50 * 2/19 = 55 and 95
    assert "55 to 95" in alarm.message
    for lengths, rewards in (
        (rising(50, 60), rising(0, 1)),  # a fifth longer
        (rising(50, 100), rising(1, 0)),
        (rising(50, 100), [0.5] * 20),
        (rising(50, 100, 19), rising(0, 1, 19)),  # too short a history
        (rising(100, 50), rising(0, 1)),
    ):
        assert m.length_alarm(lengths, rewards) is None
    gaps: list[float | None] = [None if i % 3 == 0 else r for i, r in enumerate(rising(0, 1, 30))]
    assert m.length_alarm(rising(50, 200, 30), gaps) is not None, "twenty updates with a reward"


def test_entropy_is_watched_for_its_turn() -> None:
    up, down = rising(1, 2, 10), rising(2, 1.2, 10)
    assert m.entropy_alarm(up * 2) is None
    assert m.entropy_alarm([*up, *down]) is not None  # 20 updates
    assert m.entropy_alarm([*up, *down][1:]) is None  # 19
    assert m.entropy_alarm([*up, *up[5:], *down[:6]]) is None  # 1.7 in the mean of five: not half of the climb lost
    found = m.entropy_alarm([*up, *down])
    assert found is not None
    assert found.severity == "watch"
    assert m.entropy_alarm(rising(2, 1)) is None  # it never rose
    assert m.entropy_alarm([1.0, 1.2, 0.9] * 8) is None  # it goes up and down
    assert m.entropy_alarm([1.0, 3.0]) is None
    assert m.entropy_alarm([]) is None


def test_a_gap_that_opens_and_one_that_was_always_there() -> None:
    assert m.gap_alarm(rising(0.5, 0.9), [0.5] * 20) is not None
    assert m.gap_alarm(rising(0.5, 0.9), rising(0.2, 0.6)) is None
    slow = m.gap_alarm(rising(0.5, 0.9, 100), [0.5] * 100)
    assert slow is not None, "measured from the start, not within a window"
    assert m.gap_alarm([*rising(0.5, 0.9), None], [None, *[0.5] * 20]) is None  # 19 with both


def test_a_judge_that_fails_for_three_updates() -> None:
    assert m.failure_alarm([0.0, 0.2, 0.2]) is None
    assert m.failure_alarm([0.0, 0.2, 0.2, 0.2]) is not None
    assert m.failure_alarm([0.2, 0.2]) is None
    assert m.failure_alarm([0.1] * 5) is None


# ---- Echo-N1 5.3.1 in miniature ------------------------------------------------------------------------------------

CAP, STEP, LEVELS = 160, 10, 4
Judge = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def quality(length: Tensor, care: Tensor) -> Tensor:
    """What a person would prefer, 0..1: care above all, and a length like that of the reference, 60 tokens."""
    return torch.sigmoid(2.0 * (care - 1.5) - ((length - 60) / 30).square() + 1)


def loves_length(length: Tensor, care: Tensor, generator: torch.Generator) -> Tensor:
    """A scalar judge without a reference: longer is better, care counts a little."""
    return 0.9 * length / CAP + 0.1 * care / (LEVELS - 1) + 0.05 * torch.randn(length.shape, generator=generator)


def beats_reference(length: Tensor, care: Tensor, generator: torch.Generator) -> Tensor:
    """0 or 1: whether it is better than the reference, by a judge that sees what matters."""
    return (torch.rand(length.shape, generator=generator) < quality(length, care)).float()


def train(judge: Judge, seed: int, updates: int = 60, groups: int = 8, siblings: int = 8) -> list[m.Update]:
    """A policy that chooses a length and a level of care, trained with the project's own group baseline and loss."""
    generator = torch.Generator().manual_seed(seed)
    lengths = STEP * torch.arange(1, CAP // STEP + 1).float()
    # Mean and log-spread of a length: verbosity is a direction, so a policy that found 90 tokens finds 100.
    shape = torch.zeros(2, requires_grad=True)
    by_care = torch.tensor([1.0, 0.5, 0.0, -0.5], requires_grad=True)
    optimiser = torch.optim.Adam([shape, by_care], lr=0.1)
    numbers = torch.arange(groups).repeat_interleave(siblings)
    mask, history = torch.ones(len(numbers), 2, dtype=torch.bool), []
    for _ in range(updates):
        by_length = -((lengths - 55 - 20 * shape[0]) / (20 * shape[1].exp())).square() / 2
        tables = [torch.log_softmax(logits, -1) for logits in (by_length, by_care)]
        picks = [torch.multinomial(t.detach().exp(), len(numbers), True, generator=generator) for t in tables]
        length, care = lengths[picks[0]], picks[1].float()
        rewards = judge(length, care, generator)
        logprobs = torch.stack([t[p] for t, p in zip(tables, picks, strict=True)], 1)
        credit = group_advantages(rewards, numbers, "grpo")[:, None].expand(-1, 2)
        found = losses.objective(
            losses.DAPO, logprobs_BT=logprobs, old_BT=logprobs.detach(), advantages_BT=credit, mask_BT=mask,
            total=losses.totals(mask),
        )  # fmt: skip
        optimiser.zero_grad()
        found.loss.backward()
        optimiser.step()
        entropy = -sum((t.exp() * t).sum().item() for t in tables)
        history.append(figures(rewards, numbers, length, entropy, quality(length, care).mean().item()))
    return history


def figures(rewards: Tensor, numbers: Tensor, length: Tensor, entropy: float, held_out: float) -> m.Update:
    spoken = [int(n) for n in length]
    return m.Update(
        reward=rewards.mean().item(), parts={}, judge_failures=0.0, length_mean=length.mean().item(),
        length_p95=m.percentile_95(spoken), at_cap=(length == CAP).float().mean().item(), entropy=entropy,
        zero_spread=m.zero_spread_share([rewards[numbers == g].tolist() for g in range(int(numbers.max()) + 1)]),
        distinct_1=None, distinct_2=None, similarity=None, judge=rewards.mean().item(), held_out=held_out,
    )  # fmt: skip


def first_alarm(history: Sequence[m.Update], name: str) -> float:
    """The update at which an alarm was raised first."""
    hits = (n for n in range(1, len(history) + 1) if name in {a.name for a in m.alarms(history[:n])})
    return next(hits, math.inf)


@pytest.mark.parametrize("seed", range(4))
def test_a_judge_that_loves_length_is_caught(seed: int) -> None:
    history = train(loves_length, seed)
    assert history[-1].length_mean > 2 * history[0].length_mean, "the policy does hack it"
    assert first_alarm(history, "length") <= 30
    assert first_alarm(history, "gap") <= 30
    assert history[30].at_cap < 0.5, "while there is still something to save"
    last = history[-1].held_out
    assert last is not None
    assert last < 0.2


@pytest.mark.parametrize("seed", range(4))
def test_the_anchored_reward_raises_no_alarm(seed: int) -> None:
    history = train(beats_reference, seed)
    reward = [u.reward for u in history if u.reward is not None]
    assert sum(reward[-10:]) > sum(reward[:10]) + 2, "the policy does learn"
    assert not [a for n in range(1, len(history) + 1) for a in m.alarms(history[:n])]
