"""A conversation as text for language models: one line a message, bounded, and what of a story it has told already."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from echo_env.agents.people import phrases
from echo_env.profiles import Line
from echo_env.roles import Exchange

TOLD_LEAST = 0.5
"""Share of a line's content words that a message must hold to have told the line: actors say it in their own words."""

_TOKEN = re.compile(r"[\u3400-\u9fff]|(?:(?![\u3400-\u9fff])[\w'])+")
_HAN = re.compile(r"[\u3400-\u9fff]")


def cut(text: str, most: int) -> str:
    """Return a text on one line, of at most so many characters; what was left out shows as an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "\u2026"


def talk(history: Sequence[Exchange], language: str, most: int = 10_000) -> str:
    """Return exchanges as text, each message on a line of its own that begins with its speaker.

    No message holds a line break, so none can pretend to be another speaker's.

    Args:
        history: Exchanges, oldest first.
        language: "en" or "zh".
        most: Characters a message.
    """
    words = phrases(language)
    lines = []
    for exchange in history:
        lines.append(f"{words.person}: {cut(exchange.user, most)}")
        lines.append(f"{words.companion}: {cut(exchange.reply, most)}")
    return "\n".join(lines)


def tokens(text: str) -> list[str]:
    """Return the words of a text in lower case; of Chinese, its characters."""
    return _TOKEN.findall(text.lower().replace("\u2019", "'"))


@lru_cache(maxsize=1 << 13)
def content(text: str) -> frozenset[str]:
    """Return what a text is about: its longer words; of Chinese, its pairs of characters."""
    found = tokens(text)
    pairs = {a + b for a, b in pairwise(found) if _HAN.match(a) and _HAN.match(b)}
    return frozenset(pairs or {t for t in found if len(t) > 3} or found)


def told(items: Iterable[tuple[str, Line]], said: Iterable[str]) -> set[str]:
    """Return the ids of the lines that a person has told, by the words alone.

    Args:
        items: Lines with their ids.
        said: The person's messages.
    """
    messages = [content(message) for message in said]
    found = set()
    for item, line in items:
        wanted = content(line.say)
        if wanted and any(len(wanted & message) >= TOLD_LEAST * len(wanted) for message in messages):
            found.add(item)
    return found


def shared_runs(text: str, other: str, length: int = 4) -> float:
    """Return the share of a text's runs of so many words that stand in another text, 0..1; 0 for a shorter text."""
    runs, others = _runs(text, length), _runs(other, length)
    return len(runs & others) / len(runs) if runs else 0.0


@lru_cache(maxsize=1 << 12)
def _runs(text: str, length: int) -> frozenset[tuple[str, ...]]:
    found = tokens(text)
    return frozenset(tuple(found[k : k + length]) for k in range(len(found) - length + 1))
