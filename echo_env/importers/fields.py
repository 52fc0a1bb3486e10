"""Reading other projects' files: lenient about spelling, strict about sense.

A fault names the file, the place in it, the field and what was expected.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo_env.errors import RecordError


def found_files(path: Path, pattern: str, what: str) -> list[Path]:
    """Return the files that a path stands for: itself, or those below it that match, in order.

    Raises:
        RecordError: There is no such file or folder, or nothing in it matches.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise RecordError(f"{path}: there is no such file or folder", f"expected {what}")
    files = sorted(path.rglob(pattern))
    if not files:
        raise RecordError(f"{path}: holds no file {pattern}", f"expected {what}")
    return files


@dataclass(frozen=True, slots=True)
class Entry:
    """A JSON object of a file, with the place it stands at."""

    where: str
    data: dict[str, Any]

    def get(self, *names: str) -> Any:
        """Return the first of these fields that is there and not null; None where there is none."""
        return next((self.data[name] for name in names if self.data.get(name) is not None), None)

    def require(self, *names: str) -> Any:
        """Return the first of these fields that is there.

        Raises:
            RecordError: There is none.
        """
        found = self.get(*names)
        if found is None:
            wanted = " or ".join(f"'{name}'" for name in names)
            has = ", ".join(sorted(map(str, self.data)))[:200] or "nothing"
            raise RecordError(f"{self.where}: has no {wanted}; it has {has}")
        return found

    def text(self, *names: str) -> str:
        """Return a text; a field of several spellings is given by all of them.

        Raises:
            RecordError: It is missing, or no text.
        """
        found = self.require(*names)
        if not isinstance(found, str) or not found.strip():
            raise RecordError(f"{self.where}: '{names[0]}' must be text, not {_shown(found)}")
        return found.strip()

    def texts(self, *names: str) -> tuple[str, ...]:
        """Return a list of texts, empty where the field is not there.

        Raises:
            RecordError: It is there and no list of texts.
        """
        found = self.get(*names) or []
        if not isinstance(found, list) or not all(isinstance(x, str) for x in found):
            raise RecordError(f"{self.where}: '{names[0]}' must be a list of texts, not {_shown(found)}")
        return tuple(x.strip() for x in found if x.strip())

    def number(self, *names: str) -> float:
        """Return a finite number.

        Raises:
            RecordError: It is missing, or none.
        """
        found = self.require(*names)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise RecordError(f"{self.where}: '{names[0]}' must be a number, not {_shown(found)}")
        return float(found)

    def entry(self, *names: str) -> Entry:
        """Return an object within.

        Raises:
            RecordError: It is missing, or no object.
        """
        return as_entry(self.require(*names), f"{self.where}: {names[0]}")

    def entries(self, *names: str) -> list[Entry]:
        """Return a list of objects within.

        Raises:
            RecordError: It is missing, or no list of objects.
        """
        found = self.require(*names)
        if not isinstance(found, list):
            raise RecordError(f"{self.where}: '{names[0]}' must be a list, not {_shown(found)}")
        return [as_entry(x, f"{self.where}: {names[0]}[{i}]") for i, x in enumerate(found)]


def as_entry(data: Any, where: str) -> Entry:
    """Return a place and what stands there.

    Raises:
        RecordError: That is no object.
    """
    if not isinstance(data, dict):
        raise RecordError(f"{where}: expected an object, found {_shown(data)}")
    return Entry(where, data)


def _shown(value: Any) -> str:
    return repr(value)[:80]


def read_json(file: Path) -> Entry:
    """Read a file that holds one JSON object.

    Raises:
        RecordError: It cannot be read, or holds something else.
    """
    try:
        return as_entry(json.loads(_read(file)), str(file))
    except ValueError as e:
        raise RecordError(f"{file}: not valid JSON: {e}") from None


def read_lines(file: Path) -> Iterator[Entry]:
    """Read a file of JSON objects, one a line, or one list of them.

    Raises:
        RecordError: It cannot be read, or a line holds something else.
    """
    text = _read(file)
    if text.lstrip()[:1] == "[":
        try:
            found = json.loads(text)
        except ValueError as e:
            raise RecordError(f"{file}: not valid JSON: {e}") from None
        yield from (as_entry(x, f"{file}: entry {i}") for i, x in enumerate(found, start=1))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield as_entry(json.loads(line), f"{file}: line {number}")
            except ValueError as e:
                raise RecordError(f"{file}: line {number}: not valid JSON: {e}") from None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise RecordError(f"{file}: cannot be read: {e}") from None


def slug(text: str, allowed: str = "a-z0-9") -> str:
    """Return a text as a part of an id or file name: what is not allowed becomes "-"."""
    return re.sub(rf"[^{allowed}]+", "-", text).strip("-.") or "unnamed"


def unique(ids: Sequence[str], what: str) -> None:
    """Refuse ids that stand twice.

    Raises:
        RecordError: Naming the first of them.
    """
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            raise RecordError(f"two {what} have the id '{name}'", "import one file, or folder of a model, at a time")
        seen.add(name)
