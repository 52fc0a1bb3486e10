"""EMPA: result files become runs, so that our scorers replay what was published.

EMPA (arXiv 2603.00552) is the benchmark behind Echo-N1's Tables 8 and 9. Its results,
`results/benchmark_runs/*/MODEL/script_NNN_result.json` of github.com/KAYA-HAI/EMPA-Benchmark-EPMSandbox, are CC BY-NC
4.0 and no part of this package; a user who has them may score them here. One JSON object a file:

    script_id, total_turns, history [{role: actor | test_model, content}], termination_reason, test_model_name,
    actor_model, director_model, judger_model,
    epj: P_0_initial_deficit, iedr_details {filled_iedr}, trajectory [{turn, P_t, v_t, mdep_analysis}]

`mdep_analysis` holds C_Prog_level, C_Prog_evidence, C_Prog_reasoning and so on for six levels. Where the published
judge failed, it is missing or holds nulls, and the publisher counted `v_t` all the same: such a turn has no judgement
here, but keeps the publisher's vector, which `official` replays and flags, and every other scorer leaves out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from echo_env.epm import Scorer, action_vector
from echo_env.errors import RecordError
from echo_env.importers.fields import Entry, as_entry, found_files, read_json, slug, unique
from echo_env.importers.runs import UNKNOWN, ImportedRun, bare_header
from echo_env.profiles import IEDR_ITEMS
from echo_env.scorers import get_scorer
from echo_env.types import (
    AXES,
    Axis,
    End,
    Episode,
    EpisodeHeader,
    Evidence,
    Judgement,
    Levels,
    NullTurn,
    Outcome,
    Turn,
    Vector,
)

RUBRIC = "empa-mdep-pr"
"""Stands in the header for their rubric, which is not shipped."""

ENDS: tuple[tuple[str, End], ...] = (
    (r"oscillation|震荡|振荡", "oscillation"),
    (r"collapse|consecutive negative|崩溃|连续.{0,6}负", "collapse"),
    (r"stagnant|stagnation|停滞", "stagnation"),
    (r"success|victory|成功|胜利", "success"),
    (r"max.?turns|time.?out|超时|最大轮", "patience"),
)
"""How an episode ended, by words of `termination_reason` and `termination_type`, English or Chinese. The rules' own
reasons all hold one of them; what holds none is the director's, who ends with words of his own."""

_ANALYSES = ("mdep_analysis", "detailed_analysis", "filled_mdep_pr")
_KINDS: dict[str, tuple[str, ...]] = {"prog": ("Prog", "Pos"), "neg": ("Neg",)}
_NOTHING = {"", "0", "none", "null", "n/a", "无"}
"""What stands in place of a quote where there is none."""


def load_runs(path: Path) -> list[ImportedRun]:
    """Read result files, one run for each model under test.

    Args:
        path: A file, or a folder with `script_*_result.json` in it or below it.

    Raises:
        RecordError: A file does not hold what it must; the message names file, field and what was expected.
    """
    files = found_files(path, "script_*_result.json", "result files of EMPA (github.com/KAYA-HAI, CC BY-NC 4.0)")
    models: dict[str, list[Episode]] = defaultdict(list)
    for file in files:
        episode = episode_of(read_json(file))
        models[episode.header.policy].append(episode)
    for model, episodes in models.items():
        unique([episode.header.scenario for episode in episodes], f"results of {model}")
    return [
        ImportedRun(name=slug(model, r"\w.-"), source="empa", episodes=tuple(episodes))
        for model, episodes in models.items()
    ]


def episode_of(result: Entry) -> Episode:
    """Return one result as an episode, with the `official` state of each turn.

    Raises:
        RecordError: A field is missing, or does not agree with another.
    """
    header = _header(result)
    said, closing = _exchanges(result)
    points = _points(result, len(said))
    scorer = get_scorer("official")
    state, turns = scorer.start(header.p0), []
    for index, (user, reply) in enumerate(said, start=1):
        judgement, published = _judged(points.get(index), header.judge)
        state = scorer.advance(state, judgement.levels if judgement else published)
        turns.append(
            Turn(
                index=index,
                user=user,
                reply=reply,
                judgement=judgement,
                epm=scorer.delta(state),
                direction=None,
                reward=None,
                published=published,
            )
        )
    outcome = Outcome(end=end_of(result), turns=len(turns), closing=closing)
    return Episode(header=header, turns=tuple(turns), outcome=outcome)


def _header(result: Entry) -> EpisodeHeader:
    script = slug(str(result.require("script_id", "scriptId", "case_id")).lower().removeprefix("script_"))
    epj = result.entry("epj")
    p0 = vector_of(epj.require("P_0_initial_deficit", "P_0", "P0"), f"{epj.where}: P_0_initial_deficit")
    scorer: Scorer = get_scorer("official")
    names = {
        "policy": _name(result, "test_model_name", "test_model"),
        "judge": _name(result, "judger_model", "judge_model"),
        "actor": _name(result, "actor_model"),
        "director": _name(result, "director_model"),
    }
    known = {"script": script, "p0": p0, "iedr": _ratings(epj), "scenario": result.get("scenario")}
    digest = hashlib.sha256(json.dumps(known, ensure_ascii=False, sort_keys=True).encode()).hexdigest()[:16]
    return bare_header(f"empa-{script}", digest, p0).model_copy(
        update={**names, "rubric": RUBRIC, "scorer": scorer.id, "max_turns": scorer.max_turns}
    )


def _name(result: Entry, *fields: str) -> str:
    found = result.get(*fields)
    return found.strip() if isinstance(found, str) and found.strip() else UNKNOWN


def _ratings(epj: Entry) -> dict[str, Any]:
    """Return the IEDR levels, where the file has them: part of what is known of the person."""
    details = epj.get("iedr_details")
    filled = details.get("filled_iedr") if isinstance(details, dict) else None
    return {item: filled.get(item) for item in IEDR_ITEMS} if isinstance(filled, dict) else {}


def vector_of(value: Any, where: str) -> Vector:
    """Read a vector: a list of three numbers, an object with C, A and P, or "(-3, -6, -6)".

    Raises:
        RecordError: It is something else.
    """
    numbers: list[Any] = []
    if isinstance(value, dict):
        numbers = [value.get(axis) for axis in AXES]
    elif isinstance(value, list):
        numbers = value
    elif isinstance(value, str):
        numbers = [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", value)]
    if len(numbers) != 3 or any(isinstance(x, bool) or not isinstance(x, int | float) for x in numbers):
        raise RecordError(f"{where}: expected three numbers, C, A and P, not {value!r}"[:300])
    c, a, p = (float(x) for x in numbers)
    return (c, a, p)


def _exchanges(result: Entry) -> tuple[list[tuple[str, str]], str]:
    """Return (user, reply) of each turn, and a last word of the user's that nobody answered."""
    said = [_spoken(message, k) for k, message in enumerate(result.entries("history", "dialogue"))]
    turns = list(zip(said[::2], said[1::2], strict=False))
    total = result.get("total_turns")
    if total is not None and total != len(turns):
        raise RecordError(f"{result.where}: 'total_turns' is {total!r}, but 'history' holds {len(turns)} exchanges")
    if not turns:
        raise RecordError(f"{result.where}: 'history' holds no exchange")
    return turns, said[-1] if len(said) % 2 else ""


def _spoken(message: Entry, position: int) -> str:
    expected = ("test_model", "assistant", "npc") if position % 2 else ("actor", "user")
    role = message.text("role", "speaker").lower()
    if role not in expected:
        raise RecordError(f"{message.where}: 'role' must be '{expected[0]}' here, not {role!r}")
    found = message.require("content", "text")
    if not isinstance(found, str):
        raise RecordError(f"{message.where}: 'content' must be text, not {found!r}"[:300])
    return found


def _points(result: Entry, turns: int) -> dict[int, Entry]:
    """Return the judged points of the trajectory by turn; point 0 is the start."""
    points: dict[int, Entry] = {}
    for point in result.entry("epj").entries("trajectory"):
        turn = point.data.get("turn", point.data.get("t"))
        if not isinstance(turn, int) or not 0 <= turn <= turns:
            raise RecordError(f"{point.where}: 'turn' must be a number from 0 to {turns}, not {turn!r}")
        if turn:
            points[turn] = point
    return points


def _judged(point: Entry | None, judge: str) -> tuple[Judgement | None, NullTurn | None]:
    """Return what the published judge found in a turn, or what its publisher counted in place of that."""
    if point is None:  # judged at intervals only
        return None, None
    filled = point.get(*_ANALYSES)
    analysis = as_entry(filled or {}, f"{point.where}: {_ANALYSES[0]}")
    given = {(axis, side): _level(analysis, axis, side) for axis in AXES for side in _KINDS}
    levels = Levels(*(level or 0 for level in given.values()))
    vector = point.get("v_t", "v")
    moved = None if vector is None else vector_of(vector, f"{point.where}: v_t")
    if None in given.values():
        return None, None if moved is None else NullTurn(moved, levels)
    if moved is not None and moved != action_vector(levels):
        told = f"{point.where}: 'v_t' is {moved}, but the levels {tuple(levels)} are worth {action_vector(levels)}"
        raise RecordError(told, "the file was made with another rubric; these scorers hold the published one")
    evidence = tuple(_evidence(analysis, axis, side, level) for (axis, side), level in given.items() if level)
    return Judgement(levels=levels, evidence=evidence, judge=judge), None


def _level(analysis: Entry, axis: Axis, side: str) -> int | None:
    """Return one level; None where the judge left it blank."""
    found = _cell(analysis, axis, side, "level")
    if found is None:
        return None
    sign = 1 if side == "prog" else -1
    text = str(int(found)) if isinstance(found, float) and found.is_integer() else str(found).strip().lstrip("+")
    if isinstance(found, bool) or text not in ("0", str(sign), str(2 * sign)):
        expected = f"0, {sign} or {2 * sign}"
        raise RecordError(f"{analysis.where}: {axis}_{_KINDS[side][0]}_level must be {expected}, not {found!r}"[:300])
    return int(text)


def _cell(analysis: Entry, axis: Axis, side: str, part: str) -> Any:
    """Return level, evidence or reasoning of one side of an axis, in any of the spellings."""
    for kind in _KINDS[side]:
        nested = analysis.get(f"{axis}_{kind}", f"{axis}.{kind}")
        if isinstance(nested, dict):
            return nested.get(part)
        if part == "level" and nested is not None:
            return nested
        found = analysis.get(f"{axis}_{kind}_{part}", f"{axis}.{kind}_{part}")
        if found is not None:
            return found
    return None


def _evidence(analysis: Entry, axis: Axis, side: str, level: int) -> Evidence:
    quote = str(_cell(analysis, axis, side, "evidence") or "").strip()
    return Evidence(
        axis=axis,
        direction="prog" if side == "prog" else "neg",
        level=level,
        anchor=f"{RUBRIC}.{axis.lower()}.{side}.{abs(level)}",
        quote="" if quote.lower() in _NOTHING else quote,
        reason=str(_cell(analysis, axis, side, "reasoning") or ""),
    )


def end_of(result: Entry) -> End:
    """Return how an episode ended, from the publisher's words.

    Raises:
        RecordError: There are none.
    """
    words = f"{result.text('termination_reason', 'termination_type')} {result.get('termination_type') or ''}"
    return next((end for pattern, end in ENDS if re.search(pattern, words, re.IGNORECASE)), "director")
