"""The policy's loss: worked by hand, and the same however a batch is cut, padded or ordered."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor
from trajectories import trajectory

from echo_env.errors import ConfigError
from echo_env.trainers import advantages as adv
from echo_env.trainers import losses
from echo_env.trainers.losses import Clip, Correction, Objective, Totals
from echo_env.trainers.trajectory import Batch, collate, micro_batches, reward_table

VOCABULARY = 9


def logs(*ratios: float) -> Tensor:
    return torch.tensor([ratios]).log()


def loss_of(
    spec: Objective, logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor | None = None, **more: Any
) -> losses.LossTerms:
    mask = torch.ones_like(old, dtype=torch.bool) if mask is None else mask
    return losses.objective(
        spec,
        logprobs_BT=logprobs,
        old_BT=old,
        advantages_BT=advantages,
        mask_BT=mask,
        total=losses.totals(mask),
        **more,
    )


# ---- by hand -------------------------------------------------------------------------------------------------------


def test_the_clipped_loss_of_three_tokens() -> None:
    # Ratios 1.5, 0.5, 0.5, advantages 1, -1, 1, bounds 0.8..1.28:
    # min(1.5, 1.28) = 1.28 (ceiling); min(-0.5, -0.8) = -0.8 (floor); min(0.5, 0.8) = 0.5 (free).
    # -(1.28 - 0.8 + 0.5) / 3
    found = loss_of(losses.DAPO, logs(1.5, 0.5, 0.5), torch.zeros(1, 3), torch.tensor([[1.0, -1.0, 1.0]]))
    assert found.loss.item() == pytest.approx(-0.98 / 3)
    assert (found.clip_low.item(), found.clip_high.item()) == pytest.approx((1 / 3, 1 / 3))
    assert found.moved.item() == pytest.approx(-(math.log(1.5) + 2 * math.log(0.5)) / 3)


def test_dual_clip_bounds_the_loss_of_a_bad_token() -> None:
    # Ratio 10, advantage -1: the loss is 10; with dual 3 it is 3, and nothing changes for advantage 1 (1.28).
    args = logs(10, 10), torch.zeros(1, 2), torch.tensor([[-1.0, 1.0]])
    assert loss_of(losses.DAPO, *args).loss.item() == pytest.approx((10 - 1.28) / 2)
    assert loss_of(Objective(clip=Clip(dual=3)), *args).loss.item() == pytest.approx((3 - 1.28) / 2)


def test_a_sequence_ratio_is_the_geometric_mean() -> None:
    # Ratios 2 and 0.5: mean log 0, ratio 1; loss -(1 + 1) / 2. The third token is masked.
    spec = Objective(ratio="sequence", aggregation="sequence")
    mask = torch.tensor([[True, True, False]])
    assert loss_of(spec, logs(2, 0.5, 9), torch.zeros(1, 3), torch.ones(1, 3), mask).loss.item() == pytest.approx(-1)
    # 3e-4 and 4e-4: a row that moved by 0.1 % is cut by the ceiling, on both tokens
    found = loss_of(
        losses.ECHO_JUDGE, logs(1.001, 1.001), torch.zeros(1, 2), torch.ones(1, 2), reference_BT=torch.zeros(1, 2)
    )
    assert found.policy.item() == pytest.approx(-1.0004)
    assert found.clip_high.item() == 1


def test_three_ways_to_add_up() -> None:
    # Rows 1 + 2 + 3 and 10: token 16 / 4, sequence (2 + 10) / 2, constant 16 / (2 * 8).
    loss = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0], [99.0, 99.0, 99.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    total = losses.totals(mask)
    assert total == Totals(tokens=4, sequences=2)
    assert losses.aggregate(loss, mask, total, "token") == 4
    assert losses.aggregate(loss, mask, total, "sequence") == 6
    assert losses.aggregate(loss, mask, total, "constant", 8) == 1
    with pytest.raises(ConfigError, match="token budget"):
        losses.aggregate(loss, mask, total, "constant")


@pytest.mark.parametrize(("kind", "value"), [("k1", 0.693147), ("k2", 0.240227), ("k3", 0.193147)])
def test_kl_of_a_doubled_probability(kind: losses.KLKind, value: float) -> None:
    # d = ln 2 = 0.693147; d^2 / 2 = 0.240227; 1/2 - 1 + 0.693147 = 0.193147
    assert losses.approx_kl(logs(2), torch.zeros(1, 1), kind).item() == pytest.approx(value, abs=1e-6)


def test_kl_of_a_token_that_the_reference_loves_stays_finite() -> None:
    d = torch.tensor([-200.0, 200.0], requires_grad=True)
    for kind in ("k1", "k2", "k3"):
        kl = losses.approx_kl(d, torch.zeros(2), kind)
        assert kl.abs().max() <= 10
        (slope,) = torch.autograd.grad(kl.sum(), d)
        assert slope.isfinite().all()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_the_exact_gradient_is_that_of_the_true_kl(kind: losses.KLKind) -> None:
    """Over all tokens of a vocabulary, weighted by their probability, sampled k1 to k3 have the gradient of the KL."""
    logits = torch.tensor([0.3, -0.7, 1.1], requires_grad=True)
    reference = torch.log_softmax(torch.tensor([1.0, 0.0, -0.5]), -1)
    policy = torch.log_softmax(logits, -1)
    (true,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)
    old = torch.log_softmax(torch.tensor([0.1, 0.2, 0.3]), -1)
    estimate = losses.approx_kl(policy, reference, kind, old_BT=old, exact=True)
    (found,) = torch.autograd.grad((old.exp() * estimate).sum(), logits)
    assert torch.allclose(found, true, atol=1e-6)


def test_log_probabilities_belong_to_the_token_they_predict() -> None:
    # Two words; logits (0, ln 3) predict the next with 1/4 and 3/4. At temperature 0.5: 1/10 and 9/10.
    logits = torch.tensor([[[0.0, math.log(3)]] * 3])
    ids = torch.tensor([[1, 0, 1]])
    assert losses.token_logprobs(logits, ids).exp()[0].tolist() == pytest.approx([1, 0.25, 0.75])
    assert losses.token_logprobs(logits, ids, 0.5).exp()[0].tolist() == pytest.approx([1, 0.1, 0.9])
    # entropy of 1/4, 3/4: 0.25 ln 4 + 0.75 ln(4/3) = 0.346574 + 0.215762
    assert losses.token_entropy(logits)[0].tolist() == pytest.approx([0, 0.562335, 0.562335], abs=1e-6)


# ---- the correction ------------------------------------------------------------------------------------------------


def test_one_token_off_by_two_nats() -> None:
    # TRL issue 4772. Engine -1, trainer +2 nats above it on one of three tokens: e^2 = 7.389.
    sampled, old = torch.tensor([[-3.0, -3.0, -3.0]]), torch.tensor([[-3.0, -1.0, -3.0]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    cut = losses.correct(old, sampled, mask, Correction(mode="clip"))
    assert cut.values_BT.tolist() == [[1, 5, 1]]
    dropped = losses.correct(old, sampled, mask, Correction(mode="mask"))
    assert dropped.values_BT.tolist() == [[1, 0, 1]]
    assert cut.cut_BT.tolist() == dropped.cut_BT.tolist() == [[False, True, False]]
    found = loss_of(Objective(correction=Correction()), old, old, torch.ones(1, 3), sampled_BT=sampled)
    assert found.loss.item() == pytest.approx(-2 / 3)
    assert found.cut.item() == pytest.approx(1 / 3)
    assert found.mismatch.item() == pytest.approx(-2 / 3)


def test_a_row_is_dropped_by_its_mean() -> None:
    # mean log-ratio 2/3: 1.95, inside 0.5..5, so all weights stay, e^2 too; with high 1.5 the whole row goes
    sampled, old = torch.tensor([[-3.0, -3.0, -3.0]]), torch.tensor([[-3.0, -1.0, -3.0]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    kept = losses.correct(old, sampled, mask, Correction(level="seq")).values_BT
    assert kept[0].tolist() == pytest.approx([1, math.exp(2), 1])
    assert not losses.correct(old, sampled, mask, Correction(level="seq", high=1.5)).values_BT.any()


@pytest.mark.parametrize(
    "options",
    [{"mode": "clip", "level": "seq"}, {"mode": "clip", "gating": "tv", "low": 0}, {"gating": "binary_kl"}],
)
def test_corrections_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Correction(**options)


@pytest.mark.parametrize("options", [{"ratio": "sequence"}, {"aggregation": "constant"}, {"clip": {"dual": 0.5}}])
def test_objectives_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Objective(**options)


@pytest.mark.parametrize("options", [{"kl_coef": 0.1}, {"entropy_coef": 0.1}, {"correction": Correction()}])
def test_what_an_objective_needs_is_asked_for(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs"):
        loss_of(Objective(**options), torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2))


# ---- equivalences --------------------------------------------------------------------------------------------------

SPECS = {
    "dapo": losses.DAPO,
    "grpo": Objective(clip=Clip(low=0.2, high=0.2), aggregation="sequence", kl_coef=0.1),
    "dr_grpo": Objective(aggregation="constant", constant=16, kl_coef=0.1, kl="k2", kl_exact=True),
    "echo_judge": losses.ECHO_JUDGE,
    "corrected": Objective(correction=Correction(high=1.5), entropy_coef=0.01, clip=Clip(dual=3)),
}
each_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


class Bigram(torch.nn.Module):
    """The smallest policy: the next token depends on the last one."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        start = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        self.table = torch.nn.Parameter(start.double())

    def forward(self, ids_BT: Tensor) -> Tensor:
        return self.table[ids_BT]


def gradient(spec: Objective, batch: Batch, credit: adv.TokenAdvantages, packs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The gradient over micro-batches that are backpropagated one by one, and the sums of the figures."""
    policy, reference, old = Bigram(0), Bigram(1), Bigram(2)
    total, figures = losses.totals(credit.mask_BT), torch.zeros(9, dtype=torch.float64)
    for rows in packs:
        part = batch.take(rows)
        width = part.ids_BT.shape[1]
        logits = policy(part.ids_BT)
        found = losses.objective(
            spec,
            logprobs_BT=losses.token_logprobs(logits, part.ids_BT),
            old_BT=losses.token_logprobs(old(part.ids_BT), part.ids_BT).detach(),
            advantages_BT=credit.values_BT[rows, :width],
            mask_BT=credit.mask_BT[rows, :width],
            total=total,
            sampled_BT=part.sampled_BT,
            reference_BT=losses.token_logprobs(reference(part.ids_BT), part.ids_BT).detach(),
            entropy_BT=losses.token_entropy(logits),
        )
        found.loss.backward()
        figures += torch.stack([f.detach().double() for f in found])
    assert policy.table.grad is not None
    return policy.table.grad, figures


def case() -> tuple[Batch, adv.TokenAdvantages]:
    trajectories = [
        trajectory([1.0, 0.5], lengths=[3, 1], group="a"),
        trajectory([0.0, 0.25], lengths=[1, 5], group="a"),
        trajectory([2.0], lengths=[2], group="b"),
        trajectory([None], lengths=[6], group="b"),
        trajectory([1.0, 0.0, 3.0], lengths=[2, 2, 2], group="b"),
    ]
    batch = collate(trajectories)
    return batch, adv.to_tokens(adv.turn_advantages(reward_table(trajectories), "grpo", weight=0.5), batch)


@each_spec
@pytest.mark.parametrize("budget", [1, 25, 40])
def test_micro_batches_have_the_gradient_of_the_batch(spec: Objective, budget: int) -> None:
    batch, credit = case()
    whole, figures = gradient(spec, batch, credit, [torch.arange(5)])
    parts, sums = gradient(spec, batch, credit, micro_batches(batch, budget))
    assert len(micro_batches(batch, budget)) > 1
    assert whole.abs().max() > 0.01
    assert torch.allclose(parts, whole, atol=1e-6)
    assert torch.allclose(sums, figures, atol=1e-6)


@each_spec
def test_the_order_of_rows_does_not_matter(spec: Objective) -> None:
    batch, credit = case()
    whole, _ = gradient(spec, batch, credit, [torch.arange(5)])
    turned, _ = gradient(spec, batch, credit, [torch.tensor([4, 2, 0, 1, 3])])
    assert torch.allclose(turned, whole, atol=1e-6)


@each_spec
@given(extra=st.integers(1, 9), junk=st.sampled_from([0.0, 50.0, -1e9, math.inf, math.nan]))
@settings(max_examples=20)
def test_more_padding_is_the_same_loss(spec: Objective, extra: int, junk: float) -> None:
    """Whatever stands in the padding, in the user's words and in rows without a reward."""
    _, credit = case()
    mask = credit.mask_BT
    rows, width = mask.shape
    noise = torch.Generator().manual_seed(0)
    named = dict.fromkeys(("logprobs_BT", "old_BT", "sampled_BT", "reference_BT", "entropy_BT"))
    plain = {name: torch.rand(rows, width, generator=noise) - 1 for name in named}
    tail = torch.full((rows, extra), junk)
    padded = {name: torch.cat([x.masked_fill(~mask, junk), tail], 1) for name, x in plain.items()}
    wide = torch.cat([mask, torch.zeros(rows, extra, dtype=torch.bool)], 1)
    total = losses.totals(mask)
    slopes = []
    for given_, m, values in (
        (plain, mask, credit.values_BT),
        (padded, wide, torch.cat([credit.values_BT, torch.zeros(rows, extra)], 1)),
    ):
        given_["logprobs_BT"].requires_grad_()
        found = losses.objective(spec, advantages_BT=values, mask_BT=m, total=total, **given_)
        found.loss.backward()
        slopes.append((found.loss.item(), given_["logprobs_BT"].grad))
    (a, slope), (b, wider) = slopes
    assert a == pytest.approx(b, abs=1e-6)
    assert slope is not None
    assert wider is not None
    assert torch.allclose(wider[:, :width], slope, atol=1e-6)
    assert not wider[:, width:].any()


def test_every_reply_has_a_gradient_and_the_user_none() -> None:
    # TRL issue 4543: three turns
    one = trajectory([0.0, 0.0, 1.0], lengths=[2, 3, 2])
    batch = collate([one])
    credit = adv.to_tokens(adv.turn_advantages(reward_table([one]), "none"), batch)
    logprobs = batch.sampled_BT.clone().requires_grad_()
    found = loss_of(losses.DAPO, logprobs, batch.sampled_BT, credit.values_BT, credit.mask_BT)
    found.loss.backward()
    assert logprobs.grad is not None
    assert torch.equal(logprobs.grad != 0, batch.policy_BT)


def test_a_reply_without_a_reward_has_no_gradient_not_even_from_the_kl() -> None:
    trajectories = [trajectory([1.0]), trajectory([None]), trajectory([0.0])]
    batch = collate(trajectories)
    credit = adv.to_tokens(adv.turn_advantages(reward_table(trajectories)), batch)
    logprobs = torch.full(batch.ids_BT.shape, -0.5, requires_grad=True)
    zero = torch.zeros(batch.ids_BT.shape)
    loss_of(Objective(kl_coef=1.0), logprobs, zero, credit.values_BT, credit.mask_BT, reference_BT=zero).loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.any(1).tolist() == [True, False, True]


def test_dapo_with_equal_clips_is_grpo_with_a_token_mean() -> None:
    """Written out: DeepSeekMath eq. 3 with the mean over all tokens in place of the mean of means."""
    generator = torch.Generator().manual_seed(3)
    logprobs, old = (-torch.rand(4, 6, generator=generator) for _ in range(2))
    mask = torch.rand(4, 6, generator=generator) > 0.3
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.0])
    advantages = ((rewards - rewards.mean()) / rewards.std())[:, None].expand(4, 6)
    terms = [
        min(w * a, max(min(w, 1.2), 0.8) * a)
        for lp, o, a, m in zip(logprobs.flatten(), old.flatten(), advantages.flatten(), mask.flatten(), strict=True)
        if m
        for w in [math.exp(lp - o)]
    ]
    credit = adv.group_advantages(rewards, torch.zeros(4, dtype=torch.long), "grpo")[:, None].expand(4, 6)
    found = loss_of(Objective(clip=Clip(low=0.2, high=0.2)), logprobs, old, credit, mask)
    assert found.loss.item() == pytest.approx(-sum(map(float, terms)) / len(terms), abs=1e-6)


def test_an_empty_batch_has_the_loss_zero() -> None:
    for spec in SPECS.values():
        found = loss_of(
            spec, torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool),
            sampled_BT=torch.zeros(2, 3), reference_BT=torch.zeros(2, 3), entropy_BT=torch.zeros(2, 3),
        )  # fmt: skip
        assert found.loss == 0
