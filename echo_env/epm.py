"""The Empathy Physics Model: judged levels in, position and energy out, turn by turn.

Pure arithmetic. An `EpmState` holds all that has happened, a `Scorer` the rules; `Scorer.advance` turns one state into
the next. The scorers themselves are in `echo_env.scorers`.

A turn that nobody judged is None. It is skipped and counted, and never stands for zero levels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal

from echo_env.errors import ConfigError, ScenarioError
from echo_env.types import End, EpmDelta, Levels, NullTurn, Record, Vector

ORIGIN: Vector = (0.0, 0.0, 0.0)
"""The ideal balance."""

PROG_POINTS: dict[int, float] = {0: 0.0, 1: 1.0, 2: 3.0}
"""Points of a Prog level, the same on all axes."""
C_NEG_POINTS: dict[int, float] = {0: 0.0, -1: -2.0, -2: -4.0}
"""Points of a Neg level on axis C."""
AP_NEG_POINTS: dict[int, float] = {0: 0.0, -1: -2.0, -2: -5.0}
"""Points of a Neg level on axes A and P."""

NEGLIGIBLE = 1e-9
"""Below this a difference is rounding: levels are whole numbers, so real differences are far larger."""

Detail = Literal["geometric", "positional"]
"""Which half of the success rule was met; each scorer says what the words mean for it."""


class Indices(Record):
    """The nine EPM indices of an episode, or their means over episodes (Echo-N1 Tables 1, 3 and 8).

    `strict` keeps all within 0..100. `official` and `paper` leave e_total, s_net, rho and s_proj uncapped: there 100
    marks the benchmark, not the best.
    """

    rdi: float
    """Outcome: relative distance improvement."""
    e_total: float
    """Outcome: effective energy against the deficit."""
    s_net: float
    """Outcome: net score against the deficit."""
    rho: float
    """Efficiency: empathy density, energy a turn."""
    s_proj: float
    """Efficiency: average effective projection a turn."""
    tau: float
    """Efficiency: path tortuosity, 100 for a straight path."""
    r_pos: float
    """Stability: share of turns with positive energy."""
    align: float
    """Stability: average alignment with the healing direction."""
    r_pen: float
    """Stability: performative penalty rate, 100 for none."""


INDEX_NAMES: tuple[str, ...] = tuple(Indices.model_fields)
"""The nine indices, in the order of Echo-N1's Table 8."""


@dataclass(frozen=True, slots=True)
class EpmState:
    """Everything a scorer knows after some turns. A value: `Scorer.advance` returns a new one."""

    p0: Vector
    """The initial deficit, in points."""
    position: Vector
    """P_t, in points."""
    path: tuple[Vector, ...]
    """P0 and the position after each judged turn."""
    moves: tuple[Vector, ...] = ()
    """Action vector v of each judged turn, before any saturation."""
    works: tuple[float, ...] = ()
    """Energy of each judged turn, in points."""
    cosines: tuple[float, ...] = ()
    """Cosine of each judged turn's move with the healing direction, 0 where the move is 0."""
    levels: tuple[Levels, ...] = ()
    """Levels of each judged turn."""
    energy: float = 0.0
    """Sum of `works`."""
    turns: int = 0
    """Turns so far, judged or not."""
    last_judged: bool = False
    """Whether the last turn was judged."""
    replayed_nulls: int = 0
    """Judged turns that `official` took from a published vector in place of levels."""
    end: End | None = None
    """The first rule that fired. It stays, even where published turns go on after it."""
    end_detail: Detail | None = None
    """For a success: which half of the rule was met, where the scorer tells them apart."""
    ended_at: int | None = None
    """Turn at which `end` fired."""

    @property
    def judged(self) -> int:
        """Number of judged turns."""
        return len(self.works)

    @property
    def unjudged(self) -> int:
        """Number of turns without a judgement."""
        return self.turns - len(self.works)


def action_vector(levels: Levels) -> Vector:
    """Map six levels to the action vector v = Prog + Neg per axis (Echo-N1 section 4.3.2, points as published).

    Returns:
        (C, A, P) in points; C within [-4, 3], A and P within [-5, 3].

    Raises:
        ValueError: A level is out of range. (The published code maps it to 0 in silence.)
    """
    c_prog, c_neg, a_prog, a_neg, p_prog, p_neg = levels
    try:
        return (
            PROG_POINTS[c_prog] + C_NEG_POINTS[c_neg],
            PROG_POINTS[a_prog] + AP_NEG_POINTS[a_neg],
            PROG_POINTS[p_prog] + AP_NEG_POINTS[p_neg],
        )
    except KeyError as error:
        raise ValueError(f"prog levels are 0, 1 or 2 and neg levels 0, -1 or -2, got {levels}") from error


def norm(point: Vector) -> float:
    """Return the Euclidean length |P|, in points."""
    c, a, p = point
    return math.sqrt(c * c + a * a + p * p)


def dot(left: Vector, right: Vector) -> float:
    """Return the scalar product of two vectors."""
    return left[0] * right[0] + left[1] * right[1] + left[2] * right[2]


def add(point: Vector, move: Vector) -> Vector:
    """Return point + move."""
    return (point[0] + move[0], point[1] + move[1], point[2] + move[2])


def towards_origin(point: Vector) -> Vector:
    """Return the healing direction -P/|P|, a unit vector; 0 at the origin, where no direction is better."""
    size = norm(point)
    return (-point[0] / size, -point[1] / size, -point[2] / size) if size else ORIGIN


def zone_distance(point: Vector) -> float:
    """Return d(P) = sqrt(sum max(0, -1 - P_i)^2): how far P lies below the zone where every axis is -1 or better."""
    return math.sqrt(sum(max(0.0, -1.0 - x) ** 2 for x in point))


def collapsed(works: Sequence[float]) -> bool:
    """Whether each of the last five judged turns did negative work."""
    return len(works) >= 5 and all(work < 0 for work in works[-5:])


def stagnant(path: Sequence[Vector]) -> bool:
    """Whether |P| stood still: the sample standard deviation of its last five values is below 0.5."""
    norms = [norm(point) for point in path[-5:]]
    mean = sum(norms) / len(norms)
    # by hand: statistics.stdev computes in exact fractions, and costs more than the rest of the turn
    return len(norms) == 5 and sum((x - mean) ** 2 for x in norms) / 4 < 0.5**2


def regressing(works: Sequence[float]) -> bool:
    """Whether at least six of the last eight judged turns did negative work, and the eight sum below -1."""
    last = works[-8:]
    return len(last) == 8 and sum(work < 0 for work in last) >= 6 and sum(last) < -1


def oscillating(path: Sequence[Vector]) -> bool:
    """Whether the last twelve points lead nowhere: the L1 distance between their ends is at most 2."""
    return len(path) >= 12 and sum(abs(b - a) for b, a in zip(path[-12], path[-1], strict=True)) <= 2


@dataclass(frozen=True)
class Scorer(ABC):
    """The rules of one way to score. An immutable value; `dataclasses.replace` changes a setting."""

    name: ClassVar[str]
    version: ClassVar[int]
    """Raised by any change that can move a score."""

    min_turns: int = 12
    """Turns, judged or not, before any rule may fire."""
    max_turns: int = 45
    """The person's patience, part of the task: a scenario may set its own."""
    alpha: float = 0.10
    """Share of the deficit that counts as arrived. (The published code says 0.05; its leaderboard used 0.10.)"""

    def __post_init__(self) -> None:
        """Refuse limits under which no episode could end."""
        if not 1 <= self.min_turns <= self.max_turns:
            raise ConfigError(f"a scorer needs 1 <= min_turns <= max_turns, got {self.min_turns} and {self.max_turns}")

    @property
    def id(self) -> str:
        """Name and version, and any setting that was changed, except the patience: that belongs to the task."""
        settings = [(f.name, getattr(self, f.name), f.default) for f in fields(self) if f.name != "max_turns"]
        changed = [f"{name}={value}" for name, value, default in settings if value != default]
        return f"{self.name}-{self.version}" + (f"({','.join(changed)})" if changed else "")

    def start(self, p0: Vector) -> EpmState:
        """Return the state before the first turn.

        Raises:
            ScenarioError: P0 cannot be scored: not finite, above 0 on an axis, or 0 on all.
        """
        if not all(math.isfinite(x) and x <= 0 for x in p0):
            raise ScenarioError(f"an initial deficit P0 is finite and at most 0 on each axis, got {p0}")
        if norm(p0) == 0:
            raise ScenarioError("an initial deficit P0 of 0 on all axes cannot be scored: nothing is left to heal")
        return EpmState(p0=p0, position=p0, path=(p0,))

    def advance(self, state: EpmState, levels: Levels | NullTurn | None) -> EpmState:
        """Return the state after one more turn.

        Args:
            state: The state before it. Unchanged, as all states are.
            levels: What the judge found. None, and a `NullTurn` for all scorers but `official`, is an unjudged turn: it
                moves nothing, but it counts as a turn, so that patience still runs out.
        """
        if levels is None or isinstance(levels, NullTurn):
            return self._close(replace(state, turns=state.turns + 1, last_judged=False))
        return self._close(self._move(state, action_vector(levels), levels))

    def delta(self, state: EpmState) -> EpmDelta | None:
        """Return what the last turn did; None before the first turn and after one that was not judged."""
        if not state.last_judged:
            return None
        return EpmDelta(
            position=state.position,
            delta=state.moves[-1],
            work=state.works[-1],
            energy=state.energy,
            distance=norm(state.position),
            cos=state.cosines[-1],
            healed=self.healed(state),
        )

    @abstractmethod
    def healed(self, state: EpmState) -> bool:
        """Whether the success condition holds now, the minimum turn aside."""

    @abstractmethod
    def direction(self, state: EpmState) -> Vector:
        """Return the healing direction that the next move is measured against; a unit vector, or 0."""

    @abstractmethod
    def indices(self, state: EpmState) -> Indices | None:
        """Return the nine indices over all turns so far; None where the episode is unscored."""

    def _land(self, position: Vector, move: Vector) -> Vector:
        """Return where a move leads."""
        return add(position, move)

    def _work(self, state: EpmState, projection: float, landed: Vector) -> float:
        """Return the energy of a move, from its projection on the healing direction and from where it led."""
        return projection

    def _cosine(self, projection: float, size: float) -> float:
        """Return the cosine of a move of that size with the healing direction, 0 where the move is 0."""
        return projection / size if size else 0.0

    def _detail(self, state: EpmState) -> Detail | None:
        """Return which half of the success rule a healed state meets."""
        return None

    def _failure(self, state: EpmState) -> End | None:
        """Return the failure that holds now, patience aside."""
        if collapsed(state.works):
            return "collapse"
        # regressing first: it is the cheaper of the two, and seldom true
        return "stagnation" if regressing(state.works) and stagnant(state.path) else None

    def _move(self, state: EpmState, move: Vector, levels: Levels) -> EpmState:
        landed = self._land(state.position, move)
        projection = dot(move, self.direction(state))
        work = self._work(state, projection, landed)
        size = norm(move)
        return replace(
            state,
            position=landed,
            path=(*state.path, landed),
            moves=(*state.moves, move),
            works=(*state.works, work),
            cosines=(*state.cosines, self._cosine(projection, size)),
            levels=(*state.levels, levels),
            energy=state.energy + work,
            turns=state.turns + 1,
            last_judged=True,
        )

    def _close(self, state: EpmState) -> EpmState:
        """Return the state with its end, where a rule fires for the first time."""
        if state.end is not None or state.turns < self.min_turns:
            return state
        if self.healed(state):
            return replace(state, end="success", end_detail=self._detail(state), ended_at=state.turns)
        end = self._failure(state) or ("patience" if state.turns >= self.max_turns else None)
        return replace(state, end=end, ended_at=state.turns) if end else state
