"""Reports: what is collected, and what JSON, CSV, terminal tables and the HTML page say about it."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from echo_env.cases import STATUSES, Case, without_folders, word_count
from echo_env.epm import INDEX_NAMES
from echo_env.errors import ConfigError, MissingExtra, RecordError
from echo_env.figures import PATTERNS, figures
from echo_env.metrics import STATISTICS
from echo_env.profiles import Scenario, benchmark
from echo_env.record import EpisodeWriter, RunFolder, RunHeader
from echo_env.report import Report, collect, level_report, terminal, to_csv, to_json, write_html
from echo_env.types import AXES, Direction, EpisodeHeader, Evidence, Judgement, Levels, Outcome, Turn

HOSTILE = "</script><script>window.owned=1</script><img src=x onerror=\"window.owned=1\"> & 'quoted' \u2028 end"
HOSTILE_MODEL = "[red]<b>x&y"
GOOD, FLAT, BAD = Levels(1, 0, 1, 0, 1, 0), Levels(0, 0, 0, 0, 0, 0), Levels(0, -1, 0, -1, 0, -1)
SCENARIOS = ("career-01", "family-03", "health-05", "values-02")


def turn(index: int, levels: Levels | None, reply: str = "", user: str = "") -> Turn:
    reply = reply or f"That was turn {index}, and the tugs are gone."
    found = [
        Evidence(
            axis=axis,
            direction="prog" if level > 0 else "neg",
            level=level,
            anchor=f"{axis}.{'prog' if level > 0 else 'neg'}.{abs(level)}.reflects",
            quote=reply[:24],
            item="opening",
            reason="it says so",
        )
        for axis, pair in zip(AXES, zip(*[iter(levels or ())] * 2, strict=True), strict=False)
        for level in pair
        if level
    ]
    return Turn(
        index=index,
        user=user or f"Message number {index}.",
        reply=reply,
        raw_reply=f"<think>hm {index}</think>{reply}" if index == 2 else None,
        judgement=Judgement(levels=levels, evidence=tuple(found), judge="test-1") if levels else None,
        epm=None,
        direction=Direction(function="reveal_memory", argument="teens", words="Bring it up.", reason="serves A"),
        reward=None if levels is None else 0.25,
        failure="" if levels else "judge: TimeoutError: no answer from /home/someone/judge.sock",
    )


def write_episode(
    folder: RunFolder, scenario: str, levels: list[Levels | None], end: str | None, *, number: int = 0, **words: Any
) -> None:
    s = benchmark().get(scenario)
    header = EpisodeHeader(
        episode_id=f"{scenario}.{number}",
        scenario=scenario,
        scenario_hash=s.digest if s else "0" * 16,
        split="benchmark",
        language="en",
        domain=s.domain if s else "career",
        p0=s.p0 if s else (-10.0, -20.0, -12.0),
        policy="/home/someone/models/qwen",
        judge="test-1",
        rubric="epm_v1",
        scorer=words.pop("scorer", "strict-1"),
        recipe="epm-1",
        actor="test-1",
        director="test-1",
        seed=7,
        max_turns=45,
        echo_env="0.1.0",
    )
    with EpisodeWriter(folder.episode_path(header.episode_id), header) as writer:
        for i, found in enumerate(levels, 1):
            writer.append(turn(i, found, **(words if i == 1 else {})))
        if end is not None:
            writer.finish(Outcome(end=end, turns=len(levels), closing="Good night then."))  # type: ignore[arg-type]


def new_run(root: Path, model: str) -> RunFolder:
    folder = RunFolder(root / model)
    world = {"scorer": "strict", "cache": "/home/someone/cache/judge"}
    folder.create(
        RunHeader(
            started="2026-01-02T03:04:05+00:00",
            python="3.11.7",
            config={
                "policy": "/home/someone/models/qwen",
                "split": "benchmark",
                "seed": 7,
                "limit": None,
                "world": world,
            },
            scenarios=dict.fromkeys(SCENARIOS, "0" * 16),
        )
    )
    return folder


def needed(scenario: Scenario) -> int:
    """Turns of GOOD after which `strict` sees the state healed."""
    return int(-min(scenario.p0))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "evening"
    good, poor, hostile = (new_run(root, name) for name in ("good", "poor", HOSTILE_MODEL))
    for name in SCENARIOS:
        write_episode(good, name, [GOOD] * needed(benchmark()[name]), "success")
        write_episode(poor, name, [BAD] * 12, "collapse")
    write_episode(good, "leisure-02", [GOOD] * 5, None)
    write_episode(poor, "leisure-02", [FLAT] * 6 + [None] * 3, "unjudged")
    write_episode(poor, "leisure-03", [FLAT, GOOD] * 10, "budget")
    write_episode(hostile, "career-01", [GOOD] * 11 + [None] + [FLAT] * 8, "director", reply=HOSTILE, user=HOSTILE)
    write_episode(hostile, "career-01", [FLAT] * 30, "patience", number=1)
    write_episode(hostile, "made-up", [GOOD] * 25, "success")
    new_run(root, "idle")
    return root


@pytest.fixture(scope="module")
def report(root: Path) -> Report:
    return collect(root)


@pytest.fixture(scope="module")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "deep" / "report.html"
    write_html(report, path)
    return path


def model(report: Report, name: str) -> Any:
    return next(m for m in report.models if m.summary.model == name)


def case(report: Report, name: str, episode: str) -> Case:
    return next(c for c in report.cases if c.model == name and c.episode == episode)


class TestCollect:
    def test_models_are_folders_ranked_by_their_total_and_bare_ones_come_last(self, report: Report) -> None:
        names = [m.summary.model for m in report.models]
        assert names[0] == "good"
        assert names[-1] == "idle"
        assert report.source == "evening"
        assert report.scorer == "strict-1"

    def test_unfinished_episodes_are_counted_and_left_out(self, report: Report) -> None:
        good = model(report, "good")
        assert good.unfinished == 1
        assert good.summary.n == 4
        assert good.summary.success_rate == 1.0
        assert case(report, "good", "leisure-02.0").score is None
        assert good.statuses == {"success": 4, "unfinished": 1}

    def test_unscored_episodes_and_unjudged_turns_are_counted_and_never_zeros(self, report: Report) -> None:
        poor = model(report, "poor")
        assert (poor.summary.n, poor.summary.unscored, poor.unjudged_turns) == (6, 1, 3)
        assert case(report, "poor", "leisure-02.0").status == "unscored"
        assert poor.failures == {"judge: TimeoutError": 3}
        bad = case(report, "poor", "leisure-02.0").score
        assert bad is not None
        assert bad.composite is None

    def test_ends_that_no_levels_show_are_taken_from_the_record(self, report: Report) -> None:
        assert case(report, "poor", "leisure-03.0").status == "budget"
        assert case(report, HOSTILE_MODEL, "career-01.0").status == "director"

    def test_the_persons_recorded_patience_is_part_of_the_task(self, report: Report) -> None:
        assert case(report, HOSTILE_MODEL, "career-01.1").status == "patience"  # 30 turns: the scorer alone says 45

    def test_return_skips_missing_rewards(self, report: Report) -> None:
        assert case(report, HOSTILE_MODEL, "career-01.0").total_reward == pytest.approx(19 * 0.25)
        turns = [needed(benchmark()[name]) for name in SCENARIOS]
        assert model(report, "good").mean_return == pytest.approx(0.25 * np.mean(turns))
        assert model(report, "good").mean_turns == pytest.approx(np.mean(turns))
        assert model(report, "good").mean_words == pytest.approx(9)
        assert model(report, "idle").mean_return is None

    def test_another_scorer_scores_anew(self, root: Path) -> None:
        official = collect(root, "official")
        assert official.scorer == "official-2"
        assert case(official, "good", "career-01.0").score != case(collect(root), "good", "career-01.0").score

    def test_a_known_scenario_brings_its_person_and_its_ranking(self, report: Report) -> None:
        known = case(report, "good", "career-01.0")
        assert known.person is not None
        assert known.person.name == benchmark()["career-01"].persona.name
        assert known.dominant == benchmark()["career-01"].dominant
        assert case(report, HOSTILE_MODEL, "made-up.0").person is None
        assert case(report, HOSTILE_MODEL, "made-up.0").dominant == "A"  # the largest deficit

    def test_neighbours_are_compared_where_they_share_scenarios(self, report: Report) -> None:
        pairs = [(c.model_a, c.model_b) for c in report.comparisons]
        assert len(pairs) == 2
        assert all("idle" not in pair for pair in pairs)

    def test_one_run_folder_is_enough(self, root: Path) -> None:
        assert [m.summary.model for m in collect(root / "good").models] == ["good"]

    def test_a_folder_without_runs_says_how_to_make_one(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match="holds no run"):
            collect(tmp_path)

    def test_mixed_scorers_need_one_to_be_named(self, tmp_path: Path) -> None:
        folder = new_run(tmp_path, "a")
        write_episode(folder, "career-01", [GOOD] * 20, "success")
        write_episode(folder, "career-02", [GOOD] * 20, "success", scorer="official-2")
        with pytest.raises(ConfigError, match="several scorers"):
            collect(tmp_path)
        assert collect(tmp_path, "strict").models[0].summary.n == 2

    def test_runs_say_nothing_about_the_machine(self, report: Report) -> None:
        assert "/home" not in json.dumps(to_json(report))
        assert report.runs[0].settings["policy"] == "…/qwen"
        assert "limit" not in report.runs[0].settings


class TestWords:
    @pytest.mark.parametrize(
        ("text", "n"), [("", 0), ("Don't stop, well-meant.", 3), ("我在听 ok", 4), ("...", 0), ("a b\nc", 3)]
    )
    def test_word_count(self, text: str, n: int) -> None:
        assert word_count(text) == n

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("/home/me/models/qwen", "…/qwen"),
            ("vllm:/home/me/qwen", "vllm:…/qwen"),
            ("~/x/y.yaml: gone", "…/y.yaml: gone"),
            (r"C:\Users\me\qwen", "…/qwen"),
            ("http://localhost:8000/v1", "http://localhost:8000/v1"),
            ("Qwen/Qwen3-8B and 1/2", "Qwen/Qwen3-8B and 1/2"),
        ],
    )
    def test_folders_are_cut(self, text: str, told: str) -> None:
        assert without_folders(text) == told


class TestJson:
    def test_shape(self, report: Report) -> None:
        data: Any = json.loads(json.dumps(to_json(report)))
        assert data["scorer"] == "strict-1"
        first = data["models"][0]
        assert first["model"] == "good"
        assert first["n"] == 4
        assert first["success_rate"] == 1.0
        assert set(first["indices"]) == set(INDEX_NAMES)
        assert first["epm_q"] == pytest.approx(
            0.4 * first["outcome"] + 0.2 * first["efficiency"] + 0.4 * first["stability"]
        )
        assert set(first["intervals"]) == set(STATISTICS)
        assert len(data["episodes"]) == len(report.cases)

    def test_missing_is_null(self, report: Report) -> None:
        data: Any = to_json(report)
        idle = data["models"][-1]
        assert idle["n"] == 0
        assert idle["epm_q"] is idle["success_rate"] is idle["mean_return"] is None
        assert set(idle["indices"].values()) == {None}

    def test_level_file(self, tmp_path: Path) -> None:
        report = level_report(level_file(tmp_path))
        data: Any = to_json(report)
        assert data["kind"] == "levels"
        assert [row["model"] for row in data["models"]] == ["a", "b"]
        assert data["models"][0]["mean_return"] is None
        assert data["models"][1]["unjudged_turns"] == 2


def level_file(folder: Path) -> Path:
    rows = {"a": [list(GOOD)] * 20, "b": [list(BAD)] * 11 + [[None] * 6] + [list(BAD)]}
    episodes = [{"model": m, "case": c, "levels": levels} for m, levels in rows.items() for c in ("1", "2")]
    path = folder / "levels.json"
    path.write_text(json.dumps({"cases": {c: {"P0": [-9, -12, -3]} for c in ("1", "2")}, "episodes": episodes}))
    return path


class TestCsv:
    def test_a_row_for_each_model(self, report: Report) -> None:
        rows = list(csv.DictReader(io.StringIO(to_csv(report))))
        assert [row["model"] for row in rows] == [m.summary.model for m in report.models]
        assert float(rows[0]["success_rate"]) == 1.0
        assert {*INDEX_NAMES, "epm_q_low", "epm_q_high", "mean_words", "unfinished"} <= set(rows[0])
        assert rows[-1]["epm_q"] == rows[-1]["epm_q_low"] == ""


class TestTerminal:
    @pytest.mark.parametrize("width", [80, 100, 160])
    def test_plain_and_within_the_width(self, report: Report, width: int) -> None:
        text = printed(report, width)
        assert "\x1b" not in text
        assert all(len(line.rstrip()) <= width for line in text.splitlines() if not line.startswith("poor:"))
        assert HOSTILE_MODEL[:8] in text  # never read as markup

    def test_rows_are_whole(self, report: Report) -> None:
        text = printed(report, 100)
        for m in report.models:
            lines = [line for line in text.splitlines() if line.startswith(f"{m.summary.model} ")]
            assert len(lines) >= 3, m.summary.model  # scores, indices, ends
        assert "1 unfinished (left out)" in text
        assert "1 unscored (in no mean)" in text

    def test_long_names_give_way_to_numbers(self, tmp_path: Path) -> None:
        long = "a-model-with-a-name-that-is-longer-than-any-table-could-ever-hold-in-eighty-columns"
        for name in (long, "short"):
            folder = new_run(tmp_path, name)
            for scenario in SCENARIOS:
                write_episode(folder, scenario, [GOOD] * 27, "success")
        text = printed(collect(tmp_path), 80)
        assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
        assert re.search(r"^a-model-[a-z-]*…  +100.0", text, flags=re.M)

    def test_level_file(self, tmp_path: Path) -> None:
        text = printed(level_report(level_file(tmp_path)), 80)
        assert "EPM-Q" in text
        assert "Return" not in text  # there are none


def printed(report: Report, width: int) -> str:
    out = io.StringIO()
    terminal(report, Console(file=out, width=width))
    return out.getvalue()


class TestFigures:
    def test_plotly_accepts_every_figure(self, report: Report, tmp_path: Path) -> None:
        go = pytest.importorskip("plotly.graph_objects")
        for made in (report, level_report(level_file(tmp_path), "official")):
            for name, figure in figures(made).items():
                assert go.Figure(figure).data, name

    def test_names(self, report: Report) -> None:
        made = figures(report)
        kinds = ("space", "ca", "ap", "cp", "work")
        assert {"ends", "energy", "needs", "domains", *(f"box-{i}" for i in INDEX_NAMES)} <= set(made)
        assert {f"{kind}-{i}" for kind in kinds for i in range(3)} <= set(made)
        assert "space-3" not in made  # the model without episodes

    def test_paths_start_at_the_deficit_and_skip_unjudged_turns(self, report: Report) -> None:
        order = [m.summary.model for m in report.models]
        line = figures(report)[f"ca-{order.index(HOSTILE_MODEL)}"]["data"][0]
        p0 = benchmark()["career-01"].p0
        assert (line["x"][0], line["y"][0]) == p0[:2]
        assert line["x"][12] is None
        assert line["connectgaps"]
        assert line["meta"][0] == "career-01"

    def test_every_status_has_a_label_and_a_pattern_of_its_own(self) -> None:
        assert list(PATTERNS) == list(STATUSES)
        assert len(set(PATTERNS.values())) == len(PATTERNS)

    def test_names_are_escaped(self, report: Report) -> None:
        assert any(trace.get("name") == "[red]&lt;b&gt;x&amp;y" for trace in figures(report)["energy"]["data"])


class Loads(HTMLParser):
    """Collects what a page would load, and its script elements."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {k: v or "" for k, v in attrs}
        self.loads += [values[k] for k in ("src", "srcset", "data", "action", "poster") if k in values]
        if "href" in values and not values["href"].startswith("#"):
            self.loads.append(values["href"])
        self.handlers += [k for k in values if k.startswith("on")]
        self._script = values.get("id", f"script {len(self.scripts)}") if tag == "script" else ""

    def handle_endtag(self, tag: str) -> None:
        self._script = ""

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data


@pytest.fixture(scope="module")
def parsed(page: Path) -> Loads:
    loads = Loads()
    loads.feed(page.read_text(encoding="utf-8"))
    return loads


class TestHtml:
    def test_it_loads_nothing(self, page: Path, parsed: Loads) -> None:
        text = page.read_text(encoding="utf-8")
        assert parsed.loads == []
        assert parsed.handlers == []
        assert "@import" not in text
        assert not re.search(r"url\((?!#)", re.sub(r'<script[^>]*id="plotly-gz">.*?</script>', "", text, flags=re.S))
        assert "default-src 'none'" in text

    def test_plotly_is_there_once_and_packed(self, page: Path, parsed: Loads) -> None:
        assert len(parsed.scripts["plotly-gz"]) > 1_000_000
        assert page.stat().st_size < 3_500_000

    def test_hostile_words_stay_words(self, page: Path, report: Report, parsed: Loads) -> None:
        text = page.read_text(encoding="utf-8")
        assert "window.owned" in text  # as data
        assert "<img" not in text
        assert "<b>x" not in text
        assert text.count("<script") == text.count("</script>") == len(report.cases) + 4
        at = [c.episode for c in report.cases if c.model == HOSTILE_MODEL].index("career-01.0")
        first = next(i for i, c in enumerate(report.cases) if c.model == HOSTILE_MODEL) + at
        said = json.loads(parsed.scripts[f"conversation-{first}"])["turns"][0]
        assert said["reply"] == said["user"] == HOSTILE  # and nothing of it was lost

    def test_every_conversation_has_an_address(self, report: Report, parsed: Loads, page: Path) -> None:
        data = json.loads(parsed.scripts["page-data"])
        routes = [entry["route"] for entry in data["cases"]]
        assert len(set(routes)) == len(routes) == len(report.cases)
        assert "good/career-01" in routes
        assert "%5Bred%5D%3Cb%3Ex%26y/career-01.1" in routes
        text = page.read_text(encoding="utf-8")
        assert all(f'href="#/{route}"' in text for route in routes)  # the matrix links them all

    def test_it_tells_what_is_missing(self, page: Path) -> None:
        text = page.read_text(encoding="utf-8")
        assert "3 of 77 turns unjudged" in text
        assert "1 episode unfinished" in text
        assert "judge: TimeoutError" in text

    def test_no_path_of_the_machine(self, page: Path, root: Path) -> None:
        text = page.read_text(encoding="utf-8")
        assert "/home/someone" not in text
        assert str(root) not in text

    def test_same_report_same_bytes(self, report: Report, page: Path, tmp_path: Path) -> None:
        write_html(report, tmp_path / "again.html")
        assert (tmp_path / "again.html").read_bytes() == page.read_bytes()

    def test_a_level_file_has_a_page_too(self, tmp_path: Path) -> None:
        write_html(level_report(level_file(tmp_path)), tmp_path / "levels.html")
        assert "Level file" in (tmp_path / "levels.html").read_text(encoding="utf-8")

    def test_runs_without_any_episode(self, tmp_path: Path) -> None:
        new_run(tmp_path, "idle")
        report = collect(tmp_path)
        write_html(report, tmp_path / "idle.html")
        assert "No episode could be scored" in (tmp_path / "idle.html").read_text(encoding="utf-8")
        assert "idle" in printed(report, 100)

    def test_without_the_extra_it_names_the_extra(
        self, report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from echo_env import page

        page.plotly_packed.cache_clear()
        monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
        with pytest.raises(MissingExtra, match="plotly") as caught:
            write_html(report, tmp_path / "x.html")
        assert "echo-env[report]" in caught.value.hint
        assert not (tmp_path / "x.html").exists()

    def test_a_place_that_cannot_be_written(self, report: Report, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(RecordError, match="cannot be written"):
            write_html(report, tmp_path / "file" / "x.html")


@pytest.mark.browser
class TestBrowser:
    def test_figures_are_drawn(self, page: Path, tmp_path: Path) -> None:
        dom = rendered(page, "", tmp_path)
        assert 'data-drawn="yes"' in dom
        assert "Figure 7." in dom
        assert dom.count('class="main-svg"') >= 15
        assert 'class="plot failed"' not in dom or "no WebGL" in dom

    def test_a_conversation_is_shown(self, page: Path, tmp_path: Path) -> None:
        dom = rendered(page, "#/good/career-01", tmp_path)
        view = dom[dom.index('<main id="conversation"') : dom.index('id="page-data"')]
        assert view.count('class="turn"') == needed(benchmark()["career-01"])
        for told in ("Archie Lamont", "Good night then.", 'class="prog"', "reveal_memory(teens)", "C +1", "work"):
            assert told in view, told

    def test_hostile_words_run_nothing(self, page: Path, tmp_path: Path) -> None:
        dom = rendered(page, "#/%5Bred%5D%3Cb%3Ex%26y/career-01.0", tmp_path)
        view = dom[dom.index('<main id="conversation"') : dom.index('id="page-data"')]
        assert "&lt;img src=x onerror=" in view
        assert "<img" not in view
        assert "not judged" in view

    def test_the_list_finds_words(self, page: Path, tmp_path: Path) -> None:
        dom = rendered(page, "#/conversations", tmp_path)
        assert "14 of 14 conversations" in dom


def rendered(page: Path, route: str, folder: Path) -> str:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium here")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    options += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    command = [chromium, *options, page.as_uri() + route]
    for _ in range(3):  # a headless Chromium hangs now and then on a machine without a session bus
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        except subprocess.TimeoutExpired:
            continue
    pytest.skip("Chromium does not answer")
