"""The scorers against published and reference figures, where the shared oracle is at hand.

It lies in `../shared/oracle` beside the repository, or in `oracle` under the folder that ECHO_SHARED names. Its level
data is CC BY-NC and no part of the project, so these tests skip without it.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from echo_env import epm
from echo_env.epm import INDEX_NAMES, EpmState, Scorer
from echo_env.levels import LevelFile, read_level_file, score_file
from echo_env.metrics import EpisodeScore, ModelSummary, compose, leaderboard, score_levels
from echo_env.scorers import get_scorer
from echo_env.types import Levels, Vector

ROOT = Path(__file__).resolve().parents[1]
ORACLE = Path(os.environ.get("ECHO_SHARED", ROOT.parent / "shared")) / "oracle"
pytestmark = pytest.mark.skipif(not (ORACLE / "empa_levels.json").is_file(), reason="the shared oracle is not here")

PUBLISHED_NAMES = {
    "claude-4.6-opus": "Claude 4.6 Opus",
    "gemini-3-pro-preview": "Gemini 3 Pro Preview",
    "gpt-5.2-pro": "GPT-5.2 Pro",
    "gemini-2.5-pro": "Gemini 2.5 Pro",
    "qwen3-235b-a22b-2507": "Qwen 3 235B",
    "seed-2.0": "Seed 2.0",
    "kimi-k2-0905": "Kimi k2",
    "claude-3.5-sonnet": "Claude 3.5 Sonnet",
    "deepseek-chat-v3-0324": "DeepSeek V3",
    "seed-1.6": "Seed 1.6",
    "llama-3.3-70b-instruct": "Llama 3.3 70B",
    "gpt-4o": "GPT-4o",
    "doubao-1.5-character": "Doubao 1.5",
    "qwen3-32b": "Qwen 3 32B",
    "llama-3.1-8b-instruct": "Llama 3.1 8B",
    "qwen3-8b": "Qwen 3 8B",
}
PUBLISHED_COLUMNS = (
    "Idx_RDI", "Idx_Etot", "Idx_Snet", "Idx_Rho", "Idx_Sproj", "Idx_Tau", "Idx_Rpos", "Idx_Align", "Idx_Pen",
)  # fmt: skip
GOLDEN_NAMES = (
    "hand_check_4_turns", "steady_good", "steady_bad", "zigzag", "do_nothing", "one_axis_hack", "slow_good",
)  # fmt: skip
PUBLISHED_TOTALS = ("Outcome Quality", "Process Efficiency", "Process Stability", "EPM-Q Score")


@cache
def raw(name: str) -> Any:
    return json.loads((ORACLE / name).read_text(encoding="utf-8"))


@cache
def levels_file() -> LevelFile:
    return read_level_file(ORACLE / "empa_levels.json")


@cache
def scores(scorer: str) -> tuple[EpisodeScore, ...]:
    return score_file(levels_file(), get_scorer(scorer))


@cache
def summaries(scorer: str) -> dict[str, ModelSummary]:
    return {summary.model: summary for summary in leaderboard(scores(scorer), draws=0)}


def published_end(reason: str) -> tuple[str, str | None]:
    """Translate the publisher's words for how an episode ended."""
    table: dict[str, tuple[str, str | None]] = {
        "Positional": ("success", "positional"),
        "Geometric": ("success", "geometric"),
        "Oscillation": ("oscillation", None),
        "max turns": ("patience", None),
        "consecutive negative": ("collapse", None),
    }
    return next(end for word, end in table.items() if word in reason)


@pytest.mark.parametrize("model", PUBLISHED_NAMES)
def test_official_gives_the_published_indices(model: str) -> None:
    row = next(row for row in raw("empa_levels.json")["published"] if row["Model"] == PUBLISHED_NAMES[model])
    summary = summaries("official")[model]
    assert summary.indices is not None
    assert summary.composite is not None
    assert (summary.n, summary.scored) == (30, 30)
    for name, column in zip(INDEX_NAMES, PUBLISHED_COLUMNS, strict=True):
        assert getattr(summary.indices, name) == pytest.approx(float(row[column]), abs=0.02), name
    for name, column in zip(("outcome", "efficiency", "stability", "epm_q"), PUBLISHED_TOTALS, strict=True):
        assert getattr(summary.composite, name) == pytest.approx(float(row[column]), abs=0.02), name


def test_official_ends_every_episode_where_and_as_published() -> None:
    published = raw("empa_levels.json")["episodes"]
    assert len(published) == 480
    for entry, score in zip(published, scores("official"), strict=True):
        where = f"{entry['model']}, case {entry['case']}"
        assert (score.model, score.scenario) == (entry["model"], entry["case"])
        assert (score.end, score.end_detail) == published_end(entry["end"]), where
        assert score.ended_at == entry["turns"] == score.turns, where
        assert list(score.position) == entry["P_T"], where


def test_official_flags_every_replayed_null() -> None:
    counted = sum(score.replayed_nulls for score in scores("official"))
    nulls = sum(None in row for entry in raw("empa_levels.json")["episodes"] for row in entry["levels"])
    assert counted == nulls == 70
    assert not any(score.replayed_nulls for score in scores("strict-1"))


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_official_gives_the_golden_sequences(name: str) -> None:
    case = next(case for case in raw("epm_golden_sequences.json")["cases"] if case["name"] == name)
    scorer = get_scorer("official")
    state = scorer.start(as_vector(case["P0"]))
    check_turn(scorer, state, case["per_turn"][0])
    for row, expected in zip(case["levels"], case["per_turn"][1:], strict=True):
        state = scorer.advance(state, Levels(*row))
        check_turn(scorer, state, expected)
    indices = scorer.indices(state)
    assert indices is not None
    for ours, theirs in zip(INDEX_NAMES, PUBLISHED_COLUMNS, strict=True):
        assert getattr(indices, ours) == pytest.approx(case["indices"][theirs], abs=1e-3), ours
    composite = compose(indices)
    for ours, theirs in (("outcome",) * 2, ("efficiency",) * 2, ("stability",) * 2, ("epm_q", "epmq")):
        assert getattr(composite, ours) == pytest.approx(case[theirs], abs=1e-3), ours
    if (end := case["termination"]) is not None:
        assert state.ended_at == end["turn"]
        assert (state.end == "success") == end["success"]
        assert state.end_detail == end["kind"]


def as_vector(values: list[float]) -> Vector:
    c, a, p = (float(x) for x in values)
    return (c, a, p)


def check_turn(scorer: Scorer, state: EpmState, expected: dict[str, Any]) -> None:
    last = scorer.delta(state)
    ours = {
        "v": last.delta if last else epm.ORIGIN,
        "P": state.position,
        "zone_distance": epm.zone_distance(state.position),
        "delta_E": last.work if last else 0.0,
        "cos": last.cos if last else 0.0,
        "E_total": state.energy,
        "projection": epm.dot(state.position, scorer.direction(state)),
        "P_norm": epm.norm(state.position),
    }
    assert ours.keys() == expected.keys() - {"turn"}
    for name, value in ours.items():
        assert value == pytest.approx(expected[name], abs=1e-3), f"turn {expected['turn']}: {name}"


def test_strict_gives_the_reference_of_every_episode() -> None:
    for entry, score in zip(raw("strict_reference.json")["episodes"], scores("strict-1"), strict=True):
        where = f"{entry['model']}, case {entry['case']}"
        assert (score.model, score.scenario) == (entry["model"], entry["case"])
        assert (score.end, score.ended_at) == (entry["end"], entry["turn"]), where
        if entry["epm_q"] is None:
            assert score.composite is None, where
        else:
            assert score.composite is not None, where
            assert score.composite.epm_q == pytest.approx(entry["epm_q"], abs=1e-3), where


def test_strict_gives_the_reference_of_every_model() -> None:
    reference = raw("strict_reference.json")["models"]
    assert list(summaries("strict-1")) == [entry["model"] for entry in reference]
    for entry in reference:
        summary = summaries("strict-1")[entry["model"]]
        assert summary.indices is not None
        assert summary.composite is not None
        assert (summary.scored, summary.unscored) == (entry["scored"], 30 - entry["scored"])
        assert summary.successes == entry["successes"]
        ours = {name.lower(): value for name, value in entry["indices"].items()}
        assert summary.indices.model_dump() == pytest.approx(ours, abs=1e-3)
        assert summary.composite.epm_q == pytest.approx(entry["epm_q"], abs=1e-3)


def test_strict_gives_the_reference_of_the_golden_sequences() -> None:
    sequences = {case["name"]: case for case in raw("epm_golden_sequences.json")["cases"]}
    for entry in raw("strict_reference.json")["golden"]:
        case = sequences[entry["name"]]
        score = score_levels(as_vector(case["P0"]), [Levels(*row) for row in case["levels"]], get_scorer("strict-1"))
        assert score.composite is not None
        assert score.composite.epm_q == pytest.approx(entry["epm_q"], abs=1e-3), entry["name"]


def test_paper_scores_every_episode_and_never_calls_one_an_oscillation() -> None:
    judged = [sum(isinstance(turn, Levels) for turn in episode.turns) for episode in levels_file().episodes]
    assert [score.judged for score in scores("paper")] == judged
    assert all(score.scored for score in scores("paper"))
    assert {score.end for score in scores("paper")} <= {"success", "collapse", "stagnation", "patience", None}
