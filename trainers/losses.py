"""The policy's loss: clipped ratios, importance correction, KL, entropy, and how tokens add up to one number.

Everything is pure: tensors in, tensors out, no state. `objective` puts the parts together. All B x T tensors are
aligned with the token that is predicted (`trajectory.Batch`); the mask holds the tokens that are trained on, and what
stands elsewhere never matters.

Losses are sums over tokens divided by `Totals` of the whole optimiser step. So the losses of micro-batches add up to
the loss of the batch, whatever the split, and so do the figures of `LossTerms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from echo_env.errors import ConfigError
from echo_env.types import Record

Ratio = Literal["token", "sequence"]
Aggregation = Literal["token", "sequence", "constant"]
KLKind = Literal["k1", "k2", "k3"]


# ---- what the model gives ------------------------------------------------------------------------------------------


def token_logprobs(logits_BTV: Tensor, ids_BT: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probability of each token given those before it, B x T; 0 for the first, which has no prediction.

    Args:
        logits_BTV: As the model returns them: logits at t predict token t + 1.
        ids_BT: The tokens.
        temperature: That of sampling. Log-probabilities of an engine that reports processed ones compare with these.
    """
    logprobs_BTV = torch.log_softmax(logits_BTV[:, :-1].float() / temperature, -1)
    picked_BT = logprobs_BTV.gather(-1, ids_BT[:, 1:, None]).squeeze(-1)
    return torch.cat([picked_BT.new_zeros(len(ids_BT), 1), picked_BT], 1)


def token_entropy(logits_BTV: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy in nats of the distribution that each token was drawn from, B x T; 0 for the first."""
    logprobs_BTV = torch.log_softmax(logits_BTV[:, :-1].float() / temperature, -1)
    entropy_BT = -(logprobs_BTV.exp() * logprobs_BTV).sum(-1)
    return torch.cat([entropy_BT.new_zeros(len(logits_BTV), 1), entropy_BT], 1)


# ---- adding up -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Totals:
    """What the losses of one optimiser step are divided by: counts over all its micro-batches."""

    tokens: int
    """Tokens that are trained on."""
    sequences: int
    """Rows with one such token or more."""


def totals(mask_BT: Tensor) -> Totals:
    """Count a whole batch; at least 1 each, so that an empty batch has the loss 0."""
    return Totals(max(int(mask_BT.sum()), 1), max(int(mask_BT.any(1).sum()), 1))


def aggregate(loss_BT: Tensor, mask_BT: Tensor, total: Totals, how: Aggregation = "token", constant: int = 0) -> Tensor:
    """Add a loss up over tokens.

    - `token`: sum / tokens. Every token weighs the same (DAPO eq. 8; OpenRLHF `aggregate_loss` with
      `token_level_loss`).
    - `sequence`: each row's mean, then the rows' mean (GRPO as in DeepSeekMath eq. 3; OpenRLHF without it).
    - `constant`: sum / (rows * constant). A token's weight depends on no length (Dr. GRPO, Liu et al. 2025).

    Args:
        loss_BT: The loss of each token.
        mask_BT: Which count.
        total: Of the whole optimiser step.
        how: One of the three.
        constant: The token budget of a row, for `constant`.
    """
    kept_BT = loss_BT.masked_fill(~mask_BT, 0.0)
    if how == "token":
        return kept_BT.sum() / total.tokens
    if how == "sequence":
        return (kept_BT.sum(1) / mask_BT.sum(1).clamp(min=1)).sum() / total.sequences
    if constant < 1:
        raise ConfigError(f"aggregation 'constant' needs a token budget of at least 1, got {constant}")
    return kept_BT.sum() / (total.sequences * constant)


# ---- the clipped surrogate -----------------------------------------------------------------------------------------


class Clip(Record):
    """How far the policy may move from where it sampled."""

    low: float = Field(0.2, ge=0, lt=1)
    """The ratio's floor is 1 - low."""
    high: float = Field(0.28, ge=0)
    """Its ceiling is 1 + high. DAPO 3.1, "clip-higher": 0.2 and 0.28; Echo-N1 3.2.2: 3e-4 and 4e-4."""
    dual: float | None = Field(None, gt=1)
    """With a negative advantage the loss is at most dual * |A| (Ye et al. 2020)."""


class Surrogate(NamedTuple):
    """The policy's loss, token by token."""

    loss_BT: Tensor
    ratio_BT: Tensor
    low_BT: Tensor
    """True where the floor cut the gradient: ratio < 1 - low, advantage < 0."""
    high_BT: Tensor
    """True where the ceiling did: ratio > 1 + high, advantage > 0."""


def surrogate(
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    clip: Clip | None = None,
    ratio: Ratio = "token",
) -> Surrogate:
    """PPO's clipped loss, -min(w A, clip(w) A), with separate bounds (DAPO eq. 8; OpenRLHF `PolicyLoss`).

    - `token`: w = exp(log-ratio), the log-ratio held within +-20.
    - `sequence`: w = exp(mean log-ratio of the row), GSPO eq. 7 (Zheng et al. 2025). Bounds of a few 1e-4 belong to
      it. The row is the sequence: under `append`, all turns of a conversation together.

    Args:
        logprobs_BT: Of the policy in training; carries the gradient.
        old_BT: Of the policy before this update's steps.
        advantages_BT: Of each token.
        mask_BT: Tokens that are trained on.
        clip: Bounds; DAPO's by default.
        ratio: Which w.
    """
    clip = clip or Clip()
    log_BT = (logprobs_BT - old_BT).masked_fill(~mask_BT, 0.0)
    if ratio == "sequence":
        mean_B = log_BT.sum(1) / mask_BT.sum(1).clamp(min=1)
        ratio_BT = mean_B.exp()[:, None].expand_as(log_BT)
    else:
        ratio_BT = log_BT.clamp(-20.0, 20.0).exp()
    gain_BT = torch.min(ratio_BT * advantages_BT, ratio_BT.clamp(1 - clip.low, 1 + clip.high) * advantages_BT)
    if clip.dual is not None:
        gain_BT = torch.where(advantages_BT < 0, torch.max(gain_BT, clip.dual * advantages_BT), gain_BT)
    low_BT = mask_BT & (ratio_BT < 1 - clip.low) & (advantages_BT < 0)
    high_BT = mask_BT & (ratio_BT > 1 + clip.high) & (advantages_BT > 0)
    return Surrogate(-gain_BT, ratio_BT, low_BT, high_BT)


# ---- engine and trainer disagree -----------------------------------------------------------------------------------


class Correction(Record):
    """Weights pi_trainer / pi_engine for tokens that an engine sampled with slightly other numbers.

    The names and the defaults are OpenRLHF's (`is_correction_*`); its source is Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training".
    """

    level: Literal["token", "seq"] = "token"
    """What is kept or dropped: single tokens, or rows by their mean."""
    mode: Literal["mask", "clip"] = "mask"
    """`mask`: outside the bounds the weight is 0 (IcePop). `clip`: it is cut to them (truncated IS)."""
    gating: Literal["ratio", "binary_kl", "tv"] = "ratio"
    """What is held against the bounds: the ratio, or a divergence of the sampled token's two probabilities."""
    low: float = 0.5
    high: float = 5.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mode == "clip" and (self.level, self.gating) != ("token", "ratio"):
            raise ValueError("mode 'clip' cuts the ratio of a token: it takes level 'token' and gating 'ratio'")
        if self.gating != "ratio" and self.low > 0:
            raise ValueError("a divergence has an upper bound only: set low to 0")
        return self


class Weights(NamedTuple):
    """What `correct` returns."""

    values_BT: Tensor
    """Factors for the loss, without gradient."""
    cut_BT: Tensor
    """True for trained tokens whose weight was dropped or cut."""


def correct(old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, spec: Correction) -> Weights:
    """Return the importance weights exp(old - sampled), gated (OpenRLHF `PolicyLoss`, `is_correction_*`).

    Args:
        old_BT: Log-probabilities by the trainer, for the weights that sampled.
        sampled_BT: Those that the engine reported.
        mask_BT: Tokens that are trained on.
        spec: Which gate.
    """
    log_BT = (old_BT - sampled_BT).detach().masked_fill(~mask_BT, 0.0)
    gate_BT = log_BT if spec.gating == "ratio" else _divergence(old_BT.detach(), sampled_BT, mask_BT, spec.gating)
    if spec.level == "seq":
        gate_BT = (gate_BT.sum(1) / mask_BT.sum(1).clamp(min=1))[:, None].expand_as(log_BT)
    if spec.gating == "ratio":
        gate_BT = gate_BT.exp()
    outside_BT = (gate_BT < spec.low) | (gate_BT > spec.high)
    if spec.mode == "clip":
        weights_BT = gate_BT.clamp(spec.low, spec.high)
    else:
        weights_BT = log_BT.exp().masked_fill(outside_BT, 0.0)
    return Weights(weights_BT, outside_BT & mask_BT)


def _divergence(old_BT: Tensor, sampled_BT: Tensor, mask_BT: Tensor, kind: str) -> Tensor:
    """Divergence of "this token or another" between the two; 0 outside the mask."""
    p, q = (x.exp().clamp(1e-6, 1 - 1e-6) for x in (sampled_BT, old_BT))
    value = (p - q).abs() if kind == "tv" else p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    return value.masked_fill(~mask_BT, 0.0)


# ---- KL ------------------------------------------------------------------------------------------------------------


def approx_kl(
    logprobs_BT: Tensor, reference_BT: Tensor, kind: KLKind = "k3", *, old_BT: Tensor | None = None, exact: bool = False
) -> Tensor:
    """KL(policy || reference), estimated on sampled tokens (Schulman 2020; OpenRLHF `compute_approx_kl`).

    With d = log policy - log reference: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. Held within +-10, and d of k3 at
    -10 and above, so that nothing overflows.

    Args:
        logprobs_BT: Of the policy.
        reference_BT: Of the reference.
        kind: Which estimator.
        old_BT: Of the sampling policy; with `exact`, weighs the gradient by min(policy / old, 10).
        exact: Keep the value, take the gradient of the true KL: that of k2, weighted. (As losses, k1 has none and k3
            a biased one.)
    """
    d_BT = logprobs_BT.float() - reference_BT.float()
    if kind == "k1":
        value_BT = d_BT
    elif kind == "k2":
        value_BT = d_BT.square() / 2
    else:
        bounded_BT = d_BT.clamp(min=-10.0)
        value_BT = (-bounded_BT).exp() - 1 + bounded_BT
    value_BT = value_BT.clamp(-10.0, 10.0)
    if not exact:
        return value_BT
    weight_BT = torch.ones_like(d_BT) if old_BT is None else (logprobs_BT - old_BT).exp().clamp(max=10.0).detach()
    pull_BT = weight_BT * d_BT.square() / 2
    return value_BT.detach() + pull_BT - pull_BT.detach()


# ---- all of it -----------------------------------------------------------------------------------------------------


class Objective(Record):
    """Which loss."""

    clip: Clip = Clip()
    ratio: Ratio = "token"
    aggregation: Aggregation = "token"
    """Of the policy's part. KL and entropy are means over tokens always, as in OpenRLHF."""
    constant: int = 0
    """The token budget of a row, for aggregation `constant`."""
    correction: Correction | None = None
    """Of token ratios. A sequence ratio is taken against the engine's log-probabilities instead, as in OpenRLHF."""
    kl_coef: float = Field(0.0, ge=0)
    """Of the KL as a part of the loss. (As a part of the reward: `advantages.token_returns`.)"""
    kl: KLKind = "k3"
    kl_exact: bool = False
    entropy_coef: float = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ratio == "sequence" and self.aggregation != "sequence":
            raise ValueError("ratio 'sequence' goes with aggregation 'sequence' (GSPO eq. 5)")
        if self.aggregation == "constant" and self.constant < 1:
            raise ValueError("aggregation 'constant' needs `constant`, the token budget of a row")
        return self


DAPO = Objective()
"""DAPO eq. 8: token ratios, 0.2 and 0.28, mean over tokens, no KL."""
ECHO_JUDGE = Objective(clip=Clip(low=3e-4, high=4e-4), ratio="sequence", aggregation="sequence", kl_coef=0.001)
"""Echo-N1 3.2.2: 3e-4 and 4e-4, KL 0.001. That these bound a sequence ratio is our reading: a token ratio moves more
in one step, and the paper names DAPO alone."""


class LossTerms(NamedTuple):
    """The loss and what it is made of. Every field is a share of the whole step: micro-batches add up."""

    loss: Tensor
    """To call `backward` on."""
    policy: Tensor
    kl: Tensor
    """Mean over tokens, before its coefficient; 0 without a reference."""
    entropy: Tensor
    """Mean over tokens, nats; 0 where none was given."""
    clip_low: Tensor
    """Share of trained tokens whose gradient the floor cut."""
    clip_high: Tensor
    cut: Tensor
    """Share of trained tokens that the correction dropped or cut."""
    moved: Tensor
    """Mean of old - new log-probability: how far the policy moved since sampling (k1)."""
    mismatch: Tensor
    """Mean of the engine's - the trainer's log-probability for the same weights; 0 where the engine's are not given."""


def objective(
    spec: Objective,
    *,
    logprobs_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    total: Totals,
    sampled_BT: Tensor | None = None,
    reference_BT: Tensor | None = None,
    entropy_BT: Tensor | None = None,
) -> LossTerms:
    """Return the loss of a micro-batch.

    Args:
        spec: Which loss.
        logprobs_BT: Of the policy in training; with gradient.
        old_BT: Of the policy that sampled, by the trainer.
        advantages_BT: `advantages.TokenAdvantages.values_BT`.
        mask_BT: Its mask.
        total: `totals` of the whole optimiser step.
        sampled_BT: By the engine, at sampling. Needed by a correction.
        reference_BT: Of the frozen reference. Needed where `kl_coef` is above 0.
        entropy_BT: `token_entropy`. Needed where `entropy_coef` is not 0.

    Raises:
        ConfigError: Something that the objective needs is not given.
    """
    zero = logprobs_BT.new_zeros(())
    # What stands outside the mask may be anything, and 0 * inf in a gradient is no zero.
    logprobs_BT, old_BT = (x.masked_fill(~mask_BT, 0.0) for x in (logprobs_BT, old_BT))
    sampled_BT, reference_BT = (None if x is None else x.masked_fill(~mask_BT, 0.0) for x in (sampled_BT, reference_BT))
    behind_BT, weights = old_BT, None
    if spec.correction is not None:
        sampled_BT = _needed(sampled_BT, "correction", "the engine's log-probabilities")
        if spec.ratio == "sequence":
            behind_BT = sampled_BT
        else:
            weights = correct(old_BT, sampled_BT, mask_BT, spec.correction)
    parts = surrogate(logprobs_BT, behind_BT, advantages_BT, mask_BT, spec.clip, spec.ratio)
    loss_BT = parts.loss_BT if weights is None else parts.loss_BT * weights.values_BT
    policy = loss = aggregate(loss_BT, mask_BT, total, spec.aggregation, spec.constant)
    kl = entropy = zero
    if spec.kl_coef or reference_BT is not None:
        reference_BT = _needed(reference_BT, "kl_coef", "the reference's log-probabilities")
        kl = aggregate(
            approx_kl(logprobs_BT, reference_BT, spec.kl, old_BT=old_BT, exact=spec.kl_exact), mask_BT, total
        )
        loss = loss + spec.kl_coef * kl
    if spec.entropy_coef or entropy_BT is not None:
        entropy = aggregate(_needed(entropy_BT, "entropy_coef", "the token entropies"), mask_BT, total)
        loss = loss - spec.entropy_coef * entropy

    def mean(x_BT: Tensor) -> Tensor:
        return aggregate(x_BT.detach().float(), mask_BT, total)

    return LossTerms(
        loss, policy.detach(), kl.detach(), entropy.detach(),
        clip_low=mean(parts.low_BT), clip_high=mean(parts.high_BT),
        cut=zero if weights is None else mean(weights.cut_BT),
        moved=mean(old_BT - logprobs_BT),
        mismatch=zero if sampled_BT is None else mean(sampled_BT - old_BT),
    )  # fmt: skip


def _needed(tensor: Tensor | None, option: str, what: str) -> Tensor:
    """Return a tensor that an option asks for."""
    if tensor is None:
        raise ConfigError(f"{option} needs {what}", f"pass them to the loss, or switch {option} off")
    return tensor
