"""Reading data that people wrote and rated: for checking judges, never part of the product.

Conversations with ratings during the talk (ESConv), conversations that people called failed beside normal ones, pairs
of replies with preferences, replies labelled by level with the words that show it, and recorded conversations with a
simulator and its emotion points. A file that does not hold what it must is a `RecordError` that names the file and the
line or entry.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo_env.errors import RecordError
from echo_env.humanrecords import SOURCES, Labelled, Pair, Rating, Talk
from echo_env.roles import Exchange

# --- files -----------------------------------------------------------------------------------------------------------


def _found(path: Path, pattern: str, name: str) -> list[Path]:
    """Return the files that a path stands for: itself, or those in it that match."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise RecordError(f"{path}: there is no such file or folder", _advice(name))
    files = sorted(path.glob(pattern))
    if not files:
        raise RecordError(f"{path}: holds no file {pattern}", _advice(name))
    return files


def _advice(name: str) -> str:
    found = SOURCES[name]
    return f"{name} takes {found.files}; get it at {found.where} ({found.licence})"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecordError(f"{file}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as e:
        raise RecordError(f"{file}: cannot be read: {e}") from None


def _entries(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield (place, entry) of a JSON list or of JSON lines."""
    text = _text(file)
    if text.lstrip()[:1] == "[":
        try:
            for k, entry in enumerate(json.loads(text)):
                yield f"{file}: entry {k + 1}", entry
        except ValueError as e:
            raise RecordError(f"{file}: not valid JSON: {e}") from None
        return
    for k, line in enumerate(text.split("\n")):
        if line.strip():
            try:
                yield f"{file}: line {k + 1}", json.loads(line)
            except ValueError as e:
                raise RecordError(f"{file}: line {k + 1}: not valid JSON: {e}") from None


def _get(entry: Any, key: str, kind: type, where: str) -> Any:
    """Return a field of an entry, or say what is wrong with it."""
    if not isinstance(entry, dict):
        raise RecordError(f"{where}: expected an object, found {type(entry).__name__}")
    if key not in entry:
        raise RecordError(f"{where}: has no '{key}'; it has {', '.join(sorted(map(str, entry)))[:200]}")
    if not isinstance(entry[key], kind):
        raise RecordError(f"{where}: '{key}' must be a {kind.__name__}, not {entry[key]!r}"[:300])
    return entry[key]


def _strings(entry: Any, key: str, where: str) -> list[str]:
    found = _get(entry, key, list, where)
    if not all(isinstance(x, str) for x in found):
        raise RecordError(f"{where}: '{key}' must be a list of strings")
    return [str(x) for x in found]


# --- conversations ---------------------------------------------------------------------------------------------------

_SEEKER = {"usr", "seeker", "help-seeker", "user", "speaker"}
_SUPPORTER = {"sys", "supporter", "listener", "assistant", "companion"}


@dataclass(frozen=True, slots=True)
class _Said:
    """One message of a file, before messages are paired into exchanges."""

    seeker: bool
    text: str
    rating: float | None = None


def exchanges_of(messages: Sequence[tuple[bool, str]]) -> tuple[Exchange, ...]:
    """Pair messages into exchanges: what one side says in a row is one message.

    Args:
        messages: (whether the seeker says it, text). A supporter who begins answers an empty message; a last word of
            the seeker's that nobody answers is left out.
    """
    return _paired([_Said(seeker, text) for seeker, text in messages])[0]


def _paired(said: list[_Said]) -> tuple[tuple[Exchange, ...], tuple[Rating, ...]]:
    """Pair messages, and give each rating the exchanges since the last one."""
    exchanges: list[Exchange] = []
    ratings: list[Rating] = []
    user: list[str] = []
    reply: list[str] = []
    covered = 0
    for message in said:
        if message.seeker and reply:
            exchanges.append(Exchange("\n".join(user), "\n".join(reply)))
            user, reply = [], []
        if message.rating is not None and len(exchanges) > covered:
            ratings.append(Rating(covered, len(exchanges), message.rating))
            covered = len(exchanges)
        (user if message.seeker else reply).append(message.text)
    if reply:
        exchanges.append(Exchange("\n".join(user), "\n".join(reply)))
    return tuple(exchanges), tuple(ratings)


def _message(entry: Any, where: str) -> _Said:
    """Read one message of ESConv in any of its published forms."""
    speaker = str(_get(entry, "speaker", str, where)).lower()
    if speaker not in _SEEKER | _SUPPORTER:
        raise RecordError(f"{where}: unknown speaker '{speaker}'; one of {', '.join(sorted(_SEEKER | _SUPPORTER))}")
    text = str(_get(entry, "content" if "content" in entry else "text", str, where)).strip()
    marks = entry.get("annotation")
    rated = entry.get("feedback", marks.get("feedback") if isinstance(marks, dict) else None)
    return _Said(speaker in _SEEKER, text, None if rated is None else _rating(rated, where))


def _rating(value: Any, where: str) -> float:
    try:
        rated = float(value)
    except (TypeError, ValueError):
        rated = 0.0
    if not 1 <= rated <= 5:
        raise RecordError(f"{where}: 'feedback' must be a number from 1 to 5, not {value!r}")
    return rated


def _talk(where: str, entry: Any, failed: bool | None = None) -> Talk:
    dialog = _get(entry, "dialog", list, where)
    said = [_message(m, f"{where}, message {k + 1}") for k, m in enumerate(dialog)]
    exchanges, ratings = _paired(said)
    return Talk(where, exchanges, ratings, failed)


def load_esconv(path: Path) -> list[Talk]:
    """Load ESConv conversations with ratings, from a file or from all files of a folder.

    Raises:
        RecordError: A file is missing or does not hold conversations.
    """
    tokenised = path.is_dir() and any(path.glob("multiesc_*.txt"))
    files = _found(path, "multiesc_*.txt" if tokenised else "*.json", "esconv")
    talks = [_talk(where, entry) for file in files for where, entry in _entries(file)]
    rated = [t for t in talks if t.ratings]
    if not rated:
        raise RecordError(f"{path}: no conversation in it has ratings ('feedback')", _advice("esconv"))
    return rated


def load_failed(path: Path) -> list[Talk]:
    """Load failed and normal conversations of one folder: `Failed*.json`, and `test.jsonl` or `normal*`.

    Raises:
        RecordError: One of the two is missing or does not hold conversations.
    """
    failed = _found(path, "Failed*.json", "failed")
    normal = sorted([*path.glob("test.jsonl"), *path.glob("normal*.json*")])
    if not normal:
        raise RecordError(f"{path}: holds no normal conversations, test.jsonl or normal*.json", _advice("failed"))
    talks = [_talk(where, entry, True) for file in failed for where, entry in _entries(file)]
    return talks + [_talk(where, entry, False) for file in normal for where, entry in _entries(file)]


def load_sage(path: Path) -> list[Talk]:
    """Load recorded SAGE conversations with the simulated user's emotion points.

    Raises:
        RecordError: A file is missing or does not hold recordings.
    """
    talks = []
    for file in _found(path, "*_result.jsonl", "sage"):
        for where, entry in _entries(file):
            talks.append(_sage(where, _get(entry, "history", list, where)))
    return [t for t in talks if t.exchanges]


def _sage(where: str, history: list[Any]) -> Talk:
    messages: list[tuple[bool, str]] = []
    points: list[float] = []
    for k, entry in enumerate(history):
        place = f"{where}, message {k + 1}"
        user = _get(entry, "role", str, place) == "user"
        messages.append((user, str(_get(entry, "content", str, place))))
        if user:
            point = entry.get("emotion-point")
            if not isinstance(point, int | float):
                raise RecordError(f"{place}: 'emotion-point' must be a number, not {point!r}")
            points.append(float(point))
    exchanges = exchanges_of(messages)
    chinese = re.search(r"[\u4e00-\u9fff]", messages[0][1] if messages else "") is not None
    return Talk(where, exchanges, language="zh" if chinese else "en", points=tuple(points[: len(exchanges) + 1]))


# --- pairs -----------------------------------------------------------------------------------------------------------


def _context(lines: list[str], where: str) -> tuple[tuple[Exchange, ...], str]:
    """Split "Seeker: ..." lines into finished exchanges and the seeker's newest message."""
    messages: list[tuple[bool, str]] = []
    for line in lines:
        speaker, colon, text = line.partition(":")
        known = speaker.strip().lower()
        if not colon or known not in _SEEKER | _SUPPORTER:
            raise RecordError(
                f"{where}: a line of the context must begin with 'Seeker:' or 'Supporter:', not {line!r}"[:300]
            )
        messages.append((known in _SEEKER, text.strip()))
    newest: list[str] = []
    while messages and messages[-1][0]:
        newest.insert(0, messages.pop()[1])
    return exchanges_of(messages), "\n".join(newest)


def _pair(where: str, context: list[str], replies: list[str], votes: dict[str, tuple[str, ...]]) -> Pair:
    if len(replies) != 2:
        raise RecordError(f"{where}: a pair has two replies, not {len(replies)}")
    wrong = sorted({v for given in votes.values() for v in given} - {"A", "B", "tie"})
    if wrong:
        raise RecordError(f"{where}: a vote is 'A', 'B' or 'tie', not {wrong[0]!r}")
    history, user = _context(context, where)
    return Pair(where, history, user, (replies[0], replies[1]), votes)


def load_pairs(path: Path) -> list[Pair]:
    """Load pairs in the documented form, JSON lines or a list.

    Raises:
        RecordError: The file is missing or an entry is not a pair.
    """
    pairs = []
    for file in _found(path, "*.jsonl", "pairs"):
        for where, entry in _entries(file):
            given = _get(entry, "votes", dict, where)
            votes = {str(aspect): tuple(_strings(given, aspect, where)) for aspect in given}
            pairs.append(_pair(where, _strings(entry, "context", where), _strings(entry, "replies", where), votes))
    return pairs


ASPECTS = ("overall", "fluency", "identification", "comforting", "suggestion")


def load_muffin(path: Path) -> list[Pair]:
    """Load Muffin's 300 pairs: one file a rater, the same pairs in the same order.

    Raises:
        RecordError: There are no rater files, or they do not hold the same pairs.
    """
    files = _found(path, "rater_*.json", "muffin")
    raters = [list(_entries(file)) for file in files]
    if len({len(r) for r in raters}) != 1:
        counts = ", ".join(f"{f.name} {len(r)}" for f, r in zip(files, raters, strict=True))
        raise RecordError(f"{path}: the raters' files hold different numbers of pairs: {counts}")
    pairs = [_rated(rows) for rows in zip(*raters, strict=True)]
    if sum(len(p.votes["overall"]) < len(files) for p in pairs) > MOST_STRAY * len(pairs):
        raise RecordError(f"{path}: the raters' files do not hold the same pairs in the same order", _advice("muffin"))
    return pairs


MOST_STRAY = 0.05
"""Share of the pairs that a rater may have seen otherwise than the rest: the published files differ in one."""


def _rated(rows: tuple[tuple[str, Any], ...]) -> Pair:
    """Put the raters' rows of one pair together; a rater who saw other replies than most has no vote on it."""
    shown = [tuple(_strings(row, "Supporter AB", where)) for where, row in rows]
    most = max(shown, key=shown.count)
    kept = [r for r, replies in zip(rows, shown, strict=True) if replies == most]
    where, first = kept[0]
    votes = {a: tuple(str(_get(row, a, str, place)) for place, row in kept) for a in ASPECTS}
    return _pair(where, _strings(first, "context", where), list(most), votes)


# --- levels ----------------------------------------------------------------------------------------------------------

MECHANISMS = ("emotional-reactions", "interpretations", "explorations")
_COLUMNS = ("seeker_post", "response_post", "level", "rationales")


def load_levels(path: Path) -> dict[str, list[Labelled]]:
    """Load level-labelled replies: mechanism -> rows. A mechanism is told by how its file's name begins.

    Raises:
        RecordError: There is no such file, or a row does not hold what it must.
    """
    found: dict[str, list[Labelled]] = {}
    for file in _found(path, "*.csv", "epitome"):
        names = [m for m in MECHANISMS if file.name.startswith(m)]
        if names:
            found[names[0]] = list(_labelled(file))
        elif path.is_file():
            raise RecordError(f"{file}: its name must begin with one of {', '.join(MECHANISMS)}", _advice("epitome"))
    if not found:
        raise RecordError(f"{path}: holds no file of {', '.join(MECHANISMS)}", _advice("epitome"))
    return found


def _labelled(file: Path) -> Iterator[Labelled]:
    csv.field_size_limit(1 << 24)
    reader = csv.DictReader(io.StringIO(_text(file), newline=""))
    missing = [c for c in _COLUMNS if c not in (reader.fieldnames or ())]
    if missing:
        raise RecordError(f"{file}: has no column {', '.join(missing)}; it has {', '.join(reader.fieldnames or ())}")
    for row in reader:
        where = f"{file}: line {reader.line_num}"
        if any(row[c] is None for c in _COLUMNS):
            raise RecordError(f"{where}: too few columns")
        if row["level"] not in ("0", "1", "2"):
            raise RecordError(f"{where}: the level must be 0, 1 or 2, not {row['level']!r}")
        spans = tuple(s.strip() for s in row["rationales"].split("|") if s.strip())
        yield Labelled(row["seeker_post"], row["response_post"], int(row["level"]), spans)
