"""Single replies to fixed histories, drawn and scored together (`mode=pseudo`; Echo-N1 section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from echo_env.agents.scoring import ScorablePrompt, Scored, score_replies
from echo_env.build import WorldConfig
from echo_env.driving import drive
from echo_env.errors import ConfigError
from echo_env.session import visible
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.outcomes import (
    Limits,
    Overlong,
    Progress,
    Rollout,
    Task,
    Tell,
    draw_seed,
    reply_verdict,
    shaped,
    total,
)
from echo_env.trainers.sampler import Sample, Sampler
from echo_env.trainers.trajectory import Trajectory, grown
from echo_env.types import Message, Turn, storable


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
        ids = {p: self.chat.fitting(messages_of(p), limit) for p in dict.fromkeys(asked)}
        ready = [(t, p) for t, p in zip(tasks, asked, strict=True) if len(ids[p]) <= limit]
        samples = self.sampler.sample(
            [ids[p] for _, p in ready], self.limits.reply_tokens, [draw_seed(t, 0, policy_version) for t, _ in ready]
        )
        texts = [self.chat.text(s.ids) for s in samples]
        replies = [(p, text) for (_, p), text in zip(ready, texts, strict=True)]
        scored = drive(score_replies(self.world, replies, self.at_once), waiting=True) if replies else []
        made = {
            id(t): self.rollout(t, turn_of(p, text, found), sample, policy_version)
            for (t, p), text, sample, found in zip(ready, texts, samples, scored, strict=True)
        }
        none = "the prompt leaves no room for a reply (context)"
        return [made[id(t)] if id(t) in made else Rollout(t, None, failure=none) for t in tasks]

    def rollout(self, task: Task, turn: Turn, sample: Sample, policy_version: int) -> Rollout:
        """Return what became of a reply."""
        parts = shaped(turn, len(sample.ids), self.overlong)
        verdict = reply_verdict(turn) if turn.verdicts else turn.reward
        trajectory = Trajectory(
            group=task.group,
            sequences=(grown(None, sample.prompt, sample.ids, sample.logprobs, sample.stop),),
            rewards=(total(parts),),
            verdict=verdict,
            score=verdict if self.score == "verdict" else turn.reward,
            ended="truncated" if sample.stop == "length" else "terminated",
            policy_version=policy_version,
        )
        return Rollout(task, trajectory, (turn,), parts=(parts or {},))


def _asked(task: Task) -> ScorablePrompt:
    if task.prompt is None:
        raise ConfigError("a single reply needs a prompt", "conversations in the environment: mode=multiturn")
    return task.prompt


def messages_of(prompt: ScorablePrompt) -> list[Message]:
    """Return a prompt as the conversation that it is."""
    said = [text for exchange in prompt.history for text in (exchange.user, exchange.reply)]
    return [Message(role="companion" if k % 2 else "user", text=text) for k, text in enumerate((*said, prompt.user))]


def turn_of(prompt: ScorablePrompt, text: str, scored: Scored) -> Turn:
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
