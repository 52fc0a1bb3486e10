"""The benchmark scenarios: the paper's strata, thirty people, lines that hold what they say; errors that teach."""

import collections
import copy
import math
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from echo_env.agents.embedded.language import read
from echo_env.errors import ScenarioError
from echo_env.profiles import (
    CLUSTER_OF,
    IEDR_ITEMS,
    STAGES,
    Line,
    Scenario,
    benchmark,
    data_root,
    get_scenario,
    load_scenario,
    scenario_ids,
)
from echo_env.types import AXES

MEAN, SD = 32.32, 4.52
"""Norm of P0 over the papers' corpus, in points (Echo-N1 section 5.3.3)."""
SELF_HARM = re.compile(
    r"suicid|self-?harm|\boverdos|\bnoose\b|\brazor blade|\bslit\b|\bbetter off dead\b|\bend(ing)? it all\b"
    r"|\b(kill|cut|hang|harm|hurt|starve)(ed|ing|s)? (my|him|her|them)sel(f|ves)\b|\bend(ing)? (my|his|her) life\b"
    r"|\btak(e|ing) (my|his|her) own li(fe|ves)\b|\bwish (i|he|she) (was|were) dead\b"
    r"|\bjump(ed|ing)? (off|in front of)\b|\b(don't|didn't|not) want to (live|be alive|be here any ?more|wake up)\b"
)
THIRTY = list(benchmark().values())
every_person = pytest.mark.parametrize("scenario", THIRTY, ids=[s.id for s in THIRTY])


def texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from texts(part)


def norm_of(scenario: Scenario) -> float:
    return math.hypot(*scenario.p0)


# --- the strata of Echo-N1 section 5.3.3


def test_thirty_english_benchmark_scenarios_are_found_by_their_ids() -> None:
    assert len(THIRTY) == 30
    assert {(s.split, s.language) for s in THIRTY} == {("benchmark", "en")}
    assert scenario_ids("benchmark") == [s.id for s in THIRTY] == sorted(benchmark())
    files = {p.stem for p in (data_root() / "benchmark").glob("*.yaml")}
    assert files == set(benchmark())
    assert all(get_scenario(s.id) is s for s in THIRTY)


def test_each_axis_dominates_ten() -> None:
    assert collections.Counter(s.dominant for s in THIRTY) == {"C": 10, "A": 10, "P": 10}
    for s in THIRTY:  # the axis ranked first is the largest deficit
        deficit = dict(zip(AXES, (-x for x in s.p0), strict=True))
        assert deficit[s.dominant] == max(deficit.values()), s.id


def test_each_domain_holds_five() -> None:
    domains = collections.Counter(s.domain for s in THIRTY)
    assert domains == dict.fromkeys(("career", "family", "intimate", "health", "leisure", "values"), 5)
    assert all(s.id.startswith(s.domain) for s in THIRTY)


def test_difficulty_bins_are_five_eleven_ten_and_four() -> None:
    def bin_of(s: Scenario) -> str:
        z = (norm_of(s) - MEAN) / SD
        return "extreme" if z > 1 else "hard" if z > 0 else "medium" if z > -1 else "easy"

    assert collections.Counter(map(bin_of, THIRTY)) == {"extreme": 5, "hard": 11, "medium": 10, "easy": 4}


def test_norm_of_the_deficit_has_the_papers_mean_and_spread() -> None:
    norms = [norm_of(s) for s in THIRTY]
    assert statistics.mean(norms) == pytest.approx(32.3, abs=0.5)
    assert statistics.stdev(norms) == pytest.approx(4.5, abs=0.5)


def test_half_have_a_high_empathy_threshold() -> None:
    assert collections.Counter(s.threshold for s in THIRTY) == {"high": 15, "low": 15}


# --- thirty people


def test_no_two_share_a_name_a_job_or_a_line() -> None:
    assert len({s.persona.name for s in THIRTY}) == len({s.persona.name.split()[0] for s in THIRTY}) == 30
    assert len({s.persona.job.lower() for s in THIRTY}) == 30
    assert len({s.persona.speech for s in THIRTY}) == 30
    said = collections.Counter(line.say for s in THIRTY for line in s.lines())
    said.update(ask for s in THIRTY for need in s.needs for ask in need.asks)
    said.update(text for s in THIRTY for text in s.ending.says)
    assert [text for text, n in said.items() if n > 1] == []


def test_every_voice_speaks_in_several() -> None:
    voices = collections.Counter(s.persona.register_ for s in THIRTY)
    assert set(voices) == {"plain", "wry", "guarded", "warm", "formal", "blunt"}
    assert min(voices.values()) >= 2


@every_person
def test_nobody_speaks_of_self_harm(scenario: Scenario) -> None:
    found = [text for text in texts(scenario.model_dump()) if SELF_HARM.search(text.lower())]
    assert found == []


@pytest.mark.parametrize("text", ["He tried to kill himself.", "I didn't want to wake up.", "after her suicide"])
def test_the_search_for_self_harm_finds_it(text: str) -> None:
    assert SELF_HARM.search(text.lower())


@every_person
def test_the_story_is_whole(scenario: Scenario) -> None:
    assert set(scenario.life) == set(STAGES)
    assert len(scenario.beats) == 4
    assert set(scenario.iedr) == set(IEDR_ITEMS)
    assert len({rating.reason for rating in scenario.iedr.values()}) == 9
    kinds = collections.Counter(line.kind for line in scenario.lines())
    assert set(kinds) == {"fact", "belief", "feeling", "strength", "wish"}
    assert all(have >= -1.2 * p for have, p in zip(scenario.capacity(), scenario.p0, strict=True))


# --- lines that hold what they say


def named_in(line: Line) -> frozenset[str]:
    """Feelings that a line puts into words, denied ones included."""
    return frozenset().union(*(s.voiced | s.denied for s in read(line.say).sentences))


@every_person
def test_a_spoken_feeling_stands_in_its_line(scenario: Scenario) -> None:
    spoken = [line for line in scenario.lines() if line.kind == "feeling"]
    assert spoken
    assert [(line.feeling, line.say) for line in spoken if line.feeling not in named_in(line)] == []


@every_person
def test_a_shown_feeling_does_not_stand_in_its_line(scenario: Scenario) -> None:
    shown = [line for line in scenario.lines() if line.feeling and line.kind != "feeling"]
    assert shown
    for line in shown:
        assert str(line.feeling)[:5] not in line.say.lower(), line.say
        assert line.feeling not in named_in(line), line.say


@every_person
def test_lines_are_short_and_name_what_they_are_about(scenario: Scenario) -> None:
    for line in scenario.lines():
        assert 1 <= len(re.findall(r"[.!?\u2026][\"'\u2019\u201d)]*(?:\s|$)", line.say)) <= 3, line.say
        assert len(line.say.split()) <= 32, line.say
        assert not line.about.endswith((".", "!", "?")), line.about
        shared = {w[:4] for w in re.findall(r"\w{3,}", line.about.lower())} & {
            w[:4] for w in re.findall(r"\w{3,}", line.say.lower())
        }
        assert shared, (line.about, line.say)


def test_the_data_card_says_what_the_scenarios_are_not() -> None:
    card = (data_root() / "README.md").read_text(encoding="utf-8").lower()
    assert "none of the people is about self-harm" in card
    assert "not a clinical tool" in card


# --- errors that teach

GOOD = yaml.safe_load((data_root() / "benchmark" / "career-01.yaml").read_text(encoding="utf-8"))


def write(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    data = copy.deepcopy(GOOD)
    change(data)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
    return path


def error(path: Path) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    return str(caught.value)


def put(*where: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for key in where[:-1]:
            data = data[key]
        data[where[-1]] = value

    return change


def drop(*where: str | int) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for key in where[:-1]:
            data = data[key]
        del data[where[-1]]

    return change


def rename(*where: str | int, to: str) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for key in where[:-1]:
            data = data[key]
        data[to] = data.pop(where[-1])

    return change


def few_lines(data: dict[str, Any]) -> None:
    for beat in data["beats"]:
        beat["lines"] = [line for line in beat["lines"] if line["kind"] != "belief"][:2]


def no_deficit(data: dict[str, Any]) -> None:
    for rating in data["iedr"].values():
        rating["level"] = 0


def same_line_twice(data: dict[str, Any]) -> None:
    data["opening"]["say"] = data["beats"][0]["lines"][0]["say"]


def reverse_needs(data: dict[str, Any]) -> None:
    data["needs"].reverse()


def a_need_twice(data: dict[str, Any]) -> None:
    data["needs"][1]["axis"] = data["needs"][0]["axis"]


MISTAKES = [
    ("a missing field", drop("threshold"), "threshold", "threshold: high"),
    ("a missing field within", drop("persona", "age"), "persona.age", "age: 34"),
    ("a missing field of a line", drop("opening", "about"), "opening.about", "about: the ovens he sold"),
    ("a missing section", drop("persona"), "persona", "persona: {name: ..., age: 34"),
    ("a missing need", drop("needs", 2), "needs", "needs: [{axis: A"),
    ("a missing rating", drop("iedr", "A.2"), "iedr", "C.1: {level: 2, reason: ...}"),
    ("a misspelt field", rename("threshold", to="treshold"), "threshold", "threshold: high"),
    ("a level out of range", put("iedr", "A.2", "level", value=7), "iedr.A.2.level", "level: 2"),
    ("a level in words", put("iedr", "A.2", "level", value="high"), "iedr.A.2.level", "level: 2"),
    ("half a level", put("iedr", "A.2", "level", value=1.5), "iedr.A.2.level", "level: 2"),
    ("an age in words", put("persona", "age", value="old"), "persona.age", "age: 34"),
    ("a wrong kind", put("opening", "kind", value="rumour"), "opening.kind", "kind: fact"),
    ("a wrong domain", put("domain", value="work"), "domain", "domain: family"),
    ("a bad id", put("id", value="My Person"), "id", "id: career-01"),
    ("an empty line", put("opening", "say", value=""), "opening.say", 'say: "My dad sold the ovens on Tuesday."'),
    ("a string for a mapping", put("opening", value="Hi."), "opening", "opening: {say:"),
    ("a lone trait", put("persona", "traits", value=["dry"]), "persona.traits", "traits: [exact, quick to joke]"),
    ("three beats", drop("beats", 3), "beats", "with four entries"),
    ("an unknown feeling", put("opening", "feeling", value="meh"), "opening", "feeling: betrayed"),
    ("a feeling left out", drop("beats", 0, "lines", 3, "feeling"), "beats.0.lines.3", "feeling: ashamed"),
    ("a need ranked twice", a_need_twice, "needs", "needs: [{axis: A, ...}, {axis: C, ...}, {axis: P, ...}]"),
    pytest.param("needs in the wrong order", reverse_needs, "needs", "for example"),
    pytest.param("too little capacity", few_lines, "lines", "for example"),
    pytest.param("no deficit", no_deficit, "iedr", "for example"),
    pytest.param("a line twice", same_line_twice, "opening", "for example"),
    pytest.param("a missing stage", drop("life", "teens"), "life", "for example"),
    pytest.param("a misspelt stage", rename("life", "teens", to="teen"), "life.teen", "for example"),
    pytest.param("a field too many", put("mood", value="grim"), "mood", "for example"),
    pytest.param(
        "a misspelt option", rename("opening", "feeling", to="feling"), "feling", "feeling: betrayed"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "change", "field", "example"), MISTAKES)
def test_a_mistake_names_file_field_and_a_valid_example(
    tmp_path: Path, mistake: str, change: Callable[[dict[str, Any]], object], field: str, example: str
) -> None:
    path = write(tmp_path, change)
    message = error(path)
    line = next((line for line in message.splitlines() if example in line), "")
    assert line, f"{mistake}: no example like {example!r} in\n{message}"
    assert str(path) in line
    assert field in line.partition(str(path))[2], f"{mistake}: {field!r} is not named in\n{message}"


def test_a_mistake_in_the_rules_says_what_is_wrong(tmp_path: Path) -> None:
    assert "needs rank A first" in error(write(tmp_path, reverse_needs))
    assert "too little to heal axis C" in error(write(tmp_path, few_lines))
    assert "no deficit to heal" in error(write(tmp_path, no_deficit))
    assert "a line stands twice" in error(write(tmp_path, same_line_twice))
    assert "there is no such field" in error(write(tmp_path, put("mood", value="grim")))


SIMPLE = ["language", "split", "domain", "threshold"]


@pytest.mark.parametrize("field", SIMPLE)
def test_the_example_mends_the_file(tmp_path: Path, field: str) -> None:
    example = re.search(r"for example  (.*)", error(write(tmp_path, drop(field))))
    assert example is not None
    ((name, value),) = yaml.safe_load(example.group(1)).items()
    load_scenario(write(tmp_path, put(name, value=value)))


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        drop("threshold")(data)
        put("persona", "age", value="old")(data)
        put("iedr", "P.3", "level", value=4)(data)

    message = error(write(tmp_path, change))
    assert len(message.splitlines()) == 3
    assert all(field in message for field in ("threshold", "persona.age", "iedr.P.3.level"))


def test_one_fault_is_one_message(tmp_path: Path) -> None:
    assert len(error(write(tmp_path, drop("beats", 2, "event"))).splitlines()) == 1


@pytest.mark.parametrize(
    "content",
    [b"id: [career-01\n", b"opening: {say: He said: no.}\n", b"id:\n\tx: 1\n", b"id: !!python/object:os.system x\n"],
    ids=["unclosed", "colon", "tab", "tag"],
)
def test_bad_yaml_names_file_and_line_and_gives_an_example(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    message = error(path)
    assert message.startswith(str(path))
    assert re.search(r"line \d+, column \d+", message)
    assert "for example" in message


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(b"- a\n- b\n", "list", id="a list"),
        pytest.param(b"hello\n", "str", id="a word"),
        pytest.param(b"", "", id="empty"),
        pytest.param(b"# nothing but a remark\n", "", id="a remark"),
        pytest.param(bytes(range(256)), "cannot be read", id="binary"),
        pytest.param(b"\x00" * 64, "", id="zeros"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused_by_name(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    message = error(path)
    assert message.startswith(str(path))
    assert told in message


def test_an_empty_file_is_told_in_plain_words_with_an_example(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"")
    message = error(path)
    assert "NoneType" not in message
    assert "for example" in message


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path: Path) -> None:
    assert "no such file" in error(tmp_path / "nobody.yaml")
    assert str(tmp_path) in error(tmp_path)


def test_a_field_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = (data_root() / "benchmark" / "career-01.yaml").read_text(encoding="utf-8")
    path.write_text(text + "threshold: high\n", encoding="utf-8")
    assert "threshold" in error(path)


def test_every_known_feeling_has_a_cluster() -> None:
    used = {line.feeling for s in THIRTY for line in s.lines() if line.feeling}
    assert used <= set(CLUSTER_OF)
    assert len(used) >= 20
