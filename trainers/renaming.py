"""Rarer words of a conversation exchanged for others, the same throughout it: what is taken up must be read there.

The embedded people draw their lines from a bank, so every line of the train split stands in many conversations, and a
model learns by heart which word a companion takes up from which line: with people that it has not met, it then names
things of others. Under other names, the only place to find the word is the conversation.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from echo_env.agents.embedded.language import lexicon
from echo_env.trainers.sftdata import Chat
from echo_env.types import Message

COMMON = 0.1
"""Words of more than this share of the conversations keep their place: those of grammar and of plain feelings."""
TOLD = 0.9
"""A word is the users' own where it is they who say it first in this share of its conversations; the companions' own
phrases keep their words."""
TAKEN_UP = 0.35
"""And a companion says it afterwards in at least this share of them: nouns mostly. Words that are never taken up tell
what kind of thing is being told, a wish or a rule, and keep that meaning. (A companion that repeats everything has a
fifth of the conversations where this was set.)"""
MADE_UP = 0.6
"""Share of the new names that are put together from the halves of two words: people that are not met yet use words
that the tokenizer has not met, and takes for several."""
SHORTEST = 3
_WORD = re.compile(rf"[^\W\d_]{{{SHORTEST},}}")


def renamed(chats: Sequence[Chat], share: float, seed: int) -> list[Chat]:
    """Exchange words, the same for the same seed.

    Args:
        chats: Conversations; which words are rare, and whose, is counted in them.
        share: Probability with which such a word of a conversation gets another name, 0..1.
        seed: Seed of the draw.
    """
    if not share:
        return list(chats)
    words = _told(chats)
    known = frozenset(words)
    return [_renamed(chat, share, words, known, random.Random(f"{seed}/renamed/{chat.id}")) for chat in chats]


def _told(chats: Sequence[Chat]) -> list[str]:
    """Return the words that are rare enough, the users' own and taken up, in lower case."""
    met, told, taken = Counter[str](), Counter[str](), Counter[str]()
    for chat in chats:
        first: dict[str, str] = {}
        again: set[str] = set()
        for message in chat.messages:
            for word in _WORD.findall(message.text.lower()):
                if first.setdefault(word, message.role) != message.role:
                    again.add(word)
        met.update(first.keys())
        told.update(word for word, role in first.items() if role == "user")
        taken.update(word for word in again if first[word] == "user")
    return sorted(
        word
        for word, number in met.items()
        if number <= COMMON * len(chats)
        and told[word] >= TOLD * number
        and taken[word] >= TAKEN_UP * number
        and word not in lexicon().feeling_of  # a feeling keeps its name: it is known by it, and named back
    )


def _renamed(chat: Chat, share: float, words: Sequence[str], known: frozenset[str], rnd: random.Random) -> Chat:
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        word = found[0]
        own = word.lower()
        if own not in names:
            other = own in known and rnd.random() < share
            names[own] = _name(words, rnd) if other else own
        new = names[own]
        if new == own:
            return word
        return new.upper() if word.isupper() else new.capitalize() if word[0].isupper() else new

    return replace(chat, messages=tuple(Message(role=m.role, text=_WORD.sub(name, m.text)) for m in chat.messages))


def _name(words: Sequence[str], rnd: random.Random) -> str:
    first = rnd.choice(words)
    if rnd.random() >= MADE_UP:
        return first
    last = rnd.choice(words)
    return first[: (len(first) + 1) // 2] + last[len(last) // 2 :]
