"""A training run's folder.

    RUN/config.yaml        the resolved job
        header.jsonl       a line for each start: version, commit, package versions, scenarios' digests, models asked
        metrics.jsonl      a line for each update, the same keys in each
        samples/000040/    whole conversations of that update, as text and as episode files
        checkpoints/       see `checkpoints.py`
        wandb/             where that logger is on

No file holds a key: settings name environment variables, and what looks like the value of one is blotted out.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import yaml

from echo_env.errors import RecordError, missing_extra, redact
from echo_env.record import EpisodeWriter, RunHeader
from echo_env.trainers.job import Logger
from echo_env.types import Episode

MAY_CHANGE = frozenset(
    {"name", "out", "resume", "overwrite", "dry_run", "updates", "minutes", "monitor", "checkpoints", "logger"}
)
"""Settings that a resumed run may have other than the run it goes on with."""

Figures = Mapping[str, float | int | str | None]


class Recorded(Protocol):
    """What a folder needs to know of a job, whatever it trains."""

    @property
    def name(self) -> str:
        """What figures are filed under."""
        ...

    @property
    def out(self) -> Path:
        """The run's folder."""
        ...

    @property
    def resume(self) -> bool:
        """Go on with the run that is there."""
        ...

    @property
    def overwrite(self) -> bool:
        """Delete the run that is there."""
        ...

    @property
    def logger(self) -> Logger:
        """Where figures go beside `metrics.jsonl`."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return the resolved job as plain data."""
        ...


class Run:
    """The folder of one run; begun by `open_run`.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"

    def log(self, figures: Figures) -> None:
        """Append the figures of one update.

        Raises:
            RecordError: The disk is full.
        """
        _append(self.metrics, json.dumps(figures))

    def logged(self) -> list[dict[str, Any]]:
        """Return the figures of all updates; a line torn by a kill is left out."""
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text(encoding="utf-8").split("\n")[:-1]
        try:
            return [json.loads(line) for line in lines]
        except ValueError as e:
            raise RecordError(f"{self.metrics} is damaged: {e}", "mend or delete the line") from None

    def back_to(self, update: int) -> None:
        """Drop what was logged and sampled after an update: a resumed run plays it again."""
        kept = [line for line in self.logged() if line["update"] <= update]
        _write(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))
        for folder in (self.path / "samples").glob("*"):
            if folder.name.isdigit() and int(folder.name) > update:
                shutil.rmtree(folder)

    def sample(self, update: int, texts: Sequence[str], episodes: Sequence[Episode] = ()) -> None:
        """Keep whole conversations.

        Raises:
            RecordError: The disk is full.
        """
        folder = self.path / "samples" / f"{update:06d}"
        shutil.rmtree(folder, ignore_errors=True)
        _write(folder / "samples.txt", "\n\n".join(texts) + "\n")
        for episode in episodes:
            with EpisodeWriter(folder / f"{episode.header.episode_id}.jsonl", episode.header) as writer:
                for turn in episode.turns:
                    writer.append(turn)
                if episode.outcome is not None:
                    writer.finish(episode.outcome)


@contextmanager
def open_run(job: Recorded, header: RunHeader) -> Iterator[Run]:
    """Begin a run, or go on with one, and keep other processes out of its folder meanwhile.

    Raises:
        RecordError: The folder is taken, by another run or another process; there is nothing to resume; or the job to
            resume is another.
    """
    run, config = Run(job.out), job.out / "config.yaml"
    settings = json.loads(redact(json.dumps(job.settings())))
    there = job.out.is_dir() and any(entry.name != ".lock" for entry in job.out.iterdir())
    if there and not (config.exists() or (job.out / "header.jsonl").exists()):
        raise RecordError(f"{job.out} exists and holds no training run", "choose another folder:  out=FOLDER")
    if there and not (job.resume or job.overwrite):
        raise RecordError(f"{job.out} holds a run already", "go on with it: resume=true, or lose it: overwrite=true")
    if job.resume:
        if not config.exists():
            raise RecordError(f"{job.out} holds no run to go on with", "leave resume=true out")
        _check_same(config, settings)
    with _locked(job.out):
        if there and job.overwrite:
            _empty(job.out)
        if not job.resume:
            _write(config, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
        _append(job.out / "header.jsonl", redact(header.model_dump_json()))
        yield run


def open_logger(job: Recorded) -> Callable[[Figures], None]:
    """Return what takes an update's figures to wandb, or nowhere.

    Raises:
        missing_extra: wandb is not installed.
    """
    if job.logger.name == "none":
        return lambda figures: None
    try:
        import wandb
    except ImportError:
        raise missing_extra("wandb", "train") from None
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
    board = wandb.init(
        project=job.logger.project, name=job.name, dir=str(job.out), mode=job.logger.mode, config=job.settings(),
        settings=quiet,
    )  # fmt: skip
    return lambda figures: board.log(dict(figures), step=int(figures["update"] or 0))


def _check_same(config: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to go on with another job."""
    old = yaml.safe_load(config.read_text(encoding="utf-8"))
    changed = sorted(_changed(old, settings))
    if changed:
        raise RecordError(
            f"{config.parent} holds another run; different: {', '.join(changed)}",
            f"use another folder, or the same settings; free to change: {', '.join(sorted(MAY_CHANGE))}",
        )


def _changed(old: Mapping[str, Any], new: Mapping[str, Any], within: str = "") -> Iterator[str]:
    for key in {*old, *new}:
        if not within and key in MAY_CHANGE:
            continue
        one, other = old.get(key), new.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _changed(one, other, f"{within}{key}.")
        elif one != other:
            yield f"{within}{key}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes away; a killed process lets go by itself."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as e:
        raise _disk_error(folder, e) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RecordError(f"another process is training in {folder}", "wait for it, or use another out") from None
        yield


def _empty(folder: Path) -> None:
    """Delete what a run wrote; the lock stays."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != ".lock":
            entry.unlink()


def _append(file: Path, line: str) -> None:
    """Append a line at once: what a full disk refuses must not wait in a buffer."""
    data = f"{line}\n".encode()
    try:
        with file.open("ab", buffering=0) as f:
            while data:
                data = data[f.write(data) :]
    except OSError as e:
        raise _disk_error(file, e) from None


def _write(file: Path, text: str) -> None:
    """Write a file whole, or leave it as it was."""
    part = file.with_name(f"{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError as e:
        raise _disk_error(file, e) from None


def _disk_error(path: Path, e: OSError) -> RecordError:
    return RecordError(f"{path} cannot be written: {e.strerror or e}", "free some space, then go on with  resume=true")
