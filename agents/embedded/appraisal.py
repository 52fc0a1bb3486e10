"""How the embedded person takes a reply: their own reading of it, never the judge's.

A person notices whether they were answered, heard, advised, lectured, blamed, mocked, waved aside or misread: by a few
plain cues first, then by the manner of the reply (`manner.py`) together with how much of their own it takes up. This is
cruder than the judge's reading and differs from it on purpose: someone may feel heard by what a judge finds empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from echo_env.agents.embedded import chinese
from echo_env.agents.embedded.answers import personal_fact
from echo_env.agents.embedded.cues import cue
from echo_env.agents.embedded.language import Reading, Sentence, lexicon, plain, read, voiced_feelings, words
from echo_env.agents.embedded.manner import manner
from echo_env.profiles import CLUSTER_OF

Kind = Literal[
    "silence", "noise", "repeated", "blamed", "mocked", "dismissed", "ignored", "lectured", "advised", "misread",
    "wrong_feeling", "parroted", "understood", "heard", "asked", "kindly", "hollow",
]  # fmt: skip

_DENIED = re.compile(
    r"(\bnot|n't|\bnever|\bno)( \w+){0,3} $|\b(say|says|said|tell|tells|told|think|thinks|call|calls) $"
)
"""Before a word of blame: it is denied, or put in other people's mouths."""
_SORRY = re.compile(r"\bsorry\b|\bhere for you\b|\bnot alone\b|\bhug")


@dataclass(frozen=True, slots=True)
class Appraisal:
    """What the person made of a reply."""

    kind: Kind
    warmth: float
    """From -1 (hurt) to +1 (deeply understood)."""
    detail: str = ""
    """The word that was wrong, for "misread" and "wrong_feeling"."""
    question: Reading | None = None
    """The direct question in it, if any."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a person has in mind when a reply reaches them."""

    last: str
    """Their own last message."""
    told: frozenset[str]
    """Content stems of everything they have told so far."""
    feelings: frozenset[str]
    """What they feel about the things told so far."""
    relations: frozenset[str]
    """The people in their life."""
    earlier: frozenset[str]
    """Sentences that the companion has said before, lower case."""
    story: frozenset[str]
    """Content stems of their whole story, told or not."""
    wants_advice: bool
    """Whether they look for help with doing."""
    language: str = "en"


def appraise(reply: str, moment: Moment) -> Appraisal:
    """Take in a reply."""
    reading = read(reply[:4000], moment.language)
    asked = [s for s in reading.sentences if _asks(s, moment.language)]
    question = Reading.of(asked[-1].text, (asked[-1],)) if asked else None
    kind, warmth, detail = _take(reading, reply, moment, question)
    return Appraisal(kind, warmth, detail, question)


def _asks(sentence: Sentence, language: str) -> bool:
    if sentence.question:
        return cue("tag", language).search(plain(sentence.text)) is None
    may = language != "en" or not _REQUESTING.isdisjoint(sentence.words)
    return may and cue("request", language).search(plain(sentence.text)) is not None


_REQUESTING = frozenset({"tell", "say", "describe", "explain"})


def _take(reading: Reading, reply: str, moment: Moment, question: Reading | None) -> tuple[Kind, float, str]:
    tokens, language = reading.words, moment.language
    size = lexicon(language).size
    if not tokens:
        return ("noise" if reply.strip() else "silence"), -0.3, ""
    if len(tokens) >= size(8) and sum(len(s.telling) for s in reading.sentences) > 0.85 * len(tokens):
        return "noise", -0.3, ""
    lowered = plain(reply)
    blame = cue("blame", language).search(lowered)
    if blame and not any(p.search(lowered[: blame.start()]) for p in (_DENIED, chinese.BLAME_DENIED)):
        return "blamed", -0.9, ""
    if cue("lecture", language).search(lowered):
        return "lectured", -0.6, ""
    if any(s.text.lower() in moment.earlier for s in reading.sentences if len(s.words) >= size(4)):
        return "repeated", -0.4, ""
    strangers = sorted(r for s in reading.sentences for r in s.relations - moment.relations)
    if strangers:
        return "misread", -0.35, strangers[0]
    if _copies(reading, moment.last, language):
        return "parroted", -0.2, ""
    if question is not None and personal_fact(plain(question.text), language) and len(reading.sentences) <= 2:
        return "asked", 0.15, ""
    return _sense(reading, lowered, moment)


GROUNDED = (1.0, 2.3)
"""What a reply gains by one word of the person's own, and by two or more."""
NAMED = 1.6
"""What it gains by naming what they feel, or something near it."""
MANNER = 2.3
"""Weight of its manner."""
ENOUGH = 1.2
"""What makes a reply welcome. These were fitted, and rounded, on labelled replies."""
WRONG_LIGHT = 1.0
"""What it loses by naming joy, pride or relief where there is none."""
SLIGHTED = 1.5
"""What a phrase takes away that waves aside or makes fun."""
INTERROGATES = 3
"""Questions in one reply that make it an interrogation."""
OFFHAND = 0.9
"""What it loses by speaking offhand."""
BESIDE = 0.7
"""What it gains by a speaker who puts themselves beside the person."""
COLD_ASKING, CURT_ASKING = -1.2, -0.4
"""Manner below which a mere question is taken ill: one about the person's story, and any other."""


def _sense(reading: Reading, lowered: str, moment: Moment) -> tuple[Kind, float, str]:
    """Weigh manner, ground and feelings of a reply that no plain cue has settled."""
    language = moment.language
    echoed = reading.content & read(moment.last, language).content
    known = reading.content & moment.told
    named = reading.feelings
    near = {CLUSTER_OF[f] for f in named} & {CLUSTER_OF[f] for f in moment.feelings}
    exact = named & (moment.feelings | voiced_feelings(moment.last, language))
    reader = manner(language)
    heard = reader.hear(reading.sentences, moment.story)
    questions = lowered.count("?") + lowered.count("\uff1f")
    slighted = questions >= INTERROGATES or cue("slight", language).search(lowered) is not None
    advises = cue("advice", language).search(lowered) is not None
    offhand = cue("offhand", language).search(lowered) is not None
    ill = COLD_ASKING if reading.content & moment.story else CURT_ASKING
    if (
        not (slighted or advises or offhand)
        and heard.warmth > ill
        and all(_asks(s, language) for s in reading.sentences)
    ):
        return "asked", 0.35 if known else 0.15, ""
    welcome = MANNER * heard.warmth
    if known:
        welcome += GROUNDED[min(len(known), 2) - 1]
    if near or exact:
        welcome += NAMED
    elif named and all(CLUSTER_OF[f] == "bright" for f in named):
        welcome -= WRONG_LIGHT
    if slighted:
        welcome -= SLIGHTED
    if offhand:
        welcome -= OFFHAND
    if cue("beside", language).search(lowered):
        welcome += BESIDE
    advice = (0.25 if moment.wants_advice else -0.25) + (0.1 if known else -0.1)
    if welcome < ENOUGH:
        if named and not near and not exact and len(named) <= 2 and not any(s.question for s in reading.sentences):
            return "wrong_feeling", -0.15, sorted(named)[0]
        if advises and not slighted:
            return "advised", advice, ""
        return _cold(reader.coldest(heard), welcome, advice, lowered)
    if exact and len(named) <= 2:
        return "understood", 1.0 if known else 0.5, ""
    if advises:
        return "advised", advice, ""
    if len(echoed) >= 2 or (echoed and near) or (len(known) >= 2 and near):
        return "heard", 0.6, ""
    if any(s.question for s in reading.sentences):
        return "asked", 0.35 if known else 0.15, ""
    return ("heard", 0.4, "") if known else ("kindly", 0.05, "")


_WARMTH: dict[str, tuple[Kind, float]] = {
    "blamed": ("blamed", -0.9),
    "mocked": ("mocked", -0.7),
    "dismissed": ("dismissed", -0.5),
    "lectured": ("lectured", -0.6),
    "ignored": ("ignored", -0.25),
}


def _cold(nearest: str, welcome: float, advice: float, lowered: str) -> tuple[Kind, float, str]:
    if welcome < ENOUGH / 2:
        if nearest == "advised":
            return "advised", advice, ""
        if nearest in _WARMTH:
            kind, warmth = _WARMTH[nearest]
            return kind, warmth, ""
    return "hollow", -0.05 if _SORRY.search(lowered) or chinese.SORRY.search(lowered) else -0.15, ""


def _copies(reading: Reading, last: str, language: str) -> bool:
    mine, theirs, run = words(last, language), reading.words, lexicon(language).size(5)
    runs = {mine[i : i + run] for i in range(len(mine) - run + 1)}
    hits = sum(theirs[i : i + run] in runs for i in range(len(theirs) - run + 1))
    return len(theirs) > run and hits >= 0.4 * max(1, len(theirs) - run + 1)
