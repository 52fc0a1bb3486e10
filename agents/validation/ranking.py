"""Whether two judges rank policies alike.

A judge that a policy was trained on may have been learned by heart. If another judge, of other examples and another
encoder, puts policies in the same order, the order is about the replies. Two comparisons, since they can differ: the
same recorded words judged twice, and conversations that each judge steers (the director sees the judge's levels).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from echo_env import registry
from echo_env.agents.rejudge import rejudge
from echo_env.agents.rollout import RunConfig, run
from echo_env.agreement import spearman
from echo_env.build import WorldConfig
from echo_env.errors import ConfigError
from echo_env.roles import Judge
from echo_env.types import Episode, Record

REFERENCES = ("silent", "template", "adviser", "lecturer", "stuffer", "parrot", "skilled")
"""The reference policies that need no weights."""
RESAMPLES = 500
Numbers = NDArray[np.float64]


class Standing(Record):
    """What one policy earned under one judge."""

    policy: str
    judge: str
    mean_return: float | None
    """Mean over conversations that this judge steered; None where none of their turns was judged."""
    progress: float | None
    """Mean share of the way closed on the words recorded under the first judge, 1 for all of it. How those
    conversations ended does not count: the first judge had a say in it."""
    successes: int
    """Conversations steered by this judge that succeeded."""
    unjudged: int
    """Turns, of both kinds, that this judge left unjudged."""


class Agreement(Record):
    """Rank correlation of one judge with the first, over policies."""

    judge: str
    steered: float | None
    """Spearman's rho of mean returns, each judge steering its own conversations."""
    same_words: float | None
    """Spearman's rho of progress on the same recorded words."""
    low: float | None
    """2.5th percentile of `same_words` with scenarios drawn anew."""
    high: float | None


class Ranking(Record):
    """Policies ranked by several judges."""

    judges: tuple[str, ...]
    """The first is the one that the others are compared with."""
    scenarios: tuple[str, ...]
    standings: tuple[Standing, ...]
    agreements: tuple[Agreement, ...]


class RankConfig(Record):
    """What to play and who judges it."""

    judges: Annotated[tuple[str, ...], Field(min_length=2)]
    policies: Annotated[tuple[str, ...], Field(min_length=3)] = REFERENCES
    split: str = "benchmark"
    scenarios: tuple[str, ...] = ()
    limit: Annotated[int, Field(ge=1)] | None = None
    seed: int = 0
    scorer: str = "strict"


def _rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, works that differ by rounding alone being ties."""
    a, b = (np.asarray([round(v, 9) for v in side], dtype=np.float64) for side in (x, y))
    return spearman(a, b)


def rank(config: RankConfig, out: Path | None = None, tell: Callable[[str], None] = lambda line: None) -> Ranking:
    """Play policies under each judge, judge the first one's words anew by the others, and compare the orders.

    Args:
        config: What to play and who judges it.
        out: Folder in which the played runs are kept, one folder a judge; else they are not.
        tell: Called with a line before each policy is played or judged.

    Raises:
        ConfigError: A judge stands there twice, or a name is unknown.
        RecordError: `out` holds such runs already.
    """
    if len(set(config.judges)) < len(config.judges):
        raise ConfigError("a judge stands there twice", "compare it with another one; see  echo-env list judge")
    makers = {name: cast("Callable[[], Judge]", registry.resolve("judge", name)) for name in config.judges}
    with tempfile.TemporaryDirectory() as scratch:
        folder = out or Path(scratch)
        played = {judge: _played(config, judge, folder / _folder(judge), tell) for judge in config.judges}
    first = config.judges[0]
    again: dict[str, dict[str, list[Episode]]] = {first: played[first]}
    for judge in config.judges[1:]:
        again[judge] = {}
        for policy, episodes in played[first].items():
            tell(f"{judge} judges {policy}, played under {first}")
            again[judge][policy] = [asyncio.run(rejudge(e, makers[judge]())) for e in episodes]
    return _compare(config, played, again)


def _folder(judge: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in judge)


def _played(config: RankConfig, judge: str, out: Path, tell: Callable[[str], None]) -> dict[str, list[Episode]]:
    found = {}
    for policy in config.policies:
        tell(f"{policy} under {judge}")
        settings = RunConfig(
            policy=policy,
            split=config.split,
            scenarios=config.scenarios,
            limit=config.limit,
            seed=config.seed,
            world=WorldConfig(judge=judge, scorer=config.scorer),
        )
        found[policy] = [e for e in run(settings, out).folder.episodes() if e.outcome is not None]
    return found


def mean_return(episodes: Sequence[Episode]) -> float | None:
    """Return the mean sum of rewards; conversations none of whose turns was judged are left out."""
    sums = [sum(t.reward for t in e.turns if t.reward is not None) for e in episodes if _judged(e)]
    return float(np.mean(sums)) if sums else None


def progress(episode: Episode) -> float | None:
    """Return the share of the way that was closed, by the recipe's shaping alone; None where nothing was judged."""
    return sum(t.reward_parts.get("shaping", 0.0) for t in episode.turns) if _judged(episode) else None


def _judged(episode: Episode) -> bool:
    return any(turn.judgement is not None for turn in episode.turns)


_Played = dict[str, dict[str, list[Episode]]]
"""Judge -> policy -> its conversations."""


def _compare(config: RankConfig, played: _Played, again: _Played) -> Ranking:
    standings = tuple(_standing(policy, judge, played, again) for judge in config.judges for policy in config.policies)
    first = config.judges[0]
    scenarios = sorted({e.header.scenario for e in played[first][config.policies[0]]})
    return Ranking(
        judges=config.judges,
        scenarios=tuple(scenarios),
        standings=standings,
        agreements=tuple(_agreement(config, standings, judge, again, scenarios) for judge in config.judges[1:]),
    )


def _standing(policy: str, judge: str, played: _Played, again: _Played) -> Standing:
    steered, rejudged = played[judge][policy], again[judge][policy]
    closed = [p for p in map(progress, rejudged) if p is not None]
    seen = [*steered, *(rejudged if rejudged is not steered else [])]
    return Standing(
        policy=policy,
        judge=judge,
        mean_return=mean_return(steered),
        progress=float(np.mean(closed)) if closed else None,
        successes=sum(e.outcome is not None and e.outcome.end == "success" for e in steered),
        unjudged=sum(t.judgement is None for e in seen for t in e.turns),
    )


def _agreement(
    config: RankConfig, standings: Sequence[Standing], judge: str, again: _Played, scenarios: Sequence[str]
) -> Agreement:
    by_judge = {name: [s for s in standings if s.judge == name] for name in (config.judges[0], judge)}
    returns = [[s.mean_return for s in found] for found in by_judge.values()]
    tables = [_table(again[name], config.policies, scenarios) for name in by_judge]
    rng = np.random.default_rng(config.seed)
    drawn = [
        _rho(*(t[:, rows] for t in tables)) for rows in rng.integers(0, len(scenarios), (RESAMPLES, len(scenarios)))
    ]
    known = [r for r in drawn if r is not None]
    low, high = np.percentile(known, [2.5, 97.5]) if len(known) > RESAMPLES / 2 else (None, None)
    return Agreement(
        judge=judge,
        steered=_paired(*returns),
        same_words=_rho(*tables),
        low=None if low is None else float(low),
        high=None if high is None else float(high),
    )


def _table(episodes: dict[str, list[Episode]], policies: Sequence[str], scenarios: Sequence[str]) -> Numbers:
    """Return progress by policy and scenario; NaN where nothing was judged."""
    place = {scenario: k for k, scenario in enumerate(scenarios)}
    table = np.full((len(policies), len(scenarios)), np.nan)
    for row, policy in zip(table, policies, strict=True):
        for episode in episodes[policy]:
            closed = progress(episode)
            row[place[episode.header.scenario]] = np.nan if closed is None else closed
    return table


def _rho(x: Numbers, y: Numbers) -> float | None:
    """Correlate the row means of two tables over the cells that both have."""
    both = ~(np.isnan(x) | np.isnan(y))
    rows = both.any(axis=1)
    if rows.sum() < 3:
        return None
    means = [[float(t[k][both[k]].mean()) for k in np.flatnonzero(rows)] for t in (x, y)]
    return _rank_correlation(*means)


def _paired(x: Sequence[float | None], y: Sequence[float | None]) -> float | None:
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if a is not None and b is not None]
    return _rank_correlation([a for a, _ in pairs], [b for _, b in pairs]) if len(pairs) >= 3 else None
