"""Reward recipes: what a turn is worth.

A recipe looks at one finished turn and returns its parts; the reward is their sum. `group_rewards` applies it to whole
recorded episodes, a lone episode being a group of one. What needs siblings (group baselines, redundancy) belongs to
the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from echo_env.epm import EpmState, Scorer, norm
from echo_env.types import TRUNCATIONS, End, Episode, Vector


@dataclass(frozen=True, slots=True)
class Step:
    """What a recipe may use of one judged turn."""

    scorer: Scorer
    before: EpmState
    after: EpmState
    end: End | None
    """How the conversation ended with this turn, if it did."""


class Recipe(Protocol):
    """Turns one judged turn into named parts of a reward."""

    id: str

    def turn(self, step: Step) -> dict[str, float]:
        """Return the parts; the reward is their sum."""
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

    def turn(self, step: Step) -> dict[str, float]:
        """Return {"shaping": ..., "terminal": ...}."""
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

    An unjudged turn is None: left out of every mean and baseline, never a zero.
    """
    return [_episode_rewards(recipe, episode, scorer) for episode in episodes]


def _episode_rewards(recipe: Recipe, episode: Episode, scorer: Scorer) -> list[float | None]:
    state = scorer.start(episode.header.p0)
    rewards: list[float | None] = []
    last = len(episode.turns)
    for turn in episode.turns:
        before, state = state, scorer.advance(state, turn.judgement.levels if turn.judgement else None)
        end = episode.outcome.end if episode.outcome and turn.index == last else None
        rewards.append(sum(recipe.turn(Step(scorer, before, state, end)).values()) if turn.judgement else None)
    return rewards
