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
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from echo_env.errors import RecordError, missing_extra, redact
from echo_env.record import EpisodeWriter, RunHeader
from echo_env.trainers.job import InFolder, Logger
from echo_env.types import Episode

_CONFIG = "config.yaml"
_FOLDERS = frozenset({"samples", "checkpoints", "wandb", "model"})
"""Folders in a run's folder; the last is where OpenRLHF leaves the policy."""

Figures = Mapping[str, float | int | str | None]


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
def open_run(job: InFolder, header: RunHeader) -> Iterator[Run]:
    """Begin a run, or go on with one, and keep other processes out of its folder meanwhile.

    Raises:
        RecordError: The folder is taken, by another run or another process; there is nothing to resume; the job to
            resume is another; or to overwrite it would take more along than a run.
    """
    settings = _without_keys(job.settings())
    _check_folder(job, settings)
    with _locked(job.out):
        _check_folder(job, settings)  # again: another process may have begun or ended there
        if job.overwrite:
            _empty(job.out)
        if not job.resume:
            _write(job.out / _CONFIG, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
        _mend(job.out / "header.jsonl")
        _append(job.out / "header.jsonl", redact(header.model_dump_json()))
        yield Run(job.out)


def open_logger(job: InFolder, logger: Logger) -> Callable[[Figures], None]:
    """Return what takes an update's figures to wandb, or nowhere.

    Raises:
        missing_extra: wandb is not installed.
    """
    if logger.name == "none":
        return lambda figures: None
    try:
        import wandb
    except ImportError:
        raise missing_extra("wandb", "train") from None
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
    # a board of its own for each start: one that another run of this process left open would swallow the figures
    board = wandb.init(
        project=logger.project, name=job.name, dir=str(job.out), mode=logger.mode, reinit="finish_previous",
        config=_without_keys(job.settings()), settings=quiet,
    )  # fmt: skip
    return lambda figures: board.log(dict(figures), step=int(figures["update"] or 0))


def _without_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(redact(json.dumps(settings)))
    return found


# ---- who may write here ---------------------------------------------------------------------------------------------


def _check_folder(job: InFolder, settings: Mapping[str, Any]) -> None:
    """Refuse a folder that is somebody else's, or that is taken, or that the job cannot go on with."""
    out = job.out
    there, ours = out.is_dir() and any(entry.name != ".lock" for entry in out.iterdir()), _is_run(out)
    if there and not ours:
        raise RecordError(f"{out} exists and holds no training run", "choose another folder:  out=FOLDER")
    if there and not (job.resume or job.overwrite):
        raise RecordError(f"{out} holds a run already", "go on with it: resume=true, or lose it: overwrite=true")
    if job.resume and not there:
        raise RecordError(f"{out} holds no run to go on with", "leave resume=true out")
    if job.resume:
        _check_same(out, settings, job.may_change)
    if there and job.overwrite:
        _check_losses(out, settings)


def _is_run(folder: Path) -> bool:
    """Return whether a folder is a run's: other programs have a config.yaml too, but not with these settings."""
    try:
        config = yaml.safe_load((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(config, dict) and InFolder.model_fields.keys() <= config.keys()


def _check_same(folder: Path, settings: Mapping[str, Any], may_change: frozenset[str]) -> None:
    """Refuse to go on with another job."""
    old = yaml.safe_load((folder / _CONFIG).read_text(encoding="utf-8"))
    before, now = ({k: v for k, v in told.items() if k not in may_change} for told in (old, settings))
    changed = sorted(_changed(before, now))
    if changed:
        raise RecordError(
            f"{folder} holds another run; different: {', '.join(changed)}",
            f"use another folder, or the same settings; free to change: {', '.join(sorted(may_change))}",
        )


def _changed(old: Mapping[str, Any], new: Mapping[str, Any], within: str = "") -> Iterator[str]:
    for key in {*old, *new}:
        one, other = old.get(key), new.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _changed(one, other, f"{within}{key}.")
        elif one != other:
            yield f"{within}{key}"


def _check_losses(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to delete what is not the run's own, and what the new run is made from."""
    others = sorted(f.name for f in folder.iterdir() if f.is_dir() and not f.is_symlink() and f.name not in _FOLDERS)
    if others:
        raise RecordError(
            f"{folder} holds more than a run: {', '.join(others)}", "move that away, or choose another folder"
        )
    whole = folder.resolve()
    for place, text in _texts({k: v for k, v in settings.items() if k != "out"}):
        # any text may come here, and pathlib raises where it cannot be a path
        path = os.path.expanduser(text)
        if os.path.exists(path) and Path(path).resolve().is_relative_to(whole):
            raise RecordError(f"overwrite=true would delete {place}, {text}", "choose another folder:  out=FOLDER")


def _texts(settings: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts in settings, each with its place."""
    if isinstance(settings, str):
        yield place, settings
    elif isinstance(settings, (dict, list)):
        for key, value in settings.items() if isinstance(settings, dict) else enumerate(settings):
            yield from _texts(value, f"{place}.{key}" if place else str(key))


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


def _mend(file: Path) -> None:
    """Cut off a last line that a full disk or a kill tore."""
    if file.exists():
        with file.open("r+b") as f:
            f.truncate(f.read().rfind(b"\n") + 1)


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
