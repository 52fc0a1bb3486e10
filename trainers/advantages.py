"""How much better than its siblings: advantages over groups, over turns, over a batch.

A missing reward is NaN here (None in the records): it enters no baseline, and what comes of it is NaN again, until
`to_tokens` turns it into "no gradient". A sibling that is alone with its reward has nothing to compare with: 0.

Axes: G siblings of one group with a reward, N trajectories, K policy turns, B rows, T tokens, D embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from echo_env.errors import ConfigError
from echo_env.trainers.trajectory import Batch, RewardTable

BaselineName = Literal["grpo", "dr_grpo", "rloo", "none"]


class TokenAdvantages(NamedTuple):
    """What the loss takes."""

    values_BT: Tensor
    """0 wherever the mask is False. float32."""
    mask_BT: Tensor
    """True for tokens that are trained on: sampled by the policy, and with a reward."""


# ---- a group's baseline --------------------------------------------------------------------------------------------


def grpo(rewards_G: Tensor) -> Tensor:
    """(r - mean) / (std + 1e-9), std with n - 1 (DeepSeekMath 4.1.2; OpenRLHF `group_norm`).

    A group without spread gets exact zeros: rounding of the mean would be blown up by the division.
    """
    if len(rewards_G) < 2 or rewards_G.max() == rewards_G.min():
        return torch.zeros_like(rewards_G)
    return (rewards_G - rewards_G.mean()) / (rewards_G.std() + 1e-9)


def dr_grpo(rewards_G: Tensor) -> Tensor:
    """R - mean, undivided: prompts that are nearly solved or unsolved weigh no more (Dr. GRPO, Liu et al. 2025)."""
    return rewards_G - rewards_G.mean()


def rloo(rewards_G: Tensor) -> Tensor:
    """R - mean of the others (RLOO, Ahmadian et al. 2024; OpenRLHF `rloo`)."""
    if len(rewards_G) < 2:
        return torch.zeros_like(rewards_G)
    return rewards_G - (rewards_G.sum() - rewards_G) / (len(rewards_G) - 1)


BASELINES: dict[BaselineName, Callable[[Tensor], Tensor]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "none": torch.clone,
}
"""Name -> function over the rewards of one group, none missing. `none` leaves them to `whiten` (REINFORCE++)."""


def group_advantages(rewards_N: Tensor, groups_N: Tensor, baseline: BaselineName = "grpo") -> Tensor:
    """Hold each reward against those of its group; NaN stays NaN and is left out of the others' baseline.

    Args:
        rewards_N: Rewards, NaN where missing.
        groups_N: Group numbers, in any order.
        baseline: How.
    """
    advantages_N = torch.full_like(rewards_N, torch.nan)
    for group in set(groups_N.tolist()):
        rows = (groups_N == group) & ~rewards_N.isnan()
        if rows.any():
            advantages_N[rows] = BASELINES[baseline](rewards_N[rows])
    return advantages_N


# ---- turns ---------------------------------------------------------------------------------------------------------


def turn_returns(table: RewardTable, discount: float = 1.0, max_missing: float = 0.1) -> Tensor:
    """Discounted sum of the rewards from each turn on: R_k = r_k + g R_(k+1). One step is one policy turn.

    A missing reward adds nothing to the turns before it, and its own turn has no return. A trajectory is unscored, NaN
    throughout, where its last reward is missing (the outcome lands there: its absence would pass for a zero) or more
    than a share of all.

    Args:
        table: Rewards of N trajectories.
        discount: Of a turn, 0..1. User turns and tokens are no steps.
        max_missing: Largest share of a trajectory's rewards that may be missing.

    Returns:
        Returns, N x K, NaN where there is none.
    """
    n, k = table.values_NK.shape
    missing_NK = table.values_NK.isnan() & (torch.arange(k) < table.turns_N[:, None])
    lost_N = missing_NK.sum(1) > max_missing * table.turns_N
    lost_N |= missing_NK[torch.arange(n), table.turns_N - 1]
    returns_NK = torch.empty_like(table.values_NK)
    carry_N = torch.zeros(n, dtype=returns_NK.dtype)
    for turn in reversed(range(k)):
        carry_N = table.values_NK[:, turn].nan_to_num(0.0) + discount * carry_N
        returns_NK[:, turn] = carry_N
    return returns_NK.masked_fill(table.values_NK.isnan() | lost_N[:, None], torch.nan)


def trajectory_rewards(table: RewardTable, max_missing: float = 0.1) -> Tensor:
    """Sum of each trajectory's rewards, undiscounted; NaN where `turn_returns` calls it unscored."""
    scored_N = ~turn_returns(table, max_missing=max_missing).isnan().all(1)
    return table.values_NK.nansum(1).masked_fill(~scored_N, torch.nan)


def turn_advantages(
    table: RewardTable,
    baseline: BaselineName = "grpo",
    *,
    discount: float = 1.0,
    weight: float = 0.0,
    max_missing: float = 0.1,
) -> Tensor:
    """Mix what a trajectory is worth with what each turn is worth, each held against its own siblings.

    A_k = (1 - w) A(sum of rewards) + w A(R_k). The return of turn k is compared with those of the siblings that
    reached turn k; siblings that ended earlier take no part. w = 0 is the plain trajectory advantage, the same for
    every turn. The two levels are those of GiGPO (Feng et al. 2025, their sum) and MT-GRPO (Zeng et al. 2025);
    the convex mix is ours: with one turn, every w gives the trajectory advantage.

    Args:
        table: Rewards of N trajectories.
        baseline: The group's baseline, on both levels.
        discount: Of a turn, 0..1, in the returns alone.
        weight: w, 0..1.
        max_missing: As in `turn_returns`.

    Returns:
        Advantages, N x K; NaN for turns that do not exist or that get no gradient. A turn whose reward is missing
        in a trajectory that is scored has no return: NaN with w > 0, the trajectory's advantage with w = 0.
    """
    if not 0 <= weight <= 1:
        raise ConfigError(f"the weight of turn credit is a share, 0..1, got {weight}")
    k = table.values_NK.shape[1]
    whole_N = group_advantages(trajectory_rewards(table, max_missing), table.groups_N, baseline)
    played_NK = torch.arange(k) < table.turns_N[:, None]
    whole_NK = whole_N[:, None].expand(-1, k).masked_fill(~played_NK, torch.nan)
    if weight == 0:
        return whole_NK
    returns_NK = turn_returns(table, discount, max_missing)
    turns_NK = torch.stack([group_advantages(column, table.groups_N, baseline) for column in returns_NK.T], 1)
    return (1 - weight) * whole_NK + weight * turns_NK


def to_tokens(advantages_NK: Tensor, batch: Batch) -> TokenAdvantages:
    """Give every token that the policy sampled the advantage of its turn; NaN becomes "not trained on"."""
    picked_BT = advantages_NK[batch.trajectory_B[:, None], batch.turn_BT.clamp(min=0)]
    mask_BT = batch.policy_BT & ~picked_BT.isnan()
    return TokenAdvantages(picked_BT.float().masked_fill(~mask_BT, 0.0), mask_BT)


# ---- REINFORCE++: KL in the reward, normalised over the batch -------------------------------------------------------


def token_returns(
    rewards_B: Tensor,
    kl_BT: Tensor,
    mask_BT: Tensor,
    *,
    kl_coef: float = 0.0,
    discount: float = 1.0,
    clip: tuple[float, float] | None = None,
) -> TokenAdvantages:
    """Returns of tokens whose reward is -kl_coef * KL, the last one's also the sequence's (OpenRLHF `compute_reward`).

    OpenRLHF clips the reward after the group's baseline; `clip` does the same when given baselined rewards. It
    discounts over the user's tokens too; here the policy's tokens alone are steps. With one span they agree.

    Args:
        rewards_B: One for each row, raw or baselined, NaN where missing.
        kl_BT: `losses.approx_kl` of the policy and its reference.
        mask_BT: The policy's tokens.
        kl_coef: At least 0.
        discount: Of a token.
        clip: Bounds for the rewards.
    """
    mask_BT = mask_BT & ~rewards_B.isnan()[:, None]
    carry_B = rewards_B.nan_to_num(0.0).float()
    if clip is not None:
        carry_B = carry_B.clamp(*clip)
    returns_BT = torch.zeros_like(kl_BT, dtype=torch.float32)
    later_B = torch.zeros_like(mask_BT[:, 0])  # whether a policy token comes after: the last one is not discounted
    for t in reversed(range(kl_BT.shape[1])):
        here_B = mask_BT[:, t]
        step_B = torch.where(later_B, discount * carry_B, carry_B) - kl_coef * kl_BT[:, t]
        carry_B = torch.where(here_B, step_B, carry_B)
        later_B = later_B | here_B
        returns_BT[:, t] = carry_B
    return TokenAdvantages(returns_BT.masked_fill(~mask_BT, 0.0), mask_BT)


def gae(
    rewards_B: Tensor,
    values_BT: Tensor,
    kl_BT: Tensor,
    mask_BT: Tensor,
    *,
    kl_coef: float = 0.0,
    discount: float = 1.0,
    decay: float = 0.95,
    clip: tuple[float, float] | None = None,
) -> TokenAdvantages:
    """Generalised advantage estimates of tokens, from a critic's values (Schulman et al. 2016; OpenRLHF `gae`).

    A_t = d_t + discount * decay * A_(t+1), d_t = r_t + discount * V_(t+1) - V_t, with the token rewards of
    `token_returns`, whose steps these are: the policy's tokens alone. OpenRLHF discounts over the user's tokens too,
    and whitens afterwards. What the critic is fitted to is A + V.

    Args:
        rewards_B: One for each row, NaN where missing.
        values_BT: The critic's, before each token.
        kl_BT: As in `token_returns`.
        mask_BT: The policy's tokens.
        kl_coef: At least 0.
        discount: Of a token.
        decay: lambda, 0..1.
        clip: Bounds for the rewards.
    """
    mask_BT = mask_BT & ~rewards_B.isnan()[:, None]
    last_B = rewards_B.nan_to_num(0.0).float()
    if clip is not None:
        last_B = last_B.clamp(*clip)
    found_BT = torch.zeros_like(values_BT, dtype=torch.float32)
    carry_B, next_B, later_B = torch.zeros_like(last_B), torch.zeros_like(last_B), torch.zeros_like(mask_BT[:, 0])
    for t in reversed(range(values_BT.shape[1])):
        here_B, value_B = mask_BT[:, t], values_BT[:, t].float()
        reward_B = last_B.masked_fill(later_B, 0.0) - kl_coef * kl_BT[:, t]
        step_B = reward_B + discount * next_B - value_B + discount * decay * carry_B
        carry_B, next_B = torch.where(here_B, step_B, carry_B), torch.where(here_B, value_B, next_B)
        later_B = later_B | here_B
        found_BT[:, t] = carry_B
    return TokenAdvantages(found_BT.masked_fill(~mask_BT, 0.0), mask_BT)


def whiten(advantages: TokenAdvantages, *, divide: bool = True) -> TokenAdvantages:
    """Normalise over all trained tokens of the whole batch: (A - mean) / sqrt(max(var, 1e-8)), var with n.

    REINFORCE++ (Hu 2025) as OpenRLHF has it for `reinforce` and `reinforce_baseline`. Over the batch of an
    update, never over a micro-batch.

    Args:
        advantages: Of the batch.
        divide: False leaves the spread as it is (OpenRLHF `no_std_norm`).
    """
    values, mask = advantages
    count = mask.sum().clamp(min=1)
    mean = values.sum() / count
    centred = (values - mean).masked_fill(~mask, 0.0)
    scale = (centred.square().sum() / count).clamp(min=1e-8).rsqrt() if divide else 1.0
    return TokenAdvantages(centred * scale, mask)


def reinforce_pp(
    rewards_B: Tensor,
    kl_BT: Tensor,
    mask_BT: Tensor,
    *,
    kl_coef: float = 0.0,
    discount: float = 1.0,
    clip: tuple[float, float] | None = None,
) -> TokenAdvantages:
    """REINFORCE++ (Hu 2025): `token_returns`, then `whiten`. On `dr_grpo` rewards it is its form with a baseline."""
    return whiten(token_returns(rewards_B, kl_BT, mask_BT, kl_coef=kl_coef, discount=discount, clip=clip))


# ---- PEER: redundancy ----------------------------------------------------------------------------------------------


def cosines(a_ND: Tensor, b_MD: Tensor) -> Tensor:
    """Cosines of all pairs, N x M, clipped at 0: being unlike is no merit. A zero vector is like nothing."""
    return (normalize(a_ND, dim=-1) @ normalize(b_MD, dim=-1).T).clamp(min=0.0)


def group_redundancy(replies_GD: Tensor) -> Tensor:
    """PEER eq. 4, s_in: mean cosine with the siblings' replies, 0..1; 0 for a lone reply."""
    g = len(replies_GD)
    return (cosines(replies_GD, replies_GD).fill_diagonal_(0.0).sum(1) / max(g - 1, 1)).clamp(max=1.0)


def history_redundancy(replies_GD: Tensor, history_HD: Tensor) -> Tensor:
    """PEER eq. 4, s_hi: mean cosine with the utterances before, 0..1; 0 where there are none."""
    if not len(history_HD):
        return replies_GD.new_zeros(len(replies_GD))
    return cosines(replies_GD, history_HD).mean(1).clamp(max=1.0)


def length_gate(lengths_G: Tensor, alpha: float = 0.5, beta: float = 5.0) -> Tensor:
    """PEER eq. 5: tau = 1 / (1 + exp(-alpha (L - beta))), L the group's mean length. A scalar, 0..1.

    Args:
        lengths_G: Lengths in tokens that the policy sampled. (PEER does not say which unit; ours.)
        alpha: Steepness. PEER, appendix: 0.5.
        beta: Threshold. PEER, appendix: 5.
    """
    return torch.sigmoid(alpha * (lengths_G.double().mean() - beta))


def reweighted(rewards_G: Tensor, s_hi_G: Tensor, s_in_G: Tensor, tau: Tensor) -> Tensor:
    """PEER eq. 3: r / ((1 + tau s_hi) (1 + tau s_in)); NaN stays NaN.

    Raises:
        ConfigError: A reward is negative: dividing would raise it.
    """
    if (rewards_G < 0).any():
        raise ConfigError(
            "redundancy weights divide, which would raise a negative reward", "use them with rewards >= 0"
        )
    return rewards_G / ((1 + tau * s_hi_G) * (1 + tau * s_in_G))
