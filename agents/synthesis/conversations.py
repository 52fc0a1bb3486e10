"""Conversations in chat format, one a line, as trainers of language models read them.

    {"messages": [{"role": "system" | "user" | "assistant", "content": ...}, ...], "meta": {"id": ..., ...}}

A line is written whole and is on the disk before the next is begun; what a kill tore off is cut when the file is
opened again. A conversation that failed is counted and never written.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]

from echo_env.driving import all_or_none
from echo_env.errors import RecordError, RoleFailure
from echo_env.types import Record, Text, Usage
from echo_env.version import VERSION


class ChatLine(Record):
    """One message of a written conversation."""

    role: Literal["system", "user", "assistant"]
    content: Text


class Meta(Record):
    """Where a conversation comes from."""

    id: str
    source: Literal["synthesis", "recorded"]
    language: str
    seed: int
    number: int
    facets: dict[str, Any]
    """What was drawn: the facets, or scenario and domain."""
    models: dict[str, str]
    """Who spoke and directed, by role: names of models, ids of policy, actor and director."""
    prompts: dict[str, str]
    """Id and digest of each role's prompt."""
    turns: int
    """Replies of the companion."""
    end: str
    """Who or what ended it: "director", "length", or how the recorded conversation ended."""
    closing: Text = ""
    """What the person said after the last reply, in a recorded conversation."""
    rewards: tuple[float | None, ...] = ()
    """Of each reply of a recorded conversation; None where it was not judged."""
    usage: Usage = Usage()
    """What the conversation took when its requests were first made."""
    echo_env: str = VERSION


class Conversation(Record):
    """One line."""

    messages: tuple[ChatLine, ...]
    meta: Meta


class ConversationFile:
    """A file of conversations, opened for writing.

    Args:
        path: The file.
        resume: Go on with the one that is there.

    Raises:
        RecordError: It is there and `resume` was not given, another process writes to it, or a line of it is no
            conversation; the message names the line.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # unbuffered: what a full disk refuses must not wait in a buffer for `close` to fail on
            self._file = _opened(path, resume)
        except FileExistsError:
            raise RecordError(f"{path} exists already", "give --resume to go on with it, or another --out") from None
        except OSError as e:
            raise _disk_error(path, e) from None
        try:
            self._lock()
            self.ids = self._read()
        except BaseException:
            self._file.close()
            raise

    def append(self, conversation: Conversation) -> None:
        """Write one conversation and make sure that it is on the disk.

        Raises:
            RecordError: The disk does not take it.
        """
        line = conversation.model_dump_json().encode() + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as e:
            raise _disk_error(self.path, e) from None
        self.ids.add(conversation.meta.id)

    def __enter__(self) -> ConversationFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    def _lock(self) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RecordError(f"another process is writing to {self.path}", "wait for it") from None

    def _read(self) -> set[str]:
        """Return the ids of what is there, cut a torn last line, and stand at the end."""
        ids, whole = set(), 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    break
                ids.add(_id_of(line, f"{self.path}, line {number}"))
                whole += len(line)
        self._file.truncate(whole)
        self._file.seek(whole)
        return ids


def _opened(path: Path, resume: bool) -> FileIO:
    if path.exists() and (resume or not path.stat().st_size):  # an empty one is of a start that came to nothing
        return path.open("r+b", buffering=0)
    return path.open("xb", buffering=0)


def _id_of(line: bytes, where: str) -> str:
    try:
        found = json.loads(line)["meta"]["id"]
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, str):
        raise RecordError(f"{where}: not a conversation of ours", "use another --out")
    return found


def _disk_error(path: Path, e: OSError) -> RecordError:
    return RecordError(
        f"{path} cannot be written: {e.strerror or e}", "free some space or choose another --out, then give --resume"
    )


@dataclass(frozen=True, slots=True)
class Job:
    """A conversation to be had."""

    id: str
    play: Callable[[], Awaitable[Conversation]]


@dataclass(frozen=True, slots=True)
class Progress:
    """Told after every conversation."""

    done: int
    """Conversations written, or failed."""
    total: int
    failed: int
    usage: Usage
    """Of what was written in this call, answers from the cache included."""


async def write_all(
    jobs: Sequence[Job], file: ConversationFile, *, concurrency: int, tell: Callable[[Progress], None]
) -> tuple[str, ...]:
    """Play conversations, so many at a time, and write each as it ends.

    Args:
        jobs: What to play; whatever is in the file already is left out by the caller.
        file: Where to.
        concurrency: Conversations under way at once.
        tell: Called after every conversation.

    Returns:
        One line for each conversation that failed.

    Raises:
        RecordError: The disk does not take one.
        ConfigError: No conversation can be had: there is no key, for example.
    """
    waiting, failures, usage, done = deque(jobs), [], Usage(), 0

    async def work() -> None:
        nonlocal usage, done
        while waiting:
            job = waiting.popleft()
            try:
                conversation = await job.play()
            except RoleFailure as e:
                failures.append(f"{job.id}: {e.message}")
            else:
                file.append(conversation)
                usage = usage + conversation.meta.usage
            done += 1
            tell(Progress(done, len(jobs), len(failures), usage))
            await asyncio.sleep(0)  # Ctrl-C is heard, where no role ever waits

    await all_or_none([work() for _ in range(min(concurrency, len(jobs)))])
    return tuple(failures)
