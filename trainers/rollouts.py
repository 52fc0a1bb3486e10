"""Rollouts: whole conversations in the environment (`multiturn`), or single replies to fixed histories (`pseudo`).

Ids, spans and log-probabilities are kept as they are sampled; what the user says is context. Siblings of a group share
scenario and seed of the world and nothing that changes; their draws differ by their number. A conversation that fails
is returned as failed and stops no other.

What is thought in `<think>` blocks is shown to nobody. Under `append` it stays in the policy's own context.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field

from echo_env.agents.policy import shorten
from echo_env.agents.scoring import ScorablePrompt, Scored, score_replies
from echo_env.build import WorldConfig, build_session
from echo_env.driving import all_or_none, drive
from echo_env.epm import norm
from echo_env.errors import ConfigError, EchoError
from echo_env.profiles import Scenario
from echo_env.rewards import JudgedRecipe
from echo_env.session import DialogueSession, visible
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.filters import overlong_penalty
from echo_env.trainers.sampler import Sample, Sampler
from echo_env.trainers.trajectory import TokenSequence, Trajectory, grown
from echo_env.types import TRUNCATIONS, Message, Outcome, Record, Turn, storable

History = Literal["append", "rerender"]
"""`append`: ids only grow. `rerender`: each turn is rendered as it will be in use, and is a sequence of its own."""
ScoreBy = Literal["verdict", "distance", "reward"]
"""What `Trajectory.score`, which the filters read, is made of. All are raw: none holds a length penalty.

`verdict`: `Trajectory.verdict` itself: success (1 or 0) under a recipe that is made of EPM, else the mean of what the
recipe's judges said. `distance`: the share of the person's initial distance that was closed, 1 - norm(P)/norm(P0).
`reward`: the sum of what the recipe paid, missing turns left out."""
Cut = Literal["", "episode_tokens", "context"]
"""Why we cut a conversation off: the policy's tokens are used up, or the next reply might not fit into the context."""


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
    """How the conversation ended ("budget" where we cut it); None for single replies and failures."""
    parts: tuple[dict[str, float], ...] = ()
    """What each turn's shaped reward is made of: the recipe's parts, and "overlong" where a long reply costs something;
    empty where the reward is missing."""
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


Tell = Callable[[Progress], None]


class Overlong(Record):
    """What a long reply costs: DAPO eq. 13, see `filters.overlong_penalty`."""

    cap: int
    """Tokens; usually `Limits.reply_tokens`."""
    cache: int
    factor: float = 1.0


class Limits(Record):
    """How much is said, in tokens."""

    reply_tokens: Annotated[int, Field(ge=1)] = 64
    """Most tokens of a reply, its end included. One that reaches it is cut (stop "length"), and the talk goes on."""
    episode_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most tokens that the policy may sample in a conversation; then it is cut off. None: no limit."""
    context: Annotated[int, Field(ge=2)] = 2048
    """Most tokens of prompt and reply together. Under `append`, a conversation whose next reply might not fit is cut
    off; under `rerender`, and for single replies, the oldest exchanges are dropped first, as a policy in use does."""


def draw_seed(task: Task, turn: int, policy_version: int) -> int:
    """Return the seed of one reply's draw, which siblings, turns and updates do not share."""
    key = f"{task.group}/{task.seed}/{task.number}/{turn}/{policy_version}"
    return int.from_bytes(blake2b(key.encode(), digest_size=7).digest())


@dataclass(slots=True)
class _Talk:
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
        waiting, live, ended = deque(enumerate(tasks)), list[_Talk](), list[_Talk]()
        try:
            while waiting or live:
                opened = [self._start(*waiting.popleft()) for _ in range(min(self.live - len(live), len(waiting)))]
                self._play(opened, [self._open(talk) for talk in opened])
                live += opened
                self._turn([talk for talk in live if not talk.over], policy_version)
                ended += [talk for talk in live if talk.over]
                live = [talk for talk in live if not talk.over]
                tell(_progress(len(tasks), ended, live))
        finally:
            self.sampler.forget()
        return [self._rollout(talk, policy_version) for talk in sorted(ended, key=lambda talk: talk.place)]

    def _start(self, place: int, task: Task) -> _Talk:
        if task.scenario is None:
            raise ConfigError("a conversation in the environment needs a scenario", "single replies: mode=pseudo")
        return _Talk(place, task, build_session(self.world, task.scenario, task.seed))

    def _play(self, talks: Sequence[_Talk], moves: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Make one move in each conversation: at the same time where a role may wait, else one after the other."""
        if any(talk.session.waits for talk in talks):
            drive(_bounded(moves, self.at_once), waiting=True)
        else:
            drive(_in_turn(moves), waiting=False)

    async def _open(self, talk: _Talk) -> None:
        try:
            await talk.session.open()
        except EchoError as e:
            talk.failure = _told(e)

    def _turn(self, talks: Sequence[_Talk], policy_version: int) -> None:
        """Let the policy speak once in every conversation that has room for it, and play the turn through."""
        prompts = [self._prompt(talk) for talk in talks]
        ready = [(talk, prompt) for talk, prompt in zip(talks, prompts, strict=True) if not talk.cut]
        samples = self.sampler.sample(
            [prompt for _, prompt in ready],
            [self._room(talk) for talk, _ in ready],
            [draw_seed(talk.task, len(talk.turns), policy_version) for talk, _ in ready],
            keys=[talk.place for talk, _ in ready],
        )
        speaking = [talk for talk, _ in ready]
        self._play(speaking, [self._advance(t, s) for t, s in zip(speaking, samples, strict=True)])

    def _prompt(self, talk: _Talk) -> list[int]:
        """Return the ids before the next reply. A conversation that has no room for one is marked as cut."""
        messages, limit = talk.session.observation.messages, self.limits.context - self.limits.reply_tokens
        if self.history == "rerender":
            prompt = _fitting(self.chat, messages, limit)
        elif talk.sequences:
            before = talk.sequences[-1].ids
            prompt = [*before, *self.chat.following(messages[-1].text, stopped=self.chat.closed(before))]
        else:
            prompt = self.chat.prompt(messages)
        if len(prompt) > limit:
            talk.cut = "context"
        elif self._room(talk) < 1:
            talk.cut = "episode_tokens"
        return prompt

    def _room(self, talk: _Talk) -> int:
        """Return the most tokens of the next reply."""
        budget = self.limits.episode_tokens
        return self.limits.reply_tokens if budget is None else min(self.limits.reply_tokens, budget - talk.spent)

    async def _advance(self, talk: _Talk, sample: Sample) -> None:
        before = talk.sequences[-1] if talk.sequences and self.history == "append" else None
        try:
            sequence = grown(before, sample.prompt, sample.ids, sample.logprobs, sample.stop, len(talk.turns))
            talk.sequences = [sequence] if self.history == "append" else [*talk.sequences, sequence]
            talk.spent += len(sample.ids)
            talk.turns.append((await talk.session.reply(self.chat.text(sample.ids))).turn)
        except EchoError as e:  # one dead conversation never takes the rest along
            talk.failure = _told(e)

    def _rollout(self, talk: _Talk, policy_version: int) -> Rollout:
        session, turns = talk.session, tuple(talk.turns)
        if not turns:
            talk.failure = talk.failure or f"the opening leaves no room for a reply ({talk.cut})"
        if talk.failure:
            return Rollout(talk.task, None, turns, failure=talk.failure)
        outcome = session.outcome or Outcome(end="budget", turns=len(turns), closing=session.observation.user)
        lengths = [reply.end - reply.start for sequence in talk.sequences for reply in sequence.replies]
        parts = [_parts(turn, length, self.overlong) for turn, length in zip(turns, lengths, strict=True)]
        verdict = _verdict(session, turns, outcome)
        trajectory = Trajectory(
            group=talk.task.group,
            sequences=tuple(talk.sequences),
            rewards=tuple(map(_total, parts)),
            verdict=verdict,
            score={"verdict": verdict, "distance": _closed(session), "reward": _paid(turns)}[self.score],
            ended="truncated" if outcome.end in TRUNCATIONS else "terminated",
            policy_version=policy_version,
        )
        return Rollout(talk.task, trajectory, turns, outcome, tuple(p or {} for p in parts), talk.cut)


class Replies:
    """Draws and scores single replies to fixed histories (Echo-N1 section 3.3). Called like `Conversations`.

    Args:
        world: Its recipe scores the replies (`agents/scoring.py`).
        chat: The policy's template.
        sampler: The policy.
        limits: How much is said.
        score: What the filters are to read. Under a recipe that is made of EPM both are the same.
        overlong: What a long reply costs; None costs nothing.
        live: Replies that are drawn at the same time.
        at_once: Replies that wait for remote judges at the same time.
    """

    def __init__(
        self,
        world: WorldConfig,
        chat: ChatFormat,
        sampler: Sampler,
        *,
        limits: Limits | None = None,
        score: Literal["verdict", "reward"] = "verdict",
        overlong: Overlong | None = None,
        live: int = 64,
        at_once: int = 32,
    ) -> None:
        self.world, self.chat, self.sampler = world, chat, sampler
        self.limits, self.score, self.overlong = limits or Limits(), score, overlong
        self.live, self.at_once = live, at_once

    def collect(
        self, tasks: Sequence[Task], policy_version: int = 0, tell: Tell = lambda progress: None
    ) -> list[Rollout]:
        """Draw and score one reply for each task, and return them in order.

        A reply that was cut by the limit is scored, and its trajectory is `truncated`.

        Args:
            tasks: Each with a prompt.
            policy_version: Updates that the policy has seen.
            tell: Called after every `live` replies.

        Raises:
            ConfigError: A task has no prompt, the recipe does not go with one, or a name is unknown.
        """
        rollouts: list[Rollout] = []
        for start in range(0, len(tasks), self.live):
            rollouts += self._collect(tasks[start : start + self.live], policy_version)
            made = [r.trajectory for r in rollouts if r.trajectory is not None]
            tokens = sum(t.policy_tokens for t in made)
            tell(Progress(len(rollouts), len(tasks), len(rollouts) - len(made), len(made), tokens))
        return rollouts

    def _collect(self, tasks: Sequence[Task], policy_version: int) -> list[Rollout]:
        asked = [_asked(task) for task in tasks]
        limit = self.limits.context - self.limits.reply_tokens
        ids = {p: _fitting(self.chat, _messages(p), limit) for p in dict.fromkeys(asked)}
        ready = [(t, p) for t, p in zip(tasks, asked, strict=True) if len(ids[p]) <= limit]
        samples = self.sampler.sample(
            [ids[p] for _, p in ready], self.limits.reply_tokens, [draw_seed(t, 0, policy_version) for t, _ in ready]
        )
        texts = [self.chat.text(s.ids) for s in samples]
        replies = [(p, text) for (_, p), text in zip(ready, texts, strict=True)]
        scored = drive(score_replies(self.world, replies, self.at_once), waiting=True) if replies else []
        made = {
            id(t): self._rollout(t, _turn(p, text, found), sample, policy_version)
            for (t, p), text, sample, found in zip(ready, texts, samples, scored, strict=True)
        }
        none = "the prompt leaves no room for a reply (context)"
        return [made[id(t)] if id(t) in made else Rollout(t, None, failure=none) for t in tasks]

    def _rollout(self, task: Task, turn: Turn, sample: Sample, policy_version: int) -> Rollout:
        parts = _parts(turn, len(sample.ids), self.overlong)
        verdict = _said(turn) if turn.verdicts else turn.reward
        trajectory = Trajectory(
            group=task.group,
            sequences=(grown(None, sample.prompt, sample.ids, sample.logprobs, sample.stop),),
            rewards=(_total(parts),),
            verdict=verdict,
            score=verdict if self.score == "verdict" else turn.reward,
            ended="truncated" if sample.stop == "length" else "terminated",
            policy_version=policy_version,
        )
        return Rollout(task, trajectory, (turn,), parts=(parts or {},))


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


def _progress(total: int, ended: Sequence[_Talk], live: Sequence[_Talk]) -> Progress:
    talks = [*ended, *live]
    failed = sum(bool(talk.failure) for talk in ended)
    return Progress(len(ended), total, failed, sum(len(t.turns) for t in talks), sum(t.spent for t in talks))


def _fitting(chat: ChatFormat, messages: Sequence[Message], limit: int) -> list[int]:
    """Return the prompt of a conversation, its oldest exchanges dropped until it fits; it may still not."""
    return chat.prompt(shorten(messages, lambda kept: len(chat.prompt(kept)) <= limit))


def _parts(turn: Turn, length: int, overlong: Overlong | None) -> dict[str, float] | None:
    """Return what the shaped reward of a turn is made of; None where the reward is missing."""
    if turn.reward is None:
        return None
    if overlong is None:
        return dict(turn.reward_parts)
    penalty = overlong_penalty(length, overlong.cap, overlong.cache, overlong.factor)
    return {**turn.reward_parts, "overlong": penalty}


def _total(parts: dict[str, float] | None) -> float | None:
    return None if parts is None else sum(parts.values())


def _said(turn: Turn) -> float | None:
    """Return the mean of what the recipe's judges said of a reply; None where one of them said nothing."""
    values = [v.value for v in turn.verdicts]
    known = [v for v in values if v is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _verdict(session: DialogueSession, turns: Sequence[Turn], outcome: Outcome) -> float | None:
    """Return what was judged of a conversation, raw; None where nobody can tell."""
    if isinstance(session.recipe, JudgedRecipe):
        known = [v for v in map(_said, turns) if v is not None]
        return fmean(known) if known else None
    if outcome.end in ("unjudged", "unreachable"):
        return None
    return float(outcome.end == "success")


def _closed(session: DialogueSession) -> float | None:
    """Return the share of the initial distance that a conversation closed; None for somebody without a deficit."""
    start = norm(session.scenario.p0)
    return 1.0 - norm(session.state.position) / start if start else None


def _paid(turns: Sequence[Turn]) -> float | None:
    known = [turn.reward for turn in turns if turn.reward is not None]
    return sum(known) if known else None


def _asked(task: Task) -> ScorablePrompt:
    if task.prompt is None:
        raise ConfigError("a single reply needs a prompt", "conversations in the environment: mode=multiturn")
    return task.prompt


def _messages(prompt: ScorablePrompt) -> list[Message]:
    said = [text for exchange in prompt.history for text in (exchange.user, exchange.reply)]
    return [Message(role="companion" if k % 2 else "user", text=text) for k, text in enumerate((*said, prompt.user))]


def _turn(prompt: ScorablePrompt, text: str, scored: Scored) -> Turn:
    """Return a scored reply as a turn of the environment would record it."""
    raw = storable(text)
    return Turn(
        index=len(prompt.history) + 1,
        user=prompt.user,
        reply=visible(raw),
        raw_reply=raw if raw != visible(raw) else None,
        judgement=scored.judgement,
        epm=None,
        direction=None,
        reward=scored.reward,
        reward_parts=scored.parts,
        verdicts=scored.verdicts,
        failure=scored.failure,
    )
