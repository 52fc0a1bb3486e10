"""How sure a figure is: bootstrap intervals, a sign-flip test and McNemar's test.

Plain statistics, which know nothing of episodes. Randomness comes in as a seed or a numpy generator.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from echo_env.types import Record

Floats = NDArray[np.float64]
Seed = int | np.random.Generator

EXACT_FLIPS = 14
"""Up to this many pairs a sign-flip test takes every assignment of signs: 2^14 of them."""
ROUNDING = 1e-9
"""A permuted mean this close below the observed one equals it: the sums differ in order alone."""


class Interval(Record):
    """A confidence interval."""

    low: float
    high: float
    level: float
    """Nominal coverage, 0.95 for example."""


def bootstrap_means(sums: Floats, counts: Floats, *, draws: int, level: float, seed: Seed) -> list[Interval]:
    """Return percentile bootstrap intervals of means over groups.

    Whole groups are drawn with replacement, since the values within one are not independent.

    Args:
        sums: Groups x columns, each group's sum of each quantity.
        counts: The number of values in each group.
        draws: Bootstrap samples.
        level: Nominal coverage.
        seed: A seed, or the generator to draw from.

    Returns:
        One interval a column.
    """
    groups = len(counts)
    drawn = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=draws)
    means = (drawn @ sums) / (drawn @ counts)[:, None]
    lows, highs = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [Interval(low=float(low), high=float(high), level=level) for low, high in zip(lows, highs, strict=True)]


def sign_flip_test(differences: Floats, *, draws: int = 10_000, seed: Seed = 0) -> float:
    """Return the two-sided p-value of a mean difference of 0 under random signs.

    Exact up to `EXACT_FLIPS` pairs. Beyond that signs are drawn, and the observed assignment counts as one of the
    draws, so that p is never 0.
    """
    pairs, observed = len(differences), abs(float(differences.mean()))
    if pairs <= EXACT_FLIPS:
        bits = (np.arange(2**pairs)[:, None] >> np.arange(pairs)) & 1
    else:
        drawn = np.random.default_rng(seed).integers(0, 2, (draws, pairs))
        bits = np.vstack([drawn, np.ones(pairs, dtype=drawn.dtype)])
    means = np.abs((2 * bits - 1) @ differences) / pairs
    return float(np.mean(means >= observed - ROUNDING))


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Return the two-sided exact p-value of McNemar's test, from the two counts of discordant pairs."""
    pairs = only_a + only_b
    tail = sum(math.comb(pairs, k) for k in range(min(only_a, only_b) + 1))
    return float(min(1.0, 2 * tail / 2**pairs))
