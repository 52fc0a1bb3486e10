"""The roles of a conversation and what each of them may see.

Isolation is in the types (Echo-N1 section 4.3.2: "strict evaluation isolation"): a role gets its own small view and
nothing else. The policy sees the conversation. The actor sees its persona, its story, the conversation and the
director's cue. The judge sees the profile, the conversation and its rubric. Only the director sees everything.

Roles are built afresh for every conversation and may keep state of their own. Methods are coroutines, so that a role
may be a remote model; the embedded roles never wait. A role that does says so with `waits = True` (`driving`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol, runtime_checkable

from echo_env.profiles import Line, Need, Persona, Scenario, Situation
from echo_env.types import Direction, EpmDelta, Function, Judgement, Message, Vector

CueAct = Literal["tell", "hold", "flow", "hint", "close", "leave"]
"""Bring something up, hold back, go on, let a need show, take leave content, or leave without that."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One finished turn: the user's message and the reply to it."""

    user: str
    reply: str


@dataclass(frozen=True, slots=True)
class Observation:
    """All that a policy may see: the conversation so far, the user's newest message last."""

    messages: tuple[Message, ...]
    language: str = "en"

    @property
    def user(self) -> str:
        """The user's newest message."""
        return self.messages[-1].text


@dataclass(frozen=True, slots=True)
class Cue:
    """The director's call as the actor hears it: no axis, no number, no judgement."""

    act: CueAct
    lines: tuple[str, ...] = ()
    """Ids of lines to bring up, in order; the actor decides whether it trusts enough to say them."""
    words: str = ""
    """The same in words, for actors that are language models."""


@dataclass(frozen=True)
class ActorProfile:
    """Who the actor plays. Compared by `key`."""

    key: str
    language: str = field(compare=False)
    persona: Persona = field(compare=False)
    situation: Situation = field(compare=False)
    lines: tuple[tuple[str, Line], ...] = field(compare=False)
    """Everything they may tell, with ids."""
    hopes: tuple[tuple[str, ...], ...] = field(compare=False)
    """First-person lines in which a need shows, most important need first; none of somebody who came for a chat."""
    touchy: tuple[str, ...] = field(compare=False)
    """What hurts them, in the same order."""
    wants_help: bool = field(compare=False)
    """Whether they look for help with doing before all else, so that advice is welcome."""
    patience: Literal["low", "high"] = field(compare=False)
    """How much understanding it takes before they open up; "low" opens slowly."""
    closing: tuple[str, ...] = field(compare=False)
    """Last messages once they have been understood."""


@dataclass(frozen=True, slots=True)
class ActorView:
    """What the actor sees when it is to speak."""

    profile: ActorProfile
    history: tuple[Exchange, ...]
    cue: Cue


@dataclass(frozen=True)
class JudgeProfile:
    """Whom the reply was for. Compared by `key`."""

    key: str
    language: str = field(compare=False)
    persona: Persona = field(compare=False)
    situation: Situation = field(compare=False)
    threshold: Literal["low", "high"] = field(compare=False)
    needs: tuple[Need, ...] = field(compare=False)
    """Most important first; none in chit-chat."""
    lines: tuple[tuple[str, Line], ...] = field(compare=False)

    @property
    def chitchat(self) -> bool:
        """Whether they came for nothing but a chat."""
        return not self.needs


@dataclass(frozen=True, slots=True)
class JudgeView:
    """What the judge sees: profile, finished exchanges, and the exchange to judge."""

    profile: JudgeProfile
    history: tuple[Exchange, ...]
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class DirectorView:
    """What the director sees: everything."""

    scenario: Scenario
    history: tuple[Exchange, ...]
    p0: Vector
    judgements: tuple[Judgement | None, ...]
    epm: tuple[EpmDelta | None, ...]
    min_turns: int


_ACTS: dict[Function, CueAct] = {
    "reveal_fragment": "tell",
    "observe_and_wait": "hold",
    "continue_naturally": "flow",
    "reveal_memory": "tell",
    "adjust_empathy_strategy": "hint",
    "introduce_turning_point": "tell",
    "end_conversation": "leave",
}


def cue_of(direction: Direction) -> Cue:
    """Return what the actor hears of a call."""
    return Cue(_ACTS[direction.function], direction.lines, direction.words)


class Policy(Protocol):
    """The companion under test. It cannot end the conversation."""

    id: str

    async def respond(self, observation: Observation) -> str:
        """Return the reply; `<think>` blocks in it are removed before anyone else sees it."""
        ...


class Actor(Protocol):
    """The simulated person."""

    id: str

    async def speak(self, view: ActorView) -> str:
        """Return the next message; the opening where `view.history` is empty.

        Raises:
            RoleFailure: There is no message to be had.
        """
        ...


class Director(Protocol):
    """Steers the story, Echo-N1 section 4.3.2."""

    id: str

    async def direct(self, view: DirectorView) -> Direction:
        """Return one function call. `end_conversation` before the minimum turn is refused by the session.

        Raises:
            RoleFailure: There is no direction to be had.
        """
        ...


class Judge(Protocol):
    """Finds evidence in a reply."""

    id: str
    rubric: str

    async def judge(self, view: JudgeView) -> Judgement | None:
        """Return evidence and levels; None, or RoleFailure, where the reply could not be judged."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A judge that keeps something of the conversation beside its words; a resumed one gives it back."""

    def recall(self, judgement: Judgement, turns: int) -> None:
        """Take up what an earlier judgement left behind.

        Args:
            judgement: As it was recorded.
            turns: Number of its turn, 1 for the first.
        """
        ...


@dataclass(frozen=True, slots=True)
class Cast:
    """The three roles of one conversation."""

    actor: Actor
    director: Director
    judge: Judge


@lru_cache(maxsize=1024)
def _profiles(digest: str) -> list[tuple[ActorProfile, JudgeProfile]]:
    return []


def profiles_of(scenario: Scenario) -> tuple[ActorProfile, JudgeProfile]:
    """Return what the actor and the judge may know of a scenario, built once for each content."""
    known = _profiles(scenario.digest)
    if not known:
        lines = tuple(scenario.items())
        actor = ActorProfile(
            key=scenario.digest,
            language=scenario.language,
            persona=scenario.persona,
            situation=scenario.situation,
            lines=lines,
            hopes=tuple(n.asks for n in scenario.needs),
            touchy=tuple(n.hurts for n in scenario.needs),
            wants_help=not scenario.chitchat and scenario.needs[0].axis == "P",
            patience="low" if scenario.threshold == "high" else "high",
            closing=scenario.ending.says,
        )
        judge = JudgeProfile(
            key=scenario.digest,
            language=scenario.language,
            persona=scenario.persona,
            situation=scenario.situation,
            threshold=scenario.threshold,
            needs=scenario.needs,
            lines=lines,
        )
        known.append((actor, judge))
    return known[0]


def chapter_of(item: str) -> str:
    """Return the chapter of a line's id: "beat2.1" -> "beat2"."""
    return item.partition(".")[0]
