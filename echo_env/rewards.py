"""Reward recipes: what a turn is worth.

A recipe looks at one finished turn and returns its parts; the reward is their sum. A recipe with judges of its own
(`JudgedRecipe`) first asks them for verdicts, which are recorded raw; the parts are then a pure function of the EPM
state and the verdicts. So `group_rewards` can apply any recipe to whole recorded episodes again, a lone episode being
a group of one. What needs siblings (group baselines, redundancy) belongs to the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from echo_env.epm import EpmState, Scorer, norm
from echo_env.errors import RoleFailure
from echo_env.faults import fault_of
from echo_env.roles import JudgeView
from echo_env.scorers import NO_EPM
from echo_env.types import CHITCHAT, TRUNCATIONS, End, Episode, Vector, Verdict


@dataclass(frozen=True, slots=True)
class ReplyView:
    """What a recipe's own judges see of a turn."""

    judged: JudgeView
    """Profile, finished exchanges, and the exchange with the reply."""
    raw: str = ""
    """The policy's full output, thinking included; empty where it is the reply itself."""
    reference: str | None = None
    """A reply to compare with, where the prompt brings one; else a recipe that needs one asks its reference policy."""
    deficit: Vector | None = None
    """The person's initial deficit P0, where somebody rated it."""
    earlier: tuple[tuple[Verdict, ...], ...] = ()
    """The recipe's verdicts of the turns before, resumed ones included, so that no judge need keep a running state."""


class ReplyJudge(Protocol):
    """A judge of a recipe's own: one reply in, one verdict out. Built anew for every conversation.

    It is made by what stands under its name, with the recipe's settings for it as keyword arguments; one that waits for
    a remote model says `waits = True`.
    """

    id: str
    """Name and version; what can move a verdict raises the version."""

    async def verdict(self, view: ReplyView) -> Verdict:
        """Judge the newest reply of a view.

        Raises:
            RoleFailure: There is no verdict to be had.
        """
        ...


async def verdict_of(kind: str, judge: ReplyJudge, view: ReplyView) -> Verdict:
    """Ask a judge for a verdict of a kind; whatever goes wrong is a verdict without a value, which says why."""
    try:
        found = await judge.verdict(view)
        if not isinstance(found, Verdict):
            raise RoleFailure(f"a judge returns a Verdict, got {type(found).__name__}")
    except Exception as e:  # any fault of a judge, ours or a plugged-in one's, is recorded as a missing verdict
        return no_verdict(kind, judge.id, e, view)
    return found if found.kind == kind else found.model_copy(update={"kind": kind})


def no_verdict(kind: str, judge: str, error: Exception, view: ReplyView) -> Verdict:
    """Return what is recorded where a verdict is missing: why, without secrets and at bounded length."""
    fault = fault_of(kind, error)
    return Verdict(kind=kind, judge=judge, value=None, reference=view.reference or "", failure=fault)


@dataclass(frozen=True, slots=True)
class Step:
    """What a recipe may use of one turn."""

    scorer: Scorer
    before: EpmState
    after: EpmState
    end: End | None
    """How the conversation ended with this turn, if it did."""
    judged: bool = True
    """Whether there is an EPM judgement of the turn; else `after` equals `before`."""
    verdicts: tuple[Verdict, ...] = ()
    """What the recipe's own judges said."""


class Recipe(Protocol):
    """Turns one turn into named parts of a reward. Pure: the same step has the same parts."""

    id: str

    def turn(self, step: Step) -> dict[str, float] | None:
        """Return the parts, whose sum is the reward; None where something that they need is missing."""
        ...


@runtime_checkable
class JudgedRecipe(Protocol):
    """A recipe with judges of its own. Built anew for every conversation, it may keep state."""

    async def verdicts(self, view: ReplyView) -> tuple[Verdict, ...]:
        """Ask them; one that fails gives a verdict without a value."""
        ...


def potential(position: Vector, p0: Vector) -> float:
    """Return F(P) = -norm(P) / norm(P0): -1 at the start, 0 at the origin."""
    return -norm(position) / norm(p0)


@dataclass(frozen=True)
class EpmRecipe:
    """Dense, potential-based reward on EPM (Ng, Harada and Russell 1999; docs/design.md, "Rewards").

    r_t = discount * F(P_t) - F(P_{t-1}), plus +1 at success and -1 at every failure, the person's patience included, so
    that silence is no safe haven. A truncated conversation gets no terminal part.
    """

    discount: float = 1.0
    """The trainer's discount, so that shaping leaves the best policy unchanged."""
    id: str = "epm-1"

    def turn(self, step: Step) -> dict[str, float] | None:
        """Return {"shaping": ..., "terminal": ...}; None for a turn without a judgement."""
        if not step.judged:
            return None
        p0 = step.after.p0
        shaping = self.discount * potential(step.after.position, p0) - potential(step.before.position, p0)
        return {"shaping": shaping, "terminal": terminal(step.end)}


def terminal(end: End | None) -> float:
    """Return +1 for success, -1 for a failure, 0 while it goes on or where it was cut off."""
    if end is None or end in TRUNCATIONS:
        return 0.0
    return 1.0 if end == "success" else -1.0


def epm(discount: float = 1.0) -> EpmRecipe:
    """Build the recipe `epm`."""
    return EpmRecipe(discount=discount)


def group_rewards(recipe: Recipe, episodes: Sequence[Episode], scorer: Scorer) -> list[list[float | None]]:
    """Return the reward of every turn of every episode, computed anew from the recorded levels.

    A turn that cannot be rewarded is None: left out of every mean and baseline, never a zero.
    """
    return [_episode_rewards(recipe, episode, scorer) for episode in episodes]


def _episode_rewards(recipe: Recipe, episode: Episode, scorer: Scorer) -> list[float | None]:
    scorer = NO_EPM if episode.header.domain == CHITCHAT else scorer
    state = scorer.start(episode.header.p0)
    rewards: list[float | None] = []
    last = len(episode.turns)
    for turn in episode.turns:
        before, state = state, scorer.advance(state, turn.judgement.levels if turn.judgement else None)
        end = episode.outcome.end if episode.outcome and turn.index == last else None
        parts = recipe.turn(Step(scorer, before, state, end, turn.judgement is not None, turn.verdicts))
        rewards.append(None if parts is None else sum(parts.values()))
    return rewards
