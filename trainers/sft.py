"""Supervised fine-tuning on whole conversations (Echo-N1 section 3.1).

    python trainers/sft.py data='[{path: talks.jsonl}]'                     a small model made from the start
    python trainers/sft.py model=folder model.path=FOLDER sft=paper data='[{path: talks.jsonl}]'
    python trainers/sft.py data='[{path: a.jsonl, share: 0.8}, {path: runs/b, share: 0.2}]'
    python trainers/sft.py data='[{path: RUNS, best: 1}]'                   each person's best conversation of N
    python trainers/sft.py name=sft resume=true data=...                    go on with runs/sft
    python trainers/sft.py dry_run=true data=...                            tell what would be trained on
    python trainers/sft.py --help                                           all groups and settings

One sequence a conversation, all of the assistant's turns trained on, nobody else's words. The loss of an update is the
mean over the trained tokens of all its conversations, whatever micro-batches they fall into. The run's folder is that
of `runs.py`; `checkpoints/latest` is an ordinary model folder.

Departures from the paper: `staged` is our reading of its curriculum (`sftdata.difficulty`); weight decay and the bound
on the gradient's norm, which it does not state, are AdamW's usual ones. Weights are kept in fp32.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from echo_env.agents.loading import load_model, stop_tokens
from echo_env.agents.policy import SpokenUnder
from echo_env.errors import ConfigError, RecordError
from echo_env.record import RunHeader, new_header
from echo_env.trainers import checkpoints
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.commandline import main
from echo_env.trainers.job import Optimiser, checked
from echo_env.trainers.learner import Diverged, rate_at, save_model, with_adapter
from echo_env.trainers.local import model_folder, system_of
from echo_env.trainers.logits import Head, autocast
from echo_env.trainers.losses import Totals, aggregate, totals
from echo_env.trainers.muon import Muon
from echo_env.trainers.renaming import renamed
from echo_env.trainers.runs import Run, open_logger, open_run
from echo_env.trainers.scratch import make
from echo_env.trainers.sftdata import (
    Chat,
    Example,
    companions,
    difficulty,
    example,
    held_out,
    mix,
    ordered,
    people,
    texts,
    windows,
)
from echo_env.trainers.sftjob import SftJob
from echo_env.trainers.stopping import wish_to_stop
from echo_env.trainers.superwords import superwords
from echo_env.trainers.trajectory import Batch, micro_batches

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# ---- preparing -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Prepared:
    """What training starts from."""

    model: Any
    """Bare, or under peft."""
    tokenizer: PreTrainedTokenizerBase
    train: list[Example]
    measured: list[Example]
    plan: list[list[int]]
    """The examples of each update, by place."""
    facts: dict[str, Any]
    """What the data came to, for the record; a resumed run must find the same."""
    people: dict[str, str]
    """Scenario -> digest."""


def prepare(job: SftJob, saved: Path | None = None) -> Prepared:
    """Read, mix, cut and order the data; load or make the model.

    Args:
        job: The job.
        saved: The checkpoint to take the model from, where the run is resumed.

    Raises:
        EchoError: Something about model or data is wrong; the message says what.
    """
    chats = mix(job.data, job.count, job.seed)
    whole, measured = held_out(chats, job.held_out)
    tokenizer, model = _model(job, whole, saved)
    train = windows(renamed(whole, job.renamed, job.seed), job.window)
    longest = min(job.longest, getattr(model.config, "max_position_embeddings", job.longest))
    format_of = _formats(job, tokenizer, stop_tokens(model, tokenizer))

    def cut(chat: Chat, *, everything: bool = False) -> Example | None:
        return example(chat, format_of(chat.system).conversation, longest, everything=everything)

    pairs = [(chat, cut(chat, everything=job.train_on == "all")) for chat in train]
    kept, examples = [chat for chat, e in pairs if e], [e for _, e in pairs if e]
    if not examples:
        raise ConfigError(f"no conversation fits into {longest} tokens", "raise longest")
    facts = {
        "conversations": len(examples),
        "held_out": len(measured),
        "left_out": len(train) - len(examples),
        "cut": sum(e.cut for e in examples),
        "tokens": sum(len(e.ids) for e in examples),
        "trained_tokens": sum(sum(e.mask) for e in examples),
        "companions": companions(chats),
        "digest": blake2b(repr([(e.id, e.ids, e.mask) for e in examples]).encode(), digest_size=8).hexdigest(),
    }
    measured_examples = [e for e in map(cut, measured) if e]
    return Prepared(model, tokenizer, examples, measured_examples, _plan(job, kept), facts, people(chats))


def _model(job: SftJob, train: Sequence[Chat], saved: Path | None) -> tuple[PreTrainedTokenizerBase, Any]:
    """Return tokenizer and model; from a checkpoint where there is one, an adapter's base from where it always was."""
    spec = job.model
    if spec.scratch is not None and saved is None:
        runs = superwords(train, spec.scratch.superwords)
        made, fresh = make(spec.scratch, texts(train), job.seed, runs)
        return made, fresh.to(job.device)
    folder = model_folder(spec.path) if spec.path is not None else Path()
    model: Any
    tokenizer, model = load_model(saved if saved and not spec.lora else folder, job.device, job.threads)
    model = model.float()
    if spec.lora is not None:
        return tokenizer, with_adapter(model, spec.lora, saved / "adapter" if saved else None)
    return tokenizer, model


def _formats(job: SftJob, tokenizer: PreTrainedTokenizerBase, stops: frozenset[int]) -> Callable[[str], ChatFormat]:
    """Return the chat format for a conversation's own system prompt."""
    for_all = system_of(job.model.system, job.model.path)

    @cache
    def format_of(own: str) -> ChatFormat:
        return ChatFormat(tokenizer, stops=stops, system=for_all if for_all is not None else (own or None))

    return format_of


def _plan(job: SftJob, chats: Sequence[Chat]) -> list[list[int]]:
    """Return the examples of each update: epochs laid end to end, then cut into batches, the last one as it comes."""
    hardness = difficulty(chats)
    places = [p for epoch in range(job.epochs) for p in ordered(hardness, job.curriculum, job.stages, job.seed, epoch)]
    return [places[at : at + job.batch] for at in range(0, len(places), job.batch)]


# ---- the loss ------------------------------------------------------------------------------------------------------


def batch_of(examples: Sequence[Example], device: torch.device | str = "cpu") -> Batch:
    """Return examples as a batch; `policy_BT` is what is trained on."""
    shape = len(examples), max(len(e.ids) for e in examples)
    ids_BT, turn_BT = torch.zeros(shape, dtype=torch.long), torch.full(shape, -1)
    attention_BT = torch.zeros(shape, dtype=torch.bool)
    for b, e in enumerate(examples):
        ids_BT[b, : len(e.ids)] = torch.tensor(e.ids)
        attention_BT[b, : len(e.ids)] = True
        turn_BT[b, : len(e.ids)] = torch.tensor(e.mask).long() - 1
    rows_B = torch.arange(len(examples))
    return Batch(*(x.to(device) for x in (ids_BT, attention_BT, turn_BT, torch.zeros(shape), rows_B)))


def loss_of(head: Head, batch: Batch, total: Totals) -> Tensor:
    """Return the share of a micro-batch in the mean loss of its update, in nats a token."""
    with autocast(batch.ids_BT.device):
        scores = head.scores(batch.ids_BT, batch.policy_BT)
    return aggregate(-scores.logprobs_BT, batch.policy_BT, total)


@torch.no_grad()
def measure(head: Head, examples: Sequence[Example], micro_tokens: int) -> float | None:
    """Return the mean loss over all trained tokens of some examples, in nats; None without any."""
    if not examples:
        return None
    batch = batch_of(examples, head.base.device)
    total = totals(batch.policy_BT)
    return sum(float(loss_of(head, batch.take(rows), total)) for rows in micro_batches(batch, micro_tokens))


# ---- training ------------------------------------------------------------------------------------------------------


class Trainer:
    """Model, optimiser and place in the plan.

    Args:
        job: The job.
        ready: Its data and model.
        state: What an earlier run left in its checkpoint.

    Raises:
        RecordError: The data are not those that the earlier run was trained on.
    """

    def __init__(self, job: SftJob, ready: Prepared, state: dict[str, Any] | None = None) -> None:
        self.job, self.ready, self.done = job, ready, 0
        self.model = ready.model.eval()  # without dropout, as in everything that is trained here
        self.head = Head(self.model)
        self._trained = [p for p in self.model.parameters() if p.requires_grad]
        self.spec = Optimiser(
            lr=job.lr, betas=job.betas, weight_decay=job.weight_decay, schedule="cosine",
            warmup=math.ceil(job.warmup * len(ready.plan)), max_grad_norm=job.max_grad_norm,
        )  # fmt: skip
        self._optimisers = self._make_optimisers()
        if state is not None:
            if state["data"] != ready.facts["digest"]:
                raise RecordError(
                    f"the conversations are not those that {job.out} was trained on", "put the old data files back"
                )
            for optimiser, saved in zip(self._optimisers, state["optimisers"], strict=True):
                optimiser.load_state_dict(saved)
            self.done = int(state["done"])

    def _make_optimisers(self) -> list[torch.optim.Optimizer]:
        job, rest = self.job, self._trained
        made: list[torch.optim.Optimizer] = []
        if job.optimiser == "muon":
            embedding = self.model.get_input_embeddings().weight
            matrices = [p for p in rest if p.ndim == 2 and p is not embedding]
            made.append(Muon(matrices, lr=job.matrix_lr, weight_decay=job.weight_decay))
            rest = [p for p in rest if p.ndim != 2 or p is embedding]
        betas, eps = job.betas, self.spec.eps
        made.append(torch.optim.AdamW(rest, job.lr, betas, eps=eps, weight_decay=job.weight_decay, fused=True))
        for optimiser in made:
            for group in optimiser.param_groups:
                group["full"] = group["lr"]
        return made

    def updates(self) -> Iterator[dict[str, Any]]:
        """Make what is left of the updates, and yield the figures of each."""
        while self.done < len(self.ready.plan):
            began = time.monotonic()
            examples = [self.ready.train[place] for place in self.ready.plan[self.done]]
            figures = self.update(examples)
            seconds = time.monotonic() - began
            figures |= {"seconds": seconds, "tokens_per_second": figures["tokens"] / seconds, "held_out_loss": None}
            if self.done % self.job.eval_every == 0 or self.done == len(self.ready.plan):
                figures["held_out_loss"] = measure(self.head, self.ready.measured, self.job.micro_tokens)
            yield figures

    def update(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Take one step on some conversations.

        Raises:
            Diverged: The loss or its gradient is no number. The weights are those before the update.
        """
        batch = batch_of(examples, self.head.base.device)
        total, loss = totals(batch.policy_BT), 0.0
        lr = rate_at(self.spec, self.done, len(self.ready.plan))
        for optimiser in self._optimisers:
            optimiser.zero_grad(set_to_none=True)
            for group in optimiser.param_groups:
                group["lr"] = group["full"] * lr / self.spec.lr
        for rows in micro_batches(batch, self.job.micro_tokens):
            part = loss_of(self.head, batch.take(rows), total)
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.item()
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained, self.spec.max_grad_norm))
        if not math.isfinite(norm) or not math.isfinite(loss):
            raise Diverged(f"update {self.done + 1}: the loss is {loss}, its gradient {norm}", "lower lr")
        for optimiser in self._optimisers:
            optimiser.step()
        self.done += 1
        return {
            "update": self.done, "epoch": self.done * self.job.batch / len(self.ready.train), "loss": loss,
            "grad_norm": norm, "lr": lr, "tokens": int(batch.attention_BT.sum()), "trained_tokens": total.tokens,
        }  # fmt: skip

    def save(self, folder: Path) -> None:
        """Write the model as an ordinary folder (an adapter merged, and beside), and what a resumed run needs."""
        spoken = SpokenUnder(system=system_of(self.job.model.system, self.job.model.path))
        save_model(self.model, self.ready.tokenizer, spoken, folder)
        state = {
            "optimisers": [o.state_dict() for o in self._optimisers],
            "done": self.done,
            "data": self.ready.facts["digest"],
        }
        torch.save(state, folder / "state.pt")


# ---- the run -------------------------------------------------------------------------------------------------------


def train(job: SftJob, tell: Callable[[str], None] = lambda line: None) -> bool:
    """Train, in a run folder.

    Args:
        job: The job.
        tell: Takes lines on the progress.

    Returns:
        Whether it came to its end; else it was interrupted, and everything is saved.

    Raises:
        EchoError: Model, data or folder are not as they must be; the message says what to do.
    """
    if job.threads:
        torch.set_num_threads(job.threads)
    saved = checkpoints.newest(job.out / "checkpoints") if job.resume else None
    ready = prepare(job, saved)
    tell(_summary(job, ready))
    if job.dry_run:
        return True
    with open_run(job, _header(job, ready)) as run, wish_to_stop() as interrupted:
        trainer = Trainer(job, ready, checkpoints.load_state(saved) if saved else None)
        run.back_to(trainer.done)
        log, merit = open_logger(job, job.logger), None
        for figures in trainer.updates():
            run.log(figures)
            log(figures)
            tell(_line(figures, len(ready.plan)))
            merit = None if figures["held_out_loss"] is None else -figures["held_out_loss"]
            last = trainer.done == len(ready.plan) or interrupted()
            if last or (job.checkpoints.every and trainer.done % job.checkpoints.every == 0):
                _save(run, trainer, merit)
            if interrupted():
                tell(f"interrupted; update {trainer.done} is saved, go on with  resume=true")
                return False
    tell(f"{job.out / 'checkpoints' / 'latest'}")
    return True


def _save(run: Run, trainer: Trainer, merit: float | None) -> None:
    checkpoints.save(run.checkpoints, trainer.done, trainer.save, keep=trainer.job.checkpoints.keep, merit=merit)


def _header(job: SftJob, ready: Prepared) -> RunHeader:
    return new_header({**job.settings(), "facts": ready.facts}, ready.people)


def _summary(job: SftJob, ready: Prepared) -> str:
    facts, weights = ready.facts, sum(p.numel() for p in ready.model.parameters())
    who = ", ".join(f"{name} {number}" for name, number in facts["companions"].items())
    lost = f", {facts['left_out']} too long and left out" if facts["left_out"] else ""
    cut = f", {facts['cut']} cut" if facts["cut"] else ""
    return (
        f"{facts['conversations']:,} conversations to train on{lost}{cut}, {facts['held_out']} held out  ({who})\n"
        f"{facts['tokens']:,} tokens, {facts['trained_tokens']:,} of them trained on; {weights:,} weights;"
        f" {len(ready.plan)} updates of {job.batch}"
    )


def _line(figures: dict[str, Any], of: int) -> str:
    held = figures["held_out_loss"]
    return (
        f"update {figures['update']}/{of}  loss {figures['loss']:.3f}  {figures['tokens_per_second']:,.0f} tokens/s"
        + ("" if held is None else f"  held out {held:.3f}")
    )


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def run(settings: dict[str, Any]) -> int:
    """Run the job of some settings, and return the exit code."""
    whole = train(checked(SftJob, settings), _say)
    return 0 if whole else 130


if __name__ == "__main__":
    main("sft", run)
