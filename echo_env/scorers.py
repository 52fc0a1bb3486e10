"""The three scorers: when a conversation has succeeded or failed, and its nine indices.

They share the space of `echo_env.epm` and differ in how a move counts:

- `strict`, the default: the state saturates at the origin, work is the distance really closed, every index is 0..100.
- `official`: the public leaderboard that Echo-N1's Tables 8 and 9 come from.
- `paper`: Echo-N1's text as printed, where it departs from that leaderboard.

What can move a score raises the scorer's version, and with it the id that every record carries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from echo_env.epm import (
    AP_NEG_POINTS,
    C_NEG_POINTS,
    NEGLIGIBLE,
    ORIGIN,
    Detail,
    EpmState,
    Indices,
    Scorer,
    add,
    dot,
    norm,
    oscillating,
    towards_origin,
    zone_distance,
)
from echo_env.errors import ScenarioError, unknown_name
from echo_env.types import End, Levels, NullTurn, Vector

DENSITY_SCALE = 2.5
"""Points a turn that count as density 100: rho_max of the published leaderboard."""
PUBLISHED_DIGITS = 4
"""Decimals to which the published code rounds the cosine of a turn before it averages them."""
MAX_UNJUDGED = 0.10
"""Share of unjudged turns above which `strict` leaves an episode unscored."""


@dataclass(frozen=True)
class OfficialScorer(Scorer):
    """The public leaderboard's rules, which reproduce Echo-N1's Tables 8 and 9.

    The direction v* = -P0/|P0| is fixed, the state is not clipped, dE = v.v*. Success is E >= |P0| with either
    |P| <= a|P0| ("geometric") or P.v* >= -a|P0| ("positional"). As P.v* = E - |P0|, the energy alone decides: a policy
    that harms two axes can succeed, and saying nothing scores 33.3. `strict` closes these holes.
    """

    name: ClassVar[str] = "official"
    version: ClassVar[int] = 2

    def advance(self, state: EpmState, levels: Levels | NullTurn | None) -> EpmState:
        """Return the state after one more turn; a `NullTurn` moves by its publisher's vector and is counted."""
        if not isinstance(levels, NullTurn):
            return super().advance(state, levels)
        after = self._move(state, levels.vector, levels.levels)
        return self._close(replace(after, replayed_nulls=state.replayed_nulls + 1))

    def direction(self, state: EpmState) -> Vector:
        """Return v* = -P0/|P0|."""
        return towards_origin(state.p0)

    def healed(self, state: EpmState) -> bool:
        """Whether E >= |P0| and the state is near or past the origin."""
        deficit = norm(state.p0)
        near = norm(state.position) <= self.alpha * deficit
        past = dot(state.position, self.direction(state)) >= -self.alpha * deficit
        return (near or past) and state.energy >= deficit - NEGLIGIBLE

    def indices(self, state: EpmState) -> Indices | None:
        """Return the published indices; None where no turn was judged."""
        return open_indices(state)

    def _cosine(self, projection: float, size: float) -> float:
        return round(super()._cosine(projection, size), PUBLISHED_DIGITS)

    def _detail(self, state: EpmState) -> Detail:
        return "geometric" if norm(state.position) <= self.alpha * norm(state.p0) else "positional"

    def _failure(self, state: EpmState) -> End | None:
        return super()._failure(state) or ("oscillation" if oscillating(state.path) else None)


@dataclass(frozen=True)
class PaperScorer(Scorer):
    """Echo-N1's text, eq. 10: (mean cos > tau_align or |P_T| < a|P0|) and E > |P0|.

    The direction -P/|P| is taken anew each turn, at the position the move starts from. Eq. 10 calls the cosine test the
    "geometric" victory and the distance test the "positional" one; `official` uses the same words otherwise. The text
    names no failure rules, so collapse, stagnation and patience are those of the leaderboard.
    """

    name: ClassVar[str] = "paper"
    version: ClassVar[int] = 1

    tau_align: float = 0.5
    """The threshold of the mean cosine. The paper does not publish it; 0.5 is ours: within 60 degrees on average."""

    def direction(self, state: EpmState) -> Vector:
        """Return -P/|P|, 0 at the origin."""
        return towards_origin(state.position)

    def healed(self, state: EpmState) -> bool:
        """Whether eq. 10 holds."""
        near = norm(state.position) < self.alpha * norm(state.p0)
        return (near or self._aligned(state)) and state.energy > norm(state.p0) + NEGLIGIBLE

    def indices(self, state: EpmState) -> Indices | None:
        """Return the formulas of `official` on this scorer's energy and cosines; None where no turn was judged."""
        return open_indices(state)

    def _aligned(self, state: EpmState) -> bool:
        return bool(state.cosines) and sum(state.cosines) / len(state.cosines) > self.tau_align

    def _detail(self, state: EpmState) -> Detail:
        return "geometric" if self._aligned(state) else "positional"


@dataclass(frozen=True)
class StrictScorer(Scorer):
    """Ours, the default: what counts is the distance really closed, on every axis.

    P_t = min(0, P_{t-1} + v_t) per axis, since past the origin there is nothing left to heal. Work is
    |P_{t-1}| - |P_t|, so its sum is the distance closed. Healed: |P| <= a|P0|, no axis below -max(1, 2a|P0_axis|), and
    the last reply did no harm.

    Version 2 sees harm that more progress covers: a reply that wounds and soothes on one axis, one that hurts where the
    axis is healed and saturated, one that hurts after arrival or ends the talk within the tolerance. `strict-1`, which
    sees the net of a turn alone, stays to be had by its id.
    """

    name: ClassVar[str] = "strict"
    version: ClassVar[int] = 2

    def start(self, p0: Vector) -> EpmState:
        """Return the state before the first turn.

        Raises:
            ScenarioError: P0 cannot be scored; here also where no axis is below -1, so that RDI has no base.
        """
        state = super().start(p0)
        if zone_distance(p0) == 0:
            raise ScenarioError(f"a P0 with no axis below -1 lies in the target zone already, got {p0}")
        return state

    def direction(self, state: EpmState) -> Vector:
        """Return -P/|P|, along which the distance shrinks fastest; 0 at the origin."""
        return towards_origin(state.position)

    def healed(self, state: EpmState) -> bool:
        """Whether the state has arrived, by a reply that did no harm."""
        return self._arrived(state.position, state.p0) and not (state.levels and self._hurts(state.levels[-1]))

    def indices(self, state: EpmState) -> Indices | None:
        """Return the indices, each within 0..100; None where no turn or less than 90 % of the turns were judged."""
        if not state.works or state.unjudged > MAX_UNJUDGED * state.turns:
            return None
        count = self._process_turns(state)
        steps = list(pairwise(state.path))
        gains = [gain(before, after) for before, after in steps]
        losses = [gain(after, before) for before, after in steps]
        net = [g - h for g, h in zip(gains, losses, strict=True)]
        harms = [self._harm(levels, loss) for levels, loss in zip(state.levels, losses, strict=True)]
        quality = [g / (g + h) if g + h else 0.0 for g, h in zip(gains[:count], harms[:count], strict=True)]
        gate = sum(g > 0 for g in gains[:count]) / count
        r0, gross = zone_distance(state.p0), sum(abs(work) for work in state.works)
        penalties = sum(penalty(levels) for levels in state.levels) / state.judged
        return Indices(
            rdi=_percent((r0 - zone_distance(state.position)) / r0),
            e_total=_percent(state.energy / norm(state.p0)),
            s_net=_percent(sum(net) / sum(abs(x) for x in state.p0)),
            rho=_percent(sum(state.works[:count]) / count / DENSITY_SCALE),
            s_proj=_percent(sum(net[:count]) / count / (DENSITY_SCALE * math.sqrt(3))),
            tau=_percent(state.energy / gross) if gross > NEGLIGIBLE else 0.0,
            r_pos=_percent(sum(work > NEGLIGIBLE for work in state.works[:count]) / count),
            align=_percent(gate * sum(quality) / count),
            r_pen=_percent(gate * (3 - penalties) / 3),
        )

    def _land(self, position: Vector, move: Vector) -> Vector:
        c, a, p = add(position, move)
        return (min(0.0, c), min(0.0, a), min(0.0, p))

    def _work(self, state: EpmState, projection: float, landed: Vector) -> float:
        return norm(state.position) - norm(landed)

    def _arrived(self, position: Vector, p0: Vector) -> bool:
        if norm(position) > self.alpha * norm(p0) + NEGLIGIBLE:
            return False
        floors = (-max(1.0, 2 * self.alpha * abs(x)) for x in p0)
        return all(x >= floor - NEGLIGIBLE for x, floor in zip(position, floors, strict=True))

    def _hurts(self, levels: Levels) -> bool:
        """Whether a reply did harm on any axis."""
        return penalty(levels) > 0

    def _harm(self, levels: Levels, loss: float) -> float:
        """Return the harm of a turn in points: all that its Neg levels cost, whatever its progress made up for.

        Args:
            levels: The turn's levels.
            loss: Points that the state really lost, on the axes that it moved away on.
        """
        return -C_NEG_POINTS[levels.c_neg] - AP_NEG_POINTS[levels.a_neg] - AP_NEG_POINTS[levels.p_neg]

    def _process_turns(self, state: EpmState) -> int:
        """Return K, the judged turns that process rates run over.

        K ends at the turn from which the state stays healed and unhurt, so that healing early costs nothing for the
        turns after.
        """
        count = state.judged
        if self._arrived(state.position, state.p0):
            while (
                count > 1
                and self._arrived(state.path[count - 1], state.p0)
                and not self._hurts(state.levels[count - 1])
            ):
                count -= 1
        return count


@dataclass(frozen=True)
class FirstStrictScorer(StrictScorer):
    """`strict-1`: the net of a turn alone. For records of it, and for the reference figures that were made by it."""

    version: ClassVar[int] = 1

    def _hurts(self, levels: Levels) -> bool:
        return False

    def _harm(self, levels: Levels, loss: float) -> float:
        return loss


@dataclass(frozen=True)
class NoScorer(Scorer):
    """Where EPM does not apply: nothing is measured, and no rule ends the conversation."""

    name: ClassVar[str] = "none"
    version: ClassVar[int] = 1

    def start(self, p0: Vector) -> EpmState:
        """Return a state in which nothing is lacking."""
        return EpmState(p0=p0, position=p0, path=(p0,))

    def advance(self, state: EpmState, levels: Levels | NullTurn | None) -> EpmState:
        """Count a turn."""
        return replace(state, turns=state.turns + 1)

    def direction(self, state: EpmState) -> Vector:
        """Return no direction."""
        return ORIGIN

    def healed(self, state: EpmState) -> bool:
        """Return False: there was nothing to heal."""
        return False

    def indices(self, state: EpmState) -> Indices | None:
        """Return None."""
        return None


NO_EPM = NoScorer()
"""The scorer of chit-chat; no configuration can name it."""


def gain(before: Vector, after: Vector) -> float:
    """Return the summed decrease of |P| over the axes that came nearer to 0, in points."""
    return sum(max(0.0, abs(b) - abs(a)) for b, a in zip(before, after, strict=True))


def penalty(levels: Levels) -> int:
    """Return the sum of the absolute Neg levels of one turn, 0..6."""
    return -(levels.c_neg + levels.a_neg + levels.p_neg)


def _percent(share: float) -> float:
    return min(100.0, max(0.0, share * 100))


def open_indices(state: EpmState) -> Indices | None:
    """Return the indices as the public leaderboard computes them, from the state's own energy and cosines.

    Means divide by N = T + 1, T the judged turns: the published code counts the start as a row. None where no turn was
    judged.
    """
    turns = state.judged
    if not turns:
        return None
    rows = turns + 1
    r0, energy = zone_distance(state.p0), max(0.0, state.energy)
    r0 = r0 if r0 > 1e-6 else 1.0
    improvement = (r0 - zone_distance(state.position)) / r0 * 100
    penalties = sum(penalty(levels) for levels in state.levels) / rows
    return Indices(
        rdi=min(100.0, max(0.0, (improvement + 100) / 2)),
        e_total=energy / (1.2 * r0) * 100,
        s_net=max(0, sum(map(sum, state.levels))) / (1.5 * r0) * 100,
        rho=energy / turns / DENSITY_SCALE * 100,
        s_proj=energy / rows / DENSITY_SCALE * 100,
        tau=max(0.0, (3 - _tortuosity(state)) / 2 * 100),
        r_pos=sum(work > 0 for work in state.works) / rows * 100,
        align=(sum(state.cosines) / rows + 1) / 2 * 100,
        r_pen=max(0.0, (3 - penalties) / 3 * 100),
    )


def _tortuosity(state: EpmState) -> float:
    """Return path over displacement, at least 1. As published, a path that returns to its start counts as straight."""
    displacement = math.dist(state.position, state.p0)
    return max(1.0, sum(map(norm, state.moves)) / displacement) if displacement > 1e-6 else 1.0


_SCORERS: tuple[Scorer, ...] = (StrictScorer(), OfficialScorer(), PaperScorer(), FirstStrictScorer())


def get_scorer(name: str = "strict") -> Scorer:
    """Return a scorer by name ("strict") or by id ("strict-1"), with its default settings.

    Raises:
        ConfigError: No scorer has that name, or the version is not the one this package holds.
    """
    for scorer in _SCORERS:  # a bare name means the newest version, which stands first
        if name in (scorer.name, scorer.id):
            return scorer
    known = list(dict.fromkeys([s.name for s in _SCORERS] + [s.id for s in _SCORERS]))
    raise unknown_name("scorer", name, known)
