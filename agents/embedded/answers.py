"""What a direct question asks of a person, and which part of their profile answers it."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from echo_env.agents.embedded import chinese
from echo_env.agents.embedded.cues import Fact, cue, personal
from echo_env.agents.embedded.encoders import encoder_for, encoder_of
from echo_env.agents.embedded.language import Reading, Vec, lexicon, read, words
from echo_env.profiles import Line
from echo_env.roles import ActorProfile


def personal_fact(asked: str, language: str = "en") -> Fact | None:
    """Return the fact about the person that a question, in plain lower case, asks for."""
    return next((fact for fact, pattern in personal(language) if pattern.search(asked)), None)


def is_open(asked: str, language: str = "en") -> bool:
    """Whether a question, in plain lower case, only asks to go on."""
    return cue("open", language).search(asked) is not None


_PLACE = re.compile(r"\b(?:in|near|from|of) ((?:[A-Z][\w'-]+)(?:,? [A-Z][\w'-]+)*)|, ([A-Z][\w'-]+)$")


def place_of(job: str) -> str:
    """Return the place that a job's description names; empty where it names none."""
    found = [*_PLACE.finditer(job), *chinese.PLACE.finditer(job)]
    return next(filter(None, found[-1].groups())) if found else ""


_FAMILY_ASKED = (
    (
        re.compile(r"\b(married|single|divorced|relationship|seeing|partner|wife|husband)\b"),
        ("wife", "husband", "partner"),
    ),
    (re.compile(r"\b(child|children|kids?|sons?|daughters?)\b(?<!only child)"), ("son", "daughter")),
    (re.compile(r"\b(brothers?|sisters?|siblings?|only child)\b"), ("brother", "sister")),
    (re.compile(r"\b(parents|mother|father|mum|mom|dad)\b"), ("mother", "father")),
    (re.compile(r"\bpets?\b"), ("dog", "cat")),
    *chinese.FAMILY_ASKED,
    (re.compile(r""), ("wife", "husband", "partner", "son", "daughter", "mother", "father", "sister", "brother")),
)


def family_asked(profile: ActorProfile, asked: str) -> str:
    """Return who of the person's own family a question is about, in their own word; empty where there is nobody.

    Whether somebody lives, or lives with them, no profile says; such a question gets no name.
    """
    if re.search(r"\b(alive|living|live)\b", asked) or chinese.LIVES_ASKED.search(asked):
        return ""
    own = _own_family(profile)
    kinds = next(kinds for pattern, kinds in _FAMILY_ASKED if pattern.search(asked))
    return next((own[k] for k in kinds if k in own), "")


@lru_cache(maxsize=1024)
def _own_family(profile: ActorProfile) -> dict[str, str]:
    """Who the person calls their own, by kind of relation, in the word they use."""
    of = lexicon(profile.language).relation_of
    found: dict[str, str] = {}
    for _, line in profile.lines:
        for word in _owned(line.say, profile.language):
            if word in of:
                found.setdefault(of[word], word)
    return found


def _owned(say: str, language: str) -> list[str]:
    """Return the words that somebody says of what is theirs."""
    if language == "zh":
        return chinese.owned(words(say, language), chinese.FIRST)
    return re.findall(r"\b(?:[Mm]y|[Oo]ur) ([\w-]+)", say)


@dataclass(frozen=True, slots=True)
class Index:
    """The content of a story's lines, with how telling each word is in it."""

    contents: dict[str, frozenset[str]]
    weight: dict[str, float]


@lru_cache(maxsize=1024)
def index_of(profile: ActorProfile) -> Index:
    """Index a person's story."""
    contents = {
        i: read(line.say, profile.language).content | read(line.about, profile.language).content
        for i, line in profile.lines
    }
    count: dict[str, int] = {}
    for content in contents.values():
        for stem in content:
            count[stem] = count.get(stem, 0) + 1
    return Index(contents, {stem: 1.0 / n**0.5 for stem, n in count.items()})


SURE = 0.9
"""Nearness from which a line is a question's answer; below it a person says first that they can't really tell."""
UNHEARD_WORD = 0.5
"""Weight of a word of the question that the story lacks: it may be a paraphrase."""
CLOSE = 0.4
"""Nearness by which a second line may fall short and still be meant."""
TOLD_FIRST = 0.15
"""What a line that was told gains: one asks about what one has heard."""


@lru_cache(maxsize=256)
def _vectors_of(profile: ActorProfile) -> Vec:
    texts = (f"{line.say} {line.about}" for _, line in profile.lines)
    speaker = encoder_of(encoder_for(profile.language))
    return np.stack([speaker.encode(read(text, profile.language).words) for text in texts])


@dataclass(frozen=True, slots=True)
class Match:
    """The line that a question comes nearest to."""

    item: str
    line: Line
    sure: bool
    other: tuple[str, Line] | None
    """The next nearest, where it is nearly as near."""


def best_line(profile: ActorProfile, question: Reading, told: Container[str]) -> Match:
    """Return the line that a question comes nearest to, told ones included.

    Nearness is the share of the question's telling words that the line holds, plus the cosine of their vectors.
    """
    index = index_of(profile)
    weights = {s: index.weight.get(s, UNHEARD_WORD) for s in question.content}
    total = sum(weights.values()) or 1.0
    cosines = _vectors_of(profile) @ encoder_of(encoder_for(profile.language)).encode(question.words)
    near = [
        sum([weights[s] for s in question.content & index.contents[i]]) / total
        + float(cosine)
        + (TOLD_FIRST if i in told else 0.0)
        for (i, _), cosine in zip(profile.lines, cosines, strict=True)
    ]
    best, second = sorted(range(len(near)), key=near.__getitem__)[-1:-3:-1]
    item, line = profile.lines[best]
    close = near[best] - near[second] < CLOSE
    return Match(item, line, near[best] >= SURE, profile.lines[second] if close else None)


_WHO = re.compile(
    r"^(?:so |and )?(?:who|what) (?:is|are|was) (?:this |that )?([A-Z]\w+)(?: to you)?\s*\?"
    r"|^how do you know ([A-Z]\w+)\s*\?|^tell me (?:more )?about ([A-Z]\w+)[.?!]", re.IGNORECASE,
)  # fmt: skip


def name_asked(question: Reading) -> str:
    """Return the name of somebody whom a question asks about ("Who is Moira?"); empty where it asks about none."""
    found = _WHO.search(question.text) or chinese.WHO_ASKED.search(question.text)
    name = next(filter(None, found.groups()), "") if found else ""
    return name if name[:1].isupper() or name[:1] > "\u3400" else ""


def lines_with(profile: ActorProfile, name: str) -> list[tuple[str, Line]]:
    """Return the lines that mention a name."""
    edge = "" if profile.language == "zh" else r"\b"
    return [(i, line) for i, line in profile.lines if re.search(rf"{edge}{re.escape(name)}{edge}", line.say)]
