"""From indices to figures: composites, a model's means, confidence intervals, paired tests, the final score.

Everything here is pure and takes its randomness as a seed or a numpy generator. An unscored episode, one whose judge
failed too often, enters no mean and no test; it is counted and reported beside them, and is never a zero.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from echo_env.epm import INDEX_NAMES, Detail, Indices, Scorer
from echo_env.errors import ConfigError, unknown_name
from echo_env.significance import Floats, Interval, Seed, bootstrap_means, mcnemar_exact, sign_flip_test
from echo_env.types import End, Levels, NullTurn, Record, Vector

COMPOSITE_NAMES = ("outcome", "efficiency", "stability", "epm_q")
STATISTICS = ("success_rate", *INDEX_NAMES, *COMPOSITE_NAMES)
"""Everything that is averaged over episodes and gets a confidence interval."""

EPM_SHARE, NEE_SHARE = 0.6, 0.4
NEE_PARTS, NEE_TOPS = ("naturalness", "pacing", "narrative"), (30, 40, 30)
"""The parts of the NEE score and the most that each can have (Echo-N1 Table 10)."""


class Profile(NamedTuple):
    """Weights of one way to sum up the nine indices."""

    outcome: float
    efficiency: float
    stability: float
    """Weights of the three dimensions; they sum to 1."""
    within: tuple[float, ...] = (1 / 3,) * 9
    """Weight of each index within its dimension, in the order of `INDEX_NAMES`; each three sum to 1."""


PROFILES: dict[str, Profile] = {
    "epm": Profile(0.4, 0.2, 0.4),
    "crisis": Profile(0.2, 0.1, 0.7, (1 / 3,) * 6 + (0.4, 0.2, 0.4)),
    "companionship": Profile(0.5, 0.1, 0.4, (1 / 3,) * 3 + (0.45, 0.45, 0.1) + (0.5, 0.25, 0.25)),
    "counselling": Profile(0.3, 0.5, 0.2, (1 / 3,) * 3 + (0.5, 0.3, 0.2) + (1 / 3,) * 3),
}
"""Weight profiles. `epm` is Echo-N1 eq. 8. Its section 4.3.3 describes the others in words; the numbers are ours:

- crisis: "extremely high weight" to stability, with positive energy ratio and penalty rate ahead of alignment;
- companionship: "high weight" to outcome and positive energy, "higher tolerance for path tortuosity";
- counselling: "high weight" to efficiency, with density first ("low turns, high density").
"""


class Composite(Record):
    """The three dimensions and their weighted total."""

    profile: str
    outcome: float
    efficiency: float
    stability: float
    epm_q: float
    """The weighted total. Only under the profile `epm` is it the papers' EPM-Q."""


class EpisodeScore(Record):
    """What one scorer makes of one episode."""

    model: str = ""
    scenario: str = ""
    """Episodes of one scenario are paired between models, and drawn together in a bootstrap."""
    scorer: str
    """Id of the scorer, with its version."""
    indices: Indices | None
    """None: the episode is unscored, because too few of its turns were judged."""
    composite: Composite | None
    end: End | None
    """The first rule of the scorer that fired. None where none did, and for an unscored episode, which is neither a
    success nor a failure."""
    end_detail: Detail | None
    ended_at: int | None
    """Turn at which `end` fired; turns after it still count in the indices."""
    position: Vector
    """P_T, in points."""
    energy: float
    """E, in points."""
    turns: int
    judged: int
    replayed_nulls: int
    """Judged turns that were taken from a published vector in place of levels."""

    @property
    def scored(self) -> bool:
        """Whether enough turns were judged."""
        return self.indices is not None

    @property
    def success(self) -> bool:
        """Whether a scored episode ended in success."""
        return self.end == "success"


class ModelSummary(Record):
    """One model over its episodes."""

    model: str
    scorer: str
    n: int
    """Episodes, scored or not."""
    scored: int
    unscored: int
    successes: int
    success_rate: float | None
    """Share of the scored episodes, 0..1; None where there is none."""
    ends: dict[str, int]
    """Scored episodes by how they ended; "none" where no rule fired."""
    indices: Indices | None
    """Mean of each index over the scored episodes."""
    composite: Composite | None
    """Composites of those means."""
    intervals: dict[str, Interval]
    """Confidence intervals by name (`STATISTICS`); empty where fewer than two scenarios were scored."""


class Comparison(Record):
    """Two models on the scenarios that both have a score for."""

    model_a: str
    model_b: str
    scorer: str
    shared: int
    """Scenarios that both were scored on."""
    left_out: int
    """Scenarios that only one of them, or neither, was scored on."""
    difference: float
    """Mean over the shared scenarios of EPM-Q of a minus EPM-Q of b."""
    interval: Interval | None
    """Paired bootstrap interval of the difference; None for a single shared scenario."""
    p_value: float
    """Two-sided sign-flip permutation test of the difference."""
    better_a: int
    """Scenarios where a succeeded and b did not; with several runs of a scenario, succeeded more often."""
    better_b: int
    success_p: float
    """McNemar's exact test on `better_a` against `better_b`."""


def profile_weights(profile: str) -> Floats:
    """Return the 9 x 4 matrix that takes indices to `COMPOSITE_NAMES`.

    Raises:
        ConfigError: There is no such profile.
    """
    if profile not in PROFILES:
        raise unknown_name("weight profile", profile, PROFILES)
    chosen = PROFILES[profile]
    dimensions = np.kron(np.eye(3), np.ones((3, 1))) * np.array(chosen.within)[:, None]
    return np.column_stack([dimensions, dimensions @ np.array(chosen[:3])])


def compose(indices: Indices, profile: str = "epm") -> Composite:
    """Return outcome, efficiency, stability and their weighted total (Echo-N1 eq. 8 for the profile `epm`)."""
    return _composite(np.array([getattr(indices, name) for name in INDEX_NAMES]), profile)


def score_levels(
    p0: Vector,
    turns: Iterable[Levels | NullTurn | None],
    scorer: Scorer,
    *,
    model: str = "",
    scenario: str = "",
    profile: str = "epm",
) -> EpisodeScore:
    """Replay an episode's levels under a scorer.

    Args:
        p0: The initial deficit.
        turns: Levels of each turn in order; None for an unjudged one.
        scorer: The rules.
        model: Who spoke, for the record.
        scenario: With whom, for pairing and grouping.
        profile: Weight profile of the composite.

    Raises:
        ScenarioError: The scorer cannot score this P0.
    """
    state = scorer.start(p0)
    for levels in turns:
        state = scorer.advance(state, levels)
    indices = scorer.indices(state)
    scored = indices is not None
    return EpisodeScore(
        model=model,
        scenario=scenario,
        scorer=scorer.id,
        indices=indices,
        composite=compose(indices, profile) if indices else None,
        end=state.end if scored else None,
        end_detail=state.end_detail if scored else None,
        ended_at=state.ended_at if scored else None,
        position=state.position,
        energy=state.energy,
        turns=state.turns,
        judged=state.judged,
        replayed_nulls=state.replayed_nulls,
    )


def mean_indices(scores: Sequence[EpisodeScore]) -> Indices | None:
    """Return the mean of each index over the scored episodes; None where there is none."""
    found = [score.indices for score in scores if score.indices is not None]
    if not found:
        return None
    return Indices(**{name: math.fsum(getattr(ix, name) for ix in found) / len(found) for name in INDEX_NAMES})


def bootstrap(
    scores: Sequence[EpisodeScore], *, profile: str = "epm", draws: int = 2000, level: float = 0.95, seed: Seed = 0
) -> dict[str, Interval]:
    """Return percentile bootstrap intervals of the means in `STATISTICS`, over the scored episodes.

    What is drawn, with replacement, are scenarios with all their episodes, since several runs of one scenario are not
    independent; an episode that names no scenario stands alone. A rate of 0 or 1 gets an interval of no width: the
    sample holds no sign of the other result, and a small one says little more than that.

    Args:
        scores: Episodes of one model.
        profile: Weight profile of the composites.
        draws: Bootstrap samples.
        level: Nominal coverage.
        seed: A seed, or the generator to draw from.

    Returns:
        Intervals by name; empty where fewer than two scenarios were scored.
    """
    sums, counts = _by_scenario(scores, profile)
    if len(counts) < 2:
        return {}
    return dict(zip(STATISTICS, bootstrap_means(sums, counts, draws=draws, level=level, seed=seed), strict=True))


def summarise(
    scores: Sequence[EpisodeScore], *, profile: str = "epm", draws: int = 2000, level: float = 0.95, seed: Seed = 0
) -> ModelSummary:
    """Sum up one model: the mean of each index over its scored episodes, then the composites of those means.

    Args:
        scores: Episodes of one model under one scorer.
        profile: Weight profile of the composites.
        draws: Bootstrap samples; 0 for no intervals.
        level: Nominal coverage of the intervals.
        seed: A seed, or the generator to draw from.

    Raises:
        ConfigError: There are no episodes, or they mix models or scorers.
    """
    model, scorer = _only({score.model for score in scores}, "model"), _only({s.scorer for s in scores}, "scorer")
    scored = [score for score in scores if score.scored]
    successes = sum(score.success for score in scored)
    indices = mean_indices(scored)
    return ModelSummary(
        model=model,
        scorer=scorer,
        n=len(scores),
        scored=len(scored),
        unscored=len(scores) - len(scored),
        successes=successes,
        success_rate=successes / len(scored) if scored else None,
        ends=dict(Counter(score.end or "none" for score in scored)),
        indices=indices,
        composite=compose(indices, profile) if indices else None,
        intervals=bootstrap(scored, profile=profile, draws=draws, level=level, seed=seed) if draws else {},
    )


def leaderboard(
    scores: Iterable[EpisodeScore], *, profile: str = "epm", draws: int = 2000, level: float = 0.95, seed: Seed = 0
) -> tuple[ModelSummary, ...]:
    """Sum up each model, the highest total first and models without a scored episode last."""
    by_model: defaultdict[str, list[EpisodeScore]] = defaultdict(list)
    for score in scores:
        by_model[score.model].append(score)
    summaries = [summarise(s, profile=profile, draws=draws, level=level, seed=seed) for s in by_model.values()]
    return tuple(sorted(summaries, key=lambda s: s.composite.epm_q if s.composite else -math.inf, reverse=True))


def compare(
    a: Sequence[EpisodeScore],
    b: Sequence[EpisodeScore],
    *,
    profile: str = "epm",
    draws: int = 10_000,
    level: float = 0.95,
    seed: Seed = 0,
) -> Comparison:
    """Test two models against each other, paired by scenario; several runs of a scenario count as their mean.

    Args:
        a: Episodes of one model.
        b: Episodes of the other.
        profile: Weight profile of the total.
        draws: Samples of the bootstrap, and of the permutation test where there are too many pairs to take all.
        level: Nominal coverage of the interval.
        seed: A seed, or the generator to draw from.

    Raises:
        ConfigError: No scenario was scored for both, one names no scenario, or models or scorers are mixed.
    """
    scorer = _only({score.scorer for score in (*a, *b)}, "scorer")
    means_a, means_b = _scenario_means(a, profile), _scenario_means(b, profile)
    shared = sorted(means_a.keys() & means_b.keys())
    if not shared:
        raise ConfigError("the two models share no scored scenario", "compare runs over the same scenarios")
    gaps = np.array([means_a[name] - means_b[name] for name in shared])
    success, total = gaps[:, STATISTICS.index("success_rate")], gaps[:, STATISTICS.index("epm_q")]
    rng = np.random.default_rng(seed)
    ones = np.ones(len(shared))
    intervals = bootstrap_means(total[:, None], ones, draws=draws, level=level, seed=rng)
    better_a, better_b = int((success > 0).sum()), int((success < 0).sum())
    return Comparison(
        model_a=_only({score.model for score in a}, "model"),
        model_b=_only({score.model for score in b}, "model"),
        scorer=scorer,
        shared=len(shared),
        left_out=len({score.scenario for score in (*a, *b)}) - len(shared),
        difference=float(total.mean()),
        interval=intervals[0] if len(shared) > 1 else None,
        p_value=sign_flip_test(total, draws=draws, seed=rng),
        better_a=better_a,
        better_b=better_b,
        success_p=mcnemar_exact(better_a, better_b),
    )


def nee_total(naturalness: float, pacing: float, narrative: float) -> float:
    """Return the NEE score, 0..100 (Echo-N1 Table 10).

    In that table two of the printed totals are slips of a digit: Gemini's parts sum to 91.00 (printed 90.01) and Kimi's
    to 78.10 (78.01). Table 11 goes on with the sums, 91 and 78.

    Args:
        naturalness: 0..30.
        pacing: Contextual pacing, 0..40.
        narrative: Narrative arc, 0..30.

    Raises:
        ValueError: A part is out of its range.
    """
    for name, value, top in zip(NEE_PARTS, (naturalness, pacing, narrative), NEE_TOPS, strict=True):
        if not 0 <= value <= top:
            raise ValueError(f"NEE {name} lies within 0..{top}, got {value}")
    return naturalness + pacing + narrative


def final_score(epm_q: float, nee: float) -> float:
    """Return FCS = 0.6 EPM-Q + 0.4 NEE (Echo-N1 eq. 9).

    The text above eq. 9 speaks of "balanced weights (50/50)". The equation and Table 11 agree on 0.6 and 0.4.
    """
    return EPM_SHARE * epm_q + NEE_SHARE * nee


def _composite(values: Floats, profile: str) -> Composite:
    totals = (float(x) for x in values @ profile_weights(profile))
    return Composite(profile=profile, **dict(zip(COMPOSITE_NAMES, totals, strict=True)))


def _table(scores: Sequence[EpisodeScore], profile: str) -> Floats:
    """Return one row of `STATISTICS` for each scored episode."""
    scored = [(float(score.success), score.indices) for score in scores if score.indices is not None]
    rows = np.array([[success, *(getattr(ix, name) for name in INDEX_NAMES)] for success, ix in scored])
    rows = rows.reshape(len(scored), 1 + len(INDEX_NAMES))
    return np.hstack([rows, rows[:, 1:] @ profile_weights(profile)])


def _groups(scores: Sequence[EpisodeScore]) -> Mapping[str, list[int]]:
    """Return the positions of each scenario's episodes among the scored ones."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for i, score in enumerate(score for score in scores if score.scored):
        groups[score.scenario or f"\0{i}"].append(i)
    return groups


def _by_scenario(scores: Sequence[EpisodeScore], profile: str) -> tuple[Floats, Floats]:
    """Return each scenario's sums of `STATISTICS` and its number of scored episodes."""
    table, groups = _table(scores, profile), _groups(scores)
    sums = np.array([table[rows].sum(axis=0) for rows in groups.values()])
    return sums, np.array([float(len(rows)) for rows in groups.values()])


def _scenario_means(scores: Sequence[EpisodeScore], profile: str) -> dict[str, Floats]:
    if not all(score.scenario for score in scores):
        raise ConfigError("a paired test needs the scenario of every episode")
    table = _table(scores, profile)
    return {name: table[rows].mean(axis=0) for name, rows in _groups(scores).items()}


def _only(names: set[str], what: str) -> str:
    if len(names) != 1:
        raise ConfigError(f"episodes of exactly one {what} were expected, got {', '.join(sorted(names)) or 'none'}")
    return next(iter(names))
