"""Composites, means over episodes, intervals, paired tests, the final score, and level files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_env.epm import INDEX_NAMES, Indices
from echo_env.errors import ConfigError, RecordError
from echo_env.levels import LevelFile, read_level_file, score_file
from echo_env.metrics import (
    COMPOSITE_NAMES,
    PROFILES,
    STATISTICS,
    EpisodeScore,
    ModelSummary,
    bootstrap,
    compare,
    compose,
    final_score,
    leaderboard,
    mean_indices,
    nee_total,
    score_levels,
    summarise,
)
from echo_env.scorers import get_scorer
from echo_env.significance import bootstrap_means, mcnemar_exact, sign_flip_test
from echo_env.types import Levels, NullTurn

TABLES = json.loads((Path(__file__).parent / "goldens" / "echo_n1_tables.json").read_text(encoding="utf-8"))
MODELS = pytest.mark.parametrize("model", TABLES["table_8"]["rows"])


def row(table: str, model: str) -> dict[str, float]:
    return dict(zip(TABLES[table]["columns"], TABLES[table]["rows"][model], strict=True))


def flat(value: float) -> Indices:
    return Indices(**dict.fromkeys(INDEX_NAMES, value))


def episode(model: str, scenario: str, value: float | None, *, success: bool = False) -> EpisodeScore:
    """An episode with all indices alike, so that every composite is that value; None: unscored."""
    return EpisodeScore(
        model=model,
        scenario=scenario,
        scorer="strict-1",
        indices=None if value is None else flat(value),
        composite=None if value is None else compose(flat(value)),
        end="success" if success else None,
        end_detail=None,
        ended_at=12 if success else None,
        position=(0.0, 0.0, 0.0),
        energy=0.0,
        turns=12,
        judged=12 if value is not None else 6,
        replayed_nulls=0,
    )


def run(model: str, values: list[float | None], wins: int = 0) -> list[EpisodeScore]:
    return [episode(model, f"s{i}", value, success=i < wins) for i, value in enumerate(values)]


# --- Echo-N1's tables


@MODELS
def test_table_8_gives_table_9(model: str) -> None:
    composite = compose(Indices(**row("table_8", model)))
    for name, printed in row("table_9", model).items():
        assert getattr(composite, name) == pytest.approx(printed, abs=0.01), name


@MODELS
def test_tables_9_and_10_give_table_11(model: str) -> None:
    printed = row("table_11", model)
    assert row("table_9", model)["epm_q"] == printed["epm_q"]
    parts = row("table_10", model)
    total = nee_total(parts["naturalness"], parts["pacing"], parts["narrative"])
    assert round(total) == printed["nee"]
    assert final_score(printed["epm_q"], round(total)) == pytest.approx(printed["final"], abs=0.01)


def test_table_10_has_two_slips_of_a_digit() -> None:
    sums = {m: nee_total(*row_[1:]) for m, row_ in TABLES["table_10"]["rows"].items()}
    off = {m for m, total in sums.items() if abs(total - row("table_10", m)["nee"]) > 0.0101}
    assert off == {"Gemini 2.5 Pro", "Kimi k2-0905"}


def test_a_nee_part_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pacing lies within 0\.\.40"):
        nee_total(20, 41, 20)


# --- composites


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_sums_to_one_everywhere(profile: str) -> None:
    chosen = PROFILES[profile]
    assert sum(chosen[:3]) == pytest.approx(1)
    assert [sum(chosen.within[i : i + 3]) for i in (0, 3, 6)] == pytest.approx([1, 1, 1])
    composite = compose(flat(70), profile)
    assert [getattr(composite, name) for name in COMPOSITE_NAMES] == pytest.approx([70] * 4)
    assert composite.profile == profile


def test_profiles_lean_as_the_paper_says() -> None:
    safe = flat(50).model_copy(update={"r_pos": 100.0, "r_pen": 100.0})
    deep = flat(50).model_copy(update={"rdi": 100.0, "e_total": 100.0, "s_net": 100.0, "r_pos": 100.0, "tau": 0.0})
    brisk = flat(50).model_copy(update={"rho": 100.0, "s_proj": 100.0})
    for name, indices in (("crisis", safe), ("companionship", deep), ("counselling", brisk)):
        totals = {profile: compose(indices, profile).epm_q for profile in PROFILES}
        assert max(totals, key=totals.__getitem__) == name


def test_an_unknown_profile_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'counselling'"):
        compose(flat(1), "counseling")


# --- missing is not zero


def test_an_unscored_episode_enters_no_mean() -> None:
    summary = summarise(run("a", [80, None, 60, None], wins=1))
    assert (summary.n, summary.scored, summary.unscored, summary.successes) == (4, 2, 2, 1)
    assert summary.success_rate == 0.5
    assert summary.indices == flat(70)
    assert summary.composite is not None
    assert summary.composite.epm_q == pytest.approx(70)
    assert summary.ends == {"success": 1, "none": 1}
    assert summary.intervals["epm_q"].low >= 60


def test_a_model_without_a_score_has_no_figures_and_comes_last() -> None:
    silent = run("silent", [None, None])
    summary = summarise(silent)
    assert (summary.scored, summary.unscored, summary.success_rate) == (0, 2, None)
    assert (summary.indices, summary.composite, summary.intervals, summary.ends) == (None, None, {}, {})
    assert mean_indices(silent) is None
    board = leaderboard([*silent, *run("low", [1, 2]), *run("high", [3, 4])])
    assert [s.model for s in board] == ["high", "low", "silent"]


def test_score_levels_leaves_an_unscored_episode_without_a_verdict() -> None:
    good = Levels(2, 0, 2, 0, 2, 0)
    scored = score_levels((-6.0, -6.0, -6.0), [good] * 12, get_scorer("strict"), model="m", scenario="s")
    assert (scored.end, scored.ended_at, scored.success, scored.judged) == ("success", 12, True, 12)
    unscored = score_levels((-6.0, -6.0, -6.0), [good] * 10 + [None] * 2, get_scorer("strict"))
    assert not unscored.scored
    assert not unscored.success
    assert (unscored.end, unscored.ended_at, unscored.composite) == (None, None, None)
    assert (unscored.turns, unscored.judged, unscored.position) == (12, 10, (0, 0, 0))


def test_records_survive_json() -> None:
    score = score_levels((-6.0, -6.0, -6.0), [Levels(1)], get_scorer("official"))
    assert EpisodeScore.model_validate_json(score.model_dump_json()) == score
    summary = summarise(run("a", [10, 20, None]))
    assert ModelSummary.model_validate_json(summary.model_dump_json()) == summary


def test_mixed_episodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="exactly one model were expected, got a, b"):
        summarise([*run("a", [1]), *run("b", [1])])
    with pytest.raises(ConfigError, match="exactly one model were expected, got none"):
        summarise([])
    other = episode("a", "s", 1).model_copy(update={"scorer": "official-2"})
    with pytest.raises(ConfigError, match="exactly one scorer"):
        summarise([*run("a", [1]), other])


# --- intervals


def test_intervals_are_named_ordered_and_seeded() -> None:
    scores = run("a", [float(v) for v in range(40, 70)], wins=12)
    intervals = bootstrap(scores, seed=3)
    assert tuple(intervals) == STATISTICS
    assert intervals == bootstrap(scores, seed=np.random.default_rng(3))
    assert intervals != bootstrap(scores, seed=4)
    assert intervals["success_rate"].low < 12 / 30 < intervals["success_rate"].high
    # all indices are alike here: mean 54.5, standard error sqrt((30^2 - 1)/12/30) = 1.58
    assert intervals["epm_q"].low == pytest.approx(54.5 - 1.96 * 1.58, abs=0.4)
    assert intervals["rdi"].high == pytest.approx(54.5 + 1.96 * 1.58, abs=0.4)


def test_one_scenario_gives_no_interval() -> None:
    assert bootstrap(run("a", [50, None])) == {}
    assert bootstrap([episode("a", "s", value) for value in (10, 20, 30)]) == {}


def test_runs_of_one_scenario_are_drawn_together() -> None:
    values = [20.0, 40.0, 60.0, 80.0, 50.0, 30.0]
    once = bootstrap(run("a", list(values)), seed=0)
    thrice = bootstrap([*run("a", list(values)), *run("a", list(values)), *run("a", list(values))], seed=0)
    assert thrice["epm_q"].low == pytest.approx(once["epm_q"].low)
    assert thrice["epm_q"].high == pytest.approx(once["epm_q"].high)


def test_bootstrap_covers_the_true_mean() -> None:
    rng = np.random.default_rng(0)
    hits, trials = 0, 400
    for _ in range(trials):
        sample = rng.normal(5, 2, size=(30, 1))
        (interval,) = bootstrap_means(sample, np.ones(30), draws=500, level=0.9, seed=rng)
        hits += interval.low <= 5 <= interval.high
    assert 0.83 <= hits / trials <= 0.94  # percentile intervals run a little short at n = 30


# --- paired tests


def test_a_model_does_not_differ_from_itself() -> None:
    scores = run("a", [float(v) for v in range(30)], wins=9)
    result = compare(scores, scores)
    assert (result.difference, result.p_value, result.success_p) == (0, 1, 1)
    assert result.interval is not None
    assert (result.interval.low, result.interval.high) == (0, 0)
    assert (result.shared, result.left_out) == (30, 0)


def test_the_order_of_models_turns_the_sign_alone() -> None:
    rng = np.random.default_rng(1)
    a = run("a", [float(v) for v in rng.normal(60, 5, 25)], wins=15)
    b = run("b", [float(v) for v in rng.normal(57, 5, 25)], wins=8)
    ab, ba = compare(a, b, seed=7), compare(b, a, seed=7)
    assert ab.difference == pytest.approx(-ba.difference)
    assert (ab.p_value, ab.success_p) == (ba.p_value, ba.success_p)
    assert ab.interval is not None
    assert ba.interval is not None
    assert ab.interval.low == pytest.approx(-ba.interval.high)
    assert (ab.better_a, ab.better_b, ba.better_a, ba.better_b) == (7, 0, 0, 7)
    assert (ab.model_a, ba.model_a) == ("a", "b")


def test_only_shared_scored_scenarios_are_compared() -> None:
    a = [episode("a", "x", 50), episode("a", "y", 90), episode("a", "z", None)]
    b = [episode("b", "x", 40), episode("b", "z", 10), episode("b", "w", 10)]
    result = compare(a, b)
    assert (result.shared, result.left_out, result.interval, result.p_value) == (1, 3, None, 1)
    assert result.difference == pytest.approx(10)
    with pytest.raises(ConfigError, match="share no scored scenario"):
        compare(a[2:], b)
    with pytest.raises(ConfigError, match="needs the scenario"):
        compare([episode("a", "", 5)], b)


def test_several_runs_of_a_scenario_count_as_their_mean() -> None:
    a = [episode("a", "x", 50, success=True), episode("a", "x", 70), episode("a", "y", 50)]
    b = [episode("b", "x", 50), episode("b", "y", 50)]
    result = compare(a, b)
    assert result.difference == pytest.approx((60 - 50 + 0) / 2)
    assert (result.better_a, result.better_b) == (1, 0)


def test_sign_flip_by_hand() -> None:
    # |+-1 +-2 +-3| >= 6 for 2 of the 8 sign patterns; |+-1 +-1| >= 2 for 2 of 4
    assert sign_flip_test(np.array([1.0, 2.0, 3.0])) == 2 / 8
    assert sign_flip_test(np.array([1.0, 1.0])) == 0.5
    assert sign_flip_test(np.zeros(40)) == 1
    assert sign_flip_test(np.ones(40), draws=999) == 1 / 1000


def test_sign_flip_keeps_its_level_under_the_null_and_finds_a_difference() -> None:
    rng = np.random.default_rng(2)
    null = [sign_flip_test(rng.normal(0, 1, 20), draws=400, seed=rng) for _ in range(400)]
    assert 0.02 <= np.mean(np.array(null) <= 0.05) <= 0.09
    assert sign_flip_test(rng.normal(1, 1, 30), seed=rng) < 0.01


def test_mcnemar_by_hand() -> None:
    assert mcnemar_exact(0, 0) == 1
    assert mcnemar_exact(3, 3) == 1
    assert mcnemar_exact(5, 0) == mcnemar_exact(0, 5) == 2 / 32
    assert mcnemar_exact(8, 1) == pytest.approx(2 * (1 + 9) / 512)


# --- level files

ORDER = ["C.Prog", "C.Neg", "A.Prog", "A.Neg", "P.Prog", "P.Neg"]


def level_data() -> dict[str, Any]:
    turns: list[list[int | None]] = [[1, 0, 2, 0, 1, -1], [None] * 6, [0, -2, 0, 0, 0, None]]
    entry = {"model": "m", "case": "003", "levels": turns, "v": {"2": [0, 0, 0]}}
    return {"level_order": ORDER, "alpha": 0.1, "cases": {"003": {"P0": [-17, -18, -13]}}, "episodes": [entry]}


def written(path: Path, data: Any) -> Path:
    target = path / "levels.json"
    target.write_text(json.dumps(data), encoding="utf-8")
    return target


def test_a_level_file_is_read_by_turn(tmp_path: Path) -> None:
    file = read_level_file(written(tmp_path, level_data()))
    (entry,) = file.episodes
    assert (file.alpha, entry.model, entry.case, entry.p0) == (0.1, "m", "003", (-17, -18, -13))
    assert entry.turns == (Levels(1, 0, 2, 0, 1, -1), NullTurn((0, 0, 0), Levels()), None)
    assert LevelFile.model_validate_json(file.model_dump_json()) == file
    (official,) = score_file(file, get_scorer("official"))
    assert (official.turns, official.judged, official.replayed_nulls) == (3, 2, 1)
    (strict,) = score_file(file, get_scorer("strict"))
    assert (strict.turns, strict.judged, strict.scored) == (3, 1, False)


def test_a_level_file_may_order_its_levels_otherwise(tmp_path: Path) -> None:
    data = level_data()
    data["level_order"] = ORDER[::-1]
    data["episodes"][0]["levels"] = [[-1, 1, 0, 2, 0, 1]]
    data["episodes"][0]["v"] = {}
    (entry,) = read_level_file(written(tmp_path, data)).episodes
    assert entry.turns == (Levels(1, 0, 2, 0, 1, -1),)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("episodes",), None, "is no level file"),
        (("level_order",), ["C.Prog"], "level_order must hold each of"),
        (("level_order",), "C.Prog,C.Neg", "level_order must hold each of"),
        (("cases",), [], "needs an object 'cases'"),
        (("cases", "003"), {"p0": 1}, "case 003: an object with a P0"),
        (("cases", "003", "P0"), [-1, -2], "case 003: P0 must be three numbers"),
        (("cases", "003", "P0", 1), "x", "case 003: P0 must hold finite numbers, got 'x'"),
        (("alpha",), "high", "alpha must hold finite numbers"),
        (("episodes", 0), 7, "episode 1: an object with model"),
        (("episodes", 0, "model"), None, "episode 1: model and case must be text"),
        (("episodes", 0, "case"), "004", r"episode 1 \(m, case 004\): its case is not among"),
        (("episodes", 0, "levels", 0), [1, 0, 2], r"episode 1 \(m, case 003\), turn 1: a list of 6 levels"),
        (("episodes", 0, "levels", 0, 2), 3, r"\(m, case 003\), turn 1: A.Prog must be one of \(0, 1, 2\) or null"),
        (("episodes", 0, "levels", 2, 1), 1, r"turn 3: C.Neg must be one of \(0, -1, -2\) or null, got 1"),
        (("episodes", 0, "levels", 0, 0), True, "turn 1: C.Prog must be one of"),
        (("episodes", 0, "v"), [1], "'v' must be an object"),
        (("episodes", 0, "v"), {"4": [0, 0, 0]}, "'v' names turn 4, but the turns run from 1 to 3"),
        (("episodes", 0, "v", "2"), [0, None, 0], r"turn 2: v must hold finite numbers, got None"),
    ],
)
def test_a_malformed_level_file_is_told_where(
    tmp_path: Path, path: tuple[str | int, ...], value: Any, message: str
) -> None:
    data: Any = level_data()
    *parents, last = path
    target = data
    for key in parents:
        target = target[key]
    target[last] = value
    with pytest.raises(RecordError, match=message):
        read_level_file(written(tmp_path, data))


def test_a_level_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot read the level file"):
        read_level_file(tmp_path / "none.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    with pytest.raises(RecordError, match="cannot read the level file"):
        read_level_file(broken)
