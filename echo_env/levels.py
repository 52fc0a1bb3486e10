"""Level files: judges' levels of many episodes, in one JSON file, ready for any scorer.

    {"level_order": ["C.Prog", "C.Neg", "A.Prog", "A.Neg", "P.Prog", "P.Neg"],
     "alpha": 0.1,
     "cases": {"003": {"P0": [-17, -18, -13]}},
     "episodes": [{"model": "a", "case": "003", "levels": [[1, 0, 2, 0, 1, -1], [null, null, null, null, null, null]],
                   "v": {"2": [0, 0, 0]}}]}

`levels` holds six numbers a turn; null where the judge gave none. `v` may hold, by turn, the vector that the publisher
counted for a turn with a null. Other keys are ignored.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from echo_env.epm import Scorer
from echo_env.errors import RecordError
from echo_env.metrics import EpisodeScore, score_levels
from echo_env.types import AXES, Levels, NullTurn, Record, Vector

LEVEL_NAMES = tuple(f"{axis}.{kind}" for axis in AXES for kind in ("Prog", "Neg"))
"""Level names as a file's `level_order` spells them, in the order of `Levels`."""


class LevelEpisode(Record):
    """One episode of a level file."""

    model: str
    case: str
    p0: Vector
    turns: tuple[Levels | NullTurn | None, ...]
    """Levels of each turn. A turn with any null is a `NullTurn` where the file gives its vector, else None."""


class LevelFile(Record):
    """A level file, read and checked."""

    alpha: float | None
    """The share of the deficit that the file was ended with, where it says; a scorer's own applies in scoring."""
    episodes: tuple[LevelEpisode, ...]


def read_level_file(path: Path | str) -> LevelFile:
    """Read and check a level file.

    Raises:
        RecordError: The file cannot be read, or does not hold what it must; the message names the episode and turn.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordError(f"cannot read the level file {path}: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("episodes"), list):
        raise RecordError(f"{path} is no level file: a JSON object with a list 'episodes' was expected")
    order = _order(data.get("level_order", list(LEVEL_NAMES)))
    deficits = _deficits(data.get("cases"))
    alpha = data.get("alpha")
    return LevelFile(
        alpha=None if alpha is None else _number(alpha, "alpha"),
        episodes=tuple(_episode(entry, i, order, deficits) for i, entry in enumerate(data["episodes"])),
    )


def score_file(file: LevelFile, scorer: Scorer, profile: str = "epm") -> tuple[EpisodeScore, ...]:
    """Score every episode of a level file, in its order."""
    return tuple(
        score_levels(e.p0, e.turns, scorer, model=e.model, scenario=e.case, profile=profile) for e in file.episodes
    )


def _order(names: Any) -> tuple[int, ...]:
    """Return where in a file's row each field of `Levels` stands."""
    if not isinstance(names, list) or sorted(map(str, names)) != sorted(LEVEL_NAMES):
        raise RecordError(f"level_order must hold each of {', '.join(LEVEL_NAMES)} once, got {names}")
    return tuple(names.index(name) for name in LEVEL_NAMES)


def _deficits(cases: Any) -> dict[str, Vector]:
    if not isinstance(cases, dict):
        raise RecordError("a level file needs an object 'cases' with the P0 of each case")
    for name, case in cases.items():
        if not isinstance(case, dict) or "P0" not in case:
            raise RecordError(f"case {name}: an object with a P0 was expected, got {case}")
    return {name: _vector(case["P0"], f"case {name}: P0") for name, case in cases.items()}


def _episode(entry: Any, position: int, order: tuple[int, ...], deficits: dict[str, Vector]) -> LevelEpisode:
    if not isinstance(entry, dict) or not isinstance(entry.get("levels"), list):
        raise RecordError(f"episode {position + 1}: an object with model, case and a list 'levels' was expected")
    model, case = entry.get("model"), entry.get("case")
    if not isinstance(model, str) or not isinstance(case, str):
        raise RecordError(f"episode {position + 1}: model and case must be text, got {model!r} and {case!r}")
    where = f"episode {position + 1} ({model}, case {case})"
    if case not in deficits:
        raise RecordError(f"{where}: its case is not among 'cases', so it has no P0")
    vectors = _vectors(entry.get("v", {}), len(entry["levels"]), where)
    turns = (_turn(row, order, vectors.get(i), f"{where}, turn {i}") for i, row in enumerate(entry["levels"], 1))
    return LevelEpisode(model=model, case=case, p0=deficits[case], turns=tuple(turns))


def _vectors(entries: Any, turns: int, where: str) -> dict[int, Vector]:
    if not isinstance(entries, dict):
        raise RecordError(f"{where}: 'v' must be an object from turn to vector, got {entries}")
    known = {str(turn): turn for turn in range(1, turns + 1)}
    for key in entries:
        if key not in known:
            raise RecordError(f"{where}: 'v' names turn {key}, but the turns run from 1 to {turns}")
    return {known[key]: _vector(value, f"{where}, turn {key}: v") for key, value in entries.items()}


def _turn(row: Any, order: tuple[int, ...], vector: Vector | None, where: str) -> Levels | NullTurn | None:
    if not isinstance(row, list) or len(row) != len(order):
        raise RecordError(f"{where}: a list of {len(order)} levels was expected, got {row}")
    given = [row[i] for i in order]
    for name, level in zip(LEVEL_NAMES, given, strict=True):
        allowed = (0, 1, 2) if name.endswith("Prog") else (0, -1, -2)
        if level is not None and (type(level) is not int or level not in allowed):
            raise RecordError(f"{where}: {name} must be one of {allowed} or null, got {level!r}")
    levels = Levels(*(level or 0 for level in given))
    if None not in given:
        return levels
    return None if vector is None else NullTurn(vector, levels)


def _vector(value: Any, where: str) -> Vector:
    if not isinstance(value, list) or len(value) != 3:
        raise RecordError(f"{where} must be three numbers, got {value}")
    c, a, p = (_number(x, where) for x in value)
    return (c, a, p)


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RecordError(f"{where} must hold finite numbers, got {value!r}")
    return float(value)
