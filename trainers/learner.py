"""The policy in training: its weights, the frozen reference, the optimiser, and one update from trajectories.

The model stays in `eval` mode throughout: dropout would make the ratio of the very policy that sampled differ from 1.

Axes: B rows (sequences), T tokens, N trajectories, K policy turns.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from echo_env.agents.loading import offline
from echo_env.agents.policy import SpokenUnder
from echo_env.build import conversation_seed
from echo_env.errors import ConfigError, EchoError, missing_extra
from echo_env.trainers import losses
from echo_env.trainers.advantages import (
    TokenAdvantages,
    group_advantages,
    reinforce_pp,
    to_tokens,
    trajectory_rewards,
    turn_advantages,
)
from echo_env.trainers.job import Algorithm, Lora, Optimiser
from echo_env.trainers.logits import Head, autocast
from echo_env.trainers.trajectory import Batch, Trajectory, collate, micro_batches, reward_table

FIGURES = (*losses.LossTerms._fields, "mismatch_abs", "grad_norm")
"""Of an optimiser step."""


class Diverged(EchoError):
    """The loss or its gradient is no number any more. The weights are those before the step."""


def with_adapter(model: Any, lora: Lora, saved: Path | None = None, seed: int = 0) -> Any:
    """Return a model under a LoRA adapter: a new one, which changes nothing yet, or a saved one.

    Args:
        model: Bare.
        lora: What a new adapter is like.
        saved: Folder of a saved one.
        seed: Of a new adapter's weights; the global random state is left alone.

    Raises:
        missing_extra: peft is not installed.
        ConfigError: The model has no such modules.
    """
    try:
        import peft
    except ImportError:
        raise missing_extra("peft", "train") from None
    if saved is not None:
        return peft.PeftModel.from_pretrained(model, str(saved), is_trainable=True).eval()
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return peft.get_peft_model(model, config).eval()
    except ValueError as e:
        raise ConfigError(f"LoRA cannot be put on this model: {e}", "name its layers in model.lora.targets") from None


def rate_at(spec: Optimiser, update: int, updates: int) -> float:
    """Return the learning rate of an update, counted from 0.

    Args:
        spec: The schedule.
        update: Which.
        updates: How many there are to be.
    """
    if update < spec.warmup:
        return spec.lr * (update + 1) / spec.warmup
    done = min((update - spec.warmup) / max(updates - spec.warmup, 1), 1.0)
    if spec.schedule == "linear":
        return spec.lr * (1 - done)
    return spec.lr * (1 + math.cos(math.pi * done)) / 2 if spec.schedule == "cosine" else spec.lr


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows to train on, with what is fixed about them. All tensors are B x T and move together."""

    batch: Batch
    advantages: TokenAdvantages
    old_BT: Tensor | None
    reference_BT: Tensor | None

    def take(self, rows: Tensor) -> _Rows:
        batch = self.batch.take(rows)
        width = batch.ids_BT.shape[1]

        def cut(x_BT: Tensor | None) -> Tensor | None:
            return None if x_BT is None else x_BT[rows, :width]

        values, mask = self.advantages
        picked = TokenAdvantages(values[rows, :width], mask[rows, :width])
        return _Rows(batch, picked, cut(self.old_BT), cut(self.reference_BT))


class Learner:
    """Trains one policy.

    Args:
        model: The policy, bare or under peft, on its device.
        tokenizer: Its tokenizer, saved beside it.
        algo: How rewards become a gradient.
        optim: The optimiser.
        reference: The frozen reference of a policy without an adapter; None where no KL is wanted.
        watch_kl: Measure the KL even where the loss does not use it. (Under peft the reference is always at hand.)
        updates: How many there are to be, for the schedule.
        temperature: That of sampling.
        micro_tokens: Tokens in one forward pass, padding included.
        seed: Of the order of minibatches.
        spoken: What the policy speaks under, saved beside it.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        algo: Algorithm,
        optim: Optimiser,
        *,
        reference: Any = None,
        watch_kl: bool = False,
        updates: int = 1,
        temperature: float = 1.0,
        micro_tokens: int = 4096,
        seed: int = 0,
        spoken: SpokenUnder | None = None,
    ) -> None:
        self.model, self.tokenizer, self.algo, self.optim = model.eval(), tokenizer, algo, optim
        self.spoken = spoken or SpokenUnder()
        self.done, self.updates, self.temperature = 0, updates, temperature
        self.micro_tokens, self._seed = micro_tokens, seed
        self.device = next(model.parameters()).device
        self._head = Head(model)
        frozen = None if reference is None else reference.eval().requires_grad_(False)
        self._reference = None if frozen is None else Head(frozen, full=self._head.full)
        self._with_kl = algo.needs_reference or watch_kl
        if self._with_kl and reference is None and not hasattr(model, "disable_adapter"):
            raise ConfigError("a KL needs the frozen reference", "pass it, or switch the KL off")
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._optimiser = torch.optim.AdamW(
            self._trained, lr=optim.lr, betas=optim.betas, eps=optim.eps, weight_decay=optim.weight_decay, fused=True
        )

    # ---- one update ----------------------------------------------------------------------------------------------

    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
        """Take the optimiser steps of one update.

        Trajectories that other weights sampled (`policy_version` is not `done`) have their ratio against the
        log-probabilities stored at sampling. With a correction it stays against the weights at the start of the update,
        and the correction weighs these against the sampler's (decoupled: Hilton et al. 2022; AReaL, Fu et al. 2025).

        Args:
            trajectories: Whole groups, those with failed judges included. Without any the update passes untaken.

        Returns:
            The figures of `losses.LossTerms`, means over the steps, `mismatch_abs` (mean of |engine's - trainer's
            log-probability|), `grad_norm`, `lr`, `tokens` (trained), and the seconds `score_s` and `train_s`; the same
            keys always, None where no step was taken, and for both mismatches where the weights that sampled are gone.

        Raises:
            Diverged: The loss or its gradient is no number.
        """
        lr, began = rate_at(self.optim, self.done, self.updates), time.monotonic()
        if not trajectories:
            self.done += 1
            return {**dict.fromkeys(FIGURES), "lr": lr, "tokens": 0.0, "score_s": 0.0, "train_s": 0.0}
        rows = self._prepared(trajectories)
        scored = time.monotonic()
        for group in self._optimiser.param_groups:
            group["lr"] = lr
        steps = [self._step(rows.take(picked)) for picked in self._minibatches(rows)]
        self.done += 1
        figures = {key: sum(s[key] for s in steps) / len(steps) if steps else None for key in FIGURES}
        if rows.old_BT is rows.batch.sampled_BT:
            figures |= {"mismatch": None, "mismatch_abs": None}
        tokens = float(rows.advantages.mask_BT.sum())
        return {
            **figures, "lr": lr, "tokens": tokens, "score_s": scored - began, "train_s": time.monotonic() - scored,
        }  # fmt: skip

    def _prepared(self, trajectories: Sequence[Trajectory]) -> _Rows:
        """Collate, and add what stays fixed during the update."""
        batch = _on(collate(trajectories), self.device)
        old_BT = reference_BT = None
        stale = any(t.policy_version != self.done for t in trajectories)
        if stale and self.algo.objective.correction is None:
            old_BT = batch.sampled_BT
        elif self.algo.steps > 1 or self.algo.reward_kl:
            old_BT = self.logprobs(batch)
        if self._with_kl:
            reference_BT = self.logprobs(batch, of_reference=True)
        advantages = self._advantages(trajectories, batch, old_BT, reference_BT)
        return _Rows(batch, advantages, old_BT, reference_BT)

    def _advantages(
        self, trajectories: Sequence[Trajectory], batch: Batch, old_BT: Tensor | None, reference_BT: Tensor | None
    ) -> TokenAdvantages:
        algo, table = self.algo, reward_table(trajectories)
        if algo.estimator == "group":
            weight = algo.turn_weight if algo.credit == "turn" else 0.0
            by_turn = turn_advantages(table, algo.baseline, discount=algo.turn_discount, weight=weight)
            return to_tokens(by_turn.to(self.device), batch)
        rewards_N = group_advantages(trajectory_rewards(table), table.groups_N, algo.baseline)
        kl_BT = torch.zeros_like(batch.sampled_BT)
        if algo.reward_kl and old_BT is not None and reference_BT is not None:
            kl_BT = losses.approx_kl(old_BT, reference_BT, algo.objective.kl)
        return reinforce_pp(
            rewards_N.to(self.device)[batch.trajectory_B], kl_BT, batch.policy_BT,
            kl_coef=algo.reward_kl, discount=algo.token_discount, clip=algo.reward_clip,
        )  # fmt: skip

    def _minibatches(self, rows: _Rows) -> Iterator[Tensor]:
        """Yield the rows of each optimiser step; trajectories stay whole, rows without a trained token are left out."""
        mask_BT, owner_B = rows.advantages.mask_BT, rows.batch.trajectory_B
        owners = torch.unique(owner_B[mask_BT.any(1)])
        for epoch in range(self.algo.epochs):
            seed = conversation_seed(self._seed, f"update {self.done}", epoch)
            generator = torch.Generator().manual_seed(seed)
            order = owners[torch.randperm(len(owners), generator=generator).to(owners.device)]
            for part in order.tensor_split(self.algo.minibatches) if self.algo.minibatches > 1 else [owners]:
                picked = (torch.isin(owner_B, part) & mask_BT.any(1)).nonzero()[:, 0]
                if len(picked):
                    yield picked

    def _step(self, rows: _Rows) -> dict[str, float]:
        """Take one optimiser step, its gradient added up over micro-batches."""
        total = losses.totals(rows.advantages.mask_BT)
        sums: dict[str, float] = {}
        for pack in micro_batches(rows.batch, self.micro_tokens):
            terms, apart = self._loss(rows.take(pack.to(self.device)), total)
            terms.loss.backward()  # type: ignore[no-untyped-call]
            values = torch.stack([x.detach().float() for x in (*terms, apart)]).tolist()
            for key, value in zip(FIGURES, values, strict=False):
                sums[key] = sums.get(key, 0.0) + value
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained, self.optim.max_grad_norm))
        if not math.isfinite(norm) or not math.isfinite(sums["loss"]):
            self._optimiser.zero_grad(set_to_none=True)
            raise Diverged(f"update {self.done + 1}: the loss is {sums['loss']}, its gradient {norm}", "lower optim.lr")
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return {**sums, "grad_norm": norm}

    def _loss(self, rows: _Rows, total: losses.Totals) -> tuple[losses.LossTerms, Tensor]:
        """Return the loss of a micro-batch, and how far engine and trainer are apart (mean of |difference|)."""
        batch, (values_BT, mask_BT), spec = rows.batch, rows.advantages, self.algo.objective
        with self.autocast():
            scores = self._head.scores(
                batch.ids_BT, mask_BT, temperature=self.temperature, explore=bool(spec.entropy_coef)
            )
        # With one step, the policy in training is the one at its start: the ratio is 1 and needs no pass of its own.
        old_BT = scores.logprobs_BT.detach() if rows.old_BT is None else rows.old_BT
        terms = losses.objective(
            spec, logprobs_BT=scores.logprobs_BT, old_BT=old_BT, advantages_BT=values_BT, mask_BT=mask_BT, total=total,
            sampled_BT=batch.sampled_BT, reference_BT=rows.reference_BT, entropy_BT=scores.entropy_BT,
        )  # fmt: skip
        return terms, losses.aggregate((batch.sampled_BT - old_BT).abs(), mask_BT, total)

    # ---- scoring -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def logprobs(self, batch: Batch, *, of_reference: bool = False) -> Tensor:
        """Return the log-probabilities of the policy's tokens, B x T, 0 elsewhere; without gradient.

        Args:
            batch: On the learner's device.
            of_reference: By the frozen reference: a copy, or under peft the model without its adapter.
        """
        out_BT = torch.zeros_like(batch.sampled_BT)
        head = self._reference if of_reference and self._reference is not None else self._head
        off: AbstractContextManager[None] = nullcontext()
        if of_reference and self._reference is None:
            off = self.model.disable_adapter()
        with off, self.autocast():
            for pack in micro_batches(batch, self.micro_tokens):
                part = batch.take(pack.to(self.device))
                scores = head.scores(part.ids_BT, part.policy_BT, temperature=self.temperature)
                out_BT[pack.to(self.device), : part.ids_BT.shape[1]] = scores.logprobs_BT
        return out_BT

    def autocast(self) -> AbstractContextManager[None]:
        """Return the arithmetic of its device; see `logits.autocast`."""
        return autocast(self.device)

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what goes on with the weights: optimiser and count of updates."""
        return {"optimiser": self._optimiser.state_dict(), "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned; the weights are loaded from their folder."""
        self._optimiser.load_state_dict(state["optimiser"])
        self.done = int(state["done"])

    def save_hf(self, folder: Path) -> None:
        """Save the policy; see `save_model`."""
        save_model(self.model, self.tokenizer, self.spoken, folder)


def save_model(model: Any, tokenizer: Any, spoken: SpokenUnder, folder: Path) -> None:
    """Save model, tokenizer and chat template as an ordinary folder; under peft merged, and the adapter beside.

    Args:
        model: Bare, or under peft.
        tokenizer: Its tokenizer.
        spoken: What it speaks under.
        folder: There already.
    """
    with offline():  # without its progress bars
        if hasattr(model, "disable_adapter"):
            model.save_pretrained(str(folder / "adapter"))
            model = copy.deepcopy(model).merge_and_unload()
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))
    spoken.save(folder)


def _on(batch: Batch, device: torch.device) -> Batch:
    """Return a batch on a device."""
    return Batch(
        batch.ids_BT.to(device), batch.attention_BT.to(device), batch.turn_BT.to(device),
        batch.sampled_BT.to(device), batch.trajectory_B.to(device),
    )  # fmt: skip
