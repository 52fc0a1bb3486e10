"""Play conversations with an actor and probe it: what `echo-env validate actor` measures.

Works with any actor behind the protocol; nothing here looks into its state. The director is the embedded one, told of
no judgement, so that a conversation lasts as long as the check wants.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from echo_env import registry
from echo_env.build import build_policy, conversation_seed
from echo_env.profiles import Scenario
from echo_env.realism import (
    Facts,
    TextStats,
    contradictions,
    facts_of,
    repeats,
    reveal,
    text_stats,
)
from echo_env.roles import (
    Actor,
    ActorView,
    Cue,
    Director,
    DirectorView,
    Exchange,
    Observation,
    Policy,
    cue_of,
    profiles_of,
)
from echo_env.types import Direction, Message, Record

MakeActor = Callable[[int], Actor]

PATIENCE = 45
"""Turns of a whole conversation: the person's own patience."""


def actor_maker(name: str) -> MakeActor:
    """Return what builds an actor, by registered name or "module:attribute".

    Raises:
        ConfigError: There is no such actor.
    """
    return cast("MakeActor", registry.resolve("actor", name))


# --- playing


class SameReply:
    """Says one thing, whatever it hears."""

    id = "same"

    def __init__(self, text: str = "Tell me more about that.") -> None:
        self.text = text

    async def respond(self, observation: Observation) -> str:
        """Say it."""
        return self.text


class Asker:
    """Asks the same few personal questions over and over."""

    id = "asker"
    ASKS = (
        "How old are you?",
        "What do you do for a living?",
        "What is your name?",
        "Where do you live?",
        "Are you married?",
    )

    async def respond(self, observation: Observation) -> str:
        """Ask the next one."""
        return self.ASKS[(len(observation.messages) // 2) % len(self.ASKS)]


EXTRA: dict[str, Callable[[], Policy]] = {"same": SameReply, "asker": Asker}
"""Companions that only this check knows, beside the registered policies."""
POLICIES = ("silent", "template", "lecturer", "parrot", "adviser", "same", "asker", "skilled")
"""Companions of the whole check; the last listens."""


def companion(name: str) -> Policy:
    """Return a companion by name: one of `EXTRA` or a registered policy."""
    return EXTRA[name]() if name in EXTRA else build_policy(name)


@dataclass(frozen=True, slots=True)
class Played:
    """One conversation."""

    scenario: Scenario
    messages: tuple[str, ...]
    """The person's, the one after the last reply included."""
    replies: tuple[str, ...]


async def play(scenario: Scenario, make: MakeActor, policy: Policy, turns: int = PATIENCE, seed: int = 0) -> Played:
    """Play a conversation of so many turns that nothing ends."""
    actor, director = make(seed), cast("Callable[[], Director]", registry.resolve("director", "embedded"))()
    profile, _ = profiles_of(scenario)
    history: tuple[Exchange, ...] = ()
    shown: tuple[Message, ...] = ()
    cue = Cue("flow")
    while True:
        message = await actor.speak(ActorView(profile, history, cue))
        if len(history) == turns:
            return Played(scenario, (*(e.user for e in history), message), tuple(e.reply for e in history))
        shown = (*shown, Message(role="user", text=message))
        reply = await policy.respond(Observation(shown, scenario.language))
        shown = (*shown, Message(role="companion", text=reply))
        history = (*history, Exchange(message, reply))
        none = (None,) * len(history)
        direction = await director.direct(DirectorView(scenario, history, scenario.p0, none, none, PATIENCE))
        if direction.function == "end_conversation":
            direction = Direction(function="continue_naturally")
        cue = cue_of(direction)


async def answer(scenario: Scenario, make: MakeActor, replies: Sequence[str], cue: Cue, seed: int = 0) -> list[str]:
    """Return the person's messages after these replies, the opening first; `cue` goes with every reply but the last."""
    actor, (profile, _) = make(seed), profiles_of(scenario)
    history: tuple[Exchange, ...] = ()
    said = [await actor.speak(ActorView(profile, history, Cue("flow")))]
    for k, reply in enumerate(replies):
        history = (*history, Exchange(said[-1], reply))
        said.append(await actor.speak(ActorView(profile, history, cue if k < len(replies) - 1 else Cue("flow"))))
    return said


# --- conversations with several companions


class PolicyRow(Record):
    """One companion's conversations with every person."""

    policy: str
    stats: TextStats
    repeated: int
    """Messages that came before in their conversation, word for word."""
    contradictions: tuple[str, ...]
    """What contradicted a profile: "family-01 turn 3: age 45"."""
    told: float
    """Mean share of the story told."""
    deep: float
    """Mean share of its deep lines told (childhood, teens, last beat, turning point)."""
    turning_points: float
    """Share of conversations in which the turning point came."""
    turn_at: float | None
    """Where it came at the earliest, as a share of the conversation: the median."""
    order: float | None
    """Mean rank correlation of a line's depth with its turn."""


async def policy_row(
    scenarios: Sequence[Scenario], make: MakeActor, name: str, turns: int, seed: int
) -> tuple[PolicyRow, list[Played]]:
    """Play one companion with every person, and measure what they said."""
    talks = [
        await play(s, make, companion(name), turns, conversation_seed(seed, s.id)) for s in scenarios
    ]  # one after another: a remote actor's calls stay in order
    found = [reveal(t.messages, t.scenario) for t in talks]
    at = [r.turn_at for r in found if r.turn_at is not None]
    order = [r.order for r in found if r.order is not None]
    row = PolicyRow(
        policy=name,
        stats=text_stats([t.messages for t in talks]),
        repeated=sum(len(repeats(t.messages).exact) for t in talks),
        contradictions=tuple(c for t in talks for c in _contradicted(t, facts_of(t.scenario))),
        told=statistics.fmean([r.told for r in found]),
        deep=statistics.fmean([r.deep for r in found]),
        turning_points=len(at) / len(found),
        turn_at=statistics.median(at) if at else None,
        order=statistics.fmean(order) if order else None,
    )
    return row, talks


def _contradicted(talk: Played, facts: Facts) -> Iterator[str]:
    for k, message in enumerate(talk.messages):
        for what in contradictions(message, facts):
            yield f"{talk.scenario.id} turn {k + 1}: {what}"
