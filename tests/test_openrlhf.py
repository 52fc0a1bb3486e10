"""Our losses, estimators and penalties against the real ones of OpenRLHF 0.11.2, to 1e-5."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace as Space
from typing import Any

import orlhf
import pytest
import torch
from torch import Tensor

from echo_env.trainers import advantages as adv
from echo_env.trainers import filters, losses
from echo_env.trainers.losses import Clip, Correction, Objective

pytestmark = [
    pytest.mark.openrlhf,
    pytest.mark.skipif(not (orlhf.FOLDER / "openrlhf").is_dir(), reason="make build/openrlhf/ready"),
]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def theirs() -> orlhf.OpenRLHF:
    return orlhf.load()


def same(ours: Tensor, other: Tensor) -> bool:
    return torch.allclose(ours.float(), other.float(), atol=TOLERANCE, rtol=TOLERANCE)


def numbers(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mask(seed: int = 9, rows: int = 6, width: int = 10) -> Tensor:
    """Rows of several spans, the first of one token."""
    found = numbers(seed, rows, width) > -0.3
    found[0] = False
    found[:, 3] = True
    return found


def test_the_real_thing_is_loaded_and_leaves_nothing_behind(theirs: orlhf.OpenRLHF) -> None:
    assert theirs.loss.__file__.startswith(str(orlhf.FOLDER))
    left = [m for m in sys.modules.values() if isinstance(m, orlhf.Absent)]
    assert not left
    assert not [n for n in sys.modules if n.partition(".")[0] in {"openrlhf", "flash_attn"}]
    assert not [f for f in sys.meta_path if isinstance(f, orlhf.StandIns)]
    assert str(orlhf.FOLDER) not in sys.path
    version = next(orlhf.FOLDER.glob("openrlhf-*.dist-info")).name
    assert version == "openrlhf-0.11.2.dist-info"


# ---- PolicyLoss ----------------------------------------------------------------------------------------------------

CORRECTIONS: list[Correction | None] = [
    None,
    Correction(mode="clip", low=0.8, high=1.2),
    *[Correction(level=level, low=0.8, high=1.2) for level in ("token", "seq")],
    *[
        Correction(level=level, gating=gating, low=0.0, high=high)
        for level in ("token", "seq")
        for gating, high in (("binary_kl", 0.002), ("tv", 0.015))
    ],
]
FORMS: list[tuple[losses.Ratio, losses.Aggregation]] = [
    ("token", "token"),
    ("token", "sequence"),
    ("sequence", "sequence"),
]


@pytest.mark.parametrize(
    "correction", CORRECTIONS, ids=lambda c: "off" if c is None else f"{c.level}-{c.mode}-{c.gating}"
)
@pytest.mark.parametrize("dual", [None, 1.5])
@pytest.mark.parametrize(("ratio", "aggregation"), FORMS)
@pytest.mark.parametrize("split", [False, True], ids=["whole", "accumulated"])
def test_policy_loss(
    theirs: orlhf.OpenRLHF, ratio: losses.Ratio, aggregation: losses.Aggregation, dual: float | None,
    correction: Correction | None, split: bool,
) -> None:  # fmt: skip
    old, sampled, values, kept = numbers(1, 6, 10) - 3, numbers(2, 6, 10, scale=0.3), numbers(3, 6, 10), mask()
    sampled = old + sampled
    clip = Clip(low=3e-3, high=4e-3, dual=dual) if ratio == "sequence" else Clip(dual=dual)
    other = theirs.loss.PolicyLoss(
        clip.low, clip.high, dual, token_level_loss=aggregation == "token",
        policy_loss_type="gspo" if ratio == "sequence" else "ppo",
        is_correction_level=correction.level if correction else "off",
        **({} if correction is None else {
            "is_correction_mode": correction.mode, "is_correction_gating": correction.gating,
            "is_correction_threshold": [correction.low, correction.high],
        }),
    )  # fmt: skip
    spec = Objective(clip=clip, ratio=ratio, aggregation=aggregation, correction=correction)
    a, b = ((old + numbers(4, 6, 10, scale=0.3)).requires_grad_() for _ in range(2))
    total = losses.totals(kept)
    sizes = {"batch_num_tokens": float(total.tokens), "global_batch_size": float(total.sequences)}
    for rows in (slice(0, 2), slice(2, 6)) if split else (slice(0, 6),):
        x = values[rows], kept[rows], sampled[rows]
        found = losses.objective(
            spec, logprobs_BT=a[rows], old_BT=old[rows], advantages_BT=x[0], mask_BT=x[1], total=total, sampled_BT=x[2]
        )
        loss, clipped, moved, mismatch, cut = other(
            b[rows], old[rows], x[0], action_mask=x[1].float(), rollout_log_probs=x[2], **sizes
        )
        assert same(found.loss, loss)
        found.loss.backward()
        loss.backward()
        if not split:  # theirs are means of the micro-batch, ours shares of the step
            assert same(found.clip_low + found.clip_high, clipped)
            assert same(found.moved, moved)
            if correction is not None and ratio == "token":
                assert same(found.mismatch, mismatch)
                assert 0 < cut < 1, "the gate must have something to do"
                gate = losses.correct(old, sampled, kept, correction).cut_BT
                assert same(found.cut if correction.level == "token" else gate.any(1).float().mean(), cut)
            if cut is not None and correction is not None and correction.level == "token":
                assert same(found.cut, cut)
                assert 0 < cut < 1
    assert a.grad is not None
    assert b.grad is not None
    assert same(a.grad, b.grad)
    assert a.grad.abs().max() > 1e-4


def test_aggregate_without_totals_is_that_of_one_batch(theirs: orlhf.OpenRLHF) -> None:
    loss, kept = numbers(0, 6, 10), mask()
    kept[5] = False
    for how in ("token", "sequence"):
        other = theirs.loss.aggregate_loss(loss, kept.float(), token_level_loss=how == "token")
        assert same(losses.aggregate(loss, kept, losses.totals(kept), how), other)


# ---- KL and entropy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "exact", "weighted"), list(itertools.product(("k1", "k2", "k3"), (False, True), (False, True)))
)
def test_kl(theirs: orlhf.OpenRLHF, kind: losses.KLKind, exact: bool, weighted: bool) -> None:
    reference, old = numbers(1, 40, scale=6), numbers(2, 40) if weighted else None
    a, b = (numbers(3, 40, scale=6).requires_grad_() for _ in range(2))
    ours = losses.approx_kl(a, reference, kind, old_BT=old, exact=exact)
    other = theirs.utils.compute_approx_kl(b, reference, old, kl_estimator=kind, unbiased_gradient=exact)
    assert same(ours, other)
    ours.sum().backward()
    other.sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    assert same(a.grad, b.grad)


def test_log_probabilities_and_entropy(theirs: orlhf.OpenRLHF) -> None:
    logits, ids = numbers(1, 2, 5, 7), torch.arange(10).reshape(2, 5) % 7
    other = theirs.utils.log_probs_from_logits(logits[:, :-1].clone(), ids[:, 1:], temperature=0.7)
    assert same(losses.token_logprobs(logits, ids, 0.7)[:, 1:], other)
    assert same(losses.token_entropy(logits)[:, 1:], theirs.utils.compute_entropy(logits[:, :-1]))


# ---- advantages ----------------------------------------------------------------------------------------------------


def their_advantages(
    theirs: orlhf.OpenRLHF, estimator: str, rewards: Tensor, kl: Tensor, kept: Tensor, *, siblings: int, **options: Any
) -> Tensor:
    """OpenRLHF's advantages of one rollout batch, in two micro-batches."""
    length = {"overlong_buffer_len": None, "stop_properly_penalty_coef": None}
    advantage = {
        "estimator": estimator,
        "gamma": options.get("gamma", 1.0),
        "no_std_norm": options.get("no_std_norm", False),
    }
    args = Space(
        reward=Space(clip_range=options.get("clip", (-10, 10)), **length),
        rollout=Space(n_samples_per_prompt=siblings, max_new_tokens=None),
        data=Space(max_len=64),
        algo=Space(advantage=Space(**advantage, lambd=options.get("decay", 1.0))),
    )
    maker = theirs.maker.RemoteExperienceMaker.__new__(theirs.maker.RemoteExperienceMaker)
    maker.advantage_estimator, maker.strategy, maker.kl_ctl = (
        estimator,
        Space(args=args),
        Space(value=options.get("kl_coef", 0)),
    )
    half, values, experiences = len(rewards) // 2, options.get("values"), []
    for s in (slice(0, half), slice(half, None)):
        part = {"rewards": rewards[s].clone(), "kl": kl[s], "action_mask": kept[s]}
        index, critic = list(range(len(rewards)))[s], None if values is None else values[s]
        experiences.append(theirs.maker.Experience(**part, values=critic, index=index, info={}))
    return torch.cat([e.advantages for e in maker.compute_advantages_and_returns(experiences)])


ESTIMATORS: list[tuple[str, adv.BaselineName, bool]] = [
    ("group_norm", "grpo", False),
    ("dr_grpo", "dr_grpo", False),
    ("rloo", "rloo", False),
    ("reinforce_baseline", "dr_grpo", True),
    ("reinforce", "none", True),
    ("flash_reinforce", "dr_grpo", False),
]


@pytest.mark.parametrize(("name", "baseline", "whitened"), ESTIMATORS, ids=[e[0] for e in ESTIMATORS])
@pytest.mark.parametrize("kl_coef", [0.0, 0.2])
@pytest.mark.parametrize("clip", [(-10.0, 10.0), (-0.5, 0.5)])
def test_advantages(
    theirs: orlhf.OpenRLHF, name: str, baseline: adv.BaselineName, whitened: bool, kl_coef: float,
    clip: tuple[float, float],
) -> None:  # fmt: skip
    rewards, kl, kept = numbers(1, 6), numbers(2, 6, 10), mask()
    groups = torch.zeros(6) if name == "flash_reinforce" else torch.arange(6) // 3
    other = their_advantages(theirs, name, rewards, kl, kept, siblings=3, kl_coef=kl_coef, clip=clip)
    ours = adv.token_returns(adv.group_advantages(rewards, groups, baseline), kl, kept, kl_coef=kl_coef, clip=clip)
    if whitened:
        ours = adv.whiten(ours)
    assert same(ours.values_BT[kept], other[kept])
    assert other[kept].abs().max() > 0.1


@pytest.mark.parametrize("divide", [True, False])
def test_reinforce_pp_with_a_discount_on_one_reply(theirs: orlhf.OpenRLHF, divide: bool) -> None:
    """One span: with several, theirs discounts over the user's tokens, ours does not."""
    kept = torch.arange(10) < torch.tensor([[3], [10], [7], [1]])
    rewards, kl = numbers(1, 4), numbers(2, 4, 10)
    other = their_advantages(
        theirs, "reinforce", rewards, kl, kept, siblings=2, kl_coef=0.1, gamma=0.9, no_std_norm=not divide
    )
    ours = adv.whiten(adv.token_returns(rewards, kl, kept, kl_coef=0.1, discount=0.9), divide=divide)
    assert same(ours.values_BT[kept], other[kept])
    if divide:
        assert torch.equal(adv.reinforce_pp(rewards, kl, kept, kl_coef=0.1, discount=0.9).values_BT, ours.values_BT)


@pytest.mark.parametrize(("discount", "decay", "spans"), [(1.0, 1.0, 3), (0.9, 0.8, 1), (1.0, 0.95, 1)])
def test_gae(theirs: orlhf.OpenRLHF, discount: float, decay: float, spans: int) -> None:
    """As above, several spans agree where nothing is discounted."""
    kept = mask() if spans > 1 else torch.arange(10) < torch.tensor([[3], [10], [7], [1], [9], [2]])
    rewards, kl, values = numbers(1, 6), numbers(2, 6, 10), numbers(3, 6, 10)
    other = their_advantages(
        theirs, "gae", rewards, kl, kept, siblings=1, kl_coef=0.1, gamma=discount, decay=decay, values=values
    )
    ours = adv.whiten(adv.gae(rewards, values, kl, kept, kl_coef=0.1, discount=discount, decay=decay))
    assert same(ours.values_BT[kept], other[kept])
    assert other[kept].abs().max() > 0.1


# ---- penalties -----------------------------------------------------------------------------------------------------


def test_overlong_penalty(theirs: orlhf.OpenRLHF) -> None:
    lengths = torch.arange(0, 40)
    experience = Space(rewards=torch.zeros(40), response_length=lengths)
    theirs.length_penalty.apply_overlong_penalty([experience], 25, 10, 0.1)
    ours = torch.tensor([filters.overlong_penalty(n, cap=25, cache=10, factor=0.1) for n in lengths.tolist()])
    assert same(ours, experience.rewards)
    assert ours.min() == pytest.approx(-0.1)


@pytest.mark.parametrize("coefficient", [0.0, 0.4, 1.0, -0.5])
def test_stop_properly_penalty(theirs: orlhf.OpenRLHF, coefficient: float) -> None:
    experience = Space(rewards=numbers(1, 8), truncated=torch.arange(8) % 2)
    ours = [
        filters.unfinished(r, coefficient) if cut else r
        for r, cut in zip(experience.rewards.tolist(), [0, 1] * 4, strict=True)
    ]
    theirs.length_penalty.apply_stop_properly_penalty([experience], coefficient)
    assert same(torch.tensor(ours), experience.rewards)
