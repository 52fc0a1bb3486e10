"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


class Part(StrEnum):
    """Halves of a labelled set: one to look at, one that is read once."""

    working = "working"
    test = "test"
    all = "all"
