"""How the embedded person takes a reply: their own reading of it, never the judge's.

A person notices whether they were answered, heard, advised, lectured, blamed or misread. This is cruder than the
judge's reading and differs from it on purpose: someone may feel heard by what a judge finds empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from echo_env.agents.embedded.language import Reading, plain, read, voiced_feelings, words
from echo_env.profiles import CLUSTER_OF

Kind = Literal[
    "silence", "noise", "repeated", "blamed", "lectured", "advised", "misread", "wrong_feeling", "parroted",
    "understood", "heard", "asked", "hollow",
]  # fmt: skip

_BLAME = re.compile(
    r"\byou('re| are|r)? (just |only |simply )*(overreact\w*|too sensitive|pathetic|ridiculous|so dramatic|being \w+)"
    r"|\b(is|was|'s|all|clearly) your (own )?fault|\b(get over it|snap out|grow up|bright side|could be worse)\b"
    r"|\bworse off\b|\bbig deal\b|\bstop (crying|whining|complaining)\b|\b(move on|calm down|at least you)\b"
)
_DENIED = re.compile(
    r"(\bnot|n't|\bnever|\bno)( \w+){0,3} $|\b(say|says|said|tell|tells|told|think|thinks|call|calls) $"
)
"""Before a word of blame: it is denied, or put in other people's mouths."""
_LECTURE = re.compile(
    r"\b(you (must|need to|have to|ought to) (learn|accept|understand|reali[sz]e|remember|forgive|let|focus|be|stop)"
    r"|life is about|happiness (is|comes)|the key (is|to)|it('s| is) important to|(research|studies) (shows?|says?)"
    r"|gratitude|take responsibility|always remember|mindset)"
)
_ADVICE = re.compile(
    r"\b(you (should|could try|might want to|need to|ought to)|have you (tried|considered|thought about)|why don't you"
    r"|i('d)? (suggest|recommend|advise)|try (to|and|\w+ing)|make a (list|plan)|how about|it (may|might) help to)\b"
)
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
    """The question in it, if any."""


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
    wants_advice: bool
    """Whether they look for help with doing."""
    language: str = "en"


def appraise(reply: str, moment: Moment) -> Appraisal:
    """Take in a reply."""
    reading = read(reply[:4000], moment.language)
    asked = [s for s in reading.sentences if s.question]
    question = Reading.of(asked[-1].text, (asked[-1],)) if asked else None
    kind, warmth, detail = _take(reading, reply, moment)
    return Appraisal(kind, warmth, detail, question)


def _take(reading: Reading, reply: str, moment: Moment) -> tuple[Kind, float, str]:
    lowered = plain(reply)
    tokens = reading.words
    if not tokens:
        return ("noise" if reply.strip() else "silence"), -0.3, ""
    if len(tokens) >= 8 and sum(len(s.telling) for s in reading.sentences) > 0.85 * len(tokens):
        return "noise", -0.3, ""
    blame = _BLAME.search(lowered)
    if blame and not _DENIED.search(lowered[: blame.start()]):
        return "blamed", -0.9, ""
    if _LECTURE.search(lowered):
        return "lectured", -0.6, ""
    if any(s.text.lower() in moment.earlier for s in reading.sentences if len(s.words) >= 4):
        return "repeated", -0.4, ""
    strangers = sorted(r for s in reading.sentences for r in s.relations - moment.relations)
    if strangers:
        return "misread", -0.35, strangers[0]
    echoed = reading.content & read(moment.last, moment.language).content
    known = reading.content & moment.told
    named = reading.feelings
    if named & (moment.feelings | voiced_feelings(moment.last, moment.language)) and len(named) <= 2:
        return "understood", 1.0 if known else 0.5, ""
    near = {CLUSTER_OF[f] for f in named} & {CLUSTER_OF[f] for f in moment.feelings}
    if _ADVICE.search(lowered):
        return "advised", (0.25 if moment.wants_advice else -0.25) + (0.1 if known else -0.1), ""
    if named and not near and len(named) <= 2 and not any(s.question for s in reading.sentences):
        return "wrong_feeling", -0.15, sorted(named)[0]
    if _copies(reading, moment.last):
        return "parroted", -0.2, ""
    if len(echoed) >= 2 or (echoed and near) or (len(known) >= 2 and near):
        return "heard", 0.6, ""
    if any(s.question for s in reading.sentences):
        return "asked", 0.35 if known else 0.15, ""
    if echoed or len(known) >= 2:
        return "heard", 0.4, ""
    return "hollow", -0.05 if _SORRY.search(lowered) else -0.15, ""


def _copies(reading: Reading, last: str) -> bool:
    mine, theirs = words(last), reading.words
    runs = {mine[i : i + 5] for i in range(len(mine) - 4)}
    hits = sum(theirs[i : i + 5] in runs for i in range(len(theirs) - 4))
    return len(theirs) >= 6 and hits >= 0.4 * max(1, len(theirs) - 4)
