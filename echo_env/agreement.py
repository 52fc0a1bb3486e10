"""Measures of how far a judge agrees with people, each with a bootstrap interval and trivial baselines beside it.

Pure functions of numbers and texts. Intervals resample whole conversations (or posts), since turns of one conversation
are not independent. A correlation that cannot be computed (nothing varies) is None, never 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from echo_env.types import Record

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]
Groups = Sequence[str] | NDArray[np.str_]
"""Each row's conversation or post."""
Statistic = Callable[[Indices], float | None]
"""A measure of some rows of the data."""

RESAMPLES = 500
"""Bootstrap samples behind an interval."""
_TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_SPLIT = re.compile(r"[^\W_]+|[^\w\s]|_")


class Measure(Record):
    """A figure with its 95 % interval and what trivial predictors reach."""

    value: float | None
    """None where it cannot be computed."""
    low: float | None = None
    high: float | None = None
    n: int
    """Rows behind it."""
    baselines: dict[str, float | None] = Field(default_factory=dict)
    ceiling: float | None = None
    """What people reach among themselves; None where that was not measured."""
    note: str = ""


def measured(
    statistic: Statistic,
    groups: Sequence[str],
    *,
    seed: int = 0,
    baselines: dict[str, float | None] | None = None,
    ceiling: float | None = None,
    note: str = "",
) -> Measure:
    """Return a statistic of all rows with its interval.

    Args:
        statistic: Maps row indices to a figure.
        groups: Each row's conversation or post; whole groups are resampled.
        seed: Seed of the resampling.
        baselines: The same statistic of trivial predictors.
        ceiling: What people reach.
        note: What a reader must know.
    """
    value = statistic(np.arange(len(groups))) if groups else None
    low, high = interval(statistic, groups, seed) if value is not None else (None, None)
    return Measure(
        value=value, low=low, high=high, n=len(groups), baselines=baselines or {}, ceiling=ceiling, note=note
    )


def interval(
    statistic: Statistic, groups: Sequence[str], seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float | None, float | None]:
    """Return the 95 % percentile bootstrap interval over groups; (None, None) where fewer than two can be drawn."""
    rows: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        rows.setdefault(group, []).append(i)
    members = [np.array(r, dtype=np.int64) for r in rows.values()]
    if len(members) < 2:
        return None, None
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(resamples):
        value = statistic(np.concatenate([members[k] for k in rng.integers(0, len(members), len(members))]))
        if value is not None:
            drawn.append(value)
    if len(drawn) < resamples / 2:
        return None, None
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


# --- correlations ----------------------------------------------------------------------------------------------------


def ranks(x: Numbers) -> Numbers:
    """Return ranks from 1, ties at their mean."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def pearson(x: Numbers, y: Numbers) -> float | None:
    """Return Pearson's r; None where either does not vary."""
    if len(x) < 3:
        return None
    a, b = x - x.mean(), y - y.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 1e-9 else None


def spearman(x: Numbers, y: Numbers) -> float | None:
    """Return Spearman's rank correlation; None where either does not vary."""
    return pearson(ranks(x), ranks(y))


def residual(y: Numbers, controls: Numbers) -> Numbers:
    """Return what of y a linear fit on controls, shape (rows, k), and a constant leaves."""
    x = np.column_stack([controls, np.ones(len(y))])
    solved = np.linalg.lstsq(x, y, rcond=None)[0]
    return np.asarray(y - x @ solved, dtype=np.float64)


def within(x: Numbers, groups: Groups) -> Numbers:
    """Return x less its mean in each group; shape of x, columns included."""
    _, member = np.unique(np.asarray(groups), return_inverse=True)
    counts = np.bincount(member)
    columns = x if x.ndim == 2 else x[:, None]
    means = np.stack([np.bincount(member, weights=c) / counts for c in columns.T], axis=1)
    return np.asarray((columns - means[member]).reshape(x.shape), dtype=np.float64)


def partial(x: Numbers, y: Numbers, controls: Numbers) -> float | None:
    """Return the correlation of x and y with the controls, shape (rows, k), partialled out of both."""
    if len(x) < controls.shape[1] + 3:
        return None
    return pearson(residual(x, controls), residual(y, controls))


def within_partial(x: Numbers, y: Numbers, controls: Numbers, groups: Groups) -> float | None:
    """Return the within-group correlation of x and y, the controls partialled out. Groups of one say nothing."""
    return partial(within(x, groups), within(y, groups), within(controls, groups))


def auc(score: Numbers, positive: NDArray[np.bool_]) -> float | None:
    """Return the area under the ROC curve, ties half: the chance that a positive row scores above a negative one."""
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return None
    return float((ranks(score)[positive].sum() - n * (n + 1) / 2) / (n * m))


# --- levels ----------------------------------------------------------------------------------------------------------


def macro_f1(predicted: Indices, true: Indices, classes: Iterable[int] = (0, 1, 2)) -> float | None:
    """Return the mean F1 of the classes that occur in either; a class that is never hit counts 0."""
    scores = []
    for c in classes:
        hits = int(((predicted == c) & (true == c)).sum())
        total = int((predicted == c).sum() + (true == c).sum())
        if total:
            scores.append(2 * hits / total)
    return float(np.mean(scores)) if scores else None


# --- pairs -----------------------------------------------------------------------------------------------------------


def preferred(votes: Sequence[str]) -> int:
    """Return what raters as a body prefer: 1 for A, -1 for B, 0 where they are undecided."""
    lead = sum(v == "A" for v in votes) - sum(v == "B" for v in votes)
    return (lead > 0) - (lead < 0)


def pair_credits(margins: Numbers, sides: Numbers) -> Numbers:
    """Return 1 for each pair that a judge decides as people do, 0.5 where it ties, 0 otherwise.

    Args:
        margins: Score of A less score of B.
        sides: 1 or -1, people's choice; 0 is not allowed here.
    """
    return np.asarray(np.where(margins == 0, 0.5, (np.sign(margins) == sides).astype(np.float64)), dtype=np.float64)


def raters_ceiling(votes: Sequence[Sequence[str]]) -> float | None:
    """Return how often one rater agrees with the others' majority, over pairs that these decide; ties of his half."""
    credits = []
    for given in votes:
        for k, vote in enumerate(given):
            others = preferred([*given[:k], *given[k + 1 :]])
            if others:
                credits.append(0.5 if vote == "tie" else float(preferred([vote]) == others))
    return float(np.mean(credits)) if credits else None


# --- evidence --------------------------------------------------------------------------------------------------------


def tokens(text: str) -> Counter[str]:
    """Return the words of a text, lower-case, with their counts."""
    return Counter(_TOKEN.findall(text.replace("\u2019", "'").lower()))


class Overlap(Record):
    """Words of one reply: quoted by the judge, marked by people, both."""

    quoted: int
    marked: int
    both: int

    @property
    def f1(self) -> float:
        """Token F1; 1 where neither quotes anything."""
        total = self.quoted + self.marked
        return 2 * self.both / total if total else 1.0


def overlap(reply: str, quotes: Iterable[str], spans: Iterable[str]) -> Overlap:
    """Compare a judge's quotes with people's spans as bags of the reply's words; nothing counts twice."""
    has = tokens(reply)
    quoted = has & _at_most_once(quotes)
    marked = has & _at_most_once(spans)
    return Overlap(quoted=quoted.total(), marked=marked.total(), both=(quoted & marked).total())


def _at_most_once(parts: Iterable[str]) -> Counter[str]:
    """Return the words of all different parts together."""
    found: Counter[str] = Counter()
    for part in dict.fromkeys(parts):
        found += tokens(part)
    return found


def pooled_f1(overlaps: Sequence[Overlap]) -> float | None:
    """Return the token F1 over all words of all replies: 2 x both / (quoted + marked)."""
    total = sum(o.quoted + o.marked for o in overlaps)
    return 2 * sum(o.both for o in overlaps) / total if total else None


def mean_f1(overlaps: Sequence[Overlap]) -> float | None:
    """Return the mean of the replies' token F1, where a reply that neither quotes from counts 1."""
    return float(np.mean([o.f1 for o in overlaps])) if overlaps else None


# --- text ------------------------------------------------------------------------------------------------------------


def normalised(text: str) -> list[str]:
    """Return a text's tokens in a form that hides how it was typed: lower case, punctuation split, single spaces."""
    return _SPLIT.findall(text.replace("\u2019", "'").lower())


def first_tokens(replies: Sequence[str], limit: int) -> list[str]:
    """Return the first `limit` normalised tokens of a row of replies, as the replies that they make up."""
    kept = []
    for reply in replies:
        if limit <= 0:
            break
        found = normalised(reply)[:limit]
        limit -= len(found)
        kept.append(" ".join(found))
    return kept


def word_count(text: str) -> int:
    """Count the words of a text."""
    return tokens(text).total()


def asks(text: str) -> bool:
    """Whether a text holds a question mark, of any width."""
    return "?" in text or "\uff1f" in text
