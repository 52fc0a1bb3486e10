"""What a direct question asks of a person, and which part of their profile answers it."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from echo_env.agents.embedded.language import Reading, lexicon, read
from echo_env.profiles import Line
from echo_env.roles import ActorProfile

Fact = Literal["age", "name", "job", "place", "family"]

_PERSONAL: tuple[tuple[Fact, re.Pattern[str]], ...] = (
    (
        "age",
        re.compile(
            r"\bhow old are you\b|\byour age\b|\bwhat age (are you|would you)|\bhow many years old\b|\bwhen were you born\b"
            r"|\bwhat year were you born\b|\bare you in your (teens|twenties|thirties|forties|fifties|sixties|seventies)\b"
            r"|\byour (birthday|date of birth)\b|\bhow old (were|would) you (say|be)\b"
        ),
    ),
    (
        "name",
        re.compile(
            r"\b(your (first |full |own |last )?name)\b|\bwhat (should|shall|can|may|do|does|would|am)( i| people| they|"
            r" your friends| everyone)? (to )?(call|calling) you\b|\bwhat do (your friends|people|they) call you\b"
            r"|\bwho am i (talking|speaking|writing|chatting) (to|with)\b|\bwhat are you called\b|\bhow (should|may|can) i"
            r" (call|address) you\b|\bwho are you\b"
        ),
    ),
    (
        "job",
        re.compile(
            r"\bwhat('s| is| was) your (job|work|profession|trade|occupation|line of work|role)\b"
            r"|\bwhat do you do( for (a living|work)|,? work\W?wise| professionally)?\s*\?|\bdo for a living\b"
            r"|\bwhat (kind|sort|line|type) of (work|job)\b|\bwhere do you work\b|\bdo you (have a job|work)\s*\?"
            r"|\b(earn|make) (your|a) (money|living)\b|\bwhat is it (that )?you do\b|\bwhat do you work (as|in)\b"
            r"|\byour (occupation|profession)\b|\bare you (working|employed)\b"
        ),
    ),
    (
        "place",
        re.compile(
            r"\bwhere (do|are) you (live|living|from|based|at home|located)\b|\bwhere do you come from\b|\bwhere are you\s*\?"
            r"|\b(which|what) (town|city|country|place|part of the \w+) (do|are) you\b|\bwhere in the world\b"
            r"|\bwhere('s| is) (your )?home\b"
        ),
    ),
    (
        "family",
        re.compile(
            r"\bdo you have (any )?(a )?(family|children|kids|brothers?|sisters?|siblings|sons?|daughters?|partner|wife|husband|"
            r"parents|pets?)\b|\bhave you (got )?(any )?(a )?(family|children|kids|brothers?|sisters?|siblings|partner)\b"
            r"|\b(is|are) (there )?(anyone|anybody|someone|people) (close|near|at home|with you)\b|\bwho is in your family\b"
            r"|\bare you (married|single|divorced|in a relationship|seeing (anyone|someone)|an only child)\b"
            r"|\b(is|are) your (mother|father|parents|mum|mom|dad)( still)? (alive|living|around)\b"
            r"|\bdo you live (alone|by yourself|with)\b|\btell me about your (family|parents)\b|\bwho do you live with\b"
        ),
    ),
)
_OPEN = re.compile(
    r"\b(how (are|were|do|did|does|was|is|has)\b.{0,60}\b(you|that|it|this)\b.{0,30}\b(feel\w*|like|cop\w+|hold\w*|manag\w+|doing)"
    r"|how are you|feel\w*|what('s| is| was) (it|that|this) like|hardest|mean to you|means to you|(go|goes|going|went) through"
    r"|do you (want|need|think|hope|wish|miss|make of)|would you|what happened (then|next|after that|there)?\s*\?|on your mind|like to"
    r"|tell me (more|about it|about that|how|what)|go on|what else|and then|want to (talk|tell|say)|would it|would help"
    r"|did (it|that) do to you|what do you make|is it that|is it more|which part|first)"
)
"""Questions that want the story to go on, not a fact."""


def personal_fact(asked: str) -> Fact | None:
    """Return the fact about the person that a question, in plain lower case, asks for."""
    return next((fact for fact, pattern in _PERSONAL if pattern.search(asked)), None)


def is_open(asked: str) -> bool:
    """Whether a question, in plain lower case, only asks to go on."""
    return _OPEN.search(asked) is not None


_PLACE = re.compile(r"\b(?:in|near|from|of) ((?:[A-Z][\w'-]+)(?:,? [A-Z][\w'-]+)*)|, ([A-Z][\w'-]+)$")


def place_of(job: str) -> str:
    """Return the place that a job's description names; empty where it names none."""
    found = list(_PLACE.finditer(job))
    return (found[-1][1] or found[-1][2]) if found else ""


_FAMILY_ASKED = (
    (re.compile(r"\b(married|single|divorced|relationship|seeing|partner|wife|husband)\b"), ("wife", "husband", "partner")),
    (re.compile(r"\b(child|children|kids?|sons?|daughters?)\b(?<!only child)"), ("son", "daughter")),
    (re.compile(r"\b(brothers?|sisters?|siblings?|only child)\b"), ("brother", "sister")),
    (re.compile(r"\b(parents|mother|father|mum|mom|dad)\b"), ("mother", "father")),
    (re.compile(r"\bpets?\b"), ("dog", "cat")),
    (re.compile(r""), ("wife", "husband", "partner", "son", "daughter", "mother", "father", "sister", "brother")),
)


def family_asked(profile: ActorProfile, asked: str) -> str:
    """Return who of the person's own family a question is about, in their own word; empty where there is nobody."""
    own = _own_family(profile)
    kinds = next(kinds for pattern, kinds in _FAMILY_ASKED if pattern.search(asked))
    return next((own[k] for k in kinds if k in own), "")


@lru_cache(maxsize=1024)
def _own_family(profile: ActorProfile) -> dict[str, str]:
    """Who the person calls their own, by kind of relation, in the word they use."""
    of = lexicon(profile.language).relation_of
    found: dict[str, str] = {}
    for _, line in profile.lines:
        for word in re.findall(r"\b(?:[Mm]y|[Oo]ur) ([\w-]+)", line.say):
            if word in of:
                found.setdefault(of[word], word)
    return found


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


SURE = 0.5
"""Share of a question's weight that a line must share to be its answer."""
UNHEARD_WORD = 0.5
"""Weight of a word of the question that the story lacks: it may be a paraphrase."""


TOLD_FIRST = 0.15
"""What a line that was told gains: one asks about what one has heard."""


def best_line(profile: ActorProfile, question: Reading, told: Container[str]) -> tuple[str, Line] | None:
    """Return the line that a question asks for, told ones included; None where none is near enough."""
    index = index_of(profile)
    weights = {s: index.weight.get(s, UNHEARD_WORD) for s in question.content}
    total = sum(weights.values())
    if not total:
        return None
    shares = {i: sum([weights[s] for s in question.content & c]) / total for i, c in index.contents.items()}
    best = max(shares, key=lambda i: shares[i] + (TOLD_FIRST if i in told else 0.0))
    return (best, dict(profile.lines)[best]) if shares[best] >= SURE else None


_WHO = re.compile(
    r"^(?:so |and )?(?:who|what) (?:is|are|was) (?:this |that )?([A-Z]\w+)(?: to you)?\s*\?|^how do you know ([A-Z]\w+)\s*\?"
    r"|^tell me (?:more )?about ([A-Z]\w+)[.?!]", re.IGNORECASE,
)  # fmt: skip


def name_asked(question: Reading) -> str:
    """Return the name of somebody whom a question asks about ("Who is Moira?"); empty where it asks about none."""
    found = _WHO.search(question.text)
    name = next(filter(None, found.groups()), "") if found else ""
    return name if name[:1].isupper() else ""


def lines_with(profile: ActorProfile, name: str) -> list[tuple[str, Line]]:
    """Return the lines that mention a name."""
    return [(i, line) for i, line in profile.lines if re.search(rf"\b{re.escape(name)}\b", line.say)]
