"""What a sampled conversation leaves for training: token ids, the spans that the policy spoke, their log-probabilities.

Ids, spans and log-probabilities are stored when they are sampled and never computed again from text; text is a view.
Everything outside a span (the user's words, the template) is context: attended to, never trained on, never counted in a
length, never discounted over.

Two ways to keep a history. `append`: one sequence a conversation, ids only grow, and each prompt
must begin with the ids that are there. `rerender`: a template that drops `<think>` from the history renders each turn
anew, so each turn is a sequence of its own and takes its advantage from the trajectory.

Axes: B rows (sequences), T tokens, N trajectories, K policy turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from echo_env.errors import ConfigError, EchoError
from echo_env.types import Record

Stop = Literal["end", "length"]
"""Why a reply stopped: by the policy's own end token, or cut by a limit."""


class Retokenised(EchoError):
    """A prompt does not begin with the ids that were sampled so far; the conversation cannot be trained on."""


class Reply(Record):
    """The tokens that the policy sampled in one turn."""

    turn: int
    """Which of the conversation's policy turns, from 0."""
    start: int
    """Index of its first token in the sequence; at least 1, since the first token of all has no prediction."""
    end: int
    """One past its last token."""
    logprobs: tuple[float, ...]
    """Log-probability of each token under the distribution that it was sampled from."""
    stop: Stop

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not 1 <= self.start < self.end or self.turn < 0:
            raise ValueError(f"a reply spans tokens start < end from 1 on, got {self.start} to {self.end}")
        if len(self.logprobs) != self.end - self.start or not all(map(math.isfinite, self.logprobs)):
            raise ValueError("a reply needs one finite log-probability for each token")
        return self


class TokenSequence(Record):
    """Token ids as a model reads them, and the policy's replies in them."""

    ids: tuple[int, ...]
    replies: tuple[Reply, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.replies or self.replies[-1].end > len(self.ids):
            raise ValueError("a sequence holds one reply or more, inside its ids")
        if any(a.end > b.start or a.turn >= b.turn for a, b in pairwise(self.replies)):
            raise ValueError("the replies of a sequence follow each other")
        return self


class Trajectory(Record):
    """One conversation, as training sees it."""

    group: str
    """Key of its siblings: same scenario, same seed, same policy."""
    sequences: tuple[TokenSequence, ...]
    """One under `append`; one for each turn under `rerender`."""
    rewards: tuple[float | None, ...]
    """Shaped reward of each policy turn. None: the judge failed."""
    verdict: float | None
    """What was judged, raw, before any shaping. None: the judge failed."""
    score: float | None
    """What filters read. Usually the verdict, never the shaped reward."""
    ended: Literal["terminated", "truncated"]
    """Whether the conversation came to its own end, or was cut."""
    policy_version: int = 0
    """Updates that the sampling policy had seen."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.sequences or [r.turn for r in self.replies()] != list(range(len(self.rewards))):
            raise ValueError("a trajectory holds each of its turns once, in order, with one reward (or None) for each")
        if any(r is not None and not math.isfinite(r) for r in (*self.rewards, self.verdict, self.score)):
            raise ValueError("a reward is a finite number, or None where it is missing")
        return self

    def replies(self) -> Iterator[Reply]:
        """Yield the policy's replies, turn by turn."""
        return (reply for sequence in self.sequences for reply in sequence.replies)

    @property
    def policy_tokens(self) -> int:
        """Length, in tokens that the policy sampled."""
        return sum(reply.end - reply.start for reply in self.replies())


def grown(
    before: TokenSequence | None,
    prompt: Sequence[int],
    reply: Sequence[int],
    logprobs: Sequence[float],
    stop: Stop,
    turn: int = 0,
) -> TokenSequence:
    """Return the sequence that a newly sampled reply makes.

    Args:
        before: The sequence so far (`append`), or None to begin one (the first turn, and each turn under `rerender`).
        prompt: All ids that the engine was given for this turn.
        reply: The ids that it sampled.
        logprobs: Their log-probabilities.
        stop: Why it stopped.
        turn: The policy turn; taken from `before` where that is given.

    Raises:
        Retokenised: The prompt does not begin with the ids of `before`.
    """
    seen = before.ids if before else ()
    if tuple(prompt[: len(seen)]) != seen:
        place = next((i for i, (a, b) in enumerate(zip(prompt, seen, strict=False)) if a != b), len(prompt))
        raise Retokenised(
            f"the prompt differs from what was sampled from token {place} of {len(seen)} on",
            "this template rewrites its history (it may drop <think>): use history=rerender",
        )
    earlier = before.replies if before else ()
    new = Reply(
        turn=earlier[-1].turn + 1 if earlier else turn,
        start=len(prompt),
        end=len(prompt) + len(reply),
        logprobs=tuple(logprobs),
        stop=stop,
    )
    return TokenSequence(ids=(*prompt, *reply), replies=(*earlier, new))


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences, padded on the right. Every tensor is aligned with the token that is predicted, not with its logits."""

    ids_BT: Tensor
    attention_BT: Tensor
    """True for tokens, False for padding. Never inferred from ids: the padding id may be a real token."""
    turn_BT: Tensor
    """The policy turn that sampled the token, -1 for all other tokens and for padding."""
    sampled_BT: Tensor
    """Log-probability at sampling, 0 where the policy did not speak."""
    trajectory_B: Tensor
    """The row's trajectory, as an index into the list that was collated."""

    @property
    def policy_BT(self) -> Tensor:
        """True for the tokens that the policy sampled."""
        return self.turn_BT >= 0

    def take(self, rows: Tensor) -> Batch:
        """Return some rows, cut to the longest of them."""
        width = int(self.attention_BT[rows].sum(1).max())
        return Batch(
            self.ids_BT[rows, :width],
            self.attention_BT[rows, :width],
            self.turn_BT[rows, :width],
            self.sampled_BT[rows, :width],
            self.trajectory_B[rows],
        )


def collate(trajectories: Sequence[Trajectory], pad: int = 0) -> Batch:
    """Return the sequences of some trajectories as one batch, in order.

    Args:
        trajectories: At least one.
        pad: The id to fill up with. Any will do.
    """
    rows = [(n, sequence) for n, trajectory in enumerate(trajectories) for sequence in trajectory.sequences]
    if not rows:
        raise ConfigError("there is no trajectory to collate", "check what the filters leave")
    shape = len(rows), max(len(s.ids) for _, s in rows)
    ids_BT, turn_BT = torch.full(shape, pad), torch.full(shape, -1)
    attention_BT, sampled_BT = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
    for b, (_, sequence) in enumerate(rows):
        ids_BT[b, : len(sequence.ids)] = torch.tensor(sequence.ids)
        attention_BT[b, : len(sequence.ids)] = True
        for reply in sequence.replies:
            turn_BT[b, reply.start : reply.end] = reply.turn
            sampled_BT[b, reply.start : reply.end] = torch.tensor(reply.logprobs)
    return Batch(ids_BT, attention_BT, turn_BT, sampled_BT, torch.tensor([n for n, _ in rows]))


def micro_batches(batch: Batch, max_tokens: int) -> list[Tensor]:
    """Pack rows of like length into micro-batches under a budget, and return the rows of each.

    Greedy, the longest first. Sequences are padded, not laid end to end. The gradient over all micro-batches is that
    of the whole batch as long as the losses are divided by `losses.Totals` of the whole.

    Args:
        batch: What to split.
        max_tokens: Rows times the longest row, padding included. A row that is longer goes by itself.
    """
    lengths = batch.attention_BT.sum(1)
    packs: list[list[int]] = []
    for row in lengths.argsort(descending=True, stable=True).tolist():
        if packs and (len(packs[-1]) + 1) * int(lengths[packs[-1][0]]) <= max_tokens:
            packs[-1].append(row)
        else:
            packs.append([row])
    return [torch.tensor(pack) for pack in packs]


@dataclass(frozen=True, slots=True)
class RewardTable:
    """Rewards of some trajectories as tensors. NaN stands for None in here: it spreads, where a zero would pass."""

    values_NK: Tensor
    """Shaped reward of each turn; NaN where it is missing and where there is no such turn. float64."""
    turns_N: Tensor
    """Policy turns of each trajectory."""
    groups_N: Tensor
    """Number of each trajectory's group, in order of appearance."""


def reward_table(trajectories: Sequence[Trajectory]) -> RewardTable:
    """Return the rewards of trajectories, in order."""
    numbers = {key: i for i, key in enumerate(dict.fromkeys(t.group for t in trajectories))}
    turns = [len(t.rewards) for t in trajectories]
    values_NK = torch.full((len(turns), max(turns, default=0)), math.nan, dtype=torch.float64)
    for n, trajectory in enumerate(trajectories):
        for k, reward in enumerate(trajectory.rewards):
            values_NK[n, k] = math.nan if reward is None else reward
    return RewardTable(values_NK, torch.tensor(turns), torch.tensor([numbers[t.group] for t in trajectories]))
