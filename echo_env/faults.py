"""What a role's fault is in a record, and how it is read back for a report.

One line each, parts joined by "; ": "judge: LlmFailure(timeout): no answer within 60 seconds; actor: ValueError: ...".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from echo_env.errors import EchoError, RoleFailure, redact

LONGEST = 500
"""Characters of one fault."""
_PART = "; "
_WHERE = re.compile(r"[a-z][\w-]*: [^:;]+")


def fault_of(role: str, error: Exception) -> str:
    """Say what a role's fault was: role, error, its kind where it has one; without secrets and at bounded length.

    Nothing that the error says can pass for another part: what a server answers is not to be trusted.
    """
    kind = f"({error.kind})" if isinstance(error, RoleFailure) and error.kind else ""
    said = error.message if isinstance(error, EchoError) else str(error)
    line = " ".join(redact(said).split()).replace(_PART, ", ")
    return f"{role}: {type(error).__name__}{kind}: {line}"[:LONGEST]


def joined(faults: Iterable[str]) -> str:
    """Return the faults of a turn as one text, those that are empty left out."""
    return _PART.join(fault for fault in faults if fault)


def kinds_of(failure: str) -> list[str]:
    """Return role and error of each fault in a turn's text: "judge: LlmFailure(timeout)" for example."""
    return [found[0] for part in failure.split(_PART) if (found := _WHERE.match(part))]
