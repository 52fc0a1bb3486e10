"""Episode files and run folders: append-only, readable after a kill at any moment, lifted from old versions.

    RUNS/<policy>/run.json                      the run's header: enough to run it again
    RUNS/<policy>/usage.json                    what language models took, by role, where any was asked
    RUNS/<policy>/episodes/<episode id>.jsonl   one line for the header, one a turn, one for the outcome
    RUNS/<policy>/scenarios/<scenario id>.yaml  of an imported run: people that this package does not know

A line is written whole and flushed; a reader ignores a last line that was torn. Times stand in `run.json` only, so that
two runs with one seed write the same bytes.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]

from echo_env.errors import RecordError
from echo_env.types import SCHEMA_VERSION, Episode, EpisodeHeader, Outcome, Record, Turn
from echo_env.usage import RoleUsage, UsageByRole, total
from echo_env.version import VERSION


class RunHeader(Record):
    """What was run, and with what."""

    schema_version: int = SCHEMA_VERSION
    echo_env: str = VERSION
    git_commit: str = ""
    """Commit of the checkout the package runs from; empty where it is installed from a wheel."""
    git_dirty: bool = False
    python: str = ""
    packages: dict[str, str] = Field(default_factory=dict)
    started: str = ""
    """UTC, ISO 8601."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The resolved configuration."""
    scenarios: dict[str, str] = Field(default_factory=dict)
    """Id -> digest."""
    models: dict[str, Any] = Field(default_factory=dict, exclude_if=lambda models: not models)
    """Each "llm:" name in the configuration -> its models file, resolved and without keys, and its prompts' digests."""


def new_header(config: dict[str, Any], scenarios: dict[str, str], models: dict[str, Any] | None = None) -> RunHeader:
    """Return a header for a run that starts now, in this installation."""
    commit, dirty = _git()
    return RunHeader(
        git_commit=commit,
        git_dirty=dirty,
        python=platform.python_version(),
        packages=_versions("numpy", "pydantic", "gymnasium", "wordllama", "torch", "transformers"),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        config=config,
        scenarios=scenarios,
        models=models or {},
    )


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _git() -> tuple[str, bool]:
    here = Path(__file__).resolve().parent.parent
    if not (here / ".git").exists():
        return "", False
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        status = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True, check=True, timeout=10
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return "", False
    return commit, bool(status.strip())


class EpisodeWriter:
    """Writes one episode file, line by line.

    Args:
        path: The file. It must not exist, unless `resumed` is given.
        header: First line of a new file.
        resumed: The episode already in the file; a torn last line is cut off and writing goes on behind it.
    """

    def __init__(self, path: Path, header: EpisodeHeader, resumed: Episode | None = None) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # unbuffered: what a full disk refuses must not wait in a buffer for `close` to fail on
            if resumed is None:
                self._file = path.open("xb", buffering=0)
                self._write("header", header)
            else:
                _cut_torn_line(path)
                self._file = path.open("ab", buffering=0)
        except FileExistsError:
            raise RecordError(f"{path} exists already", "give --resume or --overwrite") from None
        except OSError as e:
            raise _disk_error(path, e) from None

    def append(self, turn: Turn) -> None:
        """Write one turn."""
        self._write("turn", turn)

    def finish(self, outcome: Outcome) -> None:
        """Write the outcome and make sure that the file is on the disk."""
        self._write("outcome", outcome)
        try:
            os.fsync(self._file.fileno())
        except OSError as e:
            raise _disk_error(self.path, e) from None
        self.close()

    def close(self) -> None:
        """Close the file; an unfinished episode can be resumed."""
        self._file.close()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _write(self, kind: str, record: Record) -> None:
        line = f'{{"{kind}":{record.model_dump_json()}}}\n'.encode()
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as e:
            raise _disk_error(self.path, e) from None


def _disk_error(path: Path, e: OSError) -> RecordError:
    return RecordError(
        f"{path} cannot be written: {e.strerror or e}", "free some space or choose another --out, then give --resume"
    )


def _cut_torn_line(path: Path) -> None:
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as f:
            f.truncate(whole)


def read_episode(path: Path) -> Episode:
    """Read an episode file, finished or not.

    Raises:
        RecordError: The file is missing, holds no header, or a line other than a torn last one is malformed or out of
            order; the message names the line.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # what stands behind the last line break was torn
    except OSError as e:
        raise RecordError(f"{path} cannot be read: {e.strerror or e}") from None
    entries = [_entry(path, number, line) for number, line in enumerate(lines, start=1)]
    if not entries or entries[0][0] != "header":
        raise RecordError(f"{path}: an episode file starts with its header, this one does not")
    entries = _lift(path, entries)
    header = _record(path, 1, EpisodeHeader, entries[0][1])
    turns: list[Turn] = []
    outcome: Outcome | None = None
    for number, (kind, data) in enumerate(entries[1:], start=2):
        if kind == "turn" and outcome is None:
            turns.append(_record(path, number, Turn, data))
            if turns[-1].index != len(turns):
                raise RecordError(f"{path}, line {number}: turn {turns[-1].index} where turn {len(turns)} should stand")
        elif kind == "outcome" and outcome is None:
            outcome = _record(path, number, Outcome, data)
            if outcome.turns != len(turns):
                raise RecordError(
                    f"{path}, line {number}: an outcome after {outcome.turns} turns stands after {len(turns)}"
                )
        else:
            raise RecordError(f"{path}, line {number}: '{kind}' cannot stand here")
    return Episode(header=header, turns=tuple(turns), outcome=outcome)


def _entry(path: Path, number: int, line: bytes) -> tuple[str, Any]:
    try:
        entry = json.loads(line.decode("utf-8"))
    except ValueError as e:
        raise RecordError(f"{path}, line {number}: not an episode record: {e}") from None
    if not isinstance(entry, dict) or len(entry) != 1:
        raise RecordError(f"{path}, line {number}: not an episode record")
    return next(iter(entry.items()))


R = TypeVar("R", bound=Record)


def _record(path: Path, number: int, kind: type[R], data: Any) -> R:
    try:
        return kind.model_validate(data)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        hint = "was it written by a newer echo-env?"
        raise RecordError(f"{path}, line {number}: {where}: {first['msg']}", hint) from None


def _lift(path: Path, entries: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Bring records of an old schema version to the present one. There is only version 1 so far."""
    header = entries[0][1]
    found = header.get("schema_version") if isinstance(header, dict) else None
    if found != SCHEMA_VERSION or isinstance(found, bool):
        raise RecordError(
            f"{path}: schema version {found}, this echo-env reads 1 to {SCHEMA_VERSION}", "update echo-env to read it"
        )
    return entries


_BY_ROLE = TypeAdapter(dict[str, RoleUsage])


class RunFolder:
    """One policy's run: RUNS/<policy>/.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def scenarios(self) -> Path:
        """Folder of the scenarios that came with an imported run; most runs have none."""
        return self.path / "scenarios"

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "run.json").exists()

    def create(self, header: RunHeader, *, resume: bool = False, overwrite: bool = False) -> RunHeader:
        """Start a run, or go on with one.

        Returns:
            The header in force: the old one where the run is resumed.

        Raises:
            RecordError: A run is here and neither flag was given; or it was another run than the one to resume.
        """
        leftovers = (self.path / "episodes").exists()
        if overwrite and (self.exists or leftovers):
            shutil.rmtree(self.path)
        elif leftovers and not self.exists:
            raise RecordError(
                f"{self.path} holds episodes of a run whose run.json is gone", "use another --out, or --overwrite"
            )
        if self.exists:
            if not resume:
                raise RecordError(
                    f"{self.path} holds a run already", "give --resume to go on with it, or --overwrite to lose it"
                )
            old = self.header()
            changed = _differences(old, header)
            if changed:
                raise RecordError(
                    f"{self.path} holds another run; different: {', '.join(changed)}",
                    "use another folder, or the same settings",
                )
            return old
        self._write("run.json", header.model_dump_json(indent=1))
        return header

    def _write(self, name: str, text: str) -> None:
        """Write a file whole, or leave it as it was."""
        part = self.path / f"{name}.part"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(self.path / name)
        except OSError as e:
            raise _disk_error(self.path, e) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing to this run; a killed process lets go by itself.

        Raises:
            RecordError: Another process is at it.
        """
        with (self.path / "run.json").open("rb") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise RecordError(
                        f"another process is playing the run in {self.path}", "wait for it, or use another --out"
                    ) from None
            yield

    def header(self) -> RunHeader:
        """Read the run's header."""
        file = self.path / "run.json"
        try:
            return RunHeader.model_validate_json(file.read_text(encoding="utf-8"))
        except OSError as e:
            raise RecordError(f"{file} cannot be read: {e.strerror or e}") from None
        except ValidationError as e:
            raise RecordError(f"{file} is no run header: {e.errors()[0]['msg']}") from None

    def usage(self) -> dict[str, RoleUsage]:
        """Return what language models took in all calls that played this run, by role; empty where none was asked.

        Raises:
            RecordError: `usage.json` cannot be read.
        """
        file = self.path / "usage.json"
        try:
            return _BY_ROLE.validate_json(file.read_bytes()) if file.exists() else {}
        except (OSError, ValidationError) as e:
            raise RecordError(f"{file} cannot be read: {e}", "delete it: nothing else needs it") from None

    def add_usage(self, usage: UsageByRole) -> None:
        """Add what language models took, where they took anything."""
        if usage:
            self._write("usage.json", _BY_ROLE.dump_json(total(self.usage(), usage), indent=1).decode())

    def episode_path(self, episode_id: str) -> Path:
        """Where an episode is stored."""
        return self.path / "episodes" / f"{episode_id}.jsonl"

    def episodes(self) -> Iterator[Episode]:
        """Read every episode, finished or not, in the order of their ids."""
        for file in sorted((self.path / "episodes").glob("*.jsonl")):
            yield read_episode(file)


_WHERE_AND_HOW_FAST = frozenset(
    {
        "api_base",
        "api_key_env",
        "timeout",
        "retries",
        "concurrency",
        "requests_per_minute",
        "tokens_per_minute",
        "cache",
    }
)
"""Settings of a model that change no answer; a run may be resumed under others."""


def _answering(models: Any) -> Any:
    """Return what of recorded models an answer depends on."""
    if isinstance(models, dict):
        return {k: _answering(v) for k, v in models.items() if k not in _WHERE_AND_HOW_FAST}
    return [_answering(v) for v in models] if isinstance(models, list) else models


def _differences(old: RunHeader, new: RunHeader) -> list[str]:
    changed = _changed(old.config, new.config)
    if old.scenarios != new.scenarios:
        changed.append("scenarios")
    if _answering(old.models) != _answering(new.models):
        changed.append("models")
    if old.echo_env != new.echo_env:
        changed.append(f"echo-env {old.echo_env} -> {new.echo_env}")
    return changed


def _changed(old: dict[str, Any], new: dict[str, Any], within: str = "") -> list[str]:
    """Return the settings that differ: `seed`, `world.max_turns`."""
    found: list[str] = []
    for key in sorted({*old, *new}):
        one, other = old.get(key), new.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found += _changed(one, other, f"{within}{key}.")
        elif one != other:
            found.append(f"{within}{key}")
    return found


def find_runs(root: Path) -> list[RunFolder]:
    """Return the run folders in a folder, itself included, sorted by name.

    Raises:
        RecordError: There are none.
    """
    found = [RunFolder(f.parent) for f in sorted([*root.glob("run.json"), *root.glob("*/run.json")])]
    if not found:
        raise RecordError(f"{root} holds no run", "a run is made by  echo-env run --policy NAME --out DIR")
    return found
