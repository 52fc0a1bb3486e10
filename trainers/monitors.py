"""Is the policy learning, or only pleasing its judge? Figures of one update, and alarms over their history.

Figures are plain numbers over one update's replies; alarms are pure functions over histories with stated rules, after
what Echo-N1 5.3.1 saw: under a scalar judge reward, length and entropy rise together until replies hit their cap and
entropy turns down. An alarm asks a person to look. It proves nothing: good replies may be longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from statistics import StatisticsError, correlation, fmean
from typing import Literal

import numpy as np

from echo_env.trainers.filters import Score, has_spread, scored
from echo_env.types import Record


class Update(Record):
    """Figures of one update. None: there was nothing to measure it by."""

    reward: float | None
    """Mean shaped reward."""
    parts: dict[str, float | None]
    """Mean of each part of the reward. The keys are the same in every update."""
    judge_failures: float
    """Share of replies or conversations without a verdict, 0..1."""
    length_mean: float
    """Of a reply, in tokens that the policy sampled."""
    length_p95: float
    at_cap: float
    """Share of replies that a limit cut, 0..1."""
    entropy: float | None
    """Mean over trained tokens, nats."""
    kl: float | None = None
    clip_low: float | None = None
    """Share of trained tokens that the floor of the ratio cut; `losses.LossTerms`."""
    clip_high: float | None = None
    zero_spread: float
    """Share of groups that teach nothing, 0..1."""
    distinct_1: float | None
    """Different tokens over tokens, 0..1."""
    distinct_2: float | None
    """Different pairs of tokens over pairs, 0..1."""
    similarity: float | None
    """Likeness of siblings' replies, 0..1."""
    judge: float | None = None
    """Mean verdict of the judge that trains, over replies that both judges scored."""
    held_out: float | None = None
    """Mean verdict of the judge that never trains, over the same."""


class Alarm(Record):
    """Something that a person should look at."""

    name: str
    severity: Literal["watch", "alarm"]
    message: str


# ---- figures of one update -----------------------------------------------------------------------------------------


def mean_parts(parts: Sequence[Mapping[str, Score]], keys: Sequence[str]) -> dict[str, float | None]:
    """Return the mean of each part of the reward over the replies that have it; all keys, always."""
    columns = {key: scored([p.get(key) for p in parts]) for key in keys}
    return {key: fmean(column) if column else None for key, column in columns.items()}


def failure_share(verdicts: Sequence[Score]) -> float:
    """Return the share that is None, 0..1."""
    return sum(v is None for v in verdicts) / max(len(verdicts), 1)


def percentile_95(lengths: Sequence[int]) -> float:
    """Return the 95th percentile, by linear interpolation."""
    return float(np.percentile(lengths, 95))


def zero_spread_share(groups: Iterable[Sequence[Score]]) -> float:
    """Return the share of groups whose raw verdicts have no spread, 0..1."""
    flat = [not has_spread(group) for group in groups]
    return sum(flat) / max(len(flat), 1)


def distinct_n(replies: Iterable[Sequence[int]], n: int) -> float | None:
    """Different n-grams over n-grams, pooled over replies (Li et al. 2016), 0..1; None where there are none."""
    counts = Counter(g for reply in replies for g in _ngrams(reply, n))
    return len(counts) / counts.total() if counts else None


def group_similarity(groups: Iterable[Sequence[Sequence[int]]], n: int = 2) -> float | None:
    """Mean Jaccard likeness of the n-gram sets of all pairs of siblings, 0..1; None where there is no pair."""
    sets = [[set(_ngrams(reply, n)) for reply in group] for group in groups]
    pairs = [len(a & b) / max(len(a | b), 1) for group in sets for a, b in combinations(group, 2)]
    return fmean(pairs) if pairs else None


def judge_gap(judge: Sequence[Score], held_out: Sequence[Score]) -> tuple[float, float] | None:
    """Return both judges' means over the replies that both scored, or None where there are none."""
    both = [(a, b) for a, b in zip(judge, held_out, strict=True) if a is not None and b is not None]
    return (fmean(a for a, _ in both), fmean(b for _, b in both)) if both else None


def _ngrams(ids: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]


# ---- alarms over histories -----------------------------------------------------------------------------------------

WINDOW = 20
"""Updates that an alarm looks back."""


def length_alarm(
    lengths: Sequence[float],
    rewards: Sequence[Score],
    window: int = WINDOW,
    growth: float = 0.3,
    together: float = 0.7,
) -> Alarm | None:
    """Length and reward rise together (Echo-N1 5.3.1: the mark of a judge that loves length).

    Rule: over the last `window` updates with a reward, the last quarter's mean length is more than `growth` above the
    first quarter's, and length and reward correlate by `together` or more (Pearson).
    """
    known = [(n, r) for n, r in zip(lengths, rewards, strict=True) if r is not None][-window:]
    if len(known) < window:
        return None
    early, late = _ends([n for n, _ in known])
    try:
        joint = correlation([n for n, _ in known], [r for _, r in known])
    except StatisticsError:  # one of them never moved
        return None
    if late <= (1 + growth) * early or joint < together:
        return None
    return Alarm(
        name="length",
        severity="alarm",
        message=f"replies grew from {early:.0f} to {late:.0f} tokens in {window} updates and the reward with them "
        f"(correlation {joint:.2f}): read some, and compare with a judge that does not train",
    )


def entropy_alarm(
    entropies: Sequence[Score], rise: float = 0.05, fall: float = 0.5, smooth_over: int = 5
) -> Alarm | None:
    """Entropy rose and has turned down (Echo-N1 5.3.1: there the scalar judge's reward was near its maximum).

    Rule: from `WINDOW` updates on, in the running mean of `smooth_over`, the peak is more than `rise` above the start,
    and the last value has lost `fall` of that climb or more. (Each update talks with other people, so that its entropy
    alone goes up and down by a fifth.) A watch, no alarm: 5.3.1 shows the same arch under the judge that was not
    hacked.
    """
    known = scored(entropies)
    smooth = [fmean(known[i : i + smooth_over]) for i in range(len(known) - smooth_over + 1)]
    if len(known) < WINDOW or max(smooth) <= (1 + rise) * smooth[0]:
        return None
    peak = max(smooth)
    if smooth[-1] > peak - fall * (peak - smooth[0]):
        return None
    return Alarm(
        name="entropy",
        severity="watch",
        message=f"entropy rose from {smooth[0]:.2f} to {peak:.2f} and is back at {smooth[-1]:.2f}: "
        "exploration ends here, look at what was found",
    )


def gap_alarm(
    judge: Sequence[Score], held_out: Sequence[Score], window: int = WINDOW, opened: float = 0.1
) -> Alarm | None:
    """The judge that trains pulls away from one that does not.

    Rule: over updates with both, judge - held-out in the last quarter of a window is more than `opened` above what it
    was in the first quarter of the first window. Both in the unit of the verdicts.
    """
    gaps = [a - b for a, b in zip(judge, held_out, strict=True) if a is not None and b is not None]
    if len(gaps) < window:
        return None
    early, late = _ends(gaps[:window])[0], _ends(gaps[-window:])[1]
    if late - early <= opened:
        return None
    return Alarm(
        name="gap",
        severity="alarm",
        message=f"the judge that trains was {early:+.2f} from the held-out one at first and is {late:+.2f} now: "
        "what it rewards is not what the other sees",
    )


def failure_alarm(failures: Sequence[float], limit: float = 0.1, updates: int = 3) -> Alarm | None:
    """The judge fails too often. Rule: in each of the last `updates` updates a share above `limit` had no verdict."""
    recent = failures[-updates:]
    if len(recent) < updates or min(recent) <= limit:
        return None
    return Alarm(
        name="judge_failures",
        severity="alarm",
        message=f"{recent[-1]:.0%} of the verdicts are missing: what is left is no fair sample",
    )


def alarms(history: Sequence[Update]) -> list[Alarm]:
    """Return what a history of updates, the oldest first, gives reason to look at."""
    raised = (
        length_alarm([u.length_mean for u in history], [u.reward for u in history]),
        entropy_alarm([u.entropy for u in history]),
        gap_alarm([u.judge for u in history], [u.held_out for u in history]),
        failure_alarm([u.judge_failures for u in history]),
    )
    return [alarm for alarm in raised if alarm is not None]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the means of the first and of the last quarter."""
    quarter = max(len(values) // 4, 1)
    return fmean(values[:quarter]), fmean(values[-quarter:])
