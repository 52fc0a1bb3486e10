"""What is trained on: prompts before, groups during, and what a long reply costs.

Filters read the raw verdict (`Trajectory.score`), never a shaped reward: a length penalty gives any group a spread.
Lengths are counted in tokens that the policy sampled (`Trajectory.policy_tokens`, or a reply's own); what the user and
the template say is nobody's length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from echo_env.errors import ConfigError

if TYPE_CHECKING:  # the filters themselves need no torch
    from echo_env.trainers.trajectory import Trajectory

Score = float | None
"""A raw verdict; None where the judge failed."""


def scored(scores: Sequence[Score]) -> list[float]:
    """Return the scores that there are."""
    return [s for s in scores if s is not None]


def has_spread(scores: Sequence[Score]) -> bool:
    """DAPO 3.2, dynamic sampling: a group whose members all score the same teaches nothing.

    Members without a score are left out; with fewer than two left there is nothing to compare.
    """
    known = scored(scores)
    return len(known) > 1 and max(known) > min(known)


def keep_groups(
    trajectories: Sequence[Trajectory], keep: Callable[[Sequence[Score]], bool] = has_spread
) -> list[Trajectory]:
    """Return the trajectories of the groups that are kept, in order; a group stays or goes whole.

    Args:
        trajectories: Whole groups, in any order.
        keep: Of a group's scores.
    """
    groups: dict[str, list[Score]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group, []).append(trajectory.score)
    kept = {key for key, group in groups.items() if keep(group)}
    return [t for t in trajectories if t.group in kept]


def within(scores: Sequence[Score], low: float = 0.0, high: float = 1.0) -> bool:
    """DAPO eq. 11 as OpenRLHF has it (`dynamic_filtering_range`): low < mean score < high. For 0/1 scores the same."""
    known = scored(scores)
    return bool(known) and low < fmean(known) < high


def too_easy(scores: Sequence[Score], mean: float = 0.9, spread: float = 0.2) -> bool:
    """Echo-N1 2.4: the starting policy's Best-of-N beats the reference nearly always. Such a prompt is dropped.

    "High scores with low standard deviation"; the paper prints no numbers, the defaults are ours. A prompt without a
    score is not known to be easy.

    Args:
        scores: N verdicts of the starting policy against the reference, 0..1.
        mean: High from here on.
        spread: Standard deviation (with n), low up to here.
    """
    known = scored(scores)
    return bool(known) and fmean(known) >= mean and pstdev(known) <= spread


def overlong_penalty(length: int, cap: int, cache: int, factor: float = 1.0) -> float:
    """DAPO eq. 13, soft overlong punishment: 0 up to cap - cache, then down to -factor at the cap and beyond.

    OpenRLHF `apply_overlong_penalty`, whose length runs from the first reply to the last, user included.
    Echo-N1's "length penalty of 0.1" (3.2.2) is read as `factor`.

    Args:
        length: The policy's tokens: of one reply, where the cap is a reply's; of the trajectory, where it is a budget.
        cap: Lmax.
        cache: Lcache, the width of the slope, 1..cap.
        factor: What the full penalty is.

    Returns:
        What to add to the reward, -factor..0.
    """
    if not 0 < cache <= cap:
        raise ConfigError(f"the cache is a part of the cap, 1..{cap} tokens, got {cache}")
    return -factor * (min(max(length - (cap - cache), 0), cache) / cache)


def length_penalty(length: int, cap: int, factor: float = 0.1) -> float:
    """-factor * length / cap, -factor at most: the other reading of Echo-N1's "length penalty of 0.1" (3.2.2)."""
    if cap < 1:
        raise ConfigError(f"a cap is at least one token, got {cap}")
    return -factor * (min(length, cap) / cap)


def unfinished(reward: float, coefficient: float) -> float:
    """Return the reward of a reply that was cut: scaled by 0..1, or, below 0, the coefficient itself (ProRL).

    OpenRLHF `apply_stop_properly_penalty`.
    """
    if coefficient > 1:
        raise ConfigError(f"the coefficient of cut replies is at most 1, got {coefficient}")
    return coefficient if coefficient < 0 else reward * coefficient
