"""The typed job of supervised fine-tuning. YAML composes it (`configs/sft.yaml`); this model is the law."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from echo_env.trainers.job import Checkpoints, InFolder, Logger, Lora
from echo_env.trainers.scratch import Shape
from echo_env.trainers.sftdata import Order, Source
from echo_env.types import Record


class Tuned(Record):
    """Which model is tuned: a folder, or one made from the start."""

    path: str | None = None
    """A folder in Hugging Face format, or "smollm2-135m"."""
    scratch: Shape | None = None
    """The shape of a model to be made, its tokenizer trained on the conversations."""
    system: str | None = None
    """System prompt of every conversation; None keeps each one's own, or the shipped one where none is recorded, and
    "" is none at all."""
    lora: Lora | None = None
    """None trains all weights."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.path is None) == (self.scratch is None):
            raise ValueError("give a model's folder (path), or the shape of one to be made (scratch)")
        if self.scratch is not None and self.lora is not None:
            raise ValueError("LoRA goes with a model that has learnt something: leave lora out")
        return self


class SftJob(InFolder):
    """Everything that a run depends on."""

    name: str = Field("sft", min_length=1)
    dry_run: bool = False
    """Prepare, tell what would be trained on, and stop."""
    data: tuple[Source, ...] = Field(min_length=1)
    model: Tuned
    count: int | None = Field(None, ge=2)
    """Conversations to draw from the mix; None: as many as the shares allow."""
    held_out: float = Field(0.05, ge=0, lt=1)
    """Share of the conversations that the loss is measured on."""
    train_on: Literal["assistant", "all"] = "assistant"
    """`all` trains on the user's words too, for a model that is made from the start: it has to learn the language. The
    held-out loss is that of the assistant's words always."""
    window: int = Field(0, ge=0)
    """Exchanges of an example: conversations are cut into pieces of so many. 0 leaves them whole. A model that is made
    from the start learns to take up the user's words from single exchanges many times sooner than from whole talks."""
    renamed: float = Field(0.0, ge=0, le=1)
    """Share of the rarer words that companions take up which go under another name throughout a conversation
    (`renaming.py`), so that they are copied from it and not known by heart."""
    curriculum: Order = "shuffle"
    stages: int = Field(4, ge=1)
    """Of the curriculum `staged`."""
    epochs: int = Field(4, ge=1)
    batch: int = Field(128, ge=1)
    """Conversations of an update."""
    optimiser: Literal["adamw", "muon"] = "adamw"
    """`muon` (Jordan et al. 2024; `muon.py`) moves the matrices inside the layers, AdamW all else: for models that
    are made from the start."""
    lr: float = Field(1e-5, gt=0)
    """Of AdamW."""
    matrix_lr: float = Field(0.02, gt=0)
    """Of Muon. Both follow the same schedule."""
    warmup: float = Field(0.1, ge=0, lt=1)
    """Share of the updates in which the rate rises linearly; from there it falls to 0 by a cosine."""
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.01, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    longest: int = Field(4096, ge=16)
    """Most tokens of a conversation; it is cut after its last whole turn that fits."""
    micro_tokens: int = Field(8192, ge=16)
    """Tokens of a micro-batch, padding included: memory depends on it, the result does not."""
    eval_every: int = Field(50, ge=1)
    """Updates between two measurements of the held-out loss."""
    seed: int = Field(0, ge=0)
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int | None = Field(None, ge=1)
    """torch's threads; None leaves them alone."""
    checkpoints: Checkpoints = Checkpoints()
    logger: Logger = Logger()
