"""The profile generator: what is promised of the corpus, of the bank's text, and of determinism."""

import collections
import hashlib
import itertools
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from echo_env.bank import DOMAINS, load_bank
from echo_env.errors import ConfigError, ScenarioError
from echo_env.generator import (
    CLEAR_LEAD,
    MAX_DEFICIT,
    SPLIT_SIZES,
    GeneratedSplit,
    draw,
    generate,
)
from echo_env.profiles import STAGES, Scenario, benchmark, get_scenario, scenario_ids
from echo_env.types import AXES

GOLDEN = {
    "train-0000": "558b64629f6fe952",
    "train-0217": "b39796fe1b2c4dc0",
    "dev-0099": "c766ceb8a8a350cb",
}
"""Digests of three scenarios. A change of theirs is a change of the corpus: raise GENERATOR_VERSION with it."""

PLACES: list[tuple[GeneratedSplit, int]] = [(split, i) for split, size in SPLIT_SIZES.items() for i in range(size)]


@pytest.fixture(scope="module")
def corpus() -> list[Scenario]:
    return [generate(split, i) for split, i in PLACES]


@pytest.fixture(scope="module")
def says(corpus: list[Scenario]) -> set[str]:
    return {line.say for scenario in corpus for line in scenario.lines()}


def texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from texts(part)


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower().replace("'", "").replace("\u2019", ""))


# --- the corpus


def test_every_scenario_loads_with_its_own_id_and_content(corpus: list[Scenario]) -> None:
    assert [s.id for s in corpus] == scenario_ids("train") + scenario_ids("dev")
    assert len({s.digest for s in corpus}) == len(corpus) == 500
    assert {(s.split, s.language) for s in corpus} == {("train", "en"), ("dev", "en")}


def test_scenarios_are_found_by_id(corpus: list[Scenario]) -> None:
    assert get_scenario("train-0000") == corpus[0]
    assert get_scenario("dev-0099") == corpus[-1]


@pytest.mark.parametrize("splits", [("train",), ("dev",), ("train", "dev")])
def test_norm_of_the_deficit_follows_the_test_set(corpus: list[Scenario], splits: tuple[str, ...]) -> None:
    norms = [math.hypot(*s.p0) for s in corpus if s.split in splits]
    assert statistics.mean(norms) == pytest.approx(32.32, abs=0.5)  # Echo-N1 section 5.3.3
    assert statistics.stdev(norms) == pytest.approx(4.52, abs=0.5)


@pytest.mark.parametrize("split", ["train", "dev"])
def test_axes_domains_and_temper_are_balanced(corpus: list[Scenario], split: str) -> None:
    part = [s for s in corpus if s.split == split]
    axes = collections.Counter(s.dominant for s in part)
    domains = collections.Counter(s.domain for s in part)
    pairs = collections.Counter((s.dominant, s.domain) for s in part)
    assert set(axes) == set(AXES)
    assert max(axes.values()) - min(axes.values()) <= 1
    assert set(domains) == set(DOMAINS)
    assert max(domains.values()) - min(domains.values()) <= 1
    assert len(pairs) == 18
    assert max(pairs.values()) - min(pairs.values()) <= 1
    tempers = collections.Counter((s.threshold, s.persona.defensiveness) for s in part)
    assert set(tempers.values()) == {len(part) // 4}


def test_ratings_agree_with_the_ranking_of_the_needs(corpus: list[Scenario]) -> None:
    for s in corpus:
        deficit = dict(zip(AXES, (-x for x in s.p0), strict=True))
        ranked = [n.axis for n in s.needs]
        assert ranked == sorted(AXES, key=lambda axis: -deficit[axis]), s.id
        assert len(set(deficit.values())) == 3, s.id
        assert deficit[ranked[0]] - deficit[ranked[1]] >= CLEAR_LEAD, s.id
        assert sum(deficit.values()) <= MAX_DEFICIT, s.id
        priority = {axis: s.iedr[f"{axis}.3"].level for axis in AXES}
        assert all(priority[ranked[0]] > priority[axis] for axis in ranked[1:]), s.id


def test_the_lines_hold_enough_and_vary(corpus: list[Scenario], says: set[str]) -> None:
    for s in corpus:
        kinds = collections.Counter(line.kind for line in s.lines())
        assert set(kinds) == {"fact", "belief", "feeling", "strength", "wish"}, s.id
        assert all(len(beat.lines) >= 5 for beat in s.beats), s.id
        assert all(have >= 1.2 * -need for have, need in zip(s.capacity(), s.p0, strict=True)), s.id
        assert len({line.feeling for line in s.lines() if line.feeling}) >= 8, s.id
    assert len(says) >= 1500
    assert len({s.persona.name for s in corpus}) >= 60


def test_no_hole_is_left_open(corpus: list[Scenario]) -> None:
    for s in corpus:
        for text in texts(s.model_dump()):
            assert not re.search(r"[{}]", text), (s.id, text)
            assert "  " not in text, (s.id, text)


def test_nobody_in_the_story_bears_the_name_of_the_person(corpus: list[Scenario]) -> None:
    bank = load_bank()
    for (split, i), s in zip(PLACES, corpus, strict=True):
        drawn = draw(split, i)
        told = " ".join(drawn.module.filling(drawn.filling).values())
        assert s.persona.name.split()[0] not in words_as_written(told), s.id
        assert s.persona.name in bank.people.names


def words_as_written(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


# --- what splits train from dev


def test_each_domain_holds_one_module_out(corpus: list[Scenario]) -> None:
    bank = load_bank()
    used = {split: {draw(split, i).module.id for i in range(size)} for split, size in SPLIT_SIZES.items()}
    held_out = {m.id for domain in DOMAINS for m in bank.held_out(domain)}
    assert len(held_out) == len(DOMAINS)
    assert used["train"] == {m.id for m in bank.modules} - held_out
    assert used["dev"] == {m.id for m in bank.modules}
    in_dev = [draw("dev", i).module.held_out for i in range(SPLIT_SIZES["dev"])]
    assert 0.4 < sum(in_dev) / len(in_dev) < 0.6


def test_no_filling_of_a_module_is_drawn_twice() -> None:
    drawn = [(d.module.id, d.filling) for d in (draw(split, i) for split, i in PLACES)]
    assert len(set(drawn)) == len(drawn)


def test_no_module_is_bound_to_one_axis() -> None:
    axes: collections.defaultdict[str, set[str]] = collections.defaultdict(set)
    for split, i in PLACES:
        drawn = draw(split, i)
        axes[drawn.module.id].add(drawn.dominant)
    assert all(found == set(AXES) for found in axes.values())


# --- determinism


def test_two_processes_give_the_same_bytes(corpus: list[Scenario]) -> None:
    code = (
        "import sys; from echo_env.generator import SPLIT_SIZES, generate\n"
        "for split, size in SPLIT_SIZES.items():\n"
        "    for i in range(0, size, 3): sys.stdout.write(generate(split, i).model_dump_json(by_alias=True) + chr(10))"
    )
    here = "".join(s.model_dump_json(by_alias=True) + "\n" for s in corpus if int(s.id.rpartition("-")[2]) % 3 == 0)
    for seed in ("0", "4711"):
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONUTF8": "1"}
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
        assert hashlib.sha256(run.stdout.replace(b"\r\n", b"\n")).digest() == hashlib.sha256(here.encode()).digest()


def test_order_and_earlier_calls_play_no_part(corpus: list[Scenario]) -> None:
    assert generate("dev", 41) == corpus[441]
    assert generate("train", 3) == corpus[3]


def test_the_corpus_is_the_one_that_was_released() -> None:
    assert {name: get_scenario(name).digest for name in GOLDEN} == GOLDEN


def test_one_scenario_takes_less_than_ten_milliseconds(corpus: list[Scenario]) -> None:
    def seconds(i: int) -> float:
        start = time.perf_counter()
        generate("train", i)
        return time.perf_counter() - start

    assert min(seconds(i) for i in range(30)) < 0.010


# --- the bank's text


@pytest.mark.parametrize("number", range(24))
def test_a_module_holds_what_it_must(number: int) -> None:
    module = load_bank().modules[number]
    chapters = [*module.beats, module.turning_point]
    lines = [line for chapter in chapters for line in chapter.lines]
    kinds: collections.Counter[str] = collections.Counter(line.kind for line in lines)
    shown = [line.feeling for line in lines if line.feeling and line.kind != "feeling"]
    assert len(lines) >= 30
    least = {"fact": 8, "belief": 5, "feeling": 6, "strength": 5, "wish": 6}
    assert all(kinds[kind] >= n for kind, n in least.items()), kinds
    assert len(shown) >= 10
    assert all({"strength", "wish"} & {line.kind for line in beat.lines} for beat in module.beats)
    assert module.ages[0] >= 24
    assert 4 <= len(module.slots) <= 6
    assert all(4 <= len(alternatives) <= 6 for alternatives in module.slots.values())
    held = sum("{" in line.say for line in lines)
    assert held >= 12, "too few lines hold a slot: two fillings would read alike"


def test_modules_life_needs_people_and_reasons_are_all_there() -> None:
    bank = load_bank()
    assert collections.Counter(m.domain for m in bank.modules) == dict.fromkeys(DOMAINS, 4)
    assert len({m.id for m in bank.modules}) == 24
    for stage in STAGES:
        chapters = bank.life[stage]
        hopeful = [c for c in chapters if any(x.kind in ("strength", "wish") and x.feeling for x in c.lines)]
        assert len(chapters) >= 14
        assert all(len(c.lines) == 2 for c in chapters)
        assert len(hopeful) * 2 >= len(chapters)
    assert all(len(bank.needs[axis]) >= 8 for axis in AXES)
    assert len(set(bank.people.names)) == len(bank.people.names) >= 60
    assert len({name.split()[0] for name in bank.people.names}) == len(bank.people.names)
    assert len(bank.people.speech) == 6
    assert sorted(bank.reasons) == sorted(f"{axis}.{i}" for axis in AXES for i in (1, 2, 3))
    assert all(len(set(sentences)) >= 3 for levels in bank.reasons.values() for sentences in levels)


def test_lines_are_short_and_share_a_word_with_what_they_are_about(corpus: list[Scenario]) -> None:
    lines = {line.say: line for s in corpus for line in s.lines()}
    for say, line in lines.items():
        assert len(say.split()) <= 32, say
        about, told = ({w[:4] for w in words(text) if len(w) >= 4} for text in (line.about, say))
        assert not about or about & told, (line.about, say)


def test_a_shown_feeling_is_not_named(corpus: list[Scenario]) -> None:
    for line in {line.say: line for s in corpus for line in s.lines()}.values():
        if line.feeling and line.kind != "feeling":
            assert line.feeling[:5] not in line.say.lower(), line.say


def test_no_line_of_the_benchmark_is_in_the_corpus(corpus: list[Scenario], says: set[str]) -> None:
    def runs(text: str) -> Iterator[tuple[str, ...]]:
        told = words(text)
        return (tuple(told[i : i + 8]) for i in range(len(told) - 7))

    told = (
        says | {text for s in corpus for n in s.needs for text in n.asks} | {x for s in corpus for x in s.ending.says}
    )
    whole = {" ".join(words(text)) for text in told}
    pieces = set(itertools.chain.from_iterable(map(runs, told)))
    for s in benchmark().values():
        for line in s.lines():
            assert " ".join(words(line.say)) not in whole, (s.id, line.say)
            assert not pieces & set(runs(line.say)), (s.id, line.say)


# --- what is refused


@pytest.mark.parametrize(("split", "index"), [("train", 400), ("train", -1), ("dev", 100), ("test", 0)])
def test_what_does_not_exist_is_refused_with_a_hint(split: GeneratedSplit, index: int) -> None:
    with pytest.raises(ConfigError) as caught:
        generate(split, index)
    assert caught.value.hint


def test_a_hole_without_a_slot_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = load_bank()
    broken = tuple(m.model_copy(update={"summary": "{name} saw {nobody}."}) for m in bank.modules)
    monkeypatch.setattr("echo_env.generator.load_bank", lambda: bank.model_copy(update={"modules": broken}))
    with pytest.raises(ScenarioError, match="no slot 'nobody'"):
        generate("train", 0)
