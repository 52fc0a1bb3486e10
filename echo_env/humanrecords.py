"""Which data of people's judges are checked with: sources with their licences, records, and the split in two parts.

None of the data is shipped; each source says where to get it. `humandata` reads the files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from echo_env.errors import ConfigError, unknown_name
from echo_env.roles import Exchange
from echo_env.types import Record

SPLIT_SEED = 3
"""Seed of the split of every data set into a working and a test part."""

Part = Literal["working", "test", "all"]
PARTS: tuple[Part, ...] = ("working", "test", "all")


class Source(Record):
    """One kind of data: what it is, under which licence it stands and where to get it."""

    name: str
    what: str
    licence: str
    where: str
    files: str
    """What `--data` takes."""


SOURCES: dict[str, Source] = {
    s.name: s
    for s in (
        Source(
            name="esconv",
            what="emotional support conversations; seekers rated the supporter (1-5) during the talk",
            licence="CC BY-NC 4.0, academic use only: check with it, train nothing that is shipped on it",
            where="github.com/thu-coai/Emotional-Support-Conversation; tokenised, with ratings:"
            " github.com/lwgkzl/MultiESC",
            files="a JSON list or JSON-lines file of conversations, or a folder of them",
        ),
        Source(
            name="failed",
            what="conversations that people called failed, beside normal ones",
            licence="CC BY-NC 4.0, academic use only: check with it, train nothing that is shipped on it",
            where="github.com/thu-coai/Emotional-Support-Conversation (FailedESConv.json and ESConv)",
            files="a folder with FailedESConv.json and test.jsonl (normal ones)",
        ),
        Source(
            name="muffin",
            what="pairs of replies; three raters preferred A, B or neither on five aspects",
            licence="MIT (repository), contexts are ESConv text: CC BY-NC 4.0",
            where="github.com/wangjs9/Muffin (Human_Rating/samples)",
            files="a folder with rater_*.json",
        ),
        Source(
            name="pairs",
            what="pairs of replies with anybody's preferences",
            licence="yours",
            where="your own file",
            files='JSON lines: {"context": ["Seeker: ...", "Supporter: ...", ...], "replies": ["...", "..."],'
            ' "votes": {"overall": ["A", "tie", "B"]}}',
        ),
        Source(
            name="epitome",
            what="seeker posts and responses, labelled 0-2 with the words that show it, for three mechanisms",
            licence="no licence file in its repository: for checking only",
            where="github.com/behavioral-data/Empathy-Mental-Health (dataset/*-reddit.csv)",
            files="a folder with emotional-reactions*.csv, interpretations*.csv, explorations*.csv, or one of them;"
            " columns seeker_post, response_post, level, rationales",
        ),
        Source(
            name="sage",
            what="conversations with SAGE's simulated users; emotion points each turn, a model's and not people's",
            licence="MIT",
            where="github.com/Tencent/digitalhuman (SAGE/dataset)",
            files="a *_result.jsonl file or a folder of them",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Rating:
    """A seeker's rating of what the supporter said since the last one."""

    start: int
    """First exchange that it covers."""
    stop: int
    """First exchange that it does not cover."""
    value: float


@dataclass(frozen=True, slots=True)
class Talk:
    """A whole conversation."""

    id: str
    exchanges: tuple[Exchange, ...]
    ratings: tuple[Rating, ...] = ()
    failed: bool | None = None
    """Whether people called it failed; None where they were not asked."""
    language: str = "en"
    points: tuple[float, ...] = ()
    """SAGE: emotion (0..100) before each reply, and after the last."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two replies to one conversation, and who preferred which."""

    id: str
    history: tuple[Exchange, ...]
    user: str
    replies: tuple[str, str]
    votes: dict[str, tuple[str, ...]] = field(hash=False)
    """Aspect -> one vote a rater: "A", "B" or "tie"."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A reply to a post with a level."""

    post: str
    reply: str
    level: int
    """0, 1 or 2."""
    spans: tuple[str, ...]
    """The words of the reply that show it."""


def part_of(key: str, seed: int = SPLIT_SEED) -> Part:
    """Return the part, "working" or "test", of a conversation or post by its text.

    Half and half, by the first byte of the SHA-256 of "seed:text" with white space made single.
    """
    text = " ".join(key.split())
    return "working" if hashlib.sha256(f"{seed}:{text}".encode()).digest()[0] < 128 else "test"


T = TypeVar("T")


def in_part(items: Iterable[T], key: Callable[[T], str], part: Part) -> list[T]:
    """Return the items of a part."""
    return [item for item in items if part == "all" or part_of(key(item)) == part]


def talk_key(talk: Talk) -> str:
    """What a conversation is split by: its first messages."""
    return " ".join(f"{e.user} {e.reply}" for e in talk.exchanges[:3]).lower()


def source(name: str) -> Source:
    """Return a source by name.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in SOURCES:
        raise unknown_name("data set", name, SOURCES)
    return SOURCES[name]


def need_part(part: str) -> Part:
    """Return a part by name.

    Raises:
        ConfigError: It is none of "working", "test" and "all".
    """
    for known in PARTS:
        if part == known:
            return known
    raise ConfigError(f"unknown part '{part}'", f"one of {', '.join(PARTS)}")
