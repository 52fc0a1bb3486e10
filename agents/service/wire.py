"""What the reward service takes and gives: its own batches, and OpenRLHF's wire format."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from echo_env.agents.scoring import Scored
from echo_env.agents.service.labels import PromptRecord
from echo_env.types import Record, Text


class ScoreItem(PromptRecord):
    """One reply, and where it was given."""

    reply: Text
    """What the policy said; `<think>` blocks in it are shown to no judge but a recipe's that asks for them."""
    raw: Text | None = None
    """The policy's full output, where `reply` is only what the user saw of it."""

    @property
    def said(self) -> str:
        """What is scored."""
        return self.reply if self.raw is None else self.raw


class ScoreRequest(Record):
    """A batch of replies."""

    items: Annotated[tuple[ScoreItem, ...], Field(min_length=1)]


class ScoreAnswer(Record):
    """What they came to, in their order."""

    recipe: str
    results: tuple[Scored, ...]


class RewardRequest(Record):
    """What OpenRLHF 0.11.2 sends: three lists of one length, in practice 1."""

    query: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Prompts with replies, special tokens included."""
    prompts: tuple[Text, ...]
    labels: tuple[Text, ...]
    """By `labels.label_of`."""


class RewardAnswer(Record):
    """What OpenRLHF reads: rewards for advantages, scores for dynamic filtering, logs to average."""

    rewards: tuple[float, ...]
    scores: tuple[float, ...]
    extra_logs: dict[str, tuple[float, ...]]
