"""Conversations that fork: one more line of play from the same point, without playing the way there again.

Judging is what costs; a fork copies the state of the roles and judges nothing. State is what roles hold in plain
containers, in dataclasses that are not frozen, and in other roles. Anything else that they hold, an encoder, a gate or
the client of a remote model, is a service that conversations share. A role that keeps other state gives a method
`fork()`.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import random
import re
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar, cast

import numpy as np

from echo_env.build import WorldConfig, build_session
from echo_env.profiles import Scenario
from echo_env.rewards import Step
from echo_env.roles import Cast, Exchange, Judge, JudgeView, profiles_of
from echo_env.session import DialogueSession, visible
from echo_env.types import Judgement, Record, storable

T = TypeVar("T")

_IMMUTABLE = (str, bytes, int, float, bool, types.NoneType, frozenset, type, enum.Enum, re.Pattern, Record)
_ROLE = ("judge", "speak", "direct")
"""Methods that make an object a role."""


@lru_cache(maxsize=512)
def _shared(kind: type) -> bool:
    """Whether values of a type are shared between forks, whatever they hold."""
    if dataclasses.is_dataclass(kind):
        return bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    plain = issubclass(kind, dict | set | list | tuple | random.Random | np.ndarray)
    return issubclass(kind, _IMMUTABLE) or not (plain or any(hasattr(kind, name) for name in _ROLE))


def _all_shared(values: Iterable[object]) -> bool:
    return all(map(_shared, set(map(type, values))))


def fork(value: T) -> T:
    """Return a copy that lives on by itself; what cannot change and what is no state is shared."""
    if _shared(type(value)):  # type: ignore[arg-type]  # every type can be hashed
        return value
    return cast(T, _copied(value))


def _copied(value: object) -> object:
    if isinstance(value, dict):
        again = copy.copy(value)
        if not _all_shared(value.values()):
            again.update({k: fork(v) for k, v in value.items()})
        return again
    if isinstance(value, set):
        return value.copy()
    if isinstance(value, list):
        return list(value) if _all_shared(value) else [fork(v) for v in value]
    if isinstance(value, tuple):
        return value if _all_shared(value) else _tuple(value)
    if isinstance(value, random.Random):
        rnd = random.Random(0)
        rnd.setstate(value.getstate())
        return rnd
    if isinstance(value, np.ndarray):
        return value.copy() if value.flags.writeable else value
    return _object(value)


def _tuple(value: tuple[object, ...]) -> tuple[object, ...]:
    parts = [fork(v) for v in value]
    if all(new is old for new, old in zip(parts, value, strict=True)):
        return value
    make: Callable[[list[object]], tuple[object, ...]] = getattr(type(value), "_make", tuple)
    return make(parts)


def _object(value: object) -> object:
    if hasattr(value, "fork"):
        return value.fork()
    kind = type(value)
    again = object.__new__(kind)
    for name in _slots(kind):  # type: ignore[arg-type]
        if hasattr(value, name):
            object.__setattr__(again, name, fork(getattr(value, name)))
    for name, part in getattr(value, "__dict__", {}).items():
        again.__dict__[name] = fork(part)
    return again


@lru_cache(maxsize=512)
def _slots(kind: type) -> tuple[str, ...]:
    found = [k.__dict__.get("__slots__", ()) for k in kind.__mro__]
    return tuple(n for names in found for n in ((names,) if isinstance(names, str) else names) if n[:2] != "__")


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a reply would earn, and the judge that has heard it."""

    text: str
    judgement: Judgement | None
    reward: float | None
    """None where it could not be judged."""
    judge: Judge


class _Given:
    """Hands out a judgement that was made already."""

    def __init__(self, judge: Judge, judgement: Judgement | None) -> None:
        self.id, self.rubric, self._judgement = judge.id, judge.rubric, judgement

    async def judge(self, view: JudgeView) -> Judgement | None:
        return self._judgement


class Branch:
    """One line of play. Made by `Branch.open` and by `fork`."""

    def __init__(self, session: DialogueSession, history: tuple[Exchange, ...], earned: float, unjudged: int) -> None:
        self.session, self.history, self.earned, self.unjudged = session, history, earned, unjudged

    @classmethod
    async def open(cls, world: WorldConfig, scenario: Scenario, seed: int) -> Branch:
        """Let the person speak first.

        Raises:
            ConfigError: A name is unknown.
        """
        session = build_session(world, scenario, seed)
        await session.open()
        return cls(session, (), 0.0, 0)

    @property
    def over(self) -> bool:
        """Whether the conversation has ended."""
        return self.session.outcome is not None

    def fork(self) -> Branch:
        """Return a line of play that goes on from here by itself."""
        roles = self.session.cast
        session = copy.copy(self.session)
        session.cast = Cast(fork(roles.actor), fork(roles.director), fork(roles.judge))
        return Branch(session, self.history, self.earned, self.unjudged)

    async def weigh(self, text: str) -> Weighed:
        """Judge a reply without saying it: one judge call, neither actor nor director is asked."""
        session = self.session
        judge = fork(session.cast.judge)
        view = JudgeView(profiles_of(session.scenario)[1], self.history, self._exchange(text))
        try:
            judgement = await judge.judge(view)
        except Exception:  # as in a live turn: a missing judgement, which is counted
            judgement = None
        if judgement is None:
            return Weighed(text, None, None, judge)
        after = session.scorer.advance(session.state, judgement.levels)
        parts = session.recipe.turn(Step(session.scorer, session.state, after, after.end))
        return Weighed(text, judgement, None if parts is None else sum(parts.values()), judge)

    async def take(self, weighed: Weighed) -> None:
        """Say a reply that was weighed here; costs no further judge call."""
        session = self.session
        exchange = self._exchange(weighed.text)
        session.cast = replace(session.cast, judge=_Given(weighed.judge, weighed.judgement))
        turn = (await session.reply(weighed.text)).turn
        session.cast = replace(session.cast, judge=weighed.judge)
        self.history = (*self.history, exchange)
        self.earned += turn.reward or 0.0
        self.unjudged += turn.reward is None

    def _exchange(self, text: str) -> Exchange:
        return Exchange(self.session.observation.user, visible(storable(text)))
