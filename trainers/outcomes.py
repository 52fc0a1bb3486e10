"""What a rollout is about, how much is said in it, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from echo_env.agents.scoring import ScorablePrompt
from echo_env.epm import norm
from echo_env.profiles import Scenario
from echo_env.rewards import JudgedRecipe
from echo_env.session import DialogueSession
from echo_env.trainers.filters import overlong_penalty
from echo_env.trainers.trajectory import Trajectory
from echo_env.types import Outcome, Record, Turn

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


def shaped(turn: Turn, length: int, overlong: Overlong | None) -> dict[str, float] | None:
    """Return what the shaped reward of a turn is made of; None where the reward is missing."""
    if turn.reward is None:
        return None
    if overlong is None:
        return dict(turn.reward_parts)
    penalty = overlong_penalty(length, overlong.cap, overlong.cache, overlong.factor)
    return {**turn.reward_parts, "overlong": penalty}


def total(parts: dict[str, float] | None) -> float | None:
    """Return the shaped reward of a turn; None where it is missing."""
    return None if parts is None else sum(parts.values())


def reply_verdict(turn: Turn) -> float | None:
    """Return the mean of what the recipe's judges said of a reply; None where one of them said nothing."""
    values = [v.value for v in turn.verdicts]
    known = [v for v in values if v is not None]
    return fmean(known) if known and len(known) == len(values) else None


def talk_verdict(session: DialogueSession, turns: Sequence[Turn], outcome: Outcome) -> float | None:
    """Return what was judged of a conversation, raw; None where nobody can tell."""
    if isinstance(session.recipe, JudgedRecipe):
        known = [v for v in map(reply_verdict, turns) if v is not None]
        return fmean(known) if known else None
    if outcome.end in ("unjudged", "unreachable"):
        return None
    return float(outcome.end == "success")


def distance_closed(session: DialogueSession) -> float | None:
    """Return the share of the initial distance that a conversation closed; None for somebody without a deficit."""
    start = norm(session.scenario.p0)
    return 1.0 - norm(session.state.position) / start if start else None


def paid(turns: Sequence[Turn]) -> float | None:
    """Return what the recipe paid for a conversation, missing turns left out; None where it paid for none."""
    known = [turn.reward for turn in turns if turn.reward is not None]
    return sum(known) if known else None
