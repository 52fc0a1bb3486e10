"""A report as tables for the terminal. Every table fits into 80 columns, long model names are cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from echo_env.cases import INDEX_LABELS, STATUSES
from echo_env.epm import INDEX_NAMES
from echo_env.report import ModelReport, Report, Run
from echo_env.significance import Interval

MISSING = "-"
NARROW = 80
"""Columns that every table fits into; a wider console shows more of long names."""
ENDS_A_TABLE = 6
"""Columns of the table of ends; more go into a second one, so that 80 columns hold it."""


def print_tables(report: Report, console: Console) -> None:
    """Print scores, indices, ends, comparisons, what was left out, and what language models took."""
    width = max(console.width, NARROW)
    console.print(Text(_title(report), style="bold"))
    for table in (_scores(report, width), _indices(report, width), *_ends(report, width)):
        console.print(table)
    if report.comparisons:
        console.print(_comparisons(report, width))
    lines = [*_left_out(report.models), *_asked(report.runs)]
    if lines:
        console.print()
    for line in lines:
        console.print(Text(line, style="yellow"))


def score_name(profile: str) -> str:
    """Return what the weighted total is called: only under the profile `epm` is it the papers' EPM-Q."""
    return "EPM-Q" if profile == "epm" else "Total"


def p_value(p: float) -> str:
    """Return a p-value with three digits."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def number(value: float | None, digits: int = 1) -> str:
    """Return a number, or the mark of a missing one."""
    return MISSING if value is None else f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no minus before a zero


def _title(report: Report) -> str:
    scenarios = len({case.scenario for case in report.cases})
    return (
        f"{report.source}: {_count(len(report.models), 'model')}, {_count(scenarios, 'scenario')}, "
        f"{_count(len(report.cases), 'episode')}; scorer {report.scorer}, weights {report.profile}"
    )


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, names: int = 1) -> Group:
    """Lay out a table whose first `names` columns are names, cut so that the whole is at most `width` wide."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    widest = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    left = (width - sum(widest[names:]) - 2 * len(columns)) // names
    for column, needed in zip(columns[:names], widest[:names], strict=True):
        table.add_column(column, no_wrap=True, overflow="ellipsis", width=min(needed, max(8, left)))
    for column, needed in zip(columns[names:], widest[names:], strict=True):
        table.add_column(column, justify="right", no_wrap=True, width=needed)
    for row in rows:
        table.add_row(*map(Text, row))  # Text: a name is never read as markup
    return Group("", Text(caption, style="italic"), table)


def _scores(report: Report, width: int) -> Group:
    name = score_name(report.profile)
    columns = ["Model", "n", name, "95 % CI", "Success", "95 % CI", "Return", "Turns", "Words"]
    rows = [_score_row(model) for model in report.models]
    told = [i for i in range(len(columns)) if i < 6 or any(row[i] != MISSING for row in rows)]
    caption = "Scores, 0..100 (success in %; return, turns and reply words are means)"
    return _table(caption, [columns[i] for i in told], [[row[i] for i in told] for row in rows], width)


def _score_row(model: ModelReport) -> list[str]:
    summary = model.summary
    return [
        summary.model,
        str(summary.scored),
        number(summary.composite.epm_q if summary.composite else None),
        _span(summary.intervals.get("epm_q")),
        number(None if summary.success_rate is None else 100 * summary.success_rate, 0),
        _span(summary.intervals.get("success_rate"), 100, 0),
        number(model.mean_return, 2),
        number(model.mean_turns),
        number(model.mean_words),
    ]


def _span(interval: Interval | None, factor: float = 1, digits: int = 1) -> str:
    if interval is None:
        return MISSING
    return f"{number(interval.low * factor, digits)}..{number(interval.high * factor, digits)}"


def _indices(report: Report, width: int) -> Group:
    rows = [
        [m.summary.model, *(number(getattr(m.summary.indices, name, None)) for name in INDEX_NAMES)]
        for m in report.models
    ]
    caption = "The nine indices (means; three each of outcome, efficiency, stability)"
    return _table(caption, ["Model", *INDEX_LABELS.values()], rows, width)


def _ends(report: Report, width: int) -> Iterable[Group]:
    seen = [status for status in STATUSES if any(status in model.statuses for model in report.models)]
    for start in range(0, len(seen), ENDS_A_TABLE):
        part = seen[start : start + ENDS_A_TABLE]
        rows = [[m.summary.model, *(str(m.statuses.get(status, MISSING)) for status in part)] for m in report.models]
        yield _table("How the episodes ended", ["Model", *part], rows, width)


def _comparisons(report: Report, width: int) -> Group:
    columns = ["Upper", "Lower", "Diff.", "95 % CI", "p", "Only up", "Only low", "p"]
    rows = [
        [
            c.model_a,
            c.model_b,
            number(c.difference),
            _span(c.interval),
            p_value(c.p_value),
            str(c.better_a),
            str(c.better_b),
            p_value(c.success_p),
        ]
        for c in report.comparisons
    ]
    return _table(
        "Neighbours, paired by scenario (difference; scenarios that only one healed)", columns, rows, width, names=2
    )


def _asked(runs: Iterable[Run]) -> Iterable[str]:
    for run in runs:
        for role, told in run.asked:
            yield f"{run.model}, {role}: {told}"


def _left_out(models: Iterable[ModelReport]) -> Iterable[str]:
    for model in models:
        found = {
            "unscored (in no mean)": model.summary.unscored,
            "unfinished (left out)": model.unfinished,
            f"of {model.turns} turns unjudged": model.unjudged_turns,
            f"of {model.turns} replies harmful": model.harmful_replies,
            f"of {model.turns} messages tell of a crisis": model.crisis_flags,
            **{f"x {kind}": count for kind, count in model.failures.items()},
        }
        told = [f"{count} {what}" for what, count in found.items() if count]
        told += [model.chat.told] if model.chat else []
        if told:
            yield f"{model.summary.model}: {', '.join(told)}"
