"""Conversations of `echo/Strategy-v0` under any way of choosing, and the search for the best fixed sequence.

A **plan** chooses by the clock alone: one action for each turn, begun again at its end. A constant strategy is a plan
of one action. What a policy earns above the best plan it earns by listening.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from echo_env.agents.embedded.strategies import INTENSITIES, PATIENCE, STRATEGIES
from echo_env.agents.strategypolicy import Action, Network
from echo_env.profiles import scenario_ids
from echo_env.strategy import StrategyEnv
from echo_env.types import End, Record

Plan = tuple[Action, ...]
Choice = Plan | Network


class Meeting(NamedTuple):
    """One person, one time."""

    scenario: str
    seed: int


class Played(Record):
    """How one conversation went."""

    scenario: str
    end: End
    reward: float
    """Sum over the turns, under recipe `epm`."""
    turns: int

    @property
    def success(self) -> bool:
        """Whether the strict scorer calls it one."""
        return self.end == "success"


class Row(Record):
    """A way of choosing, measured."""

    name: str
    success: float
    """Share of the conversations, 0..1."""
    successes: int
    conversations: int
    reward: float
    """Mean of a conversation."""
    turns: float
    """Mean of a conversation."""


PlayAll = Callable[[Sequence[Choice], Sequence[Meeting]], list[list[Played]]]
"""Plays each choice with everybody: one list of conversations for each choice."""

CONSTANTS: dict[str, Plan] = {
    f"{strategy}, {intensity}": ((s, i),)
    for s, strategy in enumerate(STRATEGIES)
    for i, intensity in enumerate(INTENSITIES)
}
"""All constant strategies, by name."""


def meetings(split: str, count: int | None = None, seed: int = 0) -> list[Meeting]:
    """Return whom to meet: the whole split in order, or `count` people of it drawn without repetition."""
    ids = scenario_ids(split)
    if count is not None:
        ids = [ids[k] for k in np.random.default_rng(seed).permutation(len(ids))[:count]]
    return [Meeting(scenario, seed + k) for k, scenario in enumerate(ids)]


def play(choice: Choice, people: Sequence[Meeting]) -> list[Played]:
    """Play whole conversations; the same choice and meeting give the same conversation."""
    env = StrategyEnv(scenario=people[0].scenario)
    return [_talk(env, choice, meeting) for meeting in people]


def play_all(choices: Sequence[Choice], people: Sequence[Meeting]) -> list[list[Played]]:
    """Play every choice with everybody, one after the other."""
    return [play(choice, people) for choice in choices]


def row(name: str, played: Sequence[Played]) -> Row:
    """Sum conversations up."""
    successes = sum(p.success for p in played)
    return Row(
        name=name,
        success=successes / len(played),
        successes=successes,
        conversations=len(played),
        reward=fmean(p.reward for p in played),
        turns=fmean(p.turns for p in played),
    )


def _talk(env: StrategyEnv, choice: Choice, meeting: Meeting) -> Played:
    features, _ = env.reset(seed=meeting.seed, options={"scenario": meeting.scenario})
    total, turn = 0.0, 0
    while True:
        action = choice.act(features) if isinstance(choice, Network) else choice[turn % len(choice)]
        features, reward, terminated, truncated, info = env.step(np.array(action))
        total, turn = total + reward, turn + 1
        if terminated or truncated:
            return Played(scenario=meeting.scenario, end=info["outcome"].end, reward=total, turns=turn)


# ---- the best fixed sequence ---------------------------------------------------------------------------------------

CYCLES = 24
"""Random cycles that the search begins with, of two to six actions, beside all constants."""
BROOD = 4
"""Mutants tried at a time."""
FINALISTS, JURY = 3, 4
"""How many of the best plans meet others of the split before one is chosen, and how many times as many people."""


class Found(Record):
    """What the search found."""

    plan: tuple[tuple[int, int], ...]
    tried: int
    """Plans tried."""
    turns: int
    """Turns of the environment that it took."""
    reward: float
    """Mean reward of a conversation with those who chose among the finalists."""


def search_plan(play_all: PlayAll, split: str, budget: int, people: int, seed: int) -> Found:
    """Search for the fixed sequence with the highest mean reward on a split.

    All constants and random cycles are tried; from the best on, mutants (an action changed with a chance of one in
    twelve, or a stretch moved) replace what they beat on the same people. The best few meet others of the split, and
    the one that does best there is taken.

    Args:
        play_all: How to play.
        split: Where from: never the split that measures.
        budget: Turns of the environment after which no more mutants are tried. The finals come on top.
        people: How many a plan is tried on while the search climbs, the same for all plans: compared in pairs.
        seed: Of everything drawn.
    """
    draws = np.random.default_rng(seed)
    panel, jury = meetings(split, people, seed), meetings(split, JURY * people, seed + 1)
    spent, scores = 0, dict[Plan, float]()

    def tried(plans: list[Plan], whom: list[Meeting]) -> list[float]:
        nonlocal spent
        played = play_all(plans, whom)
        spent += sum(p.turns for one in played for p in one)
        return [fmean(p.reward for p in one) for one in played]

    brood = [*CONSTANTS.values(), *(_cycle(draws) for _ in range(CYCLES))]
    while True:
        scores.update(zip(brood, tried(brood, panel), strict=True))
        best = max(scores, key=lambda plan: scores[plan])
        if spent >= budget:
            break
        brood = [_mutant(best, draws) for _ in range(BROOD)]
    finalists = sorted(scores, key=lambda plan: -scores[plan])[:FINALISTS]
    final = tried(finalists, jury)
    at = int(np.argmax(final))
    return Found(plan=finalists[at], tried=len(scores), turns=spent, reward=final[at])


def _action(draws: np.random.Generator) -> Action:
    return int(draws.integers(len(STRATEGIES))), int(draws.integers(len(INTENSITIES)))


def _cycle(draws: np.random.Generator) -> Plan:
    return tuple(_action(draws) for _ in range(int(draws.integers(2, 7))))


def _mutant(plan: Plan, draws: np.random.Generator) -> Plan:
    """Change a plan a little, as one of the whole length."""
    whole = [plan[k % len(plan)] for k in range(PATIENCE)]
    if draws.random() < 0.3:
        start, length, to = (int(draws.integers(n)) for n in (PATIENCE, 8, PATIENCE))
        stretch = whole[start : start + length + 1]
        return tuple((whole[:to] + stretch + whole[to:])[:PATIENCE])
    changed = draws.random(PATIENCE) < 1 / 12
    changed[int(draws.integers(20))] = True  # a change that comes after the end of the talk is none
    return tuple(_action(draws) if c else a for c, a in zip(changed, whole, strict=True))
