"""Supervised fine-tuning on whole conversations: `python trainers/sft.py out=... data='[{path: ...}]'` (Echo-N1 section 3.1).

One sequence a conversation, all of the assistant's turns trained on, nobody else's words. The loss of a step is the
mean over the trained tokens of all its conversations, whatever micro-batches they fall into.

Departures from the paper: `staged` is our reading of its curriculum (`sftdata.difficulty`); decoupled weight decay and
the clip of the gradient's norm, which it does not state, are AdamW's usual ones.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from echo_env.agents.loading import load_model, stop_tokens
from echo_env.errors import ConfigError, EchoError
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.losses import Totals, totals
from echo_env.trainers.scratch import Shape, make
from echo_env.trainers.sftdata import (
    Chat,
    Example,
    Order,
    Source,
    companions,
    difficulty,
    example,
    held_out,
    mix,
    ordered,
    texts,
    told,
)
from echo_env.trainers.trajectory import Batch, micro_batches
from echo_env.types import Record

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class ModelSpec(Record):
    """Which model is tuned: a folder, or one made from the start."""

    path: Path | None = None
    scratch: Shape | None = None
    system: str | None = None
    """The system prompt of every conversation: None keeps each one's own, or the shipped one where none is recorded;
    "" is none at all."""
    device: Literal["cpu", "cuda"] = "cpu"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.path is None) == (self.scratch is None):
            raise ValueError("give a model's folder (path), or the shape of one to be made (scratch)")
        return self


class SftJob(Record):
    """Everything that a run depends on."""

    out: Path
    data: tuple[Source, ...] = Field(min_length=1)
    model: ModelSpec
    count: int | None = Field(None, ge=2)
    """Conversations to draw from the mix; None: as many as the shares allow."""
    held_out: float = Field(0.05, ge=0, lt=1)
    """Share of the conversations that the loss is measured on."""
    train_on: Literal["assistant", "all"] = "assistant"
    """`all` trains on the user's words too, for a model that is made from the start: it has to learn the language."""
    curriculum: Order = "shuffle"
    stages: int = Field(4, ge=1)
    """Of the curriculum `staged`."""
    epochs: int = Field(4, ge=1)
    batch: int = Field(128, ge=1)
    """Conversations of a step."""
    lr: float = Field(1e-5, gt=0)
    warmup: float = Field(0.1, ge=0, lt=1)
    """Share of the steps in which the rate rises linearly; from there it falls to 0 by a cosine."""
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.01, ge=0)
    clip_norm: float = Field(1.0, gt=0)
    """Longest gradient."""
    longest: int = Field(4096, ge=16)
    """Most tokens of a conversation; it is cut after its last whole turn that fits."""
    micro_tokens: int = Field(8192, ge=16)
    """Tokens of a micro-batch, padding included: memory, not the result, depends on it."""
    eval_every: int = Field(50, ge=1)
    """Steps between two measurements of the held-out loss."""
    seed: int = 0
    threads: int | None = Field(None, ge=1)
    """torch's threads; None leaves them alone."""


# ---- the loss ------------------------------------------------------------------------------------------------------


def batch_of(examples: Sequence[Example]) -> Batch:
    """Return examples as a batch; `policy_BT` is what is trained on."""
    shape = len(examples), max(len(e.ids) for e in examples)
    ids_BT, turn_BT = torch.zeros(shape, dtype=torch.long), torch.full(shape, -1)
    attention_BT = torch.zeros(shape, dtype=torch.bool)
    for b, e in enumerate(examples):
        ids_BT[b, : len(e.ids)] = torch.tensor(e.ids)
        attention_BT[b, : len(e.ids)] = True
        turn_BT[b, : len(e.ids)] = torch.tensor(e.mask).long() - 1
    return Batch(ids_BT, attention_BT, turn_BT, torch.zeros(shape), torch.arange(len(examples)))


def token_loss(model: PreTrainedModel, batch: Batch, total: Totals) -> Tensor:
    """Return the share of a micro-batch in the mean loss of its step, in nats a token.

    Padding stands on the right, where a causal model never looks, so the model needs no mask of it.
    """
    trained_BT = batch.policy_BT[:, 1:]
    device = model.device
    hidden_BTD = model.base_model(input_ids=batch.ids_BT.to(device), use_cache=False).last_hidden_state
    logits_NV = model.get_output_embeddings()(hidden_BTD[:, :-1][trained_BT.to(device)])
    targets_N = batch.ids_BT[:, 1:][trained_BT].to(device)
    return F.cross_entropy(logits_NV.float(), targets_N, reduction="sum") / total.tokens


@torch.no_grad()
def measure(model: PreTrainedModel, examples: Sequence[Example], micro_tokens: int) -> float | None:
    """Return the mean loss over all trained tokens of some examples, in nats; None without any."""
    if not examples:
        return None
    model.eval()
    batch = batch_of(examples)
    total = totals(batch.policy_BT)
    return float(sum(token_loss(model, batch.take(rows), total) for rows in micro_batches(batch, micro_tokens)))


def rate(step: int, steps: int, warmup: float) -> float:
    """Return the factor of the learning rate at a step, from 0: a linear rise, then a cosine down to 0.

    Args:
        step: Steps made so far.
        steps: Of the whole training.
        warmup: Share of them that the rise takes.
    """
    rising = math.ceil(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(steps - rising, 1)))


# ---- preparing -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Prepared:
    """What training starts from."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    train: list[Example]
    measured: list[Example]
    plan: list[list[int]]
    """The examples of each step."""
    facts: dict[str, Any]
    """Counts for the record."""


def prepare(job: SftJob) -> Prepared:
    """Load or make the model, read, mix, cut and order the data.

    Raises:
        EchoError: Something about model or data is wrong; the message says what.
    """
    chats = mix(job.data, job.count, job.seed)
    train, measured = held_out(chats, job.held_out)
    tokenizer, model = _model(job, train)
    longest = min(job.longest, getattr(model.config, "max_position_embeddings", job.longest))
    formats = _formats(job, tokenizer, stop_tokens(model, tokenizer))
    pairs = [(c, example(c, formats(c.system).conversation, longest, everything=job.train_on == "all")) for c in train]
    kept = [(c, e) for c, e in pairs if e]
    if not kept:
        raise ConfigError(f"no conversation fits into {longest} tokens", "raise longest")
    others = [example(c, formats(c.system).conversation, longest) for c in measured]
    examples = [e for _, e in kept]
    facts = {
        "conversations": len(examples),
        "held_out": len(measured),
        "too_long": len(train) - len(examples),
        "cut": sum(e.cut for e in examples),
        "tokens": sum(len(e.ids) for e in examples),
        "trained_tokens": sum(sum(e.mask) for e in examples),
        "weights": sum(p.numel() for p in model.parameters()),
        "companions": companions(chats),
    }
    plan = _plan(job, [c for c, _ in kept])
    return Prepared(model, tokenizer, examples, [e for e in others if e], plan, facts)


def _model(job: SftJob, train: Sequence[Chat]) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    if job.model.scratch is not None:
        tokenizer, model = make(job.model.scratch, texts(train), job.seed)
        return tokenizer, model.to(job.model.device)
    assert job.model.path is not None
    return load_model(job.model.path, job.model.device, job.threads)


def _formats(
    job: SftJob, tokenizer: PreTrainedTokenizerBase, stops: frozenset[int]
) -> Callable[[str], ChatFormat]:
    """Return the chat format for a conversation's own system prompt."""

    @cache
    def format_of(own: str) -> ChatFormat:
        system = job.model.system if job.model.system is not None else (own or None)
        return ChatFormat(tokenizer, stops=stops, system=system)

    return format_of


def _plan(job: SftJob, chats: Sequence[Chat]) -> list[list[int]]:
    """Return the examples of each step: epochs laid end to end, then cut into batches, the last one as it comes."""
    hardness = difficulty(chats)
    places = [p for epoch in range(job.epochs) for p in ordered(hardness, job.curriculum, job.stages, job.seed, epoch)]
    return [places[at : at + job.batch] for at in range(0, len(places), job.batch)]


# ---- training ------------------------------------------------------------------------------------------------------


def train(job: SftJob, ready: Prepared) -> Iterator[dict[str, Any]]:
    """Train, and yield the figures of each step."""
    model, steps = ready.model, len(ready.plan)
    optimiser = torch.optim.AdamW(model.parameters(), lr=job.lr, betas=job.betas, weight_decay=job.weight_decay)
    for step, places in enumerate(ready.plan):
        started = time.perf_counter()
        for group in optimiser.param_groups:
            group["lr"] = job.lr * rate(step, steps, job.warmup)
        figures = update(model, optimiser, batch_of([ready.train[p] for p in places]), job)
        seconds = time.perf_counter() - started
        figures |= {"step": step + 1, "of": steps, "epoch": (step + 1) * job.batch / len(ready.train)}
        figures |= {"lr": optimiser.param_groups[0]["lr"], "seconds": seconds}
        figures["tokens_per_second"] = figures["tokens"] / seconds
        if (step + 1) % job.eval_every == 0 or step + 1 == steps:
            figures["held_out_loss"] = measure(model, ready.measured, job.micro_tokens)
        yield figures


def update(model: PreTrainedModel, optimiser: torch.optim.Optimizer, batch: Batch, job: SftJob) -> dict[str, Any]:
    """Make one step and return its figures."""
    model.train()
    optimiser.zero_grad(set_to_none=True)
    total, loss = totals(batch.policy_BT), 0.0
    for rows in micro_batches(batch, job.micro_tokens):
        part = token_loss(model, batch.take(rows), total)
        part.backward()  # type: ignore[no-untyped-call]
        loss += part.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
    optimiser.step()
    return {"loss": loss, "grad_norm": norm.item(), "tokens": int(batch.attention_BT.sum())}


def run(job: SftJob) -> None:
    """Prepare, train and save."""
    if job.threads:
        torch.set_num_threads(job.threads)
    ready = prepare(job)
    sys.stderr.write(f"{told(ready.facts)}\n")
    job.out.mkdir(parents=True, exist_ok=True)
    with (job.out / "metrics.jsonl").open("w") as log:
        for figures in train(job, ready):
            log.write(told(figures) + "\n")
            log.flush()
            held = figures.get("held_out_loss")
            sys.stderr.write(
                f"step {figures['step']}/{figures['of']}  loss {figures['loss']:.3f}"
                f"  {figures['tokens_per_second']:,.0f} tokens/s" + (f"  held out {held:.3f}\n" if held else "\n")
            )
    ready.model.save_pretrained(job.out / "model")
    ready.tokenizer.save_pretrained(job.out / "model")


def main() -> None:
    """Compose the job with Hydra and run it."""
    import hydra
    from omegaconf import OmegaConf

    # beside this folder in a checkout and in an installation alike
    configs = Path(__file__).resolve().parent.parent / "configs"

    @hydra.main(version_base=None, config_path=str(configs), config_name="sft")
    def compose(config: DictConfig) -> None:
        try:
            run(SftJob.model_validate(OmegaConf.to_container(config, resolve=True)))
        except EchoError as e:
            sys.stderr.write(f"{e}\n")
            sys.exit(2)

    compose()


if __name__ == "__main__":
    main()
