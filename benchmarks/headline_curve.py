"""The learning curve of `headline.py`: a plain SVG, readable on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np


class Point(NamedTuple):
    """One update of one run; None where a figure is missing."""

    update: int
    minutes: float
    """Since the run began, all its starts together."""
    success: float | None
    """Strict success of the conversations it was trained on, 0..1."""
    score: float | None
    """Mean share of the person's initial distance that was closed; 1 is all of it."""
    tokens: float | None
    """Mean length of a reply, in tokens."""
    held_out: float | None = None
    """Strict success on the dev split, where it was measured."""


class Panel(NamedTuple):
    """One row of the figure."""

    key: str
    title: str
    mark: Callable[[float], str]
    """A tick's label."""


PANELS = (
    Panel("success", "strict success, training conversations", lambda v: f"{v:.0%}"),
    Panel("score", "share of the distance closed", lambda v: f"{v:g}"),
    Panel("tokens", "tokens a reply", lambda v: f"{v:g}"),
)
AXES = (("minutes", "minutes of training"), ("update", "updates"))
WIDTH, HEIGHT, LEFT, TOP, GAP = 380, 150, 56, 82, 44
"""Of a panel's plot, its margins, and the space between two rows; in pixels."""
STYLE = """
svg { --paper: #ffffff; --ink: #1f2328; --soft: #59636e; --grid: #e3e7eb; --s0: #2a6fb5; --s1: #b8570b; --s2: #23804f;
  --s3: #8250a8; font: 12px system-ui, sans-serif }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9aa4af; --grid: #262c34; --s0: #6cb0f5; --s1: #f0a35e; --s2: #62c993;
    --s3: #c79bea } }
text { fill: var(--soft) } .title { fill: var(--ink); font-weight: 600 } .grid { stroke: var(--grid) }
polyline { fill: none; stroke-linejoin: round } .run { stroke-width: 1.2; opacity: .75 }
.mean { stroke: var(--ink); stroke-width: 2.4 }
"""

Line = list[tuple[float, float]]


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round values that span a range: multiples of 1, 2 or 5 times a power of ten, at most `most` + 1."""
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(m * power for m in (1, 2, 5, 10) if span / (m * power) <= most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 10) for k in range(first, max(last, first + 1) + 1)]


def pieces(run: Sequence[Point], x: str, y: str) -> list[Line]:
    """Return a run's line, broken where a figure is missing."""
    found: list[Line] = [[]]
    for point in run:
        value = getattr(point, y)
        if value is None:
            found.append([])
        else:
            found[-1].append((float(getattr(point, x)), float(value)))
    return [line for line in found if line]


def mean_line(runs: Sequence[Sequence[Point]], x: str, y: str, count: int = 80) -> Line:
    """Return the mean over runs, where all of them have got to; empty for a single one.

    Args:
        runs: What to average.
        x: "update", averaged update by update, or "minutes", each run interpolated.
        y: Which figure; an update where a run lacks it is bridged.
        count: Places, under "minutes".
    """
    lines = [np.array([p for piece in pieces(run, x, y) for p in piece]) for run in runs]
    if len(lines) < 2 or not all(len(line) for line in lines):
        return []
    low, high = max(line[0, 0] for line in lines), min(line[-1, 0] for line in lines)
    if low > high:
        return []
    places = np.arange(low, high + 1) if x == "update" else np.linspace(low, high, count)
    values = np.mean([np.interp(places, line[:, 0], line[:, 1]) for line in lines], axis=0)
    return [(float(a), float(b)) for a, b in zip(places, values, strict=True)]


def draw(runs: Mapping[str, Sequence[Point]]) -> str:
    """Return the figure as SVG text.

    Args:
        runs: By name; at most four, and empty ones are left out.
    """
    there = {name: run for name, run in runs.items() if run}
    width = 2 * (LEFT + WIDTH) + 30
    height = TOP + len(PANELS) * (HEIGHT + GAP) + 14
    body = [
        f'<rect width="{width}" height="{height}" fill="var(--paper)"/>',
        f'<text class="title" x="{LEFT}" y="22" font-size="15">Multi-turn DAPO from the cold start</text>',
        *_legend(there),
    ]
    for row, panel in enumerate(PANELS):
        for column, (x, label) in enumerate(AXES):
            left, top = LEFT + column * (WIDTH + LEFT + 10), TOP + row * (HEIGHT + GAP)
            body += _panel(there, panel, x, label if row == len(PANELS) - 1 else "", left, top)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="Learning curves: success, distance closed and reply length against time and updates">'
        f"\n<style>{STYLE}</style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def _legend(runs: Mapping[str, Sequence[Point]]) -> list[str]:
    entries = [(name, f"var(--s{k % 4})", 1.6) for k, name in enumerate(runs)]
    if len(runs) > 1:
        entries.append((f"mean of {len(runs)}", "var(--ink)", 2.6))
    drawn, x = [], LEFT
    for name, colour, stroke in entries:
        drawn.append(f'<path d="M{x} 42h22" stroke="{colour}" stroke-width="{stroke}"/>')
        drawn.append(f'<text x="{x + 28}" y="46">{escape(name)}</text>')
        x += 52 + 7 * len(name)
    if any(p.held_out is not None for run in runs.values() for p in run):
        drawn.append(f'<circle cx="{x + 10}" cy="42" r="3.5" fill="var(--soft)"/>')
        drawn.append(f'<text x="{x + 20}" y="46">held-out people (dev)</text>')
    return drawn


def _panel(runs: Mapping[str, Sequence[Point]], panel: Panel, x: str, label: str, left: float, top: float) -> list[str]:
    lines = {name: pieces(run, x, panel.key) for name, run in runs.items()}
    dots = {name: pieces(run, x, "held_out") if panel.key == "success" else [] for name, run in runs.items()}
    values = [v for found in (*lines.values(), *dots.values()) for line in found for _, v in line]
    ends = [float(getattr(run[-1], x)) for run in runs.values()]
    across, up = ticks(0, max(ends, default=1), 6), ticks(min([0.0, *values]), max([0.02, *values]))

    def at(px: float, py: float) -> str:
        return (
            f"{left + WIDTH * (px - across[0]) / (across[-1] - across[0]):.1f},"
            f"{top + HEIGHT * (1 - (py - up[0]) / (up[-1] - up[0])):.1f}"
        )

    drawn = [f'<text class="title" x="{left}" y="{top - 9}">{escape(panel.title)}</text>']
    for value in up:
        px, py = at(across[0], value).split(",")
        drawn.append(f'<path class="grid" d="M{px} {py}h{WIDTH}"/>')
        drawn.append(f'<text x="{left - 7}" y="{float(py) + 4:.1f}" text-anchor="end">{panel.mark(value)}</text>')
    for value in across:
        px = at(value, up[0]).split(",")[0]
        drawn.append(f'<text x="{px}" y="{top + HEIGHT + 16}" text-anchor="middle">{value:g}</text>')
    if label:
        drawn.append(f'<text x="{left + WIDTH / 2}" y="{top + HEIGHT + 34}" text-anchor="middle">{label}</text>')
    for k, name in enumerate(runs):
        colour = f"var(--s{k % 4})"
        for line in lines[name]:
            drawn.append(_polyline(line, at, "run", f' stroke="{colour}"'))
        for spot in (p for line in dots[name] for p in line):
            cx, cy = at(*spot).split(",")
            drawn.append(f'<circle cx="{cx}" cy="{cy}" r="3.5" fill="{colour}"/>')
    if mean := mean_line(list(runs.values()), x, panel.key):
        drawn.append(_polyline(mean, at, "mean"))
    return drawn


def _polyline(line: Line, at: Callable[[float, float], str], kind: str, colour: str = "") -> str:
    return f'<polyline class="{kind}"{colour} points="{" ".join(at(*p) for p in line)}"/>'
