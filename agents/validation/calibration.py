"""Noise and calibration of any judge.

Three questions. Does it say the same twice (repeats)? Does a judge of pairs say the same when the two replies change
places (order swap)? Do its levels mean what a reference's mean (reliability)? What a judge leaves unjudged is left out
and counted.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from echo_env.agents.rollout import RunConfig, run
from echo_env.build import WorldConfig
from echo_env.epm import action_vector
from echo_env.levels import LEVEL_NAMES
from echo_env.profiles import get_scenario
from echo_env.roles import Exchange, Judge, JudgeView, profiles_of
from echo_env.types import Episode, Levels, Record

MakeJudge = Callable[[], Judge]
Talk = Sequence[JudgeView]
"""The views of one conversation, turn by turn."""
Verdict = Literal["first", "second", "tie"]


class PairwiseJudge(Protocol):
    """Says which of two replies to the same message is better."""

    id: str

    async def prefer(self, first: JudgeView, second: JudgeView) -> Verdict | None:
        """Compare two views that differ in the reply alone; None, or RoleFailure, where that could not be judged."""
        ...


# --- one judge, several times -----------------------------------------------------------------------------------------


class Steadiness(Record):
    """How one level agrees between repeated judgements of the same views."""

    level: str
    """"C.Prog" for example."""
    same: float | None
    """Share of views on which all repeats gave the same level."""
    difference: float | None
    """Mean absolute difference between two repeats, in levels."""
    alpha: float | None
    """Krippendorff's alpha, interval metric; None where the level never varies."""


class Repeats(Record):
    """Agreement of a judge with itself."""

    judge: str
    views: int
    repeats: int
    unjudged: int
    """Judgements, of views x repeats, that there was none of."""
    compared: int
    """Views that were judged twice or more."""
    identical: float | None
    """Share of the compared views on which all repeats gave the same six levels."""
    levels: tuple[Steadiness, ...]


def reference_talks(
    policies: Sequence[str] = ("skilled", "adviser", "template"), *, limit: int, turns: int, seed: int = 0
) -> list[list[JudgeView]]:
    """Let reference policies talk with the first people of the benchmark, and return what a judge sees of it.

    Args:
        policies: Who talks.
        limit: So many people.
        turns: So many turns of each conversation.
        seed: Seed of the conversations.
    """
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for policy in policies:
            config = RunConfig(policy=policy, limit=limit, seed=seed, world=WorldConfig(max_turns=turns))
            found += [views_of(e) for e in run(config, Path(scratch)).folder.episodes()]
    return found


def views_of(episode: Episode, turns: int | None = None) -> list[JudgeView]:
    """Return what the judge saw, turn by turn, of a recorded conversation's first turns."""
    profile = profiles_of(get_scenario(episode.header.scenario))[1]
    history: tuple[Exchange, ...] = ()
    views = []
    for turn in episode.turns[:turns]:
        exchange = Exchange(turn.user, turn.reply)
        views.append(JudgeView(profile, history, exchange))
        history = (*history, exchange)
    return views


async def judged(make: MakeJudge, talk: Talk) -> list[Levels | None]:
    """Return the levels that a fresh judge gives each turn of a conversation; None where it gave none."""
    judge = make()
    found: list[Levels | None] = []
    for view in talk:
        try:
            judgement = await judge.judge(view)
        except Exception:  # counted as unjudged
            judgement = None
        found.append(judgement.levels if judgement else None)
    return found


async def judged_all(make: MakeJudge, talks: Sequence[Talk]) -> list[Levels | None]:
    """Return the levels of every turn of several conversations, which are judged at once."""
    found = await asyncio.gather(*(judged(make, talk) for talk in talks))
    return [levels for talk in found for levels in talk]


def repeat_agreement(make: MakeJudge, talks: Sequence[Talk], repeats: int = 5) -> Repeats:
    """Judge the same conversations several times, each time by a fresh judge, and compare.

    Args:
        make: Builds a judge.
        talks: Conversations.
        repeats: How often each is judged, twice at least.
    """
    rounds = [asyncio.run(judged_all(make, talks)) for _ in range(repeats)]
    units = [[levels for levels in unit if levels is not None] for unit in zip(*rounds, strict=True)]
    compared = [unit for unit in units if len(unit) >= 2]
    return Repeats(
        judge=make().id,
        views=len(units),
        repeats=repeats,
        unjudged=sum(repeats - len(unit) for unit in units),
        compared=len(compared),
        identical=_mean([len(set(unit)) == 1 for unit in compared]),
        levels=tuple(
            _steadiness(name, [[levels[k] for levels in unit] for unit in compared])
            for k, name in enumerate(LEVEL_NAMES)
        ),
    )


def _steadiness(name: str, units: Sequence[Sequence[int]]) -> Steadiness:
    apart = [abs(a - b) for unit in units for i, a in enumerate(unit) for b in unit[i + 1 :]]
    return Steadiness(
        level=name,
        same=_mean([len(set(unit)) == 1 for unit in units]),
        difference=_mean(apart),
        alpha=krippendorff_alpha(units),
    )


def krippendorff_alpha(units: Iterable[Sequence[float]]) -> float | None:
    """Return Krippendorff's alpha with the interval metric: 1 - observed / expected disagreement.

    Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011). A unit is what several observers gave the same
    thing; units of fewer than two values do not count.

    Returns:
        1 for perfect agreement, about 0 for chance; None where all values are the same.
    """
    paired = [np.asarray(unit, dtype=np.float64) for unit in units if len(unit) >= 2]
    if not paired:
        return None
    everything = np.concatenate(paired)
    n = len(everything)
    observed = sum(_squared_differences(u) / (len(u) - 1) for u in paired) / n
    expected = _squared_differences(everything) / (n * (n - 1))
    return float(1.0 - observed / expected) if expected > 0 else None


def _squared_differences(values: NDArray[np.float64]) -> float:
    """Return the sum of (a - b)^2 over all ordered pairs."""
    return float(2 * len(values) * (values @ values) - 2 * values.sum() ** 2)


# --- pairs, both ways round -------------------------------------------------------------------------------------------


class OrderSwap(Record):
    """What a judge of pairs says when the replies change places."""

    judge: str
    pairs: int
    unjudged: int
    """Pairs that were not judged both ways round."""
    consistent: float | None
    """Share of the judged pairs with the same winner, or a tie, both ways round."""
    first: float | None
    """Share of all verdicts other than ties that went to the reply shown first; 0.5 is no bias."""
    ties: float | None
    """Share of all verdicts that were ties."""


class WorkPairwise:
    """Prefers the reply whose levels are worth more points, summed over the axes, to a judge of single replies.

    Args:
        make: Builds that judge.
        margin: Points by which one must be ahead.
    """

    def __init__(self, make: MakeJudge, margin: float = 0.5) -> None:
        self._make, self._margin = make, margin
        self.id = f"work-1({make().id})"

    async def prefer(self, first: JudgeView, second: JudgeView) -> Verdict | None:
        """Judge both replies on their own and compare their points."""
        points = []
        for view in (first, second):
            judgement = await self._make().judge(view)
            if judgement is None:
                return None
            points.append(sum(action_vector(judgement.levels)))
        ahead = points[0] - points[1]
        if abs(ahead) < self._margin:
            return "tie"
        return "first" if ahead > 0 else "second"


_SWAPPED: dict[Verdict, Verdict] = {"first": "second", "second": "first", "tie": "tie"}


def order_swap(judge: PairwiseJudge, pairs: Sequence[tuple[JudgeView, JudgeView]]) -> OrderSwap:
    """Show a judge each pair both ways round.

    Args:
        judge: The judge of pairs.
        pairs: Views that differ in the reply alone.
    """
    both = [asyncio.run(_both_ways(judge, *pair)) for pair in pairs]
    known = [(a, b) for a, b in both if a is not None and b is not None]
    verdicts = Counter(v for pair in known for v in pair)
    decided = verdicts["first"] + verdicts["second"]
    return OrderSwap(
        judge=judge.id,
        pairs=len(pairs),
        unjudged=len(both) - len(known),
        consistent=_mean([a == _SWAPPED[b] for a, b in known]),
        first=verdicts["first"] / decided if decided else None,
        ties=verdicts["tie"] / (2 * len(known)) if known else None,
    )


async def _both_ways(judge: PairwiseJudge, one: JudgeView, other: JudgeView) -> tuple[Verdict | None, Verdict | None]:
    found: list[Verdict | None] = []
    for pair in ((one, other), (other, one)):
        try:
            found.append(await judge.prefer(*pair))
        except Exception:  # counted as unjudged
            found.append(None)
    return found[0], found[1]


def pairs_of(talks: Sequence[Talk]) -> Iterator[tuple[JudgeView, JudgeView]]:
    """Pair each turn's reply with the reply to the turn before it, said to this turn's message."""
    for talk in talks:
        for before, view in pairwise(talk):
            if before.exchange.reply != view.exchange.reply:
                other = Exchange(view.exchange.user, before.exchange.reply)
                yield view, JudgeView(view.profile, view.history, other)


# --- levels against a reference's -------------------------------------------------------------------------------------


class Reliability(Record):
    """What a judge's levels mean in a reference's."""

    level: str
    """"C.Prog" for example."""
    counts: dict[int, dict[int, int]]
    """The judge's level -> the reference's level -> how often."""
    means: dict[int, float]
    """The judge's level -> the reference's mean level there; equal to the level itself where it is calibrated."""
    same: float
    """Share of equal levels."""
    difference: float
    """Mean absolute difference, in levels."""
    bias: float
    """Mean of the judge's level minus the reference's."""
    kappa: float | None
    """Cohen's kappa with quadratic weights; None where neither varies."""


def reliability(found: Sequence[Levels | None], reference: Sequence[Levels | None]) -> tuple[Reliability, ...]:
    """Compare levels with a reference's, another judge's or people's, view by view.

    Args:
        found: The judge's levels; None where there are none.
        reference: The reference's.

    Returns:
        One table a level; none at all where no view has both.
    """
    both = [(a, b) for a, b in zip(found, reference, strict=True) if a is not None and b is not None]
    if not both:
        return ()
    return tuple(_reliability(name, [(a[k], b[k]) for a, b in both]) for k, name in enumerate(LEVEL_NAMES))


def _reliability(name: str, pairs: Sequence[tuple[int, int]]) -> Reliability:
    counts: dict[int, dict[int, int]] = {}
    for (own, other), count in sorted(Counter(pairs).items()):
        counts.setdefault(own, {})[other] = count
    means = {own: sum(v * c for v, c in row.items()) / sum(row.values()) for own, row in counts.items()}
    apart = [own - other for own, other in pairs]
    return Reliability(
        level=name,
        counts=counts,
        means=means,
        same=sum(d == 0 for d in apart) / len(pairs),
        difference=sum(map(abs, apart)) / len(pairs),
        bias=sum(apart) / len(pairs),
        kappa=quadratic_kappa(pairs),
    )


def quadratic_kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Return Cohen's kappa with quadratic weights (Cohen 1968): 1 - observed / chance squared difference.

    Returns:
        1 for equal levels, 0 for chance; None where neither side varies and both are the same.
    """
    own, other = (np.asarray(side, dtype=np.float64) for side in zip(*pairs, strict=True))
    observed = float(((own - other) ** 2).mean())
    chance = float(((own[:, None] - other[None, :]) ** 2).mean())
    return 1.0 - observed / chance if chance > 0 else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
