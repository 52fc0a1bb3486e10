"""The report's figures, as plain plotly specifications: data and layout, no plotly needed to make them.

Colours are CSS variables, "var(--success)" for example, which the page resolves for its light or dark theme. Nothing is
told by colour alone: lines differ in dash and marker, bars in pattern, ends in symbol.
"""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from echo_env.cases import INDEX_LABELS, STATUSES, Case, Group, Status, mean
from echo_env.epm import norm
from echo_env.profiles import Domain
from echo_env.report import Report
from echo_env.types import AXES, Axis

Figure = dict[str, Any]
"""{"data": [...], "layout": {...}}"""

AXIS_NAMES: dict[Axis, str] = {
    "C": "cognitive restructuring",
    "A": "affective resonance",
    "P": "proactive empowerment",
}
PLANES: tuple[tuple[Axis, Axis], ...] = (("C", "A"), ("A", "P"), ("C", "P"))
MODEL_COLOURS = 8
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross")
_GRID = {"gridcolor": "var(--grid)", "zerolinecolor": "var(--axis)", "linecolor": "var(--axis)"}


class Look(NamedTuple):
    """How a group of cases is drawn."""

    colour: str
    dash: str
    symbol: str
    """Of the last point; one that plotly draws in space too, where an x depends on the reader's fonts."""


LOOKS: dict[Group, Look] = {
    "success": Look("var(--success)", "solid", "circle"),
    "failure": Look("var(--failure)", "dash", "square"),
    "open": Look("var(--cut)", "dashdot", "diamond"),
    "cut": Look("var(--cut)", "dot", "diamond-open"),
}
PATTERNS: dict[Status, tuple[str, str]] = {
    "success": ("var(--success)", ""),
    "collapse": ("var(--failure)", ""),
    "stagnation": ("var(--failure)", "/"),
    "oscillation": ("var(--failure)", "x"),
    "patience": ("var(--patience)", ""),
    "director": ("var(--patience)", "/"),
    "none": ("var(--cut)", "."),
    "budget": ("var(--cut)", "-"),
    "unjudged": ("var(--cut)", "|"),
    "unreachable": ("var(--cut)", "+"),
    "unscored": ("var(--cut)", "\\"),
    "unfinished": ("var(--cut)", "x"),
}
"""Colour and pattern of a status in a bar."""


def figures(report: Report) -> dict[str, Figure]:
    """Return every figure by name; those that nothing can be drawn for are left out.

    Names: "ends", "energy", "domains", "needs", "box-<index>"; and for the model at position i of `report.models`
    "space-<i>", "ca-<i>", "ap-<i>", "cp-<i>", "work-<i>".
    """
    scored = [case for case in report.cases if case.score and case.score.scored]
    found: dict[str, Figure] = {"ends": ends(report)}
    if scored:
        found["energy"] = energy(report, scored)
        found["needs"] = radar(report, scored, lambda case: case.dominant, _NEEDS)
        if any(case.domain for case in scored):
            found["domains"] = radar(report, scored, lambda case: case.domain, {d: d for d in get_args(Domain)})
        found |= {f"box-{index}": box(report, scored, index) for index in INDEX_LABELS}
    for i, model in enumerate(report.models):
        cases = [(k, case) for k, case in enumerate(report.cases) if case.model == model.summary.model and case.score]
        if cases:
            limits = _limits(report.cases, (case for _, case in cases))
            found[f"space-{i}"] = space(cases, limits)
            found |= {f"{x}{y}-{i}".lower(): plane(cases, x, y, limits) for x, y in PLANES}
            found[f"work-{i}"] = work(cases)
    return found


def ends(report: Report) -> Figure:
    """Stacked bars: how each model's episodes ended."""
    names = [_plain(model.summary.model) for model in report.models]
    bars = []
    for status, (colour, pattern) in PATTERNS.items():
        counts = [model.statuses.get(status, 0) for model in report.models]
        if any(counts):
            shape = (
                {
                    "shape": pattern,
                    "fillmode": "overlay",
                    "size": 6,
                    "solidity": 0.3,
                    "fgcolor": "var(--card)",
                    "fgopacity": 0.6,
                }
                if pattern
                else {}
            )
            bars.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": STATUSES[status].label,
                    "y": names,
                    "x": counts,
                    "text": [str(n) if n else "" for n in counts],
                    "textposition": "inside",
                    "insidetextanchor": "middle",
                    "textangle": 0,
                    "textfont": {"color": "var(--on-bar)"},
                    "marker": {"color": colour, "pattern": shape, "line": {"color": "var(--card)", "width": 1}},
                    "hovertemplate": "%{y}: %{x} %{fullData.name}<extra></extra>",
                }
            )
    layout = _layout("episodes", "", barmode="stack", bargap=0.35, legend=_LEGEND_ABOVE | {"traceorder": "normal"})
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False, "ticksuffix": "  "}
    layout["xaxis"] |= {"rangemode": "tozero", "tickformat": "d"}
    return {"data": bars, "layout": layout}


def energy(report: Report, scored: Sequence[Case]) -> Figure:
    """Mean energy by turn for each model, in % of |P0|; an ended episode keeps its last value."""
    last = max(len(case.levels) for case in scored)
    lines = []
    for i, name, cases in _by_model(report, scored):
        curves = [_held(_energy_shares(case), last) for case in cases]
        lines.append(
            _model_look(i)
            | {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": list(range(last + 1)),
                "y": [_round(mean(values)) for values in zip(*curves, strict=True)],
                "hovertemplate": "turn %{x}: %{y:.0f} %<extra>%{fullData.name}</extra>",
            }
        )
    layout = _layout("turn", "mean energy E, % of |P0|", legend=_LEGEND_ABOVE, shapes=[_level_line(100)])
    layout["xaxis"] |= {"range": [0, last + 0.6]}
    return {"data": lines, "layout": layout}


def radar(report: Report, scored: Sequence[Case], key: Callable[[Case], str], names: Mapping[str, str]) -> Figure:
    """Mean total of each model by what `key` says of a case; no point where a model has no scored episode."""
    values = sorted({key(case) for case in scored}, key=lambda v: (list(names).index(v) if v in names else 99, v))
    spokes = [_plain(names.get(value, value)) for value in values]
    lines, top = [], 100.0
    for i, name, cases in _by_model(report, scored):
        groups: defaultdict[str, list[float]] = defaultdict(list)
        for case in cases:
            if case.score and case.score.composite:
                groups[key(case)].append(case.score.composite.epm_q)
        radii = [_round(mean(groups[value])) for value in values]
        top = max(top, *(r for r in radii if r is not None))
        look = _model_look(i)
        look["marker"] |= {"size": 7, "maxdisplayed": 0}
        lines.append(
            look
            | {
                "type": "scatterpolar",
                "mode": "lines+markers",
                "name": name,
                "r": [*radii, radii[0]],
                "theta": [*spokes, spokes[0]],
                "customdata": [len(groups[value]) for value in (*values, values[0])],
                "hovertemplate": "%{theta}: %{r:.1f} (n = %{customdata})<extra>%{fullData.name}</extra>",
            }
        )
    layout = _layout("", "", legend=_LEGEND_BELOW, margin={"l": 70, "r": 70, "t": 32, "b": 32})
    layout["polar"] = {
        "bgcolor": "rgba(0,0,0,0)",
        "radialaxis": {
            "gridcolor": "var(--grid)",
            "linecolor": "var(--axis)",
            "range": [0, top],
            "angle": 90,
            "tickangle": 90,
            "nticks": 5,
            "color": "var(--soft)",
        },
        "angularaxis": {
            "gridcolor": "var(--grid)",
            "linecolor": "var(--axis)",
            "rotation": 90,
            "direction": "clockwise",
        },
    }
    return {"data": lines, "layout": layout}


def box(report: Report, scored: Sequence[Case], index: str) -> Figure:
    """One index: a box for each model, over its scored episodes."""
    boxes: list[Figure] = []
    for i, name, cases in _by_model(report, scored):
        values = [_round(getattr(case.score.indices, index)) for case in cases if case.score and case.score.indices]
        labels = [_plain(case.scenario) for case in cases]
        boxes.append(
            {
                "type": "box",
                "orientation": "h",
                "name": name,
                "x": values,
                "boxpoints": "all" if len(values) <= 60 else "outliers",
                "boxmean": True,
                "jitter": 0.6,
                "pointpos": 0,
                "fillcolor": "rgba(128,128,128,0.10)",
                "line": {"color": f"var(--m{i % MODEL_COLOURS})", "width": 1.4},
                "marker": {"size": 4, "opacity": 0.45, "symbol": _SYMBOLS[(i + i // MODEL_COLOURS) % len(_SYMBOLS)]},
                "text": labels,
                "hovertemplate": "%{text}: %{x:.1f}<extra>%{fullData.name}</extra>",
                "hoveron": "points+boxes",
                "showlegend": False,
            }
        )
    layout = _layout("", "", margin={"l": 10, "r": 8, "t": 6, "b": 24}, boxgap=0.3)
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False, "ticksuffix": " ", "tickfont": {"size": 11}}
    top = max(100.0, *(x for trace in boxes for x in trace["x"]))
    layout["xaxis"] |= {"range": [-0.02 * top, 1.03 * top], "zeroline": True}
    return {"data": boxes, "layout": layout}


def space(cases: Sequence[tuple[int, Case]], limits: tuple[float, float]) -> Figure:
    """Trajectories in EPM space."""
    data = _trajectories(cases, ("C", "A", "P"), "scatter3d")
    axis = _GRID | {"range": list(limits), "showbackground": False, "color": "var(--soft)", "showspikes": False}
    scene = {f"{slot}axis": axis | {"title": {"text": name}} for slot, name in zip("xyz", AXES, strict=True)}
    camera = {"eye": {"x": 1.45, "y": -1.75, "z": 0.8}, "center": {"x": 0, "y": 0, "z": -0.12}}
    layout = _layout("", "", margin={"l": 0, "r": 0, "t": 0, "b": 0})
    layout["scene"] = scene | {"aspectmode": "cube", "camera": camera, "dragmode": "orbit"}
    return {"data": data, "layout": layout}


def plane(cases: Sequence[tuple[int, Case]], x: Axis, y: Axis, limits: tuple[float, float]) -> Figure:
    """Trajectories projected on the plane of two axes."""
    layout = _layout(f"{x}, {AXIS_NAMES[x]} (points)", f"{y}, {AXIS_NAMES[y]} (points)")
    layout["xaxis"] |= {"range": list(limits), "constrain": "domain"}
    layout["yaxis"] |= {"range": list(limits), "constrain": "domain", "scaleanchor": "x"}
    return {"data": _trajectories(cases, (x, y), "scatter"), "layout": layout}


def work(cases: Sequence[tuple[int, Case]]) -> Figure:
    """Energy of each of a model's episodes by turn, in % of |P0|."""
    data = []
    for k, case in cases:
        shares = _energy_shares(case)
        line = _line(k, case, "scatter") | {"x": list(range(len(shares))), "y": shares}
        data.append(line | {"hovertemplate": "<b>%{meta[0]}</b><br>turn %{x}: E = %{y:.0f} % of |P0|<extra></extra>"})
    for group, members in _groups(cases).items():
        last = [_held(_energy_shares(case), 0)[-1] for _, case in members]
        marks = _marks(group, members, "scatter") | {"x": [len(case.levels) for _, case in members], "y": last}
        data.append(marks | {"hoverinfo": "skip"})
    layout = _layout("turn", "energy E, % of |P0|", shapes=[_level_line(100)])
    layout["xaxis"] |= {"rangemode": "tozero"}
    return {"data": data, "layout": layout}


def _trajectories(cases: Sequence[tuple[int, Case]], axes: tuple[Axis, ...], kind: str) -> list[Figure]:
    slots = [("xyz"[i], AXES.index(axis)) for i, axis in enumerate(axes)]
    where = ", ".join(f"{axis} %{{{'xyz'[i]}:.1f}}" for i, axis in enumerate(axes))
    data = []
    for k, case in cases:
        points = {slot: [None if p is None else _round(p[j]) for p in case.path] for slot, j in slots}
        hover = f"<b>%{{meta[0]}}</b><br>turn %{{pointNumber}}: {where}<extra>%{{meta[1]}}</extra>"
        data.append(_line(k, case, kind) | points | {"hovertemplate": hover})
    starts = {slot: [case.p0[j] for _, case in cases] for slot, j in slots}
    start = {"symbol": "circle-open", "size": 3 if kind == "scatter3d" else 5, "color": "var(--soft)"}
    data.append({"type": kind, "mode": "markers", "marker": start, "hoverinfo": "skip"} | starts)
    for group, members in _groups(cases).items():
        ends = {slot: [[p for p in case.path if p is not None][-1][j] for _, case in members] for slot, j in slots}
        data.append(_marks(group, members, kind) | ends | {"hoverinfo": "skip"})
    origin = {"symbol": "cross", "size": 7 if kind == "scatter3d" else 13, "color": "var(--ink)"}
    label = {"mode": "markers+text", "text": ["origin"], "textposition": "top center"} if kind == "scatter3d" else {}
    mark = {"type": kind, "mode": "markers", "marker": origin, "hoverinfo": "skip"} | label
    data.append(mark | {slot: [0] for slot, _ in slots})
    return [trace | {"showlegend": False} for trace in data]


def _line(k: int, case: Case, kind: str) -> Figure:
    look = LOOKS[STATUSES[case.status].group]
    width = 3 if kind == "scatter3d" else 1.3
    return {
        "type": kind,
        "mode": "lines",
        "line": {"color": look.colour, "width": width, "dash": look.dash},
        "opacity": 0.6,
        "connectgaps": True,
        "meta": [_plain(case.scenario), STATUSES[case.status].label, k],
        "showlegend": False,
    }


def _marks(group: Group, members: Sequence[tuple[int, Case]], kind: str) -> Figure:
    look = LOOKS[group]
    marker = {"symbol": look.symbol, "size": 4 if kind == "scatter3d" else 7, "color": look.colour}
    return {
        "type": kind,
        "mode": "markers",
        "marker": marker,
        "showlegend": False,
        "customdata": [k for k, _ in members],
    }


def _groups(cases: Sequence[tuple[int, Case]]) -> dict[Group, list[tuple[int, Case]]]:
    groups: dict[Group, list[tuple[int, Case]]] = {}
    for k, case in cases:
        groups.setdefault(STATUSES[case.status].group, []).append((k, case))
    return groups


def _by_model(report: Report, cases: Sequence[Case]) -> Iterable[tuple[int, str, list[Case]]]:
    """Return position, name and cases of each model that has any."""
    for i, model in enumerate(report.models):
        found = [case for case in cases if case.model == model.summary.model]
        if found:
            yield i, _plain(model.summary.model), found


def _model_look(i: int) -> Figure:
    shift = i + i // MODEL_COLOURS  # where colours come round again, dash and symbol are others
    colour = f"var(--m{i % MODEL_COLOURS})"
    return {
        "line": {"color": colour, "width": 2, "dash": _DASHES[shift % len(_DASHES)]},
        "marker": {"color": colour, "symbol": _SYMBOLS[shift % len(_SYMBOLS)], "size": 8, "maxdisplayed": 10},
    }


def _energy_shares(case: Case) -> list[float | None]:
    size = norm(case.p0)
    return [0.0, *(None if delta is None else _round(100 * delta.energy / size) for delta in case.deltas)]


def _held(values: Iterable[float | None], last: int) -> list[float]:
    """Return the values with gaps filled by the one before, held on to position `last`."""
    held: list[float] = []
    for value in values:
        held.append(held[-1] if value is None else value)
    return held + [held[-1]] * (last + 1 - len(held))


def _limits(everyone: Iterable[Case], own: Iterable[Case]) -> tuple[float, float]:
    """Return the range of a model's axes: that of all initial deficits, wider where its own paths leave it."""
    lowest = min(x for case in everyone for x in case.p0)
    values = [x for case in own for point in case.path if point for x in point]
    return (math.floor(min([lowest, *values])) - 1, max(2, math.ceil(max(values)) + 1))


def _level_line(y: float) -> Figure:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": "var(--axis)", "dash": "dot", "width": 1},
    }


def _layout(x: str, y: str, **more: object) -> Figure:
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 12, "color": "var(--ink)", "family": "var(--sans)"},
        "margin": {"l": 58, "r": 12, "t": 12, "b": 48},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--axis)", "activecolor": "var(--ink)"},
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--axis)", "font": {"color": "var(--ink)"}},
        "xaxis": _GRID | {"title": {"text": x}, "automargin": True},
        "yaxis": _GRID | {"title": {"text": y}, "automargin": True},
        **more,
    }


_NEEDS: dict[str, str] = {axis: f"{axis}, {name.split()[0]}" for axis, name in AXIS_NAMES.items()}
_LEGEND_BELOW: Figure = {"orientation": "h", "x": 0.5, "xanchor": "center", "y": -0.1, "yanchor": "top"}
_LEGEND_ABOVE: Figure = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.04, "yanchor": "bottom"}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _plain(text: str) -> str:
    """Escape a name: plotly reads some HTML in texts."""
    return html.escape(text, quote=False)
