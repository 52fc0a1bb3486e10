"""The headline's bookkeeping: what is skipped, what is refused, what counts as met. No training here."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from echo_env.epm import INDEX_NAMES, Indices
from echo_env.errors import ConfigError
from echo_env.metrics import Composite, EpisodeScore
from echo_env.roles import Observation
from echo_env.types import Episode, Message

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import headline  # noqa: E402
import headline_curve as curve  # noqa: E402
import headline_figures as figures  # noqa: E402
import headline_report  # noqa: E402
import swapped  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def score(scenario: str, success: bool, epm_q: float) -> EpisodeScore:
    return EpisodeScore(
        model="policy", scenario=scenario, scorer="strict-1", indices=Indices(**dict.fromkeys(INDEX_NAMES, epm_q)),
        composite=Composite(profile="epm", outcome=epm_q, efficiency=epm_q, stability=epm_q, epm_q=epm_q),
        end="success" if success else None, end_detail=None, ended_at=None, position=(0.0, 0.0, 0.0), energy=0.0,
        turns=5, judged=5, replayed_nulls=0,
    )  # fmt: skip


def judgement(success: float, epm_q: float) -> figures.Judged:
    return figures.Judged(
        scored=90, unscored=0, success=figures.Figure(value=success), epm_q=figures.Figure(value=epm_q)
    )


def policy(success: float, epm_q: float, words: float, swapped: tuple[float, float], **other: Any) -> figures.Policy:
    fields = {"tokens": 1.3 * words, "flags": (), **other}
    return figures.Policy(
        episodes=90, unfinished=0, turns=12.0, words=words, first=judgement(success, epm_q),
        swapped=judgement(*swapped), **fields,
    )  # fmt: skip


def pair(success: tuple[float, float, float], epm_q: tuple[float, float, float]) -> figures.Paired:
    s, q = (figures.Figure(value=v, low=low, high=high) for v, low, high in (success, epm_q))
    return figures.Paired(scenarios=30, success=s, success_p=0.01, epm_q=q, epm_q_p=0.01)


def whole(**other: Any) -> figures.Results:
    """All that is asked, met: success 5 % to 50 %, EPM-Q 20 to 45, of which 5 to 20 % and 18 to 25 swapped."""
    trained = policy(0.5, 45.0, 22.0, (0.2, 25.0))
    fields: dict[str, Any] = {
        "skilled": 0.125, "minutes": {"dapo-0": 59.0, "dapo-1": 60.0}, "cold": policy(0.05, 20.0, 20.0, (0.05, 18.0)),
        "seeds": {"dapo-0": trained, "dapo-1": trained}, "pooled": trained,
        "gain_second": pair((0.3, 0.2, 0.4), (15.0, 9.0, 20.0)), "over_best": pair((0.2, 0.1, 0.3), (9.0, 5.0, 12.0)),
    }  # fmt: skip
    return figures.Results(**(fields | other))


def point(update: int, success: float | None, minutes: float | None = None) -> curve.Point:
    return curve.Point(update, float(update) if minutes is None else minutes, success, 0.1, 20.0)


# ---- the bars ------------------------------------------------------------------------------------------------------


def test_all_bars_are_met() -> None:
    assert [bar.met for bar in figures.bars(whole(), 2)] == [True] * 10


@pytest.mark.parametrize(
    ("place", "other"),
    [
        (0, {"skilled": 0.21}),
        (1, {"cold": policy(0.11, 20.0, 20.0, (0.05, 18.0))}),
        (2, {"minutes": {"dapo-0": 59.0, "dapo-1": 61.0}}),
        (3, {"pooled": policy(0.46, 45.0, 22.0, (0.2, 25.0))}),
        (4, {"pooled": policy(0.5, 39.0, 22.0, (0.2, 25.0))}),
        (5, {"seeds": {"a": policy(0.5, 45.0, 22.0, (0.2, 25.0)), "b": policy(0.5, 45.0, 31.0, (0.2, 25.0))}}),
        (5, {"seeds": dict.fromkeys("ab", policy(0.5, 45.0, 22.0, (0.2, 25.0), tokens=40.0))}),
        (6, {"seeds": dict.fromkeys("ab", policy(0.5, 45.0, 22.0, (0.2, 25.0), flags=("repeats",)))}),
        (7, {"gain_second": pair((0.3, 0.2, 0.4), (3.0, -1.0, 6.0))}),
        (8, {"over_best": pair((0.1, 0.0, 0.2), (9.0, 5.0, 12.0))}),
        (9, {"pooled": policy(0.5, 45.0, 22.0, (0.3, 25.0))}),  # 25 of 45 points are left
        (9, {"pooled": policy(0.5, 45.0, 22.0, (0.2, 31.0))}),  # 13 of 25
        (9, {"pooled": policy(0.05, 45.0, 22.0, (0.05, 25.0))}),  # nothing gained, nothing to halve
    ],
)
def test_each_bar_can_be_missed(place: int, other: dict[str, Any]) -> None:
    assert figures.bars(whole(**other), 2)[place].met is False


def test_from_nothing_any_epm_q_is_twice_as_much_but_not_nothing() -> None:
    cold = policy(0.05, 0.0, 20.0, (0.05, 0.0))
    assert figures.bars(whole(cold=cold), 2)[4].met is True
    assert figures.bars(whole(cold=cold, pooled=cold), 2)[4].met is False


def test_what_was_not_measured_stays_open_and_is_no_zero() -> None:
    assert [bar.met for bar in figures.bars(figures.Results(), 3)] == [None] * 10
    cold = whole().cold
    assert cold is not None
    unjudged = cold.model_copy(update={"first": figures.Judged(scored=0, unscored=90, success=None, epm_q=None)})
    held = figures.bars(whole(cold=unjudged), 2)
    assert [held[k].met for k in (1, 4, 9)] == [None, None, None]


def test_bars_on_all_seeds_stay_open_while_one_is_missing() -> None:
    assert [bar.met for bar in figures.bars(whole(), 3)] == [True, True] + [None] * 8


def test_ratio() -> None:
    assert figures.ratio(3.0, 2.0) == 1.5
    assert figures.ratio(None, 2.0) is None
    assert figures.ratio(3.0, None) is None
    assert figures.ratio(3.0, 0.0) is None


# ---- measures ------------------------------------------------------------------------------------------------------


def test_shares_count_replies_not_conversations(tmp_path: Path) -> None:
    def talk(who: str, replies: int) -> str:
        said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * replies
        return json.dumps({"messages": said, "meta": {"models": {"companion": who}}})

    file = tmp_path / "talks.jsonl"
    file.write_text("\n".join([talk("skilled-1", 1), talk("parrot-2", 3), talk("skilled-1", 1)]) + "\n")
    assert figures.shares(file) == {"parrot": 0.6, "skilled": 0.4}


def test_paired_takes_the_mean_of_a_person_first() -> None:
    a = [score("x", True, 40), score("x", False, 20), score("y", True, 50), score("only", True, 99)]
    b = [score("x", False, 10), score("y", True, 30)]
    found = figures.paired(a, b)
    assert found is not None
    assert found.scenarios == 2
    assert found.success.value == pytest.approx(0.25)  # (0.5 - 0, 1 - 1) / 2
    assert found.epm_q.value == pytest.approx(20)  # (30 - 10, 50 - 30) / 2
    assert (found.epm_q.low, found.epm_q.high) == pytest.approx((20, 20))
    assert found.epm_q.sure
    assert not found.success.sure  # x alone gained: the interval begins at 0
    assert figures.paired(a, b[:1]) is None


def update(conversations: float, turns: float | None, elapsed: float, failed: float = 0.0) -> dict[str, Any]:
    return {"conversations": conversations, "turns": turns, "elapsed_s": elapsed, "failed": failed}


def test_best_of_n_gets_the_turns_of_the_mean_run() -> None:
    runs = [
        [update(64, 10, 50), update(64, 12, 100, failed=0.25)],  # 640 + 576
        [update(64, 10, 60), update(64, None, 140, failed=1.0), update(64, 11, 200)],  # 640 + 704
    ]
    found = figures.budget(runs, people=20, least=4)
    # 1280 turns are 128 conversations of 10: 6.4 with each of 20, so 7
    assert found == figures.Budget(steps=1280, seconds=150.0, people=19, episodes=7)
    few = figures.budget(runs, people=400, least=4)
    assert few is not None
    assert (few.people, few.episodes) == (32, 4)
    assert figures.budget([[]], 400, 4) is None


# ---- the curve -----------------------------------------------------------------------------------------------------


def test_ticks_are_round() -> None:
    assert curve.ticks(0, 60, 6) == [0, 10, 20, 30, 40, 50, 60]
    assert curve.ticks(0, 0.47) == [0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert curve.ticks(-0.3, 0.5) == [-0.4, -0.2, 0, 0.2, 0.4, 0.6]
    assert len(set(curve.ticks(0, 0))) == len(curve.ticks(0, 0)) >= 2


def test_the_mean_goes_as_far_as_every_run() -> None:
    runs = [[point(1, 0.0), point(2, 0.2), point(3, 0.4)], [point(1, 0.2), point(2, 0.4)]]
    found = curve.mean_line(runs, "update", "success")
    assert [x for pair in found for x in pair] == pytest.approx([1, 0.1, 2, 0.3])
    timed = [[point(1, 0.0, 1), point(2, 0.4, 3)], [point(1, 0.2, 2), point(2, 0.4, 4)]]
    # from minute 2, where the first is half-way, to minute 3, where the second is
    found = curve.mean_line(timed, "minutes", "success", count=2)
    assert [x for pair in found for x in pair] == pytest.approx([2, 0.2, 3, 0.35])
    assert curve.mean_line(runs[:1], "update", "success") == []


def test_the_figure_is_well_formed_and_shows_each_run() -> None:
    runs = {"seed 0": [point(1, 0.0), point(2, None), point(3, 0.4)], "<1>": [point(1, 0.1), point(2, 0.2)], "2": []}
    tree = ElementTree.fromstring(curve.draw(runs))
    lines = [line.get("class") for line in tree.iter(f"{SVG}polyline")]
    assert lines.count("mean") == 6
    # six plots of two runs; where success is missing, the first run's line is in two pieces
    assert lines.count("run") == 12 + 2
    words = [text.text for text in tree.iter(f"{SVG}text")]
    assert {"minutes of training", "updates", "tokens a reply", "<1>", "mean of 2"} <= set(words)


@pytest.mark.parametrize("runs", [{}, {"seed 0": []}, {"seed 0": [point(1, None)]}, {"seed 0": [point(1, 0.0)]}])
def test_the_figure_of_little(runs: dict[str, list[curve.Point]]) -> None:
    ElementTree.fromstring(curve.draw(runs))


# ---- steps ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path: Path) -> headline.Plan:
    return headline.Plan(tmp_path, (0, 1), 30.0, 3, None, 0, None, ())


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = []

    def fake(argv: Sequence[str]) -> int:
        calls.append(tuple(argv))
        return 3 if "bad" in argv else 0

    monkeypatch.setattr(headline, "call", fake)
    return calls


def test_a_step_is_taken_once(plan: headline.Plan, called: list[tuple[str, ...]]) -> None:
    step = headline.Step("a", ("x", "y"), plan.out / "a")
    assert headline.take(plan, step) == headline.take(plan, step) == 0
    assert called == [("x", "y")]
    with pytest.raises(ConfigError, match="another command"):
        headline.take(plan, headline.Step("a", ("x", "z"), plan.out / "a"))


def test_a_failed_step_is_told_and_gone_on_with(plan: headline.Plan, called: list[tuple[str, ...]]) -> None:
    step = headline.Step("a", ("bad",), plan.out / "a", again=("resume=true",))
    assert headline.take(plan, step) == 3
    assert not headline.done(plan, "a")
    step.made.mkdir()
    headline.take(plan, step)
    assert called == [("bad",), ("bad", "resume=true")]
    later = headline.Step("b", ("x",), plan.out / "b", needs=("a",))
    assert headline.take(plan, later) == 1  # for want of a
    assert len(called) == 2


def test_what_cannot_be_gone_on_with_is_made_anew(plan: headline.Plan, called: list[tuple[str, ...]]) -> None:
    step = headline.Step("a", ("x",), plan.out / "a")
    (step.made / "part").mkdir(parents=True)
    headline.take(plan, step)
    assert called == [("x",)]
    assert not step.made.exists()


def test_what_is_older_than_its_source_is_refused(plan: headline.Plan, called: list[tuple[str, ...]]) -> None:
    source, step = headline.Step("a", ("x",), plan.out / "a"), headline.Step("b", ("y",), plan.out / "b", needs=("a",))
    headline.take(plan, source)
    headline.take(plan, step)
    (plan.out / "done" / "a.json").unlink()
    headline.take(plan, source)
    with pytest.raises(ConfigError, match="older than a"):
        headline.take(plan, step)


def test_commands_run_in_this_installation(capfd: pytest.CaptureFixture[str]) -> None:
    told = "import os, sys; print(os.environ['PYTHONPATH'].split(os.pathsep)[0], sys.executable); sys.exit(3)"
    assert headline.call(("PYTHONPATH=benchmarks", "python", "-S", "-c", told)) == 3
    assert capfd.readouterr().out.split() == [str(ROOT / "benchmarks"), sys.executable]


def test_dapo_takes_no_setting_twice(plan: headline.Plan) -> None:
    changed = headline.Plan(plan.out, (4,), 30.0, 3, None, 0, None, ("algo=grpo", "optim.lr=1e-4"))
    (step,) = headline.dapo(changed)
    names = [word.partition("=")[0] for word in step.argv[2:]]
    assert len(names) == len(set(names))
    assert {"algo=grpo", "optim.lr=1e-4", "seed=4", "minutes=30"} <= set(step.argv)


def test_the_settings_make_jobs(plan: headline.Plan) -> None:
    from hydra import compose, initialize_config_dir

    from echo_env.trainers.commandline import settings_of
    from echo_env.trainers.job import checked, make_job
    from echo_env.trainers.sftjob import SftJob

    steps = [*headline.sft(plan), *headline.dapo(plan)]
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        for step in steps:
            name = Path(step.argv[1]).stem
            settings = settings_of(compose(name, list(step.argv[2:])))
            job = checked(SftJob, settings) if name == "sft" else make_job(settings)
            assert job.out == step.made


def test_too_good_a_cold_start_is_refused(plan: headline.Plan) -> None:
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    (plan.out / "cold.jsonl").write_text(
        json.dumps({"messages": said, "meta": {"models": {"companion": "skilled-1"}}}) + "\n"
    )
    with pytest.raises(ConfigError, match=r"100\.0% of the replies"):
        list(headline.data(plan))


def test_best_of_n_waits_for_dapo(plan: headline.Plan) -> None:
    with pytest.raises(ConfigError, match="no DAPO run has ended"):
        list(headline.best(plan))
    (plan.out / "dapo-0").mkdir()
    (plan.out / "dapo-0" / "metrics.jsonl").write_text(json.dumps(update(64, 10.0, 60)) + "\n{torn")
    (plan.out / "done").mkdir()
    (plan.out / "done" / "dapo-0.json").write_text(json.dumps({"argv": [], "code": 0, "seconds": 61, "ended": 1}))
    talks, tuned = headline.best(plan)
    # 640 turns: 64 conversations of 10 turns, 4 with each of 16 people
    assert [talks.argv[talks.argv.index(o) + 1] for o in ("--limit", "--episodes")] == ["16", "4"]
    assert f"epochs={headline.GUESSED_EPOCHS}" in tuned.argv


# ---- the report ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short conversations of a policy without a model."""
    from echo_env.agents.rollout import RunConfig, run
    from echo_env.build import WorldConfig

    out = tmp_path_factory.mktemp("headline") / "eval" / "cold"
    run(RunConfig(policy="silent", limit=2, world=WorldConfig(max_turns=2)), out)
    return out


def test_the_report_of_nothing(tmp_path: Path) -> None:
    results = headline_report.report(tmp_path, {}, (0, 1))
    assert {"dapo-0 was not trained", "dapo-1 was not measured", "cold was not measured"} <= set(results["missing"])
    assert all(bar["met"] is None for bar in results["bars"])
    assert "| open |" in (tmp_path / "results.md").read_text()
    assert not (tmp_path / "curve.svg").exists()
    assert not (tmp_path / "sample.md").exists()


def test_the_report_of_a_part(recorded: Path) -> None:
    out = recorded.parent.parent
    (out / "dapo-0").mkdir()
    line = update(64, 10.0, 60) | {"update": 1, "success": 0.0, "score": 0.1, "length_mean": 20.0}
    (out / "dapo-0" / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    results = headline_report.report(out, {"cold": out / "model"}, (0,))
    cold = results["policies"]["cold"]
    assert (cold["episodes"], cold["first"]["success"]["value"]) == (2, 0.0)
    assert (cold["second"], cold["swapped"], cold["tokens"]) == (None, None, None)
    assert "cold: no second" in results["missing"]
    assert [bar["met"] for bar in results["bars"]][:3] == [None, True, True]
    assert json.loads((out / "results.json").read_text())["budgets"]["dapo-0"] == {"turns": 640, "seconds": 60}
    ElementTree.parse(out / "curve.svg")


def test_the_sample_shows_the_same_person(recorded: Path) -> None:
    episodes = figures.episodes_in(recorded)
    text = headline_report.sample(episodes, episodes, "dapo-0")
    assert text is not None
    first = min(episodes, key=lambda e: e.header.episode_id)
    assert text.startswith(f"# {first.header.episode_id}, before and after")  # no gain anywhere: the first by id
    assert text.count(f"> {first.turns[0].user}") == 2
    assert headline_report.sample(episodes, [], "dapo-0") is None


def test_a_listener_hears_the_next_person(recorded: Path) -> None:
    episodes: list[Episode] = figures.episodes_in(recorded)
    one, other = sorted(episodes, key=lambda e: e.header.episode_id)
    partners = swapped.partners(episodes)
    assert partners[one.turns[0].user] == tuple(turn.user for turn in other.turns)
    assert partners[other.turns[0].user] == tuple(turn.user for turn in one.turns)
    with pytest.raises(ConfigError, match="two people"):
        swapped.partners([one])


def test_messages_are_swapped_and_replies_stay() -> None:
    from echo_env.agents.controls import swapped as swap

    said = ["u1", "c1", "u2", "c2", "u3"]
    seen = Observation(tuple(Message(role="companion" if "c" in s else "user", text=s) for s in said), "en")
    assert [m.text for m in swap(seen, ["v1", "v2"]).messages] == ["v1", "c1", "v2", "c2", "v2"]


# ---- the cold start that is kept -----------------------------------------------------------------------------------


def test_the_kept_cold_start_speaks() -> None:
    import torch

    from echo_env.agents.policy import local_model

    model = local_model(ROOT / "benchmarks" / "cold-start", temperature=0)
    assert next(model.model.parameters()).dtype == torch.float32  # though the file holds fp16
    assert sum(p.numel() for p in model.model.parameters()) < 3_000_000
    [reply] = model.respond_batch([Observation((Message(role="user", text="They sold the orchard last week."),))])
    assert len(reply.split()) >= 3
    assert reply.endswith((".", "?", "!"))
