"""The report as one HTML page that holds everything it needs: styles, script, figures, conversations.

The page loads nothing. Its content policy forbids it to, whatever a recorded conversation says; conversations reach
the document as text only.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from echo_env.cases import INDEX_LABELS, STATUSES, Case, Status, without_folders
from echo_env.errors import missing_extra
from echo_env.figures import AXIS_NAMES, MODEL_COLOURS, figures
from echo_env.metrics import PROFILES, Comparison
from echo_env.report import Report, Run
from echo_env.significance import Interval
from echo_env.tables import p_value, score_name
from echo_env.types import EpisodeHeader, Evidence, Turn
from echo_env.version import VERSION

if TYPE_CHECKING:
    from jinja2 import Environment

INDEX_NAMES_LONG: dict[str, tuple[str, str]] = {
    "rdi": ("Outcome", "relative distance improvement"),
    "e_total": ("Outcome", "effective energy against the deficit"),
    "s_net": ("Outcome", "net score against the deficit"),
    "rho": ("Efficiency", "empathy density, energy a turn"),
    "s_proj": ("Efficiency", "effective projection a turn"),
    "tau": ("Efficiency", "path tortuosity, 100 for a straight path"),
    "r_pos": ("Stability", "share of turns with positive energy"),
    "align": ("Stability", "alignment with the healing direction"),
    "r_pen": ("Stability", "performative penalty rate, 100 for none"),
}
"""Dimension and meaning of each index."""


class Cell(NamedTuple):
    """One model and scenario in the matrix: a mark for each episode."""

    marks: tuple[tuple[str, Status, str], ...]
    """Route, status and what a reader is told about it."""


def render(report: Report) -> str:
    """Return the page.

    Raises:
        MissingExtra: plotly or jinja2 is not installed.
    """
    routes = _routes(report.cases)
    environment = _environment()
    return environment.get_template("report.html.j2").render(
        report=report,
        version=VERSION,
        title=_title(report),
        lede=_lede(report),
        score_name=score_name(report.profile),
        formula=_formula(report.profile),
        top=_top(report),
        facts=_facts(report.runs),
        told={name: any(getattr(m, name) is not None for m in report.models) for name in ("mean_return", "mean_words")},
        missing=_missing(report),
        domains=_domains(report.cases),
        matrix=_matrix(report, routes),
        solved=_solved(report),
        statuses=STATUSES,
        seen={case.status for case in report.cases},
        seen_groups={STATUSES[case.status].group for case in report.cases if case.score},
        index_labels=INDEX_LABELS,
        index_names=INDEX_NAMES_LONG,
        colours=MODEL_COLOURS,
        figures=figures(report),
        data=_page_data(report, routes),
        conversations=[_conversation(case) for case in report.cases],
        plotly=plotly_packed(),
    )


def script_json(value: object) -> str:
    """Return JSON that may stand in a script element: no text in it can end the element, or start another one."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _environment() -> Environment:
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise missing_extra("jinja2", "report") from None
    folder = files("echo_env")
    environment = Environment(
        loader=FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["span"] = span
    environment.filters["p"] = lambda p: p_value(p).replace("<", "< ")
    environment.filters["script_json"] = lambda value: Markup(script_json(value))
    return environment


@lru_cache(maxsize=1)
def plotly_packed() -> str:
    """Return plotly.js, gzipped and in base64: 2 MB in place of 5. The page unpacks it."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise missing_extra("plotly", "report") from None
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def number(value: float | None, digits: int = 1, sign: bool = False) -> str:
    """Return a number as print has it, with a true minus; a dash for a missing one."""
    if value is None:
        return "–"  # noqa: RUF001
    return f"{round(value, digits) + 0.0:{'+' if sign else ''}.{digits}f}".replace("-", "\u2212")


def span(interval: Interval | None, factor: float = 1, digits: int = 1) -> str:
    """Return an interval in brackets; nothing for a missing one."""
    if interval is None:
        return ""
    return f"[{number(interval.low * factor, digits)}, {number(interval.high * factor, digits)}]"


def _title(report: Report) -> str:
    scenarios, models = len({case.scenario for case in report.cases}), len(report.models)
    return f"{models} model{'s' * (models != 1)} on {scenarios} scenario{'s' * (scenarios != 1)}"


def _formula(profile: str) -> str:
    """Return how the total is made of the three dimensions."""
    chosen = PROFILES[profile]
    parts = (("Outcome", chosen.outcome), ("Efficiency", chosen.efficiency), ("Stability", chosen.stability))
    told = f"{score_name(profile)} = " + " + ".join(f"{weight:g} {name}" for name, weight in parts)
    return told if profile == "epm" else f"{told} (weight profile {profile})"


def _lede(report: Report) -> str:
    """Say in a sentence or two what was found."""
    first = report.models[0].summary if report.models else None
    if first is None or first.composite is None:
        return "No episode could be scored."
    name = score_name(report.profile)
    interval = first.intervals.get("epm_q")
    told = f"{first.model} has the highest {name}, {number(first.composite.epm_q)}"
    if interval:
        told += f" ({interval.level:.0%} CI {number(interval.low)} to {number(interval.high)})".replace("%", " %")
    told += f", with {first.successes} success{'es' * (first.successes != 1)} in {first.scored} scored episodes."
    return told + "".join(_next(c, name) for c in report.comparisons[:1])


def _next(c: Comparison, name: str) -> str:
    p = p_value(c.p_value)
    where = "the one scenario" if c.shared == 1 else f"the {c.shared} scenarios"
    return (
        f" {c.model_b} is next, {number(abs(c.difference))} points of {name} behind on {where} that both were scored on"
        f" (p {'< ' + p[1:] if p.startswith('<') else '= ' + p})."
    )


def _top(report: Report) -> float:
    """Return the end of the score table's scale: 100, or more where a scorer without a cap went past it."""
    highs = [s.high for m in report.models for k, s in m.summary.intervals.items() if k == "epm_q"]
    totals = [m.summary.composite.epm_q for m in report.models if m.summary.composite]
    return max(100.0, *highs, *totals, 0.0)


def _facts(runs: Sequence[Run]) -> dict[str, str]:
    """Return what the runs have in common, or each one's own where they differ."""
    found: dict[str, dict[str, None]] = {}  # as ordered sets
    for run in runs:
        roles = {k: v for k, v in run.roles.items() if k != "policy"}
        commit = run.git_commit[:10] + (" with local changes" if run.git_dirty else "")
        rest = {"split": run.settings.get("split"), "seed": run.settings.get("seed"), "echo-env": run.echo_env}
        dated = {"commit": commit, "started": run.started[:10]}
        for key, value in (roles | rest | dated).items():
            if value:
                found.setdefault(key, {})[value] = None
    return {key: ", ".join(values) for key, values in found.items()}


def _missing(report: Report) -> list[tuple[str, list[str]]]:
    """Return for each model what was left out of its scores; models that miss nothing are left out here."""
    found = []
    for model in report.models:
        told = [f"{model.unjudged_turns} of {model.turns} turns unjudged"] if model.unjudged_turns else []
        counts = {"unscored (too few turns judged)": model.summary.unscored, "unfinished": model.unfinished}
        told += [f"{n} episode{'s' * (n != 1)} {what}" for what, n in counts.items() if n]
        told += [f"{model.harmful_replies} of {model.turns} replies harmful"] if model.harmful_replies else []
        told += [f"{model.crisis_flags} of {model.turns} messages tell of a crisis"] if model.crisis_flags else []
        told += [f"{kind}, {count} times" for kind, count in model.failures.items()]
        told += [model.chat.told] if model.chat else []
        if told:
            found.append((model.summary.model, told))
    return found


def _domains(cases: Iterable[Case]) -> dict[str, list[str]]:
    """Return the scenarios of each domain, sorted."""
    found: dict[str, set[str]] = {}
    for case in cases:
        found.setdefault(case.domain, set()).add(case.scenario)
    return {domain: sorted(found[domain]) for domain in sorted(found)}


def _matrix(report: Report, routes: Sequence[str]) -> dict[str, dict[str, Cell]]:
    marks: dict[tuple[str, str], list[tuple[str, Status, str]]] = {}
    for case, route in zip(report.cases, routes, strict=True):
        total = case.score.composite.epm_q if case.score and case.score.composite else None
        told = f"{case.model}, {case.scenario}: {STATUSES[case.status].label}, {len(case.levels)} turns"
        if total is not None:
            told += f", {score_name(report.profile)} {number(total)}"
        marks.setdefault((case.model, case.scenario), []).append((route, case.status, told))
    scenarios = sorted({case.scenario for case in report.cases})
    names = [model.summary.model for model in report.models]
    return {name: {s: Cell(tuple(marks.get((name, s), ()))) for s in scenarios} for name in names}


def _solved(report: Report) -> dict[str, str]:
    """Return for each scenario how many of its scored episodes succeeded."""
    scored = Counter(case.scenario for case in report.cases if case.score and case.score.scored)
    won = Counter(case.scenario for case in report.cases if case.status == "success")
    return {scenario: f"{won[scenario]}/{n}" for scenario, n in scored.items()}


def _routes(cases: Sequence[Case]) -> list[str]:
    """Return each case's address within the page: run/scenario, or run/episode where a scenario was played often."""
    played = Counter((case.model, case.scenario) for case in cases)
    names = [case.scenario if played[case.model, case.scenario] == 1 else case.episode for case in cases]
    return [f"{quote(case.model, safe='')}/{quote(name, safe='')}" for case, name in zip(cases, names, strict=True)]


def _page_data(report: Report, routes: Sequence[str]) -> dict[str, Any]:
    used = {e.anchor for case in report.cases if case.record for turn in case.record.turns for e in _evidence(turn)}
    return {
        "title": _title(report),
        "noun": "conversations" if report.kind == "runs" else "episodes",
        "score": score_name(report.profile),
        "scorer": report.scorer,
        "models": [model.summary.model for model in report.models],
        "statuses": {status: {"label": sign.label, "group": sign.group} for status, sign in STATUSES.items()},
        "axes": AXIS_NAMES,
        "indices": {name: [INDEX_LABELS[name], *INDEX_NAMES_LONG[name]] for name in INDEX_LABELS},
        "anchors": {anchor: text for anchor, text in report.anchors.items() if anchor in used},
        "cases": [_case_data(case, route) for case, route in zip(report.cases, routes, strict=True)],
    }


def _case_data(case: Case, route: str) -> dict[str, Any]:
    composite = case.score.composite if case.score else None
    return {
        "route": route,
        "model": case.model,
        "scenario": case.scenario,
        "episode": case.episode,
        "domain": case.domain,
        "dominant": case.dominant,
        "status": case.status,
        "turns": len(case.levels),
        "total": None if composite is None else round(composite.epm_q, 1),
        "reward": None if case.total_reward is None else round(case.total_reward, 3),
        "who": case.person.name if case.person else "",
    }


def _evidence(turn: Turn) -> tuple[Evidence, ...]:
    return turn.judgement.evidence if turn.judgement else ()


def _conversation(case: Case) -> dict[str, Any]:
    score, record = case.score, case.record
    return {
        "p0": case.p0,
        "person": case.person.model_dump(exclude={"needs": {"__all__": {"asks"}}}) if case.person else None,
        "header": _header(record.header) if record else None,
        "indices": _rounded(score.indices) if score and score.indices else None,
        "composite": _rounded(score.composite) if score and score.composite else None,
        "endedAt": score.ended_at if score else None,
        "outcome": record.outcome.model_dump() if record and record.outcome else None,
        "turns": [_turn(case, i) for i in range(len(case.levels))],
    }


def _header(header: EpisodeHeader) -> dict[str, str | int]:
    told = header.model_dump(exclude={"p0"})
    return {key: without_folders(value) if isinstance(value, str) else value for key, value in told.items()}


def _rounded(record: Any) -> dict[str, float]:
    return {name: round(value, 1) for name, value in record if isinstance(value, float)}


def _turn(case: Case, i: int) -> dict[str, Any]:
    delta = case.deltas[i]
    told: dict[str, Any] = {
        "levels": case.levels[i],
        "epm": {k: _round3(v) for k, v in delta.model_dump().items()} if delta else None,
    }
    if case.record is None:
        return told
    turn = case.record.turns[i]
    return told | {
        "user": turn.user,
        "reply": turn.reply,
        "raw": turn.raw_reply,
        "evidence": [{k: v for k, v in e.model_dump().items() if v != ""} for e in _evidence(turn)],
        "note": turn.judgement.note if turn.judgement else "",
        "direction": turn.direction.model_dump() if turn.direction else None,
        "reward": _round3(turn.reward),
        "failure": without_folders(turn.failure),
    }


def _round3(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_round3(x) for x in value)
    return round(value, 3) if isinstance(value, float) else value
