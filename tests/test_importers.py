"""Importers: other projects' files, hand-made here in their formats, become scenarios and runs of ours."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from echo_env import report as reports
from echo_env.agents.rejudge import rejudge_runs
from echo_env.agents.rollout import RunConfig, run
from echo_env.build import WorldConfig
from echo_env.cli import app
from echo_env.epm import INDEX_NAMES, action_vector
from echo_env.errors import ConfigError, EchoError, RecordError, ScenarioError
from echo_env.importers import empa, moodsona, sage
from echo_env.importers.fields import read_json
from echo_env.importers.people import LEVELS_BY_RANK, load_rater, named_feeling, sentences, shortened
from echo_env.importers.runs import write_run
from echo_env.metrics import score_levels
from echo_env.profiles import (
    IEDR_ITEMS,
    Rating,
    Scenario,
    get_scenario,
    iedr_deficit,
    load_scenario,
    scenario_ids,
)
from echo_env.record import find_runs
from echo_env.roles import JudgeView
from echo_env.scorers import get_scorer
from echo_env.types import AXES, Axis, End, Episode, Judgement, Levels, NullTurn

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("ECHO_SHARED", ROOT.parent / "shared"))
SAGE_SAMPLE, ORACLE = SHARED / "data" / "sage_profiles", SHARED / "oracle" / "empa_levels.json"
NAMES = [f"{axis}_{side}" for axis in AXES for side in ("Prog", "Neg")]
Row = list[int | None]


def invoke(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    return done.exit_code, str(done.exception) if isinstance(done.exception, EchoError) else done.output


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


# --- EMPA ------------------------------------------------------------------------------------------------------------


def analysis(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, level in zip(NAMES, row, strict=True):
        quote = f"words for {name}" if level else "0"
        found |= {f"{name}_level": level, f"{name}_evidence": quote, f"{name}_reasoning": f"because {name}"}
    return found


def result(
    rows: list[Row], p0: tuple[int, int, int] = (-3, -6, -6), v: Mapping[int, list[int]] | None = None, **fields: Any
) -> dict[str, Any]:
    """A result file of EMPA's with placeholder words. A row of nothing but None has no analysis, as published."""
    trajectory: list[dict[str, Any]] = [{"turn": 0, "P_t": list(p0), "v_t": [0, 0, 0], "epm": {}}]
    history: list[dict[str, str]] = []
    for turn, row in enumerate(rows, start=1):
        levels = Levels(*(level or 0 for level in row))
        moved = (v or {}).get(turn, [int(x) for x in action_vector(levels)])
        point = {"turn": turn, "P_t": [0, 0, 0], "v_t": moved}
        trajectory.append(point | ({} if row == [None] * 6 else {"mdep_analysis": analysis(row)}))
        history += [{"role": "actor", "content": f"user {turn}"}, {"role": "test_model", "content": f"reply {turn}"}]
    base = {
        "script_id": "007",
        "total_turns": len(rows),
        "termination_reason": "Reached max turns (45), timeout",
        "history": history,
        "test_model_name": "Custom-maker/model-1",
        "actor_model": "maker/actor",
        "director_model": "maker/director",
        "judger_model": "maker/judge",
        "epj": {
            "P_0_initial_deficit": list(p0),
            "trajectory": trajectory,
            "iedr_details": {"filled_iedr": dict.fromkeys(IEDR_ITEMS, 1)},
        },
    }
    return base | fields


HAND_CHECK: list[Row] = [[1, 0, 1, 0, 1, 0], [1, 0, 2, 0, 1, 0], [0, -1, 0, -2, 0, -1], [2, 0, 0, -1, 1, 0]]


def episode(tmp_path: Path, content: dict[str, Any]) -> Episode:
    return empa.episode_of(read_json(write(tmp_path / "script_007_result.json", content)))


def test_a_result_becomes_an_episode(tmp_path: Path) -> None:
    found = episode(tmp_path, result(HAND_CHECK))
    h = found.header
    assert (h.scenario, h.episode_id, h.split, h.language) == ("empa-007", "empa-007.0", "imported", "zh")
    assert (h.policy, h.judge, h.actor, h.director) == (
        "Custom-maker/model-1", "maker/judge", "maker/actor", "maker/director",
    )  # fmt: skip
    assert (h.p0, h.scorer, h.rubric) == ((-3, -6, -6), get_scorer("official").id, "empa-mdep-pr")
    assert [t.judgement.levels for t in found.turns if t.judgement] == [Levels(*row) for row in HAND_CHECK]  # type: ignore[arg-type]
    third = found.turns[2]
    assert (third.user, third.reply, third.published) == ("user 3", "reply 3", None)
    assert third.judgement is not None
    assert [(e.axis, e.direction, e.level, e.quote, e.reason) for e in third.judgement.evidence] == [
        ("C", "neg", -1, "words for C_Neg", "because C_Neg"),
        ("A", "neg", -2, "words for A_Neg", "because A_Neg"),
        ("P", "neg", -1, "words for P_Neg", "because P_Neg"),
    ]
    # P: (-3,-6,-6) + (1,1,1) + (1,3,1) + (-2,-5,-2) + (3,-2,1) = (0,-9,-5), the golden `hand_check_4_turns`
    assert found.turns[-1].epm is not None
    assert found.turns[-1].epm.position == (0, -9, -5)
    assert found.outcome is not None
    assert (found.outcome.end, found.outcome.turns) == ("patience", 4)


def test_what_is_known_of_the_person_makes_the_digest(tmp_path: Path) -> None:
    one = episode(tmp_path, result(HAND_CHECK)).header
    other_model = episode(tmp_path, result(HAND_CHECK[:2], test_model_name="other")).header
    other_person = episode(tmp_path, result(HAND_CHECK, p0=(-3, -6, -9))).header
    assert one.scenario_hash == other_model.scenario_hash != other_person.scenario_hash


def test_a_null_level_is_no_zero_and_official_replays_and_flags_it(tmp_path: Path) -> None:
    rows: list[Row] = [*HAND_CHECK, [None] * 6, [1, -1, 1, -2, 1, None]]
    content = result(rows, v={5: [0, 0, 0], 6: [-1, -4, 1]})
    found = episode(tmp_path, content)
    assert [t.judgement is None for t in found.turns] == [False] * 4 + [True] * 2
    assert found.turns[4].published == NullTurn((0, 0, 0), Levels())
    assert found.turns[5].published == NullTurn((-1, -4, 1), Levels(1, -1, 1, -2, 1, 0))
    assert Episode.model_validate_json(found.model_dump_json()) == found
    write_run(empa.load_runs(tmp_path)[0], tmp_path / "runs")
    official, strict = (reports.collect(tmp_path / "runs", name).cases[0] for name in ("official", "strict"))
    assert official.score is not None
    assert strict.score is not None
    assert (official.score.judged, official.score.replayed_nulls, official.score.position) == (6, 2, (-1, -13, -4))
    assert official.levels[5] == Levels(1, -1, 1, -2, 1, 0)
    assert (strict.score.judged, strict.score.replayed_nulls, strict.levels[4:]) == (4, 0, (None, None))
    assert strict.status == "unscored"  # a third of the turns is unjudged


def test_a_null_without_a_vector_and_a_turn_without_a_point_are_unjudged(tmp_path: Path) -> None:
    content = result([*HAND_CHECK, [None] * 6])
    del content["epj"]["trajectory"][-1]["v_t"]
    del content["epj"]["trajectory"][1]
    found = episode(tmp_path, content)
    assert [t.judgement is None and t.published is None for t in found.turns] == [True, False, False, False, True]


def respell(content: dict[str, Any]) -> None:
    points = content["epj"]["trajectory"][1:]
    points[0]["mdep_analysis"] = dict(zip([n.replace("_", ".") for n in NAMES], HAND_CHECK[0], strict=True))
    nested = {
        n.replace("Prog", "Pos"): {"level": x, "evidence": "w"} for n, x in zip(NAMES, HAND_CHECK[1], strict=True)
    }
    points[1]["mdep_analysis"] = nested
    points[2]["mdep_analysis"] = {k: str(v) for k, v in points[2]["mdep_analysis"].items()}
    points[3]["filled_mdep_pr"] = {
        k: float(v) if isinstance(v, int) else v for k, v in points[3]["mdep_analysis"].items()
    }
    del points[3]["mdep_analysis"]
    content["epj"]["P_0_initial_deficit"] = "(-3, -6, -6)"
    content["script_id"] = "script_007"
    content["history"] = [
        {"role": {"actor": "user", "test_model": "assistant"}[m["role"]], "content": m["content"]}
        for m in content["history"]
    ]


def test_other_spellings_say_the_same(tmp_path: Path) -> None:
    content = result(HAND_CHECK)
    plain = episode(tmp_path, content)
    respell(content)
    other = episode(tmp_path, content)
    assert other.header == plain.header
    assert [t.judgement and t.judgement.levels for t in other.turns] == [
        t.judgement and t.judgement.levels for t in plain.turns
    ]


@pytest.mark.parametrize(
    ("reason", "kind", "end"),
    [
        ("EPM v2.0 Success: Geometric Victory (reached near origin)", None, "success"),
        ("EPM success: positional", "EPM_SUCCESS_POSITIONAL", "success"),
        ("EPM判定成功", None, "success"),
        ("EPM v2.0 Failure: Vector Oscillation (total change 40, net change 2)", None, "oscillation"),
        ("EPM v2.0 Failure: 5 consecutive negative-energy turns (Direction Collapse), Persistent", None, "collapse"),
        ("EPM failure: collapsed", "EPM_FAILURE", "collapse"),
        ("EPM failure: stagnant", "EPM_FAILURE", "stagnation"),
        ("Reached max turns (45), timeout", None, "patience"),
        ("The two have said goodbye.", "DIRECTOR_END", "director"),
    ],
)
def test_the_publishers_words_for_an_end(tmp_path: Path, reason: str, kind: str | None, end: End) -> None:
    content = result(HAND_CHECK, termination_reason=reason, termination_type=kind)
    outcome = episode(tmp_path, content).outcome
    assert outcome is not None
    assert outcome.end == end


def at(content: dict[str, Any], *path: str | int) -> Any:
    for part in path:
        content = content[part]  # type: ignore[index]
    return content


def put(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        at(content, *path[:-1])[path[-1]] = to

    return change


def cut(*path: str | int) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        del at(content, *path[:-1])[path[-1]]

    return change


FIRST = ("epj", "trajectory", 1)
EMPA_FAULTS: list[tuple[str, Callable[[dict[str, Any]], None], tuple[str, ...]]] = [
    ("no script", cut("script_id"), ("'script_id'", "total_turns")),
    ("no epj", cut("epj"), ("'epj'",)),
    ("epj is a list", put("epj", to=[]), ("epj", "expected an object")),
    ("no deficit", cut("epj", "P_0_initial_deficit"), ("'P_0_initial_deficit'",)),
    ("a deficit of two", put("epj", "P_0_initial_deficit", to=[-1, -2]), ("P_0_initial_deficit", "three numbers")),
    ("a deficit above 0", put("epj", "P_0_initial_deficit", to=[1, -2, 0]), ("at most 0",)),
    ("no trajectory", cut("epj", "trajectory"), ("'trajectory'",)),
    ("a turn too many", put(*FIRST, "turn", to=9), ("trajectory[1]", "'turn'", "0 to 4")),
    ("a level of 3", put(*FIRST, "mdep_analysis", "A_Prog_level", to=3), ("A_Prog_level", "0, 1 or 2", "3")),
    ("a level with the wrong sign", put(*FIRST, "mdep_analysis", "P_Neg_level", to=1), ("P_Neg_level", "0, -1 or -2")),
    ("a level that is true", put(*FIRST, "mdep_analysis", "C_Prog_level", to=True), ("C_Prog_level", "True")),
    ("another mapping", put(*FIRST, "v_t", to=[1, 1, 2]), ("'v_t'", "another rubric")),
    ("no history", cut("history"), ("'history'",)),
    ("an empty history", put("history", to=[]), ("'total_turns' is 4", "0 exchanges")),
    ("sides swapped", put("history", 0, "role", to="test_model"), ("history[0]", "'role'", "'actor'")),
    ("a message without words", cut("history", 3, "content"), ("history[3]", "'content'")),
    ("turns that do not add up", put("total_turns", to=5), ("'total_turns' is 5", "4 exchanges")),
    ("no end", cut("termination_reason"), ("'termination_reason'",)),
]


@pytest.mark.parametrize(("change", "told"), [(c, t) for _, c, t in EMPA_FAULTS], ids=[n for n, _, _ in EMPA_FAULTS])
def test_a_broken_result_names_file_field_and_what_was_expected(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], told: tuple[str, ...]
) -> None:
    content = result(HAND_CHECK)
    change(content)
    file = write(tmp_path / "script_007_result.json", content)
    with pytest.raises(EchoError) as caught:
        empa.load_runs(file)
    assert all(words in str(caught.value) for words in told), caught.value
    if "at most 0" not in told:  # that one is the scorer's
        assert str(file) in str(caught.value)


def test_results_become_one_run_a_model_which_score_and_report_read(tmp_path: Path) -> None:
    for model in ("maker/a", "maker/b"):
        for script in ("003", "010"):
            name = f"results/{model[-1]}/script_{script}_result.json"
            write(tmp_path / name, result(HAND_CHECK * 4, script_id=script, test_model_name=model))
    write(tmp_path / "results" / "summary.json", {})
    code, told = invoke("import", "empa", tmp_path / "results", "--out", tmp_path / "runs")
    assert (code, told.count("2 conversations, 32 turns, 0 without")) == (0, 2)
    code, told = invoke("score", tmp_path / "runs", "--format", "json")
    assert code == 0
    report = json.loads(told)
    assert report["scorer"] == get_scorer("official").id
    assert [m["model"] for m in report["models"]] == ["maker-a", "maker-b"]
    rows = [Levels(*row) for row in HAND_CHECK * 4]  # type: ignore[arg-type]
    expected = score_levels((-3, -6, -6), rows, get_scorer("official"))
    assert expected.composite is not None
    assert report["models"][0]["epm_q"] == pytest.approx(expected.composite.epm_q)
    assert invoke("report", tmp_path / "runs", "--scorer", "strict", "--html", tmp_path / "page.html")[0] == 0
    code, told = invoke("score", tmp_path / "runs", "--judge", "embedded", "--out", tmp_path / "again")
    assert (code, "did not come with this run" in told) == (1, True)
    code, told = invoke("import", "empa", tmp_path / "results", "--out", tmp_path / "runs")
    assert (code, "--overwrite" in told) == (1, True)
    assert invoke("import", "empa", tmp_path / "results", "--out", tmp_path / "runs", "--overwrite")[0] == 0


def test_two_results_of_one_script_are_refused(tmp_path: Path) -> None:
    for copy in ("a", "b"):
        write(tmp_path / copy / "script_007_result.json", result(HAND_CHECK))
    with pytest.raises(RecordError, match="Custom-maker/model-1 have the id 'empa-007'"):
        empa.load_runs(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("script_1_result.json", "{", "not valid JSON"),
        ("script_1_result.json", "[]", "expected an object"),
        ("other.json", "{}", "holds no file script_"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, name: str, content: str, told: str) -> None:
    write(tmp_path / name, content)
    with pytest.raises(RecordError, match=told):
        empa.load_runs(tmp_path)
    with pytest.raises(RecordError, match="there is no such file or folder"):
        empa.load_runs(tmp_path / "nowhere")


COLUMNS = ("Idx_RDI", "Idx_Etot", "Idx_Snet", "Idx_Rho", "Idx_Sproj", "Idx_Tau", "Idx_Rpos", "Idx_Align", "Idx_Pen")
PUBLISHED = {"gpt-4o": "GPT-4o", "qwen3-32b": "Qwen 3 32B", "claude-4.6-opus": "Claude 4.6 Opus"}
"""Two models with many null levels, and the best."""


@pytest.mark.skipif(not ORACLE.is_file(), reason="the shared oracle is not here")
def test_imported_results_give_the_published_indices(tmp_path: Path) -> None:
    data = json.loads(ORACLE.read_text(encoding="utf-8"))
    for entry in data["episodes"]:
        if entry["model"] in PUBLISHED:
            v = {int(turn): vector for turn, vector in entry.get("v", {}).items()}
            p0 = tuple(data["cases"][entry["case"]]["P0"])
            names = {"script_id": entry["case"], "test_model_name": entry["model"], "termination_reason": entry["end"]}
            content = result(entry["levels"], p0, v, **names)  # type: ignore[arg-type]
            write(tmp_path / "results" / entry["model"] / f"script_{entry['case']}_result.json", content)
    for found in empa.load_runs(tmp_path / "results"):
        write_run(found, tmp_path / "runs")
    report = reports.collect(tmp_path / "runs", "official")
    assert {m.summary.model for m in report.models} == set(PUBLISHED)
    for model in report.models:
        row = next(row for row in data["published"] if row["Model"] == PUBLISHED[model.summary.model])
        assert (model.summary.n, model.summary.scored) == (30, 30)
        assert model.summary.indices is not None
        for name, column in zip(INDEX_NAMES, COLUMNS, strict=True):
            assert getattr(model.summary.indices, name) == pytest.approx(float(row[column]), abs=0.02), name
    ends = {(e.header.policy, e.header.scenario): e.outcome for r in find_runs(tmp_path / "runs") for e in r.episodes()}
    for case in report.cases:
        outcome = ends[case.model, case.scenario]
        assert outcome is not None
        assert case.status == outcome.end


# --- SAGE and RLVER --------------------------------------------------------------------------------------------------

PLAYER = """* 姓名：陆明远
* 年龄：41岁
* 性别：男性

* 职业：钟表修理师

* 个人爱好：
1. 陆明远每天清晨去河边拍鸟。
2. 他收集旧怀表的表盘。

* 习惯和行为特点：
他说话前总要先擦一擦眼镜。

* 说话风格：
话不多，句子短。

* 说话方式：
常常答非所问。"""

SCENE = """## 背景故事

**事件的起因**

陆明远的铺子要拆了。房东只给了两周时间。

**事件的经过**

- **一个月前：** 他在门上看到一张通知。他没有告诉任何人。
- **上周：** 徒弟问起铺子的事，他说一切照旧！

**主要冲突**

- **冲突事件**：徒弟从别人那里听到了消息。

**事件的当前状态**

他昨晚一夜没睡，把所有的零件都数了一遍。

**玩家不同emotion下的反应**

- **emotion高时**：他会讲一个修表的笑话。

**NPC不同回复**

- **贴合隐藏主题的NPC回复**：NPC如果耐心听他讲铺子，他会安心一些。
- **偏离隐藏主题的NPC回复**：NPC如果催他去找新店面，他会沉默。
####隐藏主题:
***你希望对方用心倾听你的情绪宣泄
"""

PROFILE = {
    "id": "Ab12-cd",
    "player": PLAYER,
    "scene": SCENE,
    "main_cha": "回避型",
    "cha_group": ["寡言", "细心", "固执"],
    "task": "你希望对方用心倾听你的情绪宣泄",
    "first_talk": "铺子里的钟今天都停了。",
}


def jsonl(path: Path, *entries: Mapping[str, Any]) -> Path:
    return write(path, "\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries) + "\n")


def person(tmp_path: Path, **changes: Any) -> Scenario:
    return sage.load_people(jsonl(tmp_path / "profiles.jsonl", PROFILE | changes))[0][0]


def test_a_profile_becomes_a_person(tmp_path: Path) -> None:
    s = person(tmp_path)
    assert (s.id, s.language, s.split, s.domain, s.threshold) == ("sage-ab12-cd", "zh", "imported", "values", "high")
    p = s.persona
    assert (p.name, p.age, p.job, p.traits) == ("陆明远", 41, "钟表修理师", ("寡言", "细心", "固执"))
    assert (p.register_, p.speech, p.defensiveness) == ("guarded", "话不多，句子短。", "high")
    assert s.opening.say == "铺子里的钟今天都停了。"
    told = [[line.say for line in beat.lines] for beat in (*s.beats, s.turning_point)]
    assert told == [
        ["陆明远的铺子要拆了。"],
        ["房东只给了两周时间。"],
        ["一个月前： 他在门上看到一张通知。", "他没有告诉任何人。"],
        ["上周： 徒弟问起铺子的事，他说一切照旧！"],
        ["徒弟从别人那里听到了消息。", "他昨晚一夜没睡，把所有的零件都数了一遍。"],
    ]  # seven sentences, cut at 7k/5: 1, 2, 4, 5
    assert [len(s.life[stage].lines) for stage in ("childhood", "teens", "young_adult", "now")] == [0, 0, 0, 3]
    first = s.needs[0]
    assert [need.axis for need in s.needs] == ["A", "P", "C"]
    assert first.wants == "你希望对方用心倾听你的情绪宣泄。对方如果耐心听他讲铺子，他会安心一些。"
    assert first.hurts == "对方如果催他去找新店面，他会沉默。"
    assert "emotion" not in s.model_dump_json()
    assert "NPC" not in s.model_dump_json()


def test_the_default_ratings_are_the_stated_table(tmp_path: Path) -> None:
    s = person(tmp_path)
    assert {item: rating.level for item, rating in s.iedr.items()} == {
        "A.1": 3, "A.2": 3, "A.3": 3,  # first: 3, 2, 3, and avoidant raises A.2
        "P.1": 1, "P.2": 1, "P.3": 2,
        "C.1": 1, "C.2": 1, "C.3": 1,
    }  # fmt: skip
    assert s.p0 == (-7, -27, -12)
    assert "Default of the importer" in s.iedr["C.2"].reason
    assert "avoidant" in s.iedr["A.2"].reason


@pytest.mark.parametrize("character", ["负面型", "被动型", "回避型", "别的"])
@pytest.mark.parametrize("task", [*sage.RANKING_OF_TASK, "别的"])
def test_every_task_and_character_makes_a_valid_person(tmp_path: Path, task: str, character: str) -> None:
    s = person(tmp_path, task=task, main_cha=character)
    assert s.needs[0].axis == sage.RANKING_OF_TASK.get(task, sage.UNKNOWN_TASK)[0]
    assert (s.persona.defensiveness == "high") == (character in ("负面型", "回避型"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"player": "* 姓名：某人"}, "'player' does not tell 年龄"),
        ({"scene": 3}, "'scene' must be text, not 3"),
        ({"task": None}, "has no 'task'; it has"),
        ({"cha_group": "懒"}, "'cha_group' must be a list of texts"),
        ({"player": PLAYER.replace("41", "7")}, "persona.age"),
    ],
)
def test_a_broken_profile_names_the_line_and_the_field(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    file = jsonl(tmp_path / "profiles.jsonl", PROFILE, PROFILE | {"id": "b"} | change)
    with pytest.raises(EchoError) as caught:
        sage.load_people(file)
    assert f"{file}: line 2" in str(caught.value)
    assert told in str(caught.value)


def test_profiles_are_written_checked_and_never_overwritten_unasked(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "profiles.jsonl", PROFILE)
    code, told = invoke("import", "sage", file, "--out", tmp_path / "out")
    made = tmp_path / "out" / "sage-ab12-cd.yaml"
    assert (code, str(made) in told.replace("\n", ""), "A-first  P0 (-7, -27, -12)" in told) == (0, True, True)
    assert load_scenario(made) == sage.load_people(file)[0][0]
    head = made.read_text(encoding="utf-8").split("id: ")[0]
    assert "MIT License" in head
    assert invoke("check", made)[0] == 0
    code, told = invoke("import", "sage", file, "--out", tmp_path / "out")
    assert (code, "exists already" in told) == (1, True)
    assert invoke("import", "sage", file, "--out", tmp_path / "out", "--overwrite")[0] == 0


def test_one_person_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="two people have the id 'sage-ab12-cd'"):
        sage.load_people(jsonl(tmp_path / "profiles.jsonl", PROFILE, PROFILE))


def said(text: str, **felt: Any) -> dict[str, Any]:
    return {
        "role": "user" if felt else "assistant",
        "content": text,
        **{k.replace("_", "-"): v for k, v in felt.items()},
    }


RECORDING = {k: v for k, v in PROFILE.items() if k not in ("main_cha", "cha_group", "first_talk")} | {
    "character": "回避型",
    "emo_point": 5,
    "history": [
        said("钟停了。", emotion_point=40),
        said("听起来很难受。"),
        said("嗯。", emotion_point=55) | {"planning": {"analyse": "被听见了", "change": 15}},
        said("去找新店面吧。"),
        said("算了。", emotion_point=5),
    ],
}


def recorded(tmp_path: Path, **changes: Any) -> Path:
    return jsonl(tmp_path / "big_based_simulator" / "small-1_result.jsonl", RECORDING | changes)


def test_a_recording_becomes_unjudged_turns_with_the_emotion_as_verdict(tmp_path: Path) -> None:
    (found,) = sage.load_recordings(recorded(tmp_path))
    (episode,) = found.episodes
    h = episode.header
    assert (found.name, h.policy, h.actor, h.judge) == ("small-1", "small-1", "big", "none")
    assert (h.scenario, h.domain, h.p0) == ("sage-ab12-cd", "values", (-7, -27, -12))
    assert [(t.user, t.reply, t.judgement) for t in episode.turns] == [
        ("钟停了。", "听起来很难受。", None),
        ("嗯。", "去找新店面吧。", None),
    ]
    verdicts = [v for t in episode.turns for v in t.verdicts]
    assert [(v.kind, v.judge, v.value, v.reasoning) for v in verdicts] == [
        ("sage", "sage:big", 0.55, "被听见了"),
        ("sage", "sage:big", 0.05, ""),
    ]
    assert episode.outcome is not None
    assert (episode.outcome.end, episode.outcome.closing) == ("director", "算了。")


@pytest.mark.parametrize(("point", "turns", "end"), [(100, 2, "success"), (50, 10, "budget"), (5, 2, "director")])
def test_how_a_recording_ended(tmp_path: Path, point: int, turns: int, end: End) -> None:
    history = [message for k in range(turns) for message in (said(f"第{k}句。", emotion_point=point), said("嗯。"))]
    (found,) = sage.load_recordings(recorded(tmp_path, history=history, emo_point=point))
    outcome = found.episodes[0].outcome
    assert outcome is not None
    assert (outcome.end, outcome.turns, outcome.closing) == (end, turns, "")
    assert found.episodes[0].turns[-1].verdicts[0].value == point / 100


@pytest.mark.parametrize(
    ("history", "told"),
    [
        ([said("一。")], "history[0]: 'role' must be 'user' here"),
        (
            [said("一。", emotion_point=1), said("二。"), said("三。", emotion_point="x")],
            "'emotion-point' must be a number",
        ),
        ("text", "'history' must be a list"),
    ],
)
def test_a_broken_recording_names_the_message(tmp_path: Path, history: object, told: str) -> None:
    with pytest.raises(RecordError) as caught:
        sage.load_recordings(recorded(tmp_path, history=history))
    assert told in str(caught.value)
    assert "small-1_result.jsonl: line 1" in str(caught.value)


class Kind:
    """A judge that finds one thing in every reply, and rates people."""

    id, rubric = "kind-1", "kind"

    async def judge(self, view: JudgeView) -> Judgement | None:
        return Judgement(levels=Levels(a_prog=1), judge=self.id)

    async def rate(self, scenario: Scenario) -> Mapping[str, Rating]:
        levels = {item: 3 if item.startswith("P") else 1 for item in IEDR_ITEMS}
        return {item: Rating(level=level, reason="as I see it") for item, level in levels.items()}


def test_recordings_are_judged_anew_by_the_people_they_brought(tmp_path: Path) -> None:
    recorded(tmp_path)
    code, told = invoke("import", "sage", tmp_path / "big_based_simulator", "--out", tmp_path / "runs")
    assert (code, "1 conversations, 2 turns, 2 without a judgement" in told.replace("\n", " ")) == (0, True)
    before = reports.collect(tmp_path / "runs").models[0]
    assert (before.summary.unscored, before.unjudged_turns) == (1, 2)
    rejudge_runs(tmp_path / "runs", tmp_path / "again", f"{__name__}:Kind")
    rejudge_runs(tmp_path / "again", tmp_path / "once more", f"{__name__}:Kind")
    for folder in ("again", "once more"):
        (run,) = find_runs(tmp_path / folder)
        (episode,) = run.episodes()
        assert [t.judgement and t.judgement.levels.a_prog for t in episode.turns] == [1, 1]
        assert [t.verdicts[0].value for t in episode.turns] == [0.55, 0.05]
        assert reports.collect(tmp_path / folder).models[0].summary.scored == 1


def test_judging_anew_replaces_what_a_publisher_counted(tmp_path: Path) -> None:
    recorded(tmp_path)
    (found,) = sage.load_recordings(tmp_path / "big_based_simulator")
    folder = write_run(found, tmp_path / "runs")
    file = next((folder.path / "episodes").glob("*.jsonl"))
    head, *turns, outcome = file.read_text(encoding="utf-8").splitlines()
    marked = [json.loads(turn) for turn in turns]
    marked[0]["turn"]["published"] = [[1, 0, 0], [1, 0, 0, 0, 0, 0]]
    file.write_text("\n".join([head, *map(json.dumps, marked), outcome, ""]), encoding="utf-8")
    assert [t.published is not None for e in folder.episodes() for t in e.turns] == [True, False]
    rejudge_runs(tmp_path / "runs", tmp_path / "again", f"{__name__}:Kind")
    assert [t.published for e in find_runs(tmp_path / "again")[0].episodes() for t in e.turns] == [None, None]


def test_a_rater_takes_the_place_of_the_defaults(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "profiles.jsonl", PROFILE)
    ((rated, _),) = sage.load_people(file, load_rater(f"{__name__}:Kind"))
    assert rated.p0 == (-7, -9, -27)  # C 2+2+3, A 2+4+3, P 6+12+9
    assert [need.axis for need in rated.needs] == ["P", "A", "C"]
    assert rated.needs[1].wants.startswith("你希望对方用心倾听")  # the words stay with the axis of the task
    assert rated.iedr["P.1"].reason == "as I see it"
    with pytest.raises(ConfigError, match="judge 'embedded' cannot rate"):
        load_rater("embedded")
    with pytest.raises(ConfigError, match="unknown judge 'nobody'"):
        load_rater("nobody")


@pytest.mark.skipif(not SAGE_SAMPLE.is_dir(), reason="the shared sample is not here")
def test_the_real_sample_loads(tmp_path: Path) -> None:
    people = [s for s, _ in sage.load_people(SAGE_SAMPLE / "simulator_profile_withfirsttalk.jsonl")]
    assert len(people) == 100
    assert all(sum(1 for _ in s.lines()) >= 10 for s in people)
    assert all(s.needs[0].wants.count("。") and s.needs[0].hurts for s in people)
    assert min(Counter(s.dominant for s in people).values()) >= 20
    (found,) = sage.load_recordings(SAGE_SAMPLE / "gpt-4o-0808_result.jsonl")
    assert len(found.episodes) == 100
    assert sum(len(e.turns) for e in found.episodes) == 796


# --- moodsona --------------------------------------------------------------------------------------------------------

PERSONA: dict[str, Any] = {
    "id": "moved-house",
    "display_name": "Moved house",
    "description": "A woman in her fifties who moved to the coast last spring. She writes at noon. Boxes are unopened.",
    "language": "en",
    "hidden_goal": "Wants to decide whether to sell the piano, with someone who can explain both sides.",
    "reaction_rules": [
        {"when": "The bot lists pros and cons.", "then": "Asks for more.", "emotion_delta": 10, "stance_to": "open"},
        {"when": "The bot jokes about pianos.", "then": "Goes quiet.", "emotion_delta": -15},
        {"when": "The bot is brief.", "then": "Is brief too.", "energy_delta": -5},
    ],
    "initial_state": {"emotion": 30, "energy": 20, "stance": "guarded"},
    "baseline": {"emotion": 50, "energy": 50, "stance": "curious"},
    "memory_days_visible": 7,
    "tags": ["relocation", "decision"],
    "license": "CC-BY-4.0",
    "author": "A. Writer",
    "ai_assisted": False,
}


def persona(tmp_path: Path, **changes: Any) -> Path:
    content = {k: v for k, v in (PERSONA | changes).items() if v is not None}
    return write(tmp_path / "personas" / "moved-house.yaml", yaml.safe_dump(content, sort_keys=False))


def test_a_persona_becomes_a_person(tmp_path: Path) -> None:
    ((s, source),) = moodsona.load_people(persona(tmp_path))
    assert (s.id, s.language, s.split, s.domain, s.threshold) == (
        "moodsona-moved-house", "en", "imported", "leisure", "high",
    )  # fmt: skip
    p = s.persona
    assert (p.name, p.age, p.job, p.traits) == ("Moved house", 55, "not told", ("relocation", "decision", "guarded"))
    assert (p.register_, p.defensiveness) == ("guarded", "high")
    assert [need.axis for need in s.needs] == ["C", "A", "P"]
    assert s.needs[0].wants == f"{PERSONA['hidden_goal']} The bot lists pros and cons."
    assert s.needs[0].hurts == "The bot jokes about pianos."
    assert [[line.say for line in chapter.lines] for _, chapter in s.chapters()][4:] == [
        ["A woman in her fifties who moved to the coast last spring."],
        ["She writes at noon."],
        ["Boxes are unopened."],
        [],
        [],
    ]
    # C first 3 2 3; A second 1 1 2, emotion 30 raises A.1 and a guarded stance A.2; P third 1 1 1, energy 20 raises P.1
    assert [s.iedr[item].level for item in IEDR_ITEMS] == [3, 2, 3, 2, 2, 2, 2, 1, 1]
    assert s.p0 == (-19, -18, -11)
    assert source.notes[0] == (
        '"Moved house" by A. Writer, from https://github.com/moodsona/moodsona, licensed under CC BY 4.0.'
    )


def test_a_persona_is_written_with_its_credit_and_plays(tmp_path: Path) -> None:
    code, _ = invoke("import", "moodsona", persona(tmp_path).parent, "--out", tmp_path / "out")
    made = tmp_path / "out" / "moodsona-moved-house.yaml"
    assert code == 0
    assert made.read_text(encoding="utf-8").startswith('# "Moved house" by A. Writer, ')
    assert invoke("check", made)[0] == 0
    done = run(RunConfig(policy="skilled", scenarios=(str(made),), world=WorldConfig(max_turns=14)), tmp_path / "runs")
    (episode,) = done.folder.episodes()
    assert not done.failures
    assert episode.turns[0].user == "Hi, have you got a minute?"
    assert all(turn.judgement for turn in episode.turns)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_goal": None}, "has no 'hidden_goal'"),
        ({"language": "fr"}, "'language' must be en"),
        ({"reaction_rules": "none"}, "'reaction_rules' must be a list"),
        ({"reaction_rules": [{"then": "x", "emotion_delta": 5}]}, "reaction_rules[0]: has no 'when'"),
        (
            {"initial_state": {"emotion": "low", "energy": 1, "stance": "open"}},
            "initial_state: 'emotion' must be a number",
        ),
        ({"initial_state": {"emotion": 1, "energy": 1, "stance": "odd"}}, "'stance' must be one of open"),
        ({"license": "proprietary"}, "'license' must be CC-BY-4.0"),
        ({"author": None}, "has no 'author'"),
    ],
)
def test_a_broken_persona_names_the_field(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    file = persona(tmp_path, **changes)
    with pytest.raises(RecordError) as caught:
        moodsona.load_people(file)
    assert str(file) in str(caught.value)
    assert told in str(caught.value)


def test_a_persona_without_a_description_is_told_by_its_goal(tmp_path: Path) -> None:
    ((s, _),) = moodsona.load_people(persona(tmp_path, description=None, tags=[]))
    assert s.situation.summary == s.beats[0].lines[0].say == PERSONA["hidden_goal"]
    assert (s.domain, s.persona.age) == ("values", moodsona.UNKNOWN_AGE)


# --- what they share -------------------------------------------------------------------------------------------------


def test_the_split_imported_has_no_list_and_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="no list") as caught:
        scenario_ids("imported")
    assert "--scenario FILE.yaml" in str(caught.value)


def test_only_an_imported_person_may_have_a_chapter_without_lines(tmp_path: Path) -> None:
    data = get_scenario("career-01").model_dump(mode="json", by_alias=True, exclude_none=True)
    data["life"]["teens"]["lines"] = []
    file = write(tmp_path / "a.yaml", yaml.safe_dump(data))
    with pytest.raises(ScenarioError, match=r"a.yaml: teens\.lines: a chapter needs a line; for example"):
        load_scenario(file)
    write(file, yaml.safe_dump(data | {"split": "imported"}))
    assert load_scenario(file).life["teens"].lines == ()


@given(
    ranking=st.permutations(AXES),
    raised=st.lists(st.sampled_from(["A.1", "A.2", "P.1"]), unique=True),
)
def test_whatever_is_raised_the_default_ratings_keep_the_first_need_largest(
    ranking: list[Axis], raised: list[str]
) -> None:
    levels = {}
    for rank, axis in enumerate(ranking):
        for number, level in enumerate(LEVELS_BY_RANK[rank], start=1):
            levels[f"{axis}.{number}"] = min(3, level + (f"{axis}.{number}" in raised))
    p0 = dict(zip(AXES, iedr_deficit(levels), strict=True))
    assert p0[ranking[0]] == min(p0.values())


@given(st.text(alphabet="ab 你我。！？!?.,，”\n", max_size=900))
def test_sentences_are_pieces_of_the_text_in_order(text: str) -> None:
    place = 0
    for sentence in sentences(text):
        assert sentence == sentence.strip()
        place = text.index(sentence, place) + len(sentence)
    assert len(shortened(text)) <= 400
    assert " ".join(text.split()).startswith(shortened(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("她说：“真的吗？”然后走了。谁也没追上去。", ["她说：“真的吗？”", "然后走了。", "谁也没追上去。"]),
        ("It cost 2.50 a piece. Nobody paid!", ["It cost 2.50 a piece.", "Nobody paid!"]),
        ("好。", []),
        ("没有句号的一行\n另外一行也没有", ["没有句号的一行", "另外一行也没有"]),
    ],
)
def test_where_a_sentence_ends(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_a_named_feeling_is_read_from_the_lexicon() -> None:
    assert named_feeling("She was so ashamed of the letter.", "en") == "ashamed"
    assert named_feeling("He made a shambles of it.", "en") is None
