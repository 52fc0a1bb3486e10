"""Reports: recorded runs, or a level file, as JSON, CSV, tables for the terminal and one HTML page.

A report scores every episode anew from its recorded levels. What could not be scored is counted and shown, and is never
a zero: unscored episodes, unfinished ones, unjudged turns.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from echo_env.cases import STATUSES, Case, episode_case, level_case, mean, without_folders, word_count
from echo_env.epm import INDEX_NAMES, Scorer
from echo_env.errors import ConfigError, RecordError
from echo_env.faults import kinds_of
from echo_env.levels import read_level_file
from echo_env.metrics import COMPOSITE_NAMES, STATISTICS, Comparison, ModelSummary, compare, leaderboard
from echo_env.record import RunFolder, RunHeader, find_runs
from echo_env.rubrics import read_rubric, rubric_path
from echo_env.scorers import get_scorer
from echo_env.types import CHITCHAT, Episode, EpisodeHeader, Record
from echo_env.usage import RoleUsage
from echo_env.version import VERSION

if TYPE_CHECKING:
    from rich.console import Console


class Run(Record):
    """What was run, as far as it may be shown: no folder of the machine it ran on."""

    model: str
    echo_env: str
    git_commit: str
    git_dirty: bool
    python: str
    started: str
    packages: dict[str, str]
    settings: dict[str, str]
    """The resolved configuration, flattened."""
    roles: dict[str, str]
    """Ids of policy, judge, rubric, actor, director, recipe and scorer, as recorded."""
    usage: dict[str, RoleUsage] = Field(default_factory=dict)
    """What language models took, by role; empty where none was asked."""

    @property
    def asked(self) -> list[tuple[str, str]]:
        """The same in words: role, and a line for it."""
        return [(f"asked as {role}", usage.told) for role, usage in self.usage.items()]


class ChatReport(Record):
    """A model's chit-chat, where EPM does not apply: in no score."""

    conversations: int
    turns: int
    unrewarded: int
    """Turns without a reward: a verdict is missing."""
    mean_reward: float | None
    """Mean over the turns that have one."""

    @property
    def told(self) -> str:
        """All of it in a line."""
        reward = "none" if self.mean_reward is None else f"{self.mean_reward:.2f}"
        missing = f", {self.unrewarded} of {self.turns} turns without one" if self.unrewarded else ""
        return f"{self.conversations} of chit-chat (no EPM), mean reward a turn {reward}{missing}"


class ModelReport(Record):
    """One model: its scores, and what stands beside them."""

    summary: ModelSummary
    statuses: dict[str, int]
    """All episodes by status, unscored and unfinished ones included."""
    unfinished: int
    """Episodes without an outcome: counted here, and in nothing else."""
    turns: int
    """Turns of all finished episodes."""
    unjudged_turns: int
    mean_return: float | None
    """Mean over episodes of the sum of recorded turn rewards; None where none was recorded."""
    mean_turns: float | None
    mean_words: float | None
    """Mean length of a reply, in words."""
    harmful_replies: int
    """Replies that the safety gate flagged, in all finished episodes."""
    crisis_flags: int
    """Messages of the user's that the safety gate flagged."""
    failures: dict[str, int]
    """What roles failed at, by role and kind of error: one turn may count for several."""
    chat: ChatReport | None = None
    """Its chit-chat, which nothing above counts."""


class Report(Record):
    """Everything that tables, figures and pages are made from."""

    kind: Literal["runs", "levels"]
    source: str
    """Name of the folder or file; no path."""
    scorer: str
    profile: str
    runs: tuple[Run, ...]
    models: tuple[ModelReport, ...]
    """The highest total first, models without a scored episode last."""
    comparisons: tuple[Comparison, ...]
    """Each model against the next one down, where they share scored scenarios."""
    cases: tuple[Case, ...]
    anchors: dict[str, str]
    """What the rubric's anchors look like, by id."""


def collect(root: Path, scorer: str | None = None, profile: str = "epm") -> Report:
    """Read all runs in a folder and score their episodes anew.

    Args:
        root: A run folder, or a folder of them. A run's model is named by its folder.
        scorer: Name or id of the scorer; None for the one that the episodes were recorded with.
        profile: Weight profile of the composites.

    Raises:
        RecordError: There is no run, or a file of one cannot be read.
        ConfigError: Scorer or profile is unknown, or none was named and the episodes were recorded with several.
    """
    folders = find_runs(root)
    names = [folder.path.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise RecordError(f"two runs in {root} have the same name", "report on one of the folders, or rename one")
    recorded = {name: list(folder.episodes()) for name, folder in zip(names, folders, strict=True)}
    chats = {name: [e for e in found if e.header.domain == CHITCHAT] for name, found in recorded.items()}
    episodes = {name: [e for e in found if e.header.domain != CHITCHAT] for name, found in recorded.items()}
    headers = [episode.header for found in episodes.values() for episode in found]
    rules = get_scorer(scorer or _recorded_scorer(headers))
    cases = [episode_case(name, episode, rules, profile) for name, found in episodes.items() for episode in found]
    return Report(
        kind="runs",
        source=root.resolve().name,
        scorer=rules.id,
        profile=profile,
        runs=tuple(_run(name, folder, recorded[name]) for name, folder in zip(names, folders, strict=True)),
        models=tuple(
            model.model_copy(update={"chat": _chat(chats[model.summary.model])})
            for model in _models(names, cases, rules, profile)
        ),
        comparisons=_comparisons(cases, profile),
        cases=tuple(cases),
        anchors=_anchors({header.rubric for header in headers}),
    )


def level_report(path: Path, scorer: str = "strict", profile: str = "epm") -> Report:
    """Report on a level file: the judges' levels of many episodes, without their words.

    Raises:
        RecordError: The file cannot be read, or does not hold what it must.
        ConfigError: Scorer or profile is unknown.
    """
    rules = get_scorer(scorer)
    numbers: Counter[tuple[str, str]] = Counter()
    cases = []
    for entry in read_level_file(path).episodes:
        cases.append(level_case(entry, numbers[entry.model, entry.case], rules, profile))
        numbers[entry.model, entry.case] += 1
    return Report(
        kind="levels",
        source=path.name,
        scorer=rules.id,
        profile=profile,
        runs=(),
        models=_models([], cases, rules, profile),
        comparisons=_comparisons(cases, profile),
        cases=tuple(cases),
        anchors={},
    )


def to_json(report: Report) -> dict[str, object]:
    """Return the report as plain data, ready for `json.dumps`: models, comparisons, episodes, runs.

    Rates are shares within 0..1, indices and composites in points of 100; None where there is nothing to show.
    """
    return {
        "echo_env": VERSION,
        "kind": report.kind,
        "source": report.source,
        "scorer": report.scorer,
        "profile": report.profile,
        "models": [_model_row(model) for model in report.models],
        "comparisons": [comparison.model_dump() for comparison in report.comparisons],
        "episodes": [_case_row(case) for case in report.cases],
        "runs": [run.model_dump() for run in report.runs],
    }


def to_csv(report: Report) -> str:
    """Return one row a model, confidence bounds last; an empty cell is a missing value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    counts = ("n", "scored", "unscored", "unfinished", "successes", "turns", "unjudged_turns")
    means = ("mean_return", "mean_turns", "mean_words")
    bounds = [f"{name}_{bound}" for name in STATISTICS for bound in ("low", "high")]
    writer.writerow(["model", "scorer", "profile", *counts, *STATISTICS, *means, *bounds])
    for model in report.models:
        summary = model.summary
        row = _model_row(model) | (summary.indices.model_dump() if summary.indices else {})
        limits = {name: (interval.low, interval.high) for name, interval in summary.intervals.items()}
        cells = [row.get(name) for name in (*counts, *STATISTICS, *means)]
        ends = [x for name in STATISTICS for x in limits.get(name, (None, None))]
        writer.writerow([summary.model, report.scorer, report.profile, *cells, *ends])
    return out.getvalue()


def terminal(report: Report, console: Console) -> None:
    """Print the report as tables; plain text where the console is no terminal."""
    from echo_env.tables import print_tables

    print_tables(report, console)


def write_html(report: Report, path: Path) -> None:
    """Write the report as one self-contained HTML page.

    Raises:
        MissingExtra: plotly or jinja2 is not installed.
        RecordError: The page cannot be written.
    """
    from echo_env.page import render

    text = render(report)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as e:
        raise RecordError(f"{path} cannot be written: {e.strerror or e}", "choose another place for the page") from None


def _recorded_scorer(headers: Iterable[EpisodeHeader]) -> str:
    found = sorted({header.scorer for header in headers})
    if len(found) > 1:
        raise ConfigError(
            f"the episodes were recorded with several scorers: {', '.join(found)}",
            "name the one to score them all with, strict for example",
        )
    return found[0] if found else "strict"


def _anchors(rubrics: Iterable[str]) -> dict[str, str]:
    found = [read_rubric(rubric)["anchors"] for rubric in sorted(rubrics) if rubric_path(rubric).is_file()]
    return {anchor["id"]: anchor["looks_like"] for anchors in found for anchor in anchors}


def _run(model: str, folder: RunFolder, episodes: Sequence[Episode]) -> Run:
    header: RunHeader = folder.header()
    roles = ("policy", "actor", "director", "judge", "rubric", "recipe", "scorer")
    recorded = {role: sorted({str(getattr(e.header, role)) for e in episodes}) for role in roles}
    return Run(
        model=model,
        echo_env=header.echo_env,
        git_commit=header.git_commit,
        git_dirty=header.git_dirty,
        python=header.python,
        started=header.started,
        packages=header.packages,
        settings=dict(_flat(header.config)),
        roles={role: without_folders(", ".join(ids)) for role, ids in recorded.items() if ids},
        usage=folder.usage(),
    )


def _flat(config: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None and value != []:
            yield f"{prefix}{key}", without_folders(str(value))


def _models(names: Iterable[str], cases: Sequence[Case], scorer: Scorer, profile: str) -> tuple[ModelReport, ...]:
    """Return one entry a model, those without a finished episode included."""
    summaries = leaderboard([case.score for case in cases if case.score], profile=profile)
    ranked = {summary.model for summary in summaries}
    bare = [name for name in names if name not in ranked]
    return tuple(
        _model(summary, [case for case in cases if case.model == summary.model])
        for summary in (*summaries, *(_no_episodes(name, scorer) for name in bare))
    )


def _no_episodes(model: str, scorer: Scorer) -> ModelSummary:
    return ModelSummary(
        model=model,
        scorer=scorer.id,
        n=0,
        scored=0,
        unscored=0,
        successes=0,
        success_rate=None,
        ends={},
        indices=None,
        composite=None,
        intervals={},
    )


def _model(summary: ModelSummary, cases: Sequence[Case]) -> ModelReport:
    finished = [case for case in cases if case.score]
    turns = [turn for case in finished if case.record for turn in case.record.turns]
    counts = Counter(case.status for case in cases)
    faults = (kind for c in cases if c.record for t in c.record.turns for kind in kinds_of(t.failure))
    failed = Counter(without_folders(kind) for kind in faults)
    return ModelReport(
        summary=summary,
        statuses={status: counts[status] for status in STATUSES if counts[status]},
        unfinished=len(cases) - len(finished),
        turns=sum(len(case.levels) for case in finished),
        unjudged_turns=sum(levels is None for case in finished for levels in case.levels),
        mean_return=mean([case.total_reward for case in finished if case.total_reward is not None]),
        mean_turns=mean([len(case.levels) for case in finished]),
        mean_words=mean([word_count(turn.reply) for turn in turns]),
        harmful_replies=sum(turn.judgement is not None and turn.judgement.harmful for turn in turns),
        crisis_flags=sum(turn.judgement is not None and turn.judgement.crisis for turn in turns),
        failures=dict(sorted(failed.items())),
    )


def _chat(episodes: Sequence[Episode]) -> ChatReport | None:
    if not episodes:
        return None
    rewards = [turn.reward for episode in episodes for turn in episode.turns]
    given = [reward for reward in rewards if reward is not None]
    return ChatReport(
        conversations=len(episodes),
        turns=len(rewards),
        unrewarded=len(rewards) - len(given),
        mean_reward=mean(given),
    )


def _comparisons(cases: Sequence[Case], profile: str) -> tuple[Comparison, ...]:
    scores = [case.score for case in cases if case.score and case.score.scored]
    order = [summary.model for summary in leaderboard(scores, profile=profile, draws=0)]
    found = []
    for upper, lower in pairwise(order):
        a, b = ([score for score in scores if score.model == model] for model in (upper, lower))
        if {score.scenario for score in a} & {score.scenario for score in b}:
            found.append(compare(a, b, profile=profile))
    return tuple(found)


def _model_row(model: ModelReport) -> dict[str, object]:
    summary = model.summary
    composite = summary.composite.model_dump() if summary.composite else {}
    return {
        "model": summary.model,
        "n": summary.n,
        "scored": summary.scored,
        "unscored": summary.unscored,
        "unfinished": model.unfinished,
        "successes": summary.successes,
        "success_rate": summary.success_rate,
        **{name: composite.get(name) for name in reversed(COMPOSITE_NAMES)},
        "indices": summary.indices.model_dump() if summary.indices else dict.fromkeys(INDEX_NAMES),
        "intervals": {name: interval.model_dump() for name, interval in summary.intervals.items()},
        "ends": model.statuses,
        "mean_return": model.mean_return,
        "mean_turns": model.mean_turns,
        "mean_words": model.mean_words,
        "turns": model.turns,
        "unjudged_turns": model.unjudged_turns,
        "harmful_replies": model.harmful_replies,
        "crisis_flags": model.crisis_flags,
        "failures": model.failures,
        **({"chat": model.chat.model_dump()} if model.chat else {}),
    }


def _case_row(case: Case) -> dict[str, object]:
    score = case.score
    return {
        "model": case.model,
        "scenario": case.scenario,
        "episode": case.episode,
        "domain": case.domain,
        "dominant": case.dominant,
        "status": case.status,
        "turns": len(case.levels),
        "unjudged_turns": sum(levels is None for levels in case.levels),
        "epm_q": score.composite.epm_q if score and score.composite else None,
        "indices": score.indices.model_dump() if score and score.indices else None,
        "return": case.total_reward,
        "mean_words": case.mean_words,
    }
