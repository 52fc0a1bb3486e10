"""Rollouts: whole conversations in the environment (`multiturn`), or single replies to fixed histories (`pseudo`).

Ids, spans and log-probabilities are kept as they are sampled; what the user says is context. Siblings of a group share
scenario and seed of the world and nothing that changes; their draws differ by their number. A conversation that fails
is returned as failed and stops no other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from statistics import fmean
from typing import Any, Literal, TypeVar

from echo_env.agents.policy import shorten
from echo_env.agents.scoring import ScorablePrompt, Scored, score_replies
from echo_env.build import WorldConfig, build_session
from echo_env.driving import drive
from echo_env.epm import norm
from echo_env.errors import ConfigError, EchoError
from echo_env.profiles import Scenario
from echo_env.session import DialogueSession, visible
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.filters import overlong_penalty
from echo_env.trainers.sampler import Sample, Sampler
from echo_env.trainers.trajectory import TokenSequence, Trajectory, grown
from echo_env.types import Message, Outcome, Record, Turn, Verdict, storable

T = TypeVar("T")

History = Literal["append", "rerender"]
"""`append`: ids only grow. `rerender`: each turn is rendered anew, as it will be in use, and is a sequence of its own."""
ScoreBy = Literal["verdict", "distance", "reward"]
"""What `Trajectory.score`, which the filters read, is made of: all raw, none with a length penalty.

`verdict`: the outcome (see `Trajectory.verdict`). `distance`: share of the person's initial distance that was closed,
1 - norm(P)/norm(P0). `reward`: sum of what the recipe paid."""
Cut = Literal["", "episode_tokens", "context"]
"""Why we cut a conversation off: the policy's tokens were used up, or the next reply might not fit into the context."""


@dataclass(frozen=True, slots=True)
class Task:
    """What one rollout is about: a scenario (`multiturn`) or a prompt (`pseudo`)."""

    group: str
    """Key of its siblings."""
    seed: int
    """Of the world, shared by siblings."""
    scenario: Scenario | None = None
    prompt: ScorablePrompt | None = None
    number: int = 0
    """Which sibling."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """What became of a task."""

    task: Task
    trajectory: Trajectory | None
    """None: it failed, is counted and left out."""
    turns: tuple[Turn, ...] = ()
    outcome: Outcome | None = None
    """How the conversation ended; None for single replies and failures."""
    parts: tuple[dict[str, float], ...] = ()
    """What each turn's shaped reward is made of: the recipe's parts, and "overlong" where there is a penalty."""
    cut: Cut = ""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Told after every turn of the batch."""

    done: int
    """Tasks that have ended, failed ones included."""
    total: int
    failed: int
    turns: int
    tokens: int
    """Tokens that the policy sampled."""


class Overlong(Record):
    """DAPO eq. 13 on each reply; see `filters.overlong_penalty`."""

    cap: int
    cache: int
    factor: float = 1.0


class Limits(Record):
    """How much is said."""

    reply_tokens: int = 64
    """Most tokens of a reply, its end included; one that reaches it is cut (stop "length") and goes on."""
    episode_tokens: int | None = None
    """Most tokens that the policy may sample in a conversation; then it is cut off."""
    context: int = 2048
    """Most tokens of prompt and reply together."""


def draw_seed(task: Task, turn: int, policy_version: int) -> int:
    """Return the seed of one reply's draw."""
    key = f"{task.seed}/{task.group}/{task.number}/{turn}/{policy_version}"
    return int.from_bytes(blake2b(key.encode(), digest_size=7).digest())


@dataclass(slots=True)
class _Talk:
    """A conversation, or a single reply, under way."""

    task: Task
    session: DialogueSession | None = None
    sequences: list[TokenSequence] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    spent: int = 0
    """Tokens that the policy has sampled."""
    cut: Cut = ""
    failure: str = ""

    @property
    def over(self) -> bool:
        return bool(self.failure or self.cut) or (self.session is not None and self.session.outcome is not None)

    def fail(self, error: EchoError) -> None:
        self.failure = f"{error.message} ({error.hint})" if error.hint else error.message


class Conversations:
    """Plays whole conversations in the environment, all that are live a turn at a time.

    Args:
        world: Where they take place; every conversation gets roles of its own.
        chat: The policy's template.
        sampler: The policy.
        history: How a prompt comes from the one before. `append` takes a template that keeps what was said
            (`ChatFormat.check_append`).
        limits: How much is said.
        score: What the filters are to read.
        overlong: What a long reply costs; None costs nothing.
        live: Conversations that are played at the same time.
        at_once: Of these, how many wait for remote judges at the same time.

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
        live: int = 128,
        at_once: int = 32,
    ) -> None:
        if history == "append":
            chat.check_append()
        self.world, self.chat, self.sampler, self.history = world, chat, sampler, history
        self.limits, self.score, self.overlong = limits or Limits(), score, overlong
        self.live, self.at_once = live, at_once

    def collect(
        self, tasks: Sequence[Task], policy_version: int = 0, tell: Callable[[Progress], None] = lambda progress: None
    ) -> list[Rollout]:
        """Play one conversation for each task, and return them in order.

        Args:
            tasks: Each with a scenario.
            policy_version: Updates that the policy has seen.
            tell: Called after every turn of the batch.

        Raises:
            ConfigError: A name in the world's configuration is unknown. Whatever befalls a single conversation is in its
                rollout.
        """
        talks = [_Talk(task) for task in tasks]
        waiting, live = deque(talks), list[_Talk]()
        while waiting or live:
            opened = [waiting.popleft() for _ in range(min(self.live - len(live), len(waiting)))]
            self._together([self._open(talk) for talk in opened], opened)
            live = [talk for talk in (*live, *opened) if not talk.over]
            self._turn(live, policy_version)
            live = [talk for talk in live if not talk.over]
            tell(_progress(talks, len(waiting) + len(live)))
        self.sampler.forget()
        return [self._rollout(talk, policy_version) for talk in talks]

    def _turn(self, live: list[_Talk], policy_version: int) -> None:
        """Let the policy speak once in every conversation that has room for it, and play the turn through."""
        prompts = [self._prompt(talk) for talk in live]
        ready = [(talk, prompt) for talk, prompt in zip(live, prompts, strict=True) if not talk.over]
        samples = self.sampler.sample(
            [prompt for _, prompt in ready],
            [self._room(talk) for talk, _ in ready],
            [draw_seed(talk.task, len(talk.turns), policy_version) for talk, _ in ready],
            keys=[id(talk) for talk, _ in ready] if self.history == "append" else None,
        )
        speaking = [talk for talk, _ in ready]
        self._together([self._advance(t, s) for t, s in zip(speaking, samples, strict=True)], speaking)

    def _prompt(self, talk: _Talk) -> list[int]:
        """Return the ids before the next reply; marks a conversation that has no room for one as cut."""
        assert talk.session is not None
        messages = talk.session.observation.messages
        limit = self.limits.context - self.limits.reply_tokens
        if self.history == "append" and talk.sequences:
            before = talk.sequences[-1].ids
            prompt = [*before, *self.chat.following(messages[-1].text, stopped=self.chat.closed(before))]
        elif self.history == "append":
            prompt = self.chat.prompt(messages)
        else:
            prompt = self.chat.prompt(shorten(messages, lambda m: len(self.chat.prompt(m)) <= limit))
        if len(prompt) > limit:
            talk.cut = "context"
        elif self._room(talk) < 1:
            talk.cut = "episode_tokens"
        return prompt

    def _room(self, talk: _Talk) -> int:
        """Return the most tokens of the next reply."""
        budget = self.limits.episode_tokens
        return self.limits.reply_tokens if budget is None else min(self.limits.reply_tokens, budget - talk.spent)

    async def _open(self, talk: _Talk) -> None:
        if talk.task.scenario is None:
            raise ConfigError("a conversation in the environment needs a scenario", "use mode=pseudo for prompts")
        talk.session = build_session(self.world, talk.task.scenario, talk.task.seed)
        try:
            await talk.session.open()
        except EchoError as e:
            talk.fail(e)

    async def _advance(self, talk: _Talk, sample: Sample) -> None:
        assert talk.session is not None
        before = talk.sequences[-1] if talk.sequences and self.history == "append" else None
        try:
            sequence = grown(before, sample.prompt, sample.ids, sample.logprobs, sample.stop, len(talk.turns))
            talk.sequences = [sequence] if self.history == "append" else [*talk.sequences, sequence]
            talk.spent += len(sample.ids)
            talk.turns.append((await talk.session.reply(self.chat.text(sample.ids))).turn)
        except EchoError as e:  # one dead conversation never takes the rest along
            talk.fail(e)

    def _together(self, moves: Sequence[Coroutine[Any, Any, None]], talks: Sequence[_Talk]) -> None:
        """Run one move of each conversation: at the same time where a role may wait, else one after the other."""
        waiting = any(talk.session is None or talk.session.waits for talk in talks)
        drive(_bounded(moves, self.at_once, waiting=waiting), waiting=waiting)

    def _rollout(self, talk: _Talk, policy_version: int) -> Rollout:
        if talk.cut and not talk.turns:
            talk.failure = f"the opening alone leaves no room for a reply ({talk.cut})"
        if talk.failure or talk.session is None:
            return Rollout(talk.task, None, tuple(talk.turns), failure=talk.failure)
        session = talk.session
        outcome = session.outcome or Outcome(end="budget", turns=len(talk.turns), closing=session.observation.user)
        verdict = _verdict(talk.turns, outcome)
        parts = [_parts(turn, reply.end - reply.start, self.overlong) for turn, reply in _said(talk)]
        scores = {"verdict": verdict, "reward": _total(talk.turns), "distance": _closed(session)}
        trajectory = Trajectory(
            group=talk.task.group,
            sequences=tuple(talk.sequences),
            rewards=tuple(sum(p.values()) if p is not None else None for p in parts),
            verdict=verdict,
            score=scores[self.score],
            ended="truncated" if outcome.end in TRUNCATIONS else "terminated",
            policy_version=policy_version,
        )
        return Rollout(
            talk.task, trajectory, tuple(talk.turns), outcome, tuple(p or {} for p in parts), talk.cut
        )


class Replies:
    """Draws and scores single replies to fixed histories (Echo-N1 section 3.3). See `Conversations.collect`.

    Args:
        world: Its recipe scores the replies (`agents/scoring.py`).
        chat: The policy's template.
        sampler: The policy.
        limits: How much is said.
        score: What the filters are to read; "distance" is the same as "verdict" here.
        overlong: What a long reply costs; None costs nothing.
        at_once: Replies that wait for remote judges at the same time.
    """

    def __init__(
        self,
        world: WorldConfig,
        chat: ChatFormat,
        sampler: Sampler,
        *,
        limits: Limits | None = None,
        score: ScoreBy = "verdict",
        overlong: Overlong | None = None,
        at_once: int = 32,
    ) -> None:
        self.world, self.chat, self.sampler = world, chat, sampler
        self.limits, self.score, self.overlong, self.at_once = limits or Limits(), score, overlong, at_once

    def collect(
        self, tasks: Sequence[Task], policy_version: int = 0, tell: Callable[[Progress], None] = lambda progress: None
    ) -> list[Rollout]:
        """Draw one reply for each task, score them together, and return them in order.

        Args:
            tasks: Each with a prompt.
            policy_version: Updates that the policy has seen.
            tell: Called once, when all is done.

        Raises:
            ConfigError: The recipe does not go with a prompt, or a name is unknown.
        """
        raise NotImplementedError


async def _bounded(moves: Sequence[Coroutine[Any, Any, None]], at_once: int, *, waiting: bool) -> None:
    if not waiting:
        for move in moves:
            await move
        return
    gate = asyncio.Semaphore(at_once)

    async def through(move: Coroutine[Any, Any, None]) -> None:
        async with gate:
            await move

    await asyncio.gather(*(through(move) for move in moves))
