"""One speaker's side of recorded conversations: our runs, ESConv and SAGE. Nothing of them is shipped.

The side read is the one that looks for support: the person in our runs, the seeker of ESConv, the simulated user of
SAGE.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from echo_env.errors import RecordError
from echo_env.record import find_runs

_SEEKERS = frozenset({"usr", "seeker", "speaker", "user"})
_CJK = re.compile(r"[\u3400-\u9fff]")


@dataclass(frozen=True, slots=True)
class Side:
    """One speaker's side of many conversations."""

    name: str
    talks: tuple[tuple[str, ...], ...]
    rated: tuple[tuple[tuple[float, str], ...], ...] = ()
    """ESConv with ratings: by conversation, how a seeker rated what they had heard (1-5), and what they said next."""

    @property
    def chinese(self) -> bool:
        """Whether most messages hold Chinese characters."""
        messages = [m for talk in self.talks for m in talk]
        return sum(bool(_CJK.search(m)) for m in messages) > len(messages) / 2


def read_side(path: Path) -> Side:
    """Read the seekers of a file or a folder of runs.

    Args:
        path: A folder of `echo-env run`, or a JSON or JSON-lines file of conversations: ESConv's ("dialog", with
            "speaker" and "text" or "content") or SAGE's ("history", with "role" and "content").

    Raises:
        RecordError: There is no such file, or it holds something else; the message names file and entry.
    """
    rated: list[tuple[tuple[float, str], ...]] = []
    if path.is_dir():
        talks = [tuple(t.user for t in e.turns) for run in find_runs(path) for e in run.episodes()]
    else:
        entries = list(_entries(path))
        talks = [_seeker(entry, f"{path}, entry {k + 1}") for k, entry in enumerate(entries)]
        rated = [_ratings(entry) for entry in entries]
    found = tuple(t for t in talks if t)
    if not found:
        raise RecordError(f"{path} holds no message of a seeker")
    return Side(path.name, found, tuple(r for r in rated if r))


def _entries(path: Path) -> Iterator[Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise RecordError(f"{path} cannot be read: {e}") from None
    if text.lstrip().startswith("["):
        try:
            yield from json.loads(text)
        except ValueError as e:
            raise RecordError(f"{path}: not valid JSON: {e}") from None
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as e:
                raise RecordError(f"{path}, line {number}: not valid JSON: {e}") from None


def _seeker(entry: Any, where: str) -> tuple[str, ...]:
    said = (entry.get("dialog") or entry.get("history")) if isinstance(entry, dict) else None
    if not isinstance(said, list) or not all(isinstance(m, dict) for m in said):
        raise RecordError(f"{where}: no conversation", 'a conversation stands under "dialog" or "history"')
    lines = [(str(m.get("speaker", m.get("role", ""))), m.get("text", m.get("content"))) for m in said]
    if any(not isinstance(text, str) for _, text in lines):
        raise RecordError(f"{where}: a message without words", 'the words stand under "text" or "content"')
    lines = [(who, untokenised(str(text))) for who, text in lines]
    turns = groupby(lines, key=lambda line: line[0] in _SEEKERS)
    joined = [" ".join(str(text).strip() for _, text in group) for seeker, group in turns if seeker]
    return tuple(m for m in joined if m)


def _ratings(entry: dict[str, Any]) -> tuple[tuple[float, str], ...]:
    """The rated moments of a conversation in ESConv's form; a message without a number from 1 to 5 has none."""
    found = []
    for m in entry.get("dialog") or ():
        rating = m.get("feedback", (m.get("annotation") or {}).get("feedback"))
        if str(rating) in "12345" and str(rating):
            found.append((float(rating), untokenised(str(m.get("text", m.get("content"))))))
    return tuple(found)


_SPACED = re.compile(r" ([.,?!;:])(?=\s|$)")
_APOSTROPHE = re.compile(r"(?<=\w) ?' ?(?=(?:s|t|m|d|re|ve|ll)\b)")


def untokenised(text: str) -> str:
    """Undo the spaces that a tokeniser put before signs: "I ' m tired ." -> "I'm tired."."""
    return _APOSTROPHE.sub("'", _SPACED.sub(r"\1", text.replace(" n't", "n't")))
