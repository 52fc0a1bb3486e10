"""The errors that echo_env raises on purpose.

Every error says what happened, what was expected and what to do next; the command line prints the message without a
traceback. Anything else that escapes is a bug.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable


class EchoError(Exception):
    """Root of the tree.

    Args:
        message: What happened and what was expected. Another error of this tree is taken over: Gymnasium's workers
            raise an error anew in the caller's process, by calling its class with the error itself.
        hint: What to do about it; printed on a line of its own.
    """

    def __init__(self, message: str | EchoError, hint: str = "") -> None:
        self.message: str = message.message if isinstance(message, EchoError) else message
        self.hint: str = message.hint if isinstance(message, EchoError) else hint
        super().__init__(self.message)

    def __str__(self) -> str:
        """Return the message, followed by the hint where there is one."""
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[type[EchoError], tuple[str, str]]:
        """Pickle with both parts, so that an error crosses a worker's pipe whole."""
        return (type(self), (self.message, self.hint))


class ConfigError(EchoError):
    """An option, a name or a configuration value that cannot be used."""


class ScenarioError(EchoError):
    """A scenario, rubric or other profile file that does not hold what it must."""


class RecordError(EchoError):
    """An episode file or a run folder that cannot be read, written or resumed."""


class EpisodeOver(EchoError):
    """`step` was called on a conversation that has ended, or has not begun."""


class MissingExtra(EchoError):
    """An optional dependency is not installed. Made by `missing_extra`."""


class RoleFailure(EchoError):
    """A judge, actor or director gave no usable answer. Recorded as missing, never scored as zero."""

    kind: str = ""
    """What sort of failure, where the role can tell: "timeout" for example."""


def missing_extra(package: str, extra: str) -> MissingExtra:
    """Return the error for an optional dependency that is not installed.

    Args:
        package: The import that failed.
        extra: The extra of `echo-env` that brings it.
    """
    return MissingExtra(
        f"this needs the package '{package}', which is not installed", f"pip install 'echo-env[{extra}]'"
    )


_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


def redact(text: str) -> str:
    """Return a text without the values of environment variables that look like secrets.

    What a remote service says when it refuses may quote the key; nothing of that may reach a record or a log.
    """
    for name, value in os.environ.items():
        if len(value) >= 8 and _SECRET_NAME.search(name) and value in text:
            text = text.replace(value, "[redacted]")
    return text


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not registered, with the nearest spelling.

    Args:
        kind: What the name was to be, "policy" for example.
        name: What was asked for.
        known: What there is.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return ConfigError(
        f"unknown {kind} '{name}'", (f"did you mean '{near[0]}'? " if near else "") + f"known: {shown or 'none'}"
    )
