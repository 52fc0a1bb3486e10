"""Runs of words that companions say the same to many people, each to be one token of a tokenizer made from nothing.

A reference companion fills slots in fixed phrases. Spelt out, most of its tokens are settled by those before
them, and what there is to learn (which phrase, which of the user's words) drowns among them; as one token each
(tokens across spaces: Liu et al. 2025, SuperBPE, arXiv:2503.13423) a phrase is one decision, and a reply half as
long to read, to learn and to draw.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from echo_env.trainers.sftdata import Chat

LEAST = 0.05
"""Share of the people to whom a run is said; what one person told is said to few."""
TOLD = 0.02
"""A run that this share of the people say themselves is theirs."""
LONGEST = 16
"""Words of a run."""
WITHIN = 0.8
"""A run that stands in a longer one this often is left to it."""
BEFORE_SLOTS = frozenset(["a", "an", "the", "my", "your", "his", "her", "its", "our", "their"])
"""Words that no run ends with: they belong to what fills the slot."""
_SENTENCE = re.compile(r"[^.?!]+[.?!]*")


def superwords(chats: Sequence[Chat], most: int) -> list[str]:
    """Return the runs, those first that spare the most tokens.

    A run that opens a sentence stands without the space before it, others with it.

    Args:
        chats: Conversations of many people (`Chat.scenario`).
        most: Runs at most.
    """
    if not most:
        return []
    people: defaultdict[str, list[Chat]] = defaultdict(list)
    for chat in chats:
        people[chat.scenario].append(chat)
    said = Counter(run for own in people.values() for run in _runs(own, "companion"))
    common = {run: number for run, number in said.items() if number >= LEAST * len(people) and not _open(run)}
    told = Counter(run for own in people.values() for run in _runs(own, "user") if run in common)
    kept = {run: number for run, number in common.items() if told[run] < TOLD * len(people)}
    return sorted(_outermost(kept), key=lambda run: (-kept[run] * run.strip().count(" "), run))[:most]


def _runs(chats: Iterable[Chat], role: str) -> set[str]:
    texts = {m.text for chat in chats for m in chat.messages if m.role == role}
    return {run for text in texts for sentence in _SENTENCE.findall(text) for run in _within(sentence.split())}


def _within(words: Sequence[str]) -> Iterator[str]:
    for start in range(len(words)):
        for end in range(start + 2, min(start + LONGEST, len(words)) + 1):
            yield (" " if start else "") + " ".join(words[start:end])


def _open(run: str) -> bool:
    return run.rsplit(" ", 1)[1].lower() in BEFORE_SLOTS


def _outermost(runs: dict[str, int]) -> Iterator[str]:
    """Leave out the runs that hardly ever stand alone."""
    inner: set[str] = set()
    for run, number in runs.items():
        before = " " if run.startswith(" ") else ""
        for part in _within(run.split()):
            own = part if part.startswith(" ") else before + part
            if own != run and own in runs and number >= WITHIN * runs[own]:
                inner.add(own)
    return (run for run in runs if run not in inner)
