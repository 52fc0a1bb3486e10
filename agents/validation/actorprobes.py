"""Probes of an actor: direct questions about facts, and replies that were labelled good or bad by hand."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

from echo_env.agents.validation.actorcheck import MakeActor, answer, companion, play
from echo_env.build import conversation_seed
from echo_env.profiles import Line, Scenario, data_root, get_scenario
from echo_env.realism import Reaction, dodges, told_lines, units
from echo_env.roles import Cue
from echo_env.types import Record
from echo_env.yamlfiles import read_yaml

# --- direct questions

Answer = Literal["answered", "pointed", "dodged", "none"]
"""Answered with the fact, pointed to what was said before, openly declined, or none of these."""


class AskedRow(Record):
    """Questions of one kind at one moment."""

    kind: str
    moment: str
    asked: int
    answered: int
    pointed: int
    dodged: int
    missed: tuple[str, ...]
    """Examples without an answer: "scenario: question -> message"."""


@dataclass(frozen=True, slots=True)
class Question:
    """A direct question about a fact, and how to tell that it was answered."""

    kind: str
    text: str
    wants: frozenset[str] = frozenset()
    """Words of which one answers it."""
    line: tuple[str, Line] | None = None
    """The line that answers it."""


@lru_cache(maxsize=1)
def questions() -> dict[str, Any]:
    """Load the question forms."""
    found: dict[str, Any] = read_yaml(data_root() / "reactions" / "questions.yaml")
    return found


_TENS = dict(
    zip((2, 3, 4, 5, 6, 7), ("twenties", "thirties", "forties", "fifties", "sixties", "seventies"), strict=True)
)


def questions_for(scenario: Scenario, about: int = 4, seed: int = 0) -> list[Question]:
    """Return the questions about one person: every personal form, a few lines and names, and those written for them."""
    forms, p = questions(), scenario.persona
    rnd = random.Random(f"questions:{seed}:{scenario.id}")
    job = frozenset(w for w in units(p.job) if len(w) > 3)
    places = frozenset(w.lower() for w in re.findall(r"\b[A-Z][\w'-]+", p.job))
    wants = {
        "age": frozenset({str(p.age), _TENS.get(p.age // 10, "")}) - {""},
        "job": job,
        "name": frozenset({p.name.split()[0].lower()}),
        "family": frozenset(forms["family_words"].split()),
        "place": places,
    }
    found = [Question(kind, text, wants[kind]) for kind in wants for text in forms["personal"][kind]]
    lines = dict(scenario.items())
    for item in rnd.sample(sorted(lines), min(about, len(lines))):
        text = rnd.choice(forms["about"]).format(about=lines[item].about)
        found.append(Question("about", text, line=(item, lines[item])))
    names = sorted(_names(scenario))
    for name in rnd.sample(names, min(about, len(names))):
        found.append(Question("who", rnd.choice(forms["who"]).format(name=name), frozenset({name.lower()})))
    for entry in forms["story"].get(scenario.id, ()):
        found.append(Question("story", entry["ask"], line=(entry["line"], lines[entry["line"]])))
    return found


def _names(scenario: Scenario) -> set[str]:
    """Names in the story: words with a capital inside of a sentence, at least twice."""
    own = set(scenario.persona.name.split())
    found = Counter(n for line in scenario.lines() for n in set(re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b", line.say)))
    return {n for n, count in found.items() if count >= 2 and n not in own}


_POINTS = re.compile(r"\b(i|as i) (told|said)\b|\bi told you\b|\b(before|already)\b")


def answered(question: Question, message: str) -> Answer:
    """Tell how a message answers a question, from its words."""
    said = {v for w in units(message) for v in (w, w.removesuffix("'s"))}
    if not said.isdisjoint(question.wants):
        return "pointed" if question.kind == "who" and _POINTS.search(message.lower()) else "answered"
    if question.line is not None:
        if told_lines([message], [question.line]):
            return "answered"
        about = [w for w in units(question.line[1].about) if len(w) > 3]
        if about and sum(w in said for w in about) >= 0.6 * len(about):
            return "pointed"
    return "dodged" if dodges(message) else "none"


async def asked_rows(scenarios: Sequence[Scenario], make: MakeActor, seed: int) -> list[AskedRow]:
    """Ask every question right after the opening, and again after twelve turns with a listener."""
    outcomes: dict[tuple[str, str], list[tuple[Answer, str]]] = {}
    for scenario in scenarios:
        own = conversation_seed(seed, scenario.id)
        heard = await play(scenario, make, companion("skilled"), 12, own)
        for question in questions_for(scenario, seed=seed):
            for moment, before in (("first", ()), ("later", heard.replies)):
                message = (await answer(scenario, make, [*before, question.text], Cue("flow"), own))[-1]
                how = answered(question, message)
                note = f"{scenario.id}: {question.text} -> {message}"
                outcomes.setdefault((question.kind, moment), []).append((how, note))
    return [_asked_row(kind, moment, found) for (kind, moment), found in outcomes.items()]


def _asked_row(kind: str, moment: str, found: list[tuple[Answer, str]]) -> AskedRow:
    count = Counter(how for how, _ in found)
    return AskedRow(
        kind=kind,
        moment=moment,
        asked=len(found),
        answered=count["answered"],
        pointed=count["pointed"],
        dodged=count["dodged"],
        missed=tuple(note for how, note in found if how == "none"),
    )


# --- reactions to labelled replies

Part = Literal["working", "test", "fresh", "last"]
"""The halves of `labelled.yaml`; `fresh.yaml` and `last.yaml`, each written after the one before had been read."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A reply that was labelled by hand."""

    scenario: str
    to: str
    """Id of the line that it answers."""
    good: bool
    kind: str
    reply: str
    part: Part


HALVES_SEED = 3


@lru_cache(maxsize=1)
def labelled_replies() -> tuple[Labelled, ...]:
    """Load the labelled replies; half of the first file's scenarios, drawn with `HALVES_SEED`, are the working part."""
    first, fresh, last = (
        read_yaml(data_root() / "reactions" / f"{f}.yaml")["replies"] for f in ("labelled", "fresh", "last")
    )
    ids = sorted({entry["scenario"] for entry in first})
    random.Random(HALVES_SEED).shuffle(ids)
    working = set(ids[: len(ids) // 2])
    halves = [_labelled(e, "working" if e["scenario"] in working else "test") for e in first]
    return tuple(chain(*halves, *(_labelled(e, "fresh") for e in fresh), *(_labelled(e, "last") for e in last)))


def _labelled(entry: dict[str, Any], part: Part) -> Iterator[Labelled]:
    for label in ("good", "bad"):
        for kind, reply in entry[label]:
            yield Labelled(entry["scenario"], entry["to"], label == "good", kind, reply, part)


class ReactedRow(Record):
    """How an actor took the labelled replies of one part."""

    part: str
    replies: int
    right: int
    good: int
    good_right: int
    bad: int
    bad_right: int
    flat: int
    """Replies after which the tone did not move; none of these is right."""
    untold: int
    """Replies left out, because the actor had not told the line that they answer, though it was cued to."""
    missed: tuple[str, ...]
    """Where it went the other way or nowhere: "scenario good validates +0.0: reply -> message"."""


LEAD_IN = "And then?"
"""What comes before a reply that answers a later line than the opening."""


async def react(scenario: Scenario, make: MakeActor, entry: Labelled, seed: int) -> Reaction | None:
    """Play one labelled reply: to the opening, or to a line that the person was cued to tell first.

    None where the line was not told.
    """
    lead = [] if entry.to == "opening" else [LEAD_IN]
    said = await answer(scenario, make, [*lead, entry.reply], Cue("tell", (entry.to,)), seed)
    line = dict(scenario.items())[entry.to]
    if not told_lines(said[:-1], [(entry.to, line)]):
        return None
    return Reaction(good=entry.good, before=line.say, reply=entry.reply, after=said[-1])


async def reacted_row(make: MakeActor, part: Part, seed: int, limit: int | None = None) -> ReactedRow:
    """Play the labelled replies of one part, of the first `limit` people in it where that is given."""
    people = sorted({e.scenario for e in labelled_replies() if e.part == part})[:limit]
    entries = [e for e in labelled_replies() if e.part == part and e.scenario in people]
    played = [
        (e, await react(get_scenario(e.scenario), make, e, conversation_seed(seed, f"{e.scenario}:{e.reply}")))
        for e in entries
    ]
    found = [(e, r) for e, r in played if r is not None]
    good = [r for _, r in found if r.good]
    bad = [r for _, r in found if not r.good]
    return ReactedRow(
        part=part,
        replies=len(found),
        right=sum(r.right for _, r in found),
        good=len(good),
        good_right=sum(r.right for r in good),
        bad=len(bad),
        bad_right=sum(r.right for r in bad),
        flat=sum(r.moved == 0 for _, r in found),
        untold=len(played) - len(found),
        missed=tuple(_missed(e, r) for e, r in found if not r.right),
    )


def _missed(entry: Labelled, r: Reaction) -> str:
    label = "good" if entry.good else "bad"
    return f"{entry.scenario} {label} {entry.kind} {r.moved:+.1f}: {r.reply} -> {r.after}"
