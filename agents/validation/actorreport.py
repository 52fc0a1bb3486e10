"""The whole check of an actor: conversations, questions, reactions, and a comparison with people and recordings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from echo_env.agents.validation.actorcheck import PATIENCE, POLICIES, MakeActor, PolicyRow, actor_maker, policy_row
from echo_env.agents.validation.actorprobes import AskedRow, Part, ReactedRow, asked_rows, reacted_row
from echo_env.errors import ConfigError
from echo_env.profiles import Scenario, get_scenario, scenario_ids
from echo_env.realism import TextStats, ToneAgreement, text_stats, tone_agreement
from echo_env.speakers import Side, read_side
from echo_env.twosample import VIEWS, TwoSample, View, two_sample
from echo_env.types import Record

PARTS: dict[str, tuple[Part, ...]] = {
    "working": ("working",),
    "test": ("test",),
    "fresh": ("fresh",),
    "last": ("last",),
    "all": ("working", "test", "fresh", "last"),
    "none": (),
}


class CheckConfig(Record):
    """What to check."""

    actor: str = "embedded"
    policies: tuple[str, ...] = ()
    """Companions, the last of which listens; empty for all of `POLICIES`."""
    recordings: tuple[Path, ...] = ()
    humans: tuple[Path, ...] = ()
    limit: Annotated[int, Field(ge=1)] | None = None
    others: Annotated[int, Field(ge=0)] = 10
    turns: Annotated[int, Field(ge=1)] = PATIENCE
    part: str = "working"
    seed: int = 0


class Corpus(Record):
    """One crowd of speakers."""

    name: str
    stats: TextStats
    tone: ToneAgreement | None = None
    """Where the speakers rated what they heard: whether our reading of tone goes with it."""


class Sample(Record):
    """Two crowds, told apart."""

    pair: str
    test: TwoSample


class ActorReport(Record):
    """What was found."""

    actor: str
    people: int
    turns: int
    policies: tuple[PolicyRow, ...]
    questions: tuple[AskedRow, ...]
    answered: float | None
    """Share of all questions that were answered, met with what was told before, or openly dodged."""
    reactions: tuple[ReactedRow, ...]
    corpora: tuple[Corpus, ...]
    samples: tuple[Sample, ...]


def check_actor(config: CheckConfig, tell: Callable[[str], None] = lambda line: None) -> ActorReport:
    """Check an actor.

    Raises:
        ConfigError: A name is unknown, or `part` is none of `PARTS`.
        RecordError: A file of recordings cannot be read.
    """
    if config.part not in PARTS:
        raise ConfigError(f"--part is one of {', '.join(PARTS)}, got '{config.part}'")
    make = actor_maker(config.actor)
    recordings, humans = [[read_side(p) for p in paths] for paths in (config.recordings, config.humans)]
    people = [get_scenario(i) for i in scenario_ids("benchmark")[: config.limit]]
    rows, actor_side = _converse(config, make, people, tell)
    tell("asking")
    asked = asyncio.run(asked_rows(people, make, config.seed))
    tell("reacting")
    reacted = [asyncio.run(reacted_row(make, part, config.seed, config.limit)) for part in PARTS[config.part]]
    sides = [actor_side, *recordings, *humans]
    total = sum(r.asked for r in asked)
    return ActorReport(
        actor=make(0).id,
        people=len(people),
        turns=config.turns,
        policies=tuple(rows),
        questions=tuple(asked),
        answered=sum(r.answered + r.pointed + r.dodged for r in asked) / total if total else None,
        reactions=tuple(reacted),
        corpora=tuple(Corpus(name=s.name, stats=text_stats(s.talks), tone=tone_agreement(s.rated)) for s in sides),
        samples=tuple(_samples([actor_side, *recordings], humans, config.seed, tell)),
    )


def _converse(
    config: CheckConfig, make: MakeActor, people: Sequence[Scenario], tell: Callable[[str], None]
) -> tuple[list[PolicyRow], Side]:
    """Play every companion with everybody; return the rows and the messages to the companion who listens."""
    everybody = [
        *people,
        *(get_scenario(i) for split in ("train", "dev") for i in scenario_ids(split)[: config.others]),
    ]
    rows: list[PolicyRow] = []
    listened = Side(config.actor, ())
    for name in config.policies or POLICIES:
        tell(f"talking with {name}")
        row, talks = asyncio.run(policy_row(everybody, make, name, config.turns, config.seed))
        rows.append(row)
        listened = Side(f"{config.actor} with {name}", tuple(t.messages for t in talks))
    return rows, listened


def _samples(measured: Sequence[Side], humans: Sequence[Side], seed: int, tell: Callable[[str], None]) -> list[Sample]:
    """Tell everyone from the first humans, the other humans too: that is the yardstick."""
    if not humans:
        return []
    first = humans[0]
    odd, even = Side(f"{first.name} (odd)", first.talks[::2]), Side("(even)", first.talks[1::2])
    pairs = [(odd, even), *((first, other) for other in [*humans[1:], *measured])]
    found = []
    for a, b in pairs:
        views: Sequence[View] = VIEWS if a.chinese == b.chinese else ("shape",)
        for view in views:
            tell(f"telling {a.name} from {b.name}, {view}")
            found.append(Sample(pair=f"{a.name} : {b.name}", test=two_sample(a.talks, b.talks, view, seed)))
    return found
