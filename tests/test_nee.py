"""The NEE panel: diagnosis first, marks, means and spreads by hand, what is kept, what failed, the command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llmfake import FakeClient, Said, block, text_of
from pydantic import ValidationError
from typer.testing import CliRunner

from echo_env.agents.embedded.reviewer import EmbeddedReviewer, naturalness
from echo_env.agents.llm.asks import Answer, Ask, LlmFailure
from echo_env.agents.llm.client import LlmClient
from echo_env.agents.llm.config import ModelConfig
from echo_env.agents.llm.prompting import prompt
from echo_env.agents.nee import MOST, LlmReviewer, Progress, Review, panel_of, review_of, review_runs
from echo_env.agents.reviews import FILE, Marks, NeeReview, Reviewed, read_reviews, sum_up, write_reviews
from echo_env.agents.rollout import RunConfig, run
from echo_env.build import WorldConfig
from echo_env.cli import app
from echo_env.errors import ConfigError, RecordError
from echo_env.profiles import get_scenario
from echo_env.record import RunFolder
from echo_env.roles import JudgeProfile, profiles_of
from echo_env.types import Episode, Outcome, Turn

DIAGNOSIS = "She needed somebody to hear the fear of the nights before anything else was said."
SCENARIOS = ("career-01", "health-04")


def answer(naturalness: int = 20, pacing: int = 30, narrative: int = 20, diagnosis: str = DIAGNOSIS) -> dict[str, Any]:
    marks = {"naturalness": naturalness, "pacing": pacing, "narrative": narrative}
    return {"diagnosis": diagnosis, **marks, "comment": "The best. The worst."}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    for policy in ("skilled", "template"):
        run(RunConfig(policy=policy, scenarios=SCENARIOS, world=WorldConfig(max_turns=8)), out)
    return out


@pytest.fixture
def runs(played: Path) -> Iterator[Path]:
    yield played
    for file in played.glob(f"*/{FILE}*"):
        file.unlink()


def episode_of(runs: Path, policy: str = "skilled", scenario: str = "health-04") -> Episode:
    return next(e for e in RunFolder(runs / policy).episodes() if e.header.scenario == scenario)


class Member:
    """A reviewer by a table: marks by scenario, None for a failure."""

    def __init__(self, name: str, marks: dict[str, Marks | None]) -> None:
        self.id, self.marks, self.asked = name, marks, 0

    async def review(self, episode: Episode, profile: JudgeProfile) -> Reviewed:
        self.asked += 1
        marks = self.marks[episode.header.scenario]
        if marks is None:
            raise LlmFailure("no answer in time", kind="timeout")
        return Reviewed(DIAGNOSIS, marks)


# --- one reviewer ---------------------------------------------------------------------------------------------------


def test_the_diagnosis_is_the_first_thing_asked_for() -> None:
    assert list(Review.model_fields) == ["diagnosis", "naturalness", "pacing", "narrative", "comment"]
    assert all(field.is_required() for field in Review.model_fields.values())


@pytest.mark.parametrize("wrong", [{"naturalness": 31}, {"pacing": 41}, {"narrative": 31}, {"pacing": -1}])
def test_marks_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        Review.model_validate(answer() | wrong)


def reviewed(runs: Path, said: Said) -> tuple[NeeReview, list[Ask]]:
    client = FakeClient(lambda ask: said)
    episode = episode_of(runs)
    member = LlmReviewer(client, client.models.default)
    profile = profiles_of(get_scenario(episode.header.scenario))[1]
    return asyncio.run(review_of(episode, member, profile)), client.asks


def test_a_model_sees_person_needs_and_the_whole_talk(runs: Path) -> None:
    found, asks = reviewed(runs, answer(21, 30, 22))
    assert found.marks == Marks(21, 30, 22)
    assert found.marks.total == 73
    assert found.diagnosis == DIAGNOSIS
    episode, ask = episode_of(runs), asks[0]
    assert len(asks) == 1
    assert "8 exchanges" in text_of(ask)
    assert all(" ".join(t.reply.split()) in block(ask, "talk") for t in episode.turns)
    assert get_scenario("health-04").needs[0].wants in block(ask, "needs")
    assert get_scenario("health-04").persona.name in block(ask, "person")
    assert "strict" not in text_of(ask)  # nothing of how EPM judged
    assert ask.temperature == 0.0


def test_marks_without_a_diagnosis_are_asked_for_again_and_then_missing(runs: Path) -> None:
    found, asks = reviewed(runs, answer(diagnosis="Empathy."))
    assert len(asks) == 2
    assert found.marks is None
    assert "diagnosis" in found.failure


def test_a_long_talk_is_cut_message_by_message(runs: Path) -> None:
    base = episode_of(runs)
    turns = tuple(
        base.turns[0].model_copy(update={"index": k, "user": "u " * 2000, "reply": "r " * 2000}) for k in range(1, 46)
    )
    long = base.model_copy(update={"turns": turns, "outcome": Outcome(end="patience", turns=45)})
    client = FakeClient(lambda ask: answer())
    asyncio.run(LlmReviewer(client, client.models.default).review(long, profiles_of(get_scenario("health-04"))[1]))
    said = block(client.asks[0], "talk")
    assert len(said.splitlines()) == 90  # every message is there
    assert len(said) < 1.1 * MOST


def test_prompts_of_both_languages_take_the_same() -> None:
    assert prompt("nee", "en").places == prompt("nee", "zh").places


# --- a panel --------------------------------------------------------------------------------------------------------


def test_a_panel_of_a_models_file_of_a_model_and_of_the_stand_in(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("default: {model: a/one}\npanel:\n- {model: b/two}\n- {model: b/two, temperature: 1.0}\n")
    ids = [m.id for m in panel_of([str(file), "c/three", "llm:d/four", "embedded"])]
    assert ids == ["llm:two+nee-1", "llm:two+nee-1#2", "llm:three+nee-1", "llm:four+nee-1", "embedded-nee-1"]
    file.write_text("default: {model: a/one}\n")
    assert [m.id for m in panel_of([str(file)])] == ["llm:one+nee-1"]
    with pytest.raises(ConfigError, match="member"):
        panel_of([])


def test_each_member_is_asked_as_the_model_it_is(runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    async def ask(self: LlmClient, ask: Ask, model: ModelConfig | None = None) -> Answer:
        assert model is not None
        asked.append(model.model)
        return await FakeClient(lambda _: answer()).ask(ask)

    monkeypatch.setattr(LlmClient, "ask", ask)
    file = tmp_path / "models.yaml"
    file.write_text("default: {model: a/one}\npanel: [{model: b/two}, {model: c/three}]\n")
    result = review_runs(runs / "skilled", panel_of([str(file)]))
    assert sorted(asked) == ["b/two", "b/two", "c/three", "c/three"]
    assert result.models[0].nee == 70


def review(episode: str, reviewer: str, marks: Marks | None) -> NeeReview:
    values = marks._asdict() if marks else {"failure": "nee: it failed"}
    return NeeReview(episode=episode, talk="t", reviewer=reviewer, **values)


REVIEWS = [
    review("e1", "A", Marks(20, 30, 20)),  # 70
    review("e2", "A", Marks(24, 34, 22)),  # 80
    review("e1", "B", Marks(10, 25, 15)),  # 50
    review("e2", "B", Marks(16, 26, 18)),  # 60
]


def test_mean_and_spread_by_hand() -> None:
    found = sum_up("m", ["A", "B"], REVIEWS, episodes=2, epm_q=80.0)
    a, b = found.reviewers
    assert (a.naturalness, a.pacing, a.narrative, a.nee) == (22, 32, 21, 75)
    assert (b.naturalness, b.pacing, b.narrative, b.nee) == (13, 25.5, 16.5, 55)
    assert (found.naturalness, found.pacing, found.narrative, found.nee) == (17.5, 28.75, 18.75, 65)
    assert a.std_over_episodes == pytest.approx(7.0711, abs=1e-4)  # sqrt((5^2 + 5^2) / 1)
    assert found.std_over_models == pytest.approx(14.1421, abs=1e-4)  # of 75 and 55
    assert found.std_over_episodes == pytest.approx(7.0711, abs=1e-4)  # of (70 + 50) / 2 and (80 + 60) / 2
    assert found.final == 74.0  # 0.6 * 80 + 0.4 * 65


def test_a_failed_review_is_counted_and_is_no_number() -> None:
    found = sum_up("m", ["A", "B"], [*REVIEWS[:3], review("e2", "B", None)], episodes=2, epm_q=80.0)
    assert (found.failures, found.reviewers[1].failures, found.reviewers[1].reviews) == (1, 1, 1)
    assert found.reviewers[1].nee == 50  # the one that there is
    assert found.reviewers[1].std_over_episodes is None
    assert found.nee == 62.5  # of 75 and 50
    nothing = sum_up("m", ["B"], [review("e1", "B", None)], episodes=1, epm_q=80.0)
    assert nothing.nee is None
    assert nothing.final is None


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_who_has_reviewed_is_not_asked_again_but_who_failed_is(runs: Path) -> None:
    good = Member("good", dict.fromkeys(SCENARIOS, Marks(20, 30, 20)))
    bad = Member("bad", {"career-01": Marks(10, 20, 10), "health-04": None})
    first = review_runs(runs, [good, bad])
    assert (good.asked, bad.asked) == (4, 4)  # two runs of two episodes
    assert [m.failures for m in first.models] == [1, 1]
    seen: list[Progress] = []
    bad.marks["health-04"] = Marks(12, 22, 12)
    second = review_runs(runs, [good, bad], tell=seen.append)
    assert (good.asked, bad.asked) == (4, 6)
    assert [m.failures for m in second.models] == [0, 0]
    assert (seen[0].done, seen[-1].done, seen[-1].total) == (0, 2, 2)
    assert review_runs(runs, [good]).panel == ("good",)
    assert len(read_reviews(runs / "skilled")) == 4  # another panel's reviews stay


def test_another_talk_under_the_same_id_is_reviewed_anew(runs: Path) -> None:
    member = Member("m", dict.fromkeys(SCENARIOS, Marks(20, 30, 20)))
    review_runs(runs / "skilled", [member])
    old = [r.model_copy(update={"talk": "0" * 16}) for r in read_reviews(runs / "skilled")]
    write_reviews(runs / "skilled", old)
    review_runs(runs / "skilled", [member])
    assert member.asked == 4


def test_a_file_is_whole_or_not_there(runs: Path) -> None:
    folder = runs / "skilled"
    write_reviews(folder, REVIEWS)
    assert list(read_reviews(folder)) == sorted(REVIEWS, key=lambda r: (r.episode, r.reviewer))
    assert not list(folder.glob("*.part"))
    (folder / FILE).write_text('{"version": 1, "reviews": [{"epi')
    with pytest.raises(RecordError, match="no reviews"):
        read_reviews(folder)


def test_unfinished_talks_are_counted_and_not_reviewed(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "skilled"
    (copy / "episodes").mkdir(parents=True)
    (copy / "run.json").write_bytes((runs / "skilled" / "run.json").read_bytes())
    for file in (runs / "skilled" / "episodes").iterdir():
        lines = file.read_bytes().splitlines(keepends=True)
        (copy / "episodes" / file.name).write_bytes(b"".join(lines[:-1] if "career" in file.name else lines))
    member = Member("m", dict.fromkeys(SCENARIOS, Marks(20, 30, 20)))
    found = review_runs(copy, [member]).models[0]
    assert (found.episodes, found.unfinished, member.asked) == (1, 1, 1)


def test_a_scenario_that_changed_is_not_reviewed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = get_scenario("career-01")
    monkeypatch.setattr("echo_env.agents.rejudge.get_scenario", lambda name: other)
    with pytest.raises(RecordError, match="changed"):
        review_runs(runs, [Member("m", {})])


# --- the stand-in ---------------------------------------------------------------------------------------------------


def embedded(episode: Episode) -> Marks:
    profile = profiles_of(get_scenario(episode.header.scenario))[1]
    return asyncio.run(EmbeddedReviewer().review(episode, profile)).marks


def test_the_stand_in_tells_listening_from_templates(runs: Path) -> None:
    for scenario in SCENARIOS:
        good, poor = embedded(episode_of(runs, "skilled", scenario)), embedded(episode_of(runs, "template", scenario))
        assert good.naturalness > poor.naturalness
        assert good.pacing > poor.pacing + 10
        assert good.narrative > poor.narrative


def turns_of(replies: list[str]) -> list[Turn]:
    user = "I stood there and the whole yard was quiet."
    return [
        Turn(index=k, user=user, reply=r, judgement=None, epm=None, direction=None, reward=None)
        for k, r in enumerate(replies, 1)
    ]


def test_naturalness_by_hand() -> None:
    plain = ["Quiet how, like before snow?", "And who broke it, you or them?"]
    assert naturalness(turns_of(plain)) == 1.0  # fresh, of a size, nothing stock
    again = ["And who broke it, you or them?"] * 2
    assert naturalness(turns_of(again)) == pytest.approx((0.5 + 1 + 1) / 3)  # the second is the first again
    listed = ["- breathe in\n- breathe out", "And who broke it, you or them?"]
    assert naturalness(turns_of(listed)) == pytest.approx((1 + 1 + 0.5) / 3)
    assert naturalness(turns_of(["", plain[0]])) == 0.5  # half of them say something
    assert naturalness(turns_of(["", ""])) == 0.0
    speech = [" ".join(f"word{k}" for k in range(90))]  # ten times the person's nine words
    assert naturalness(turns_of(speech)) == pytest.approx(2 / 3)


def test_a_talk_that_nobody_judged_has_no_marks(runs: Path) -> None:
    base = episode_of(runs)
    turns = tuple(t.model_copy(update={"judgement": None, "epm": None}) for t in base.turns)
    found = asyncio.run(
        review_of(
            base.model_copy(update={"turns": turns}), EmbeddedReviewer(), profiles_of(get_scenario("health-04"))[1]
        )
    )
    assert found.marks is None
    assert "no turn" in found.failure


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_says_what_the_stand_in_is(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "nee.json"
    done = CliRunner().invoke(app, ["nee", str(runs), "--models", "embedded", "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line}
    assert "stand-in" in done.stdout
    written = json.loads(out.read_text())
    skilled = next(m for m in written["models"] if m["model"] == "skilled")
    assert float(rows["skilled"][5]) == pytest.approx(skilled["nee"], abs=0.01)
    assert skilled["final"] == pytest.approx(0.6 * skilled["epm_q"] + 0.4 * skilled["nee"])
    assert written["models"][0]["model"] == "skilled"  # the best first


def test_the_command_prints_json(runs: Path) -> None:
    done = CliRunner().invoke(app, ["nee", str(runs), "--models", "embedded", "--format", "json"])
    assert json.loads(done.stdout)["panel"] == ["embedded-nee-1"]


def test_the_command_wants_a_panel_and_a_run(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["nee", str(tmp_path)]).exit_code == 2
    failed = CliRunner().invoke(app, ["nee", str(tmp_path), "--models", "embedded"])
    assert isinstance(failed.exception, RecordError)
