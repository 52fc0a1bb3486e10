"""Checkpoints: whole or not there, ordinary model folders, and the last good one is never lost.

    checkpoints/step-000040/      config.json, model.safetensors, tokenizer ...: what transformers and vLLM load
                    state.pt      optimiser, random states, place in the data, history: what a resumed run goes on from
                    manifest.json each file's size and checksum, and how good the policy was
    checkpoints/latest  best      links

One is written beside the others under another name, and renamed when all of it is on the disk.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from echo_env.errors import EchoError, RecordError

_MANIFEST = "manifest.json"


def save(root: Path, step: int, fill: Callable[[Path], None], *, keep: int, merit: float | None = None) -> Path:
    """Write a checkpoint, then delete those that are not to be kept: all but the last `keep` and the best.

    Args:
        root: Folder of checkpoints.
        step: Updates done.
        fill: Writes the files into a folder.
        keep: How many of the last stay.
        merit: How good the policy is; the highest is the best. None where it was not measured.

    Raises:
        RecordError: The disk is full, or cannot be written. What was there is as it was.
    """
    target = root / f"step-{step:06d}"
    if target.exists() and fault_of(target) is None:  # the last update's, saved already
        _settle(root, keep)  # which a kill may have come before
        return target
    part = root / f".part-{target.name}"
    try:
        _clear(root)
        part.mkdir(parents=True)
        fill(part)
        files = {str(f.relative_to(part)): _seal(f) for f in sorted(part.rglob("*")) if f.is_file()}
        (part / _MANIFEST).write_text(json.dumps({"step": step, "merit": merit, "files": files}, indent=1) + "\n")
        _seal(part / _MANIFEST)
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    except KeyboardInterrupt:
        shutil.rmtree(part, ignore_errors=True)
        raise
    except EchoError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    except Exception as e:  # torch and safetensors have errors of their own for a full disk
        shutil.rmtree(part, ignore_errors=True)
        last = next((f.name for f in reversed(steps(root)) if f != target and fault_of(f) is None), None)
        hint = f"{last} is whole: free some space, then go on with  resume=true" if last else "free some space"
        raise RecordError(f"checkpoint {target} cannot be written: {e}", hint) from e
    _settle(root, keep)
    return target


def steps(root: Path) -> list[Path]:
    """Return the checkpoints of a run, the oldest first."""
    return sorted(root.glob("step-*"))


def fault_of(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None where all of it is as it was written."""
    try:
        files = json.loads((folder / _MANIFEST).read_text())["files"]
        for name, (size, checksum) in files.items():
            if (folder / name).stat().st_size != size:
                return f"{name} has {(folder / name).stat().st_size} bytes, not {size}"
            if _checksum(folder / name) != checksum:
                return f"{name} is not what was written"
    except FileNotFoundError as e:
        return f"{Path(e.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError) as e:
        return f"its {_MANIFEST} cannot be read: {e}"
    return None


def newest(root: Path) -> Path | None:
    """Return the checkpoint to go on from; None where there is none yet.

    Raises:
        RecordError: The newest one is broken; the hint names the last that is not.
    """
    found = steps(root)
    if not found:
        return None
    fault = fault_of(found[-1])
    if fault is None:
        return found[-1]
    good = next((f for f in reversed(found[:-1]) if fault_of(f) is None), None)
    hint = f"the last good one is {good.name}" if good else "there is no other one: begin anew with  overwrite=true"
    raise RecordError(
        f"checkpoint {found[-1]} is broken: {fault}",
        f"{hint}: delete {found[-1].name}, then go on with  resume=true" if good else hint,
    )


def step_of(folder: Path) -> int:
    """Return the updates that a checkpoint has behind it."""
    return int(folder.name.removeprefix("step-"))


def load_state(folder: Path) -> dict[str, Any]:
    """Return what `state.pt` holds.

    Raises:
        RecordError: It cannot be read.
    """
    try:
        state: dict[str, Any] = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    except Exception as e:  # torch's errors for a damaged file are of many kinds
        raise RecordError(f"{folder / 'state.pt'} cannot be read: {e}", "go back to an older checkpoint") from e
    return state


def random_states() -> dict[str, Any]:
    """Return the states of the generators that a library may draw from behind our back."""
    kind, keys, *rest = np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "torch": torch.get_rng_state(), "cuda": cuda, "python": random.getstate(),
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
    }  # fmt: skip


def restore_random_states(states: dict[str, Any]) -> None:
    """Put back what `random_states` returned."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))


def _seal(file: Path) -> tuple[int, int]:
    """Make sure that a file is on the disk; return its size and checksum."""
    with file.open("rb") as f:
        os.fsync(f.fileno())
    return file.stat().st_size, _checksum(file)


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as f:
        while block := f.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _clear(root: Path) -> None:
    """Remove what a kill during an earlier save left."""
    for left in root.glob(".part-*"):
        shutil.rmtree(left, ignore_errors=True)


def _point(link: Path, name: str) -> None:
    """Let a link point at a checkpoint, at once."""
    fresh = link.with_name(f".new-{link.name}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)


def _settle(root: Path, keep: int) -> None:
    """Let the links point at the newest checkpoint and at the best, and delete old ones.

    Raises:
        RecordError: A link cannot be written; nothing is deleted then.
    """
    found = steps(root)
    merits = {folder: _merit(folder) for folder in found}
    known = {folder: merit for folder, merit in merits.items() if merit is not None}
    best = max(known, key=lambda folder: (known[folder], folder.name), default=None)
    try:
        _point(root / "latest", found[-1].name)
        if best is not None:
            _point(root / "best", best.name)
    except OSError as e:
        raise RecordError(
            f"a link in {root} cannot be written: {e.strerror or e}",
            f"{found[-1].name} is whole: free some space, then go on with  resume=true",
        ) from None
    for folder in found[:-keep]:
        if folder != best:
            shutil.rmtree(folder, ignore_errors=True)


def _merit(folder: Path) -> float | None:
    try:
        merit: float | None = json.loads((folder / _MANIFEST).read_text())["merit"]
    except (OSError, ValueError, KeyError):
        return None
    return merit if merit is not None and math.isfinite(merit) else None
