"""Baselines, turn credit, REINFORCE++ and PEER's weights: worked by hand, and by what must not matter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from trajectories import trajectory

from echo_env.errors import ConfigError
from echo_env.trainers import advantages as adv
from echo_env.trainers.trajectory import collate, reward_table

NAN = math.nan
BASELINES: list[adv.BaselineName] = ["grpo", "dr_grpo", "rloo"]
each_baseline = pytest.mark.parametrize("baseline", BASELINES)
rewards = st.lists(st.none() | st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=8)


def tensor(*values: float | None) -> Tensor:
    return torch.tensor([NAN if v is None else v for v in values], dtype=torch.float64)


def group(*values: float | None, baseline: adv.BaselineName = "grpo") -> list[float]:
    return adv.group_advantages(tensor(*values), torch.zeros(len(values), dtype=torch.long), baseline).tolist()


# ---- a group's baseline --------------------------------------------------------------------------------------------


def test_goldens_of_three() -> None:
    # 1, 2, 6: mean 3, deviations -2, -1, 3, std sqrt((4 + 1 + 9) / 2) = sqrt(7) = 2.645751
    assert group(1, 2, 6) == pytest.approx([-2 / 7**0.5, -1 / 7**0.5, 3 / 7**0.5], abs=1e-8)
    assert group(1, 2, 6, baseline="dr_grpo") == [-2, -1, 3]
    # the others' means: (2+6)/2 = 4, (1+6)/2 = 3.5, (1+2)/2 = 1.5
    assert group(1, 2, 6, baseline="rloo") == [-3, -1.5, 4.5]
    assert group(1, 2, 6, baseline="none") == [1, 2, 6]


def test_a_missing_reward_is_left_out_of_the_baseline() -> None:
    # TRL issue 2737. The mean of 1, 0, 0 is 1/3; a failed judgement is no fourth zero (that would be 1/4).
    first, failed, *rest = group(1, None, 0, 0, baseline="dr_grpo")
    assert [first, *rest] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert math.isnan(failed)


@each_baseline
def test_alone_or_all_the_same_there_is_nothing_to_learn(baseline: adv.BaselineName) -> None:
    assert group(5.0, baseline=baseline) == [0]
    assert group(None, 5.0, None, baseline=baseline)[1] == 0
    assert group(*[0.1] * 7, baseline="grpo") == [0] * 7  # the rounded mean of 0.1 is not 0.1
    assert math.isnan(group(None, baseline=baseline)[0])


@each_baseline
@given(values=rewards)
def test_advantages_sum_to_nothing_and_order_does_not_matter(
    baseline: adv.BaselineName, values: list[float | None]
) -> None:
    found = adv.group_advantages(tensor(*values), torch.zeros(len(values), dtype=torch.long), baseline)
    assert torch.equal(found.isnan(), tensor(*values).isnan())
    assert abs(found.nansum()) < 1e-6
    turned = adv.group_advantages(tensor(*values).flip(0), torch.ones(len(values), dtype=torch.long), baseline)
    assert torch.allclose(turned.flip(0), found, equal_nan=True)


@each_baseline
def test_groups_may_come_in_any_order(baseline: adv.BaselineName) -> None:
    values, groups = tensor(1, 2, 6, 0, 5, None), torch.tensor([0, 0, 0, 1, 1, 1])
    order = torch.tensor([4, 0, 5, 2, 3, 1])
    whole = adv.group_advantages(values, groups, baseline)
    mixed = adv.group_advantages(values[order], groups[order], baseline)
    assert torch.allclose(mixed, whole[order], equal_nan=True)
    assert whole[:3].tolist() == group(1, 2, 6, baseline=baseline)


# ---- turns ---------------------------------------------------------------------------------------------------------


def test_returns_run_over_turns() -> None:
    # 1, 2, 4 at discount 1/2: 4; 2 + 4/2 = 4; 1 + 4/2 = 3
    table = reward_table([trajectory([1.0, 2.0, 4.0]), trajectory([8.0])])
    assert adv.turn_returns(table, 0.5).tolist()[0] == [3, 4, 4]
    assert adv.turn_returns(table, 0.5)[1, 0] == 8
    assert adv.trajectory_rewards(table).tolist() == [7, 8]


def test_the_discount_does_not_know_how_much_the_user_says() -> None:
    # verl PR 6376: rewards 0, 0, 1 and a discount of 0.5 make 0.25, 0.5, 1, however long the messages between
    for user in (1, 3, 50):
        batch = collate([one := trajectory([0.0, 0.0, 1.0], user=user)])
        found = adv.to_tokens(adv.turn_returns(reward_table([one]), 0.5), batch)
        assert found.values_BT[found.mask_BT].tolist() == [0.25, 0.25, 0.5, 0.5, 1, 1]


def test_a_missing_turn_has_no_return_and_adds_nothing() -> None:
    eleven: list[float | None] = [1.0] * 11
    eleven[4] = None  # one of eleven: less than a tenth
    found = adv.turn_returns(reward_table([trajectory(eleven)]))[0].tolist()
    assert math.isnan(found[4])
    assert [found[0], found[3], found[5], found[10]] == [10, 7, 6, 1]


@pytest.mark.parametrize("values", [[0.0] * 20 + [None], [None, 1.0], [None], [1.0, None, 1.0, 1.0]])
def test_a_trajectory_without_its_outcome_or_a_tenth_is_unscored(values: Sequence[float | None]) -> None:
    table = reward_table([trajectory(values), trajectory([1.0])])
    assert adv.turn_returns(table)[0].isnan().all()
    assert adv.trajectory_rewards(table).isnan().tolist() == [True, False]


def test_turn_credit_by_hand() -> None:
    # Two siblings, rewards (1, 0) and (0, 3). Whole: 1 and 3, advantages -1 and 1.
    # Returns (1, 0) and (3, 3): turn 1 has -1, 1; turn 2 has mean 1.5: -1.5, 1.5. Half and half: -1, -1.25.
    table = reward_table([trajectory([1.0, 0.0]), trajectory([0.0, 3.0])])
    assert adv.turn_advantages(table, "dr_grpo", weight=0.5).tolist() == [[-1, -1.25], [1, 1.25]]
    assert adv.turn_advantages(table, "dr_grpo", weight=1).tolist() == [[-1, -1.5], [1, 1.5]]
    assert adv.turn_advantages(table, "dr_grpo").tolist() == [[-1, -1], [1, 1]]


def test_siblings_that_ended_earlier_take_no_part_in_later_turns() -> None:
    # Turn 2 was reached by the first two alone: returns 2 and 4, mean 3.
    table = reward_table([trajectory([0.0, 2.0]), trajectory([0.0, 4.0]), trajectory([9.0])])
    found = adv.turn_advantages(table, "dr_grpo", weight=1)
    assert found[:2, 1].tolist() == [-1, 1]
    assert found[:, 0].tolist() == [-3, -1, 4]  # 2, 4, 9: mean 5
    assert found[2, 1].isnan()


@each_baseline
@given(values=rewards, weight=st.floats(0, 1), discount=st.floats(0, 1))
def test_with_one_turn_turn_credit_is_trajectory_credit(
    baseline: adv.BaselineName, values: list[float | None], weight: float, discount: float
) -> None:
    table = reward_table([trajectory([v]) for v in values])
    plain = adv.group_advantages(tensor(*values), table.groups_N, baseline)
    found = adv.turn_advantages(table, baseline, weight=weight, discount=discount)[:, 0]
    assert torch.allclose(found, plain, equal_nan=True)


def test_a_weight_is_a_share() -> None:
    with pytest.raises(ConfigError, match="is a share"):
        adv.turn_advantages(reward_table([trajectory([1.0])]), weight=2)


def test_tokens_get_their_turns_advantage_and_the_user_none() -> None:
    trajectories = [trajectory([1.0, 0.0], lengths=[1, 2]), trajectory([0.0, 3.0]), trajectory([None, None])]
    batch = collate(trajectories)
    found = adv.to_tokens(adv.turn_advantages(reward_table(trajectories), "dr_grpo", weight=1), batch)
    assert found.values_BT[0].tolist() == [0, 0, 0, -1, 0, 0, 0, -1.5, -1.5, 0]
    assert found.mask_BT[0].tolist() == batch.policy_BT[0].tolist()
    assert not found.mask_BT[2].any(), "a failed judgement trains nothing"
    assert not found.values_BT[~found.mask_BT].any()


# ---- REINFORCE++ ---------------------------------------------------------------------------------------------------


def test_reinforce_pp_by_hand() -> None:
    # Row 1: reward 1 at the end, KL 0.5 and 0.5, coefficient 0.2: -0.1 + 0.9 = 0.8, and 1 - 0.1 = 0.9.
    # Row 2: reward 0, no KL: 0. Mean (0.8 + 0.9 + 0) / 3 = 0.5666667; squares .0544444, .1111111, .3211111:
    # var .1622222, std .4027682.
    mask = torch.tensor([[False, True, False, True], [False, True, False, False]])
    kl = torch.tensor([[9.0, 0.5, 9.0, 0.5], [9.0, 0.0, 9.0, 9.0]])
    returns = adv.token_returns(tensor(1, 0), kl, mask, kl_coef=0.2)
    assert returns.values_BT[mask].tolist() == pytest.approx([0.8, 0.9, 0.0])
    found = adv.reinforce_pp(tensor(1, 0), kl, mask, kl_coef=0.2)
    std = 0.1622222**0.5
    assert found.values_BT[mask].tolist() == pytest.approx(
        [0.2333333 / std, 0.3333333 / std, -0.5666667 / std], abs=1e-5
    )
    assert not found.values_BT[~mask].any()
    assert adv.whiten(returns, divide=False).values_BT[mask].tolist() == pytest.approx(
        [0.2333333, 0.3333333, -0.5666667]
    )


def test_a_row_without_a_reward_moves_nobody() -> None:
    mask, kl = torch.ones(3, 2, dtype=torch.bool), torch.zeros(3, 2)
    found = adv.reinforce_pp(tensor(1, None, 0), kl, mask)
    assert found.mask_BT.tolist() == [[True, True], [False, False], [True, True]]
    alone = adv.reinforce_pp(tensor(1, 0), kl[:2], mask[:2])
    assert torch.equal(found.values_BT[[0, 2]], alone.values_BT)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.floats(0, 1))
def test_token_discounts_skip_the_user(gaps: list[int], discount: float) -> None:
    row = [bit for gap in gaps for bit in (*[False] * gap, True)]
    mask = torch.tensor([row])
    found = adv.token_returns(tensor(1), torch.zeros(1, len(row)), mask, discount=discount).values_BT[mask]
    assert found.tolist() == pytest.approx([discount**k for k in reversed(range(len(gaps)))])


# ---- PEER ----------------------------------------------------------------------------------------------------------


def test_redundancy_by_hand() -> None:
    # Three replies: a, the same, and its opposite. Cosines 1, -1 -> 0, -1 -> 0: s_in = 1/2, 1/2, 0.
    replies = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]])
    assert adv.group_redundancy(replies).tolist() == [0.5, 0.5, 0]
    # History: (0, 1) and (1, 0): s_hi = (0 + 1) / 2; the opposite 0.
    history = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert adv.history_redundancy(replies, history).tolist() == [0.5, 0.5, 0]
    # tau at L = beta is 1/2: 3 / (1.25 * 1.25) = 1.92.
    tau = adv.length_gate(torch.tensor([4.0, 5.0, 6.0]))
    assert tau.item() == 0.5
    found = adv.reweighted(tensor(3, 3, None), tensor(0.5, 0.5, 0), tensor(0.5, 0.5, 0), tau)
    assert found[:2].tolist() == pytest.approx([1.92, 1.92])
    assert found[2].isnan()


def test_the_gate_opens_with_length() -> None:
    # alpha 0.5, beta 5: L = 1 -> 1 / (1 + e^2) = 0.1192; L = 9 -> 0.8808
    gates = [adv.length_gate(torch.tensor([length])).item() for length in (1, 9)]
    assert gates == pytest.approx([0.119203, 0.880797], abs=1e-6)


def test_nothing_said_before_and_no_sibling_cost_nothing() -> None:
    one = torch.tensor([[1.0, 2.0]])
    assert adv.group_redundancy(one).tolist() == [0]
    assert adv.history_redundancy(one, torch.empty(0, 2)).tolist() == [0]
    assert adv.history_redundancy(torch.zeros(1, 2), one).tolist() == [0]


vectors = st.lists(st.tuples(*[st.integers(-5, 5)] * 3), min_size=1, max_size=5)


@given(vectors, vectors, st.floats(0, 60))
def test_weights_only_lower_and_keep_a_quarter_at_least(
    a: list[tuple[int, ...]], b: list[tuple[int, ...]], mean: float
) -> None:
    replies, history = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
    s_in, s_hi = adv.group_redundancy(replies), adv.history_redundancy(replies, history)
    assert ((s_in >= 0) & (s_in <= 1) & (s_hi >= 0) & (s_hi <= 1)).all()
    found = adv.reweighted(tensor(*[3.0] * len(a)), s_hi, s_in, adv.length_gate(torch.tensor([mean])))
    assert ((found <= 3) & (found >= 0.75 - 1e-9)).all()  # at most 2 * 2


def test_a_negative_reward_is_refused() -> None:
    zero = torch.zeros(1)
    with pytest.raises(ConfigError, match="negative"):
        adv.reweighted(tensor(-1), zero, zero, torch.tensor(1.0))
