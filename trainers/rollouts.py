"""Rollouts: whole conversations in the environment (`multiturn`), or single replies to fixed histories (`pseudo`).

Ids, spans and log-probabilities are kept as they are sampled; what the user says is context. Siblings of a group share
scenario and seed of the world and nothing that changes; their draws differ by their number. A conversation that fails
is returned as failed and stops no other.

What is thought in `<think>` blocks is shown to nobody. Under `append` it stays in the policy's own context.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from echo_env.build import WorldConfig, build_session
from echo_env.driving import all_or_none, drive
from echo_env.errors import ConfigError, EchoError
from echo_env.session import DialogueSession
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.outcomes import (
    Cut,
    Limits,
    Overlong,
    Progress,
    Rollout,
    ScoreBy,
    Task,
    Tell,
    distance_closed,
    draw_seed,
    paid,
    shaped,
    talk_verdict,
    total,
)
from echo_env.trainers.replies import Replies
from echo_env.trainers.sampler import Sample, Sampler
from echo_env.trainers.trajectory import TokenSequence, Trajectory, grown
from echo_env.types import TRUNCATIONS, Outcome, Turn

__all__ = ["Conversations", "History", "Limits", "Overlong", "Progress", "Replies", "Rollout", "ScoreBy", "Task"]

History = Literal["append", "rerender"]
"""`append`: ids only grow. `rerender`: each turn is rendered as it will be in use, and is a sequence of its own."""


@dataclass(slots=True)
class Talk:
    """A conversation under way."""

    place: int
    """Among the tasks."""
    task: Task
    session: DialogueSession
    sequences: list[TokenSequence] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    spent: int = 0
    """Tokens that the policy has sampled."""
    cut: Cut = ""
    failure: str = ""

    @property
    def over(self) -> bool:
        """Whether there is nothing more to play."""
        return bool(self.failure or self.cut or self.session.outcome)


class Conversations:
    """Plays whole conversations in the environment, all that are live a turn at a time.

    Args:
        world: Where they take place; every conversation gets roles of its own.
        chat: The policy's template.
        sampler: The policy.
        history: How a prompt comes from what was said before.
        limits: How much is said.
        score: What the filters are to read.
        overlong: What a long reply costs; None costs nothing.
        live: Conversations that are played at the same time; others wait for their place.
        at_once: Of these, how many wait for remote roles at the same time.

    Raises:
        ConfigError: The template rewrites its history, and `history` is `append`.
    """

    def __init__(
        self,
        world: WorldConfig,
        chat: ChatFormat,
        sampler: Sampler,
        *,
        history: History = "append",
        limits: Limits | None = None,
        score: ScoreBy = "verdict",
        overlong: Overlong | None = None,
        live: int = 64,
        at_once: int = 32,
    ) -> None:
        if history == "append":
            chat.check_append()
        self.world, self.chat, self.sampler, self.history = world, chat, sampler, history
        self.limits, self.score, self.overlong = limits or Limits(), score, overlong
        self.live, self.at_once = live, at_once

    def collect(
        self, tasks: Sequence[Task], policy_version: int = 0, tell: Tell = lambda progress: None
    ) -> list[Rollout]:
        """Play one conversation for each task, and return them in order.

        Args:
            tasks: Each with a scenario.
            policy_version: Updates that the policy has seen.
            tell: Called after every turn of the batch.

        Raises:
            ConfigError: A task has no scenario, or a name in the world's configuration is unknown. Whatever else
                befalls a conversation is in its rollout.
        """
        waiting, live, ended = deque(enumerate(tasks)), list[Talk](), list[Talk]()
        try:
            while waiting or live:
                opened = [self.start(*waiting.popleft()) for _ in range(min(self.live - len(live), len(waiting)))]
                self._play(opened, [self.open(talk) for talk in opened])
                live += opened
                self._turn([talk for talk in live if not talk.over], policy_version)
                ended += [talk for talk in live if talk.over]
                live = [talk for talk in live if not talk.over]
                tell(_progress(len(tasks), ended, live))
        finally:
            self.sampler.forget()
        return [self.rollout(talk, policy_version) for talk in sorted(ended, key=lambda talk: talk.place)]

    def start(self, place: int, task: Task) -> Talk:
        """Return the conversation of a task, not opened yet.

        Args:
            place: Among the tasks.
            task: With a scenario.

        Raises:
            ConfigError: It has none, or a name in the world's configuration is unknown.
        """
        if task.scenario is None:
            raise ConfigError("a conversation in the environment needs a scenario", "single replies: mode=pseudo")
        return Talk(place, task, build_session(self.world, task.scenario, task.seed))

    def _play(self, talks: Sequence[Talk], moves: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Make one move in each conversation: at the same time where a role may wait, else one after the other."""
        if any(talk.session.waits for talk in talks):
            drive(_bounded(moves, self.at_once), waiting=True)
        else:
            drive(_in_turn(moves), waiting=False)

    async def open(self, talk: Talk) -> None:
        """Let the person speak first."""
        try:
            await talk.session.open()
        except EchoError as e:
            talk.failure = _told(e)

    def _turn(self, talks: Sequence[Talk], policy_version: int) -> None:
        """Let the policy speak once in every conversation that has room for it, and play the turn through."""
        prompts = [self.prompt(talk) for talk in talks]
        ready = [(talk, prompt) for talk, prompt in zip(talks, prompts, strict=True) if not talk.cut]
        samples = self.sampler.sample(
            [prompt for _, prompt in ready],
            [self.room(talk) for talk, _ in ready],
            [draw_seed(talk.task, len(talk.turns), policy_version) for talk, _ in ready],
            keys=[talk.place for talk, _ in ready],
        )
        speaking = [talk for talk, _ in ready]
        self._play(speaking, [self.advance(t, s) for t, s in zip(speaking, samples, strict=True)])

    def prompt(self, talk: Talk) -> list[int]:
        """Return the ids before the next reply. A conversation that has no room for one is marked as cut."""
        messages, limit = talk.session.observation.messages, self.limits.context - self.limits.reply_tokens
        if self.history == "rerender":
            prompt = self.chat.fitting(messages, limit)
        elif talk.sequences:
            before = talk.sequences[-1].ids
            prompt = [*before, *self.chat.following(messages[-1].text, stopped=self.chat.closed(before))]
        else:
            prompt = self.chat.prompt(messages)
        if len(prompt) > limit:
            talk.cut = "context"
        elif self.room(talk) < 1:
            talk.cut = "episode_tokens"
        return prompt

    def room(self, talk: Talk) -> int:
        """Return the most tokens of the next reply."""
        budget = self.limits.episode_tokens
        return self.limits.reply_tokens if budget is None else min(self.limits.reply_tokens, budget - talk.spent)

    async def advance(self, talk: Talk, sample: Sample) -> None:
        """Take a reply in, and play the turn through. What goes wrong is in `talk.failure`."""
        before = talk.sequences[-1] if talk.sequences and self.history == "append" else None
        try:
            sequence = grown(before, sample.prompt, sample.ids, sample.logprobs, sample.stop, len(talk.turns))
            talk.sequences = [sequence] if self.history == "append" else [*talk.sequences, sequence]
            talk.spent += len(sample.ids)
            talk.turns.append((await talk.session.reply(self.chat.text(sample.ids))).turn)
        except EchoError as e:  # one dead conversation never takes the rest along
            talk.failure = _told(e)

    def rollout(self, talk: Talk, policy_version: int) -> Rollout:
        """Return what became of a conversation that is over."""
        session, turns = talk.session, tuple(talk.turns)
        if not turns:
            talk.failure = talk.failure or f"the opening leaves no room for a reply ({talk.cut})"
        if talk.failure:
            return Rollout(talk.task, None, turns, failure=talk.failure)
        outcome = session.outcome or Outcome(end="budget", turns=len(turns), closing=session.observation.user)
        lengths = [reply.end - reply.start for sequence in talk.sequences for reply in sequence.replies]
        parts = [shaped(turn, length, self.overlong) for turn, length in zip(turns, lengths, strict=True)]
        verdict = talk_verdict(session, turns, outcome)
        closed = None if outcome.end == "unjudged" else distance_closed(session)  # unjudged turns close nothing
        trajectory = Trajectory(
            group=talk.task.group,
            sequences=tuple(talk.sequences),
            rewards=tuple(map(total, parts)),
            verdict=verdict,
            score={"verdict": verdict, "distance": closed, "reward": paid(turns)}[self.score],
            ended="truncated" if outcome.end in TRUNCATIONS else "terminated",
            policy_version=policy_version,
        )
        return Rollout(talk.task, trajectory, turns, outcome, tuple(p or {} for p in parts), talk.cut)


async def _in_turn(moves: Sequence[Coroutine[Any, Any, None]]) -> None:
    for move in moves:
        await move


async def _bounded(moves: Sequence[Coroutine[Any, Any, None]], at_once: int) -> None:
    gate = asyncio.Semaphore(at_once)

    async def through(move: Coroutine[Any, Any, None]) -> None:
        async with gate:
            await move

    await all_or_none([through(move) for move in moves])


def _told(error: EchoError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _progress(total: int, ended: Sequence[Talk], live: Sequence[Talk]) -> Progress:
    talks = [*ended, *live]
    failed = sum(bool(talk.failure) for talk in ended)
    return Progress(len(ended), total, failed, sum(len(t.turns) for t in talks), sum(t.spent for t in talks))
