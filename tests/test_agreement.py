"""Agreement with people: the measures by hand, any judge through them, and the embedded judge in open talk."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from echo_env import agreement as ag
from echo_env import agreement_sets as sets
from echo_env import cli, registry
from echo_env import humanrecords as data
from echo_env.agents.embedded import EmbeddedJudge
from echo_env.agents.embedded.anchors import anchors_of
from echo_env.agents.embedded.language import read_sentence
from echo_env.agents.embedded.openjudge import _SHARED, OpenJudge, verbatim
from echo_env.agents.embedded.openquestions import asks
from echo_env.agents.embedded.opentalk import is_open, open_profile, tidy
from echo_env.agents.validation.validate import validate
from echo_env.errors import ConfigError, RecordError, RoleFailure
from echo_env.profiles import get_scenario
from echo_env.roles import Exchange, JudgeView, profiles_of
from echo_env.types import Evidence, Judgement, Levels

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("ECHO_SHARED", ROOT.parent / "shared")) / "data"

floats = st.lists(st.integers(-9, 9).map(float), min_size=4, max_size=30)

# --- measures --------------------------------------------------------------------------------------------------------


def test_ranks_and_correlations_by_hand() -> None:
    assert ag.ranks(np.array([10.0, 20.0, 20.0, 30.0])).tolist() == [1.0, 2.5, 2.5, 4.0]
    # rank differences 0, -1, 1, 0: 1 - 6 * 2 / (4 * 15)
    assert ag.spearman(np.array([1.0, 2, 3, 4]), np.array([10.0, 30, 20, 40])) == pytest.approx(0.8)
    assert ag.pearson(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])) is None  # nothing varies: no figure, not 0


def test_auc_counts_ties_half() -> None:
    # pairs: 2>1 1, 2=2 0.5, 3>1 1, 3>2 1: 3.5 of 4
    assert ag.auc(np.array([1.0, 2, 2, 3]), np.array([False, True, False, True])) == 0.875
    assert ag.auc(np.array([1.0, 2]), np.array([True, True])) is None


def test_macro_f1_by_hand() -> None:
    # class 0: 2*1/(2+1), class 1: 2*1/(1+2), class 2: 0
    assert ag.macro_f1(np.array([0, 1, 2, 0]), np.array([0, 1, 1, 2])) == pytest.approx(4 / 9)


def test_what_controls_explain_is_taken_out() -> None:
    controls = np.array([[1.0], [2], [3], [4], [5], [6]])
    bump = np.array([1.0, -1, 0, 0, -1, 1])
    # both rise with the control, which alone would give r near 1; what is left of them is opposite
    assert ag.partial(controls[:, 0] + bump, controls[:, 0] - bump, controls) == pytest.approx(-1.0)


def test_a_conversation_s_own_level_does_not_count() -> None:
    groups = ["a", "a", "b", "b"]
    x, y = np.array([1.0, 2, 11, 12]), np.array([2.0, 1, 12, 11])
    assert ag.within(x, groups).tolist() == [-0.5, 0.5, -0.5, 0.5]
    assert ag.pearson(ag.within(x, groups), ag.within(y, groups)) == pytest.approx(-1.0)
    assert ag.pearson(x, y) > 0.9  # type: ignore[operator]


def test_pairs_and_the_raters_ceiling_by_hand() -> None:
    assert [ag.preferred(v) for v in (("A", "A", "B"), ("B", "tie", "tie"), ("A", "B", "tie"))] == [1, -1, 0]
    assert ag.pair_credits(np.array([2.0, 0, 1]), np.array([1.0, 1, -1])).tolist() == [1.0, 0.5, 0.0]
    # first pair: each A meets A and tie, agrees; the tie meets two A, half. Second: only the B meets a majority
    assert ag.raters_ceiling([("A", "A", "tie"), ("A", "A", "B")]) == pytest.approx((1 + 1 + 0.5 + 0) / 4)


def test_token_f1_by_hand() -> None:
    found = ag.overlap("I am so sorry you lost him", ["so sorry", "so sorry"], ["sorry you lost him"])
    assert found == ag.Overlap(quoted=2, marked=4, both=1)
    assert found.f1 == pytest.approx(2 * 1 / 6)
    nothing = ag.overlap("Okay.", [], [])
    assert nothing.f1 == 1.0
    assert ag.pooled_f1([found, nothing]) == pytest.approx(1 / 3)
    assert ag.mean_f1([found, nothing]) == pytest.approx(2 / 3)
    assert ag.pooled_f1([nothing]) is None


@given(st.text(max_size=40), st.text(max_size=20))
def test_quoting_what_people_marked_is_perfect_and_quotes_are_of_the_reply(reply: str, other: str) -> None:
    assert ag.overlap(reply, [reply], [reply]).f1 == 1.0
    found = ag.overlap(reply, [other], [reply])
    assert found.quoted <= ag.word_count(reply)


def test_normalised_text_hides_how_it_was_typed() -> None:
    assert ag.normalised("I\u2019m  sorry,\nReally!") == ag.normalised("i ' m sorry , really !")
    assert ag.first_tokens(["Oh no.", "Why?", "When?"], 4) == ["oh no .", "why"]
    assert ag.first_tokens(["", "Why?", "When?"], 2) == ["", "why ?"]  # an empty reply keeps its place


def test_auc_of_pairs_alike_in_a_control() -> None:
    score, positive = np.array([5.0, 1, 0, 9]), np.array([True, True, False, False])
    near = np.array([0.0, 10.0, 10.0, 0.1])  # 5 meets 9 and loses, 1 meets 0 and wins
    assert sets.matched_auc(score, positive, near) == 0.5
    assert sets.matched_auc(score, positive, np.array([0.0, 10, 20, 30])) is None


@given(floats, st.integers(0, 5))
def test_an_interval_holds_and_repeats(x: list[float], seed: int) -> None:
    array, groups = np.array(x), [str(k // 2) for k in range(len(x))]

    def mean(i: ag.Indices) -> float:
        return float(array[i].mean())

    low, high = ag.interval(mean, groups, seed, resamples=40)
    assert low is not None
    assert high is not None
    assert min(x) - 1e-9 <= low <= high <= max(x) + 1e-9
    assert (low, high) == ag.interval(mean, groups, seed, resamples=40)


def test_whole_conversations_are_resampled() -> None:
    """Two conversations of equal turns each: every resample's mean is 0, 0.5 or 1, as no mix of turns could be."""
    x, groups = np.array([0.0] * 50 + [1.0] * 50), ["a"] * 50 + ["b"] * 50
    seen: set[float] = set()

    def mean(i: ag.Indices) -> float:
        seen.add(float(x[i].mean()))
        return 0.0

    ag.interval(mean, groups, resamples=50)
    assert seen == {0.0, 0.5, 1.0}
    assert ag.interval(mean, ["a"] * 100) == (None, None)  # one conversation says nothing about others


@given(floats)
def test_a_residual_is_free_of_its_controls(x: list[float]) -> None:
    y = np.array(x)
    controls = np.arange(len(x), dtype=float)[:, None]
    left = ag.residual(y, controls)
    assert abs(float(left @ controls[:, 0])) < 1e-6 * (1 + float(np.abs(y).sum()) * len(x))
    assert abs(float(left.sum())) < 1e-6


# --- any judge -------------------------------------------------------------------------------------------------------


class Sorry:
    """Finds a reply good that says sorry; refuses a reply that says refuse; must never see what comes later."""

    id = "sorry-1"
    rubric = "none"

    async def judge(self, view: JudgeView) -> Judgement | None:
        assert is_open(view.profile)
        told = " ".join(line.say for _, line in view.profile.lines)
        heard = " ".join([*(e.user for e in view.history), view.exchange.user])
        assert "later" not in told or "later" in heard
        if "refuse" in view.exchange.reply:
            return None
        if "fail" in view.exchange.reply:
            raise RoleFailure("no answer")
        sorry = "sorry" in view.exchange.reply
        evidence = (Evidence(axis="A", direction="prog", level=2, anchor="x", quote="sorry"),) if sorry else ()
        return Judgement(levels=Levels(a_prog=2 * sorry), evidence=evidence, judge=self.id)


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._TARGETS["judge"], "sorry", f"{__name__}:Sorry")


def levels_file(folder: Path, *rows: tuple[str, int, str]) -> Path:
    body = "".join(f"post {k},{reply},{level},{span}\n" for k, (reply, level, span) in enumerate(rows))
    (folder / "emotional-reactions.csv").write_text(
        "seeker_post,response_post,level,rationales\n" + body, encoding="utf-8"
    )
    return folder


def test_a_judge_by_name_is_measured_and_what_it_refuses_is_left_out(tmp_path: Path) -> None:
    rows = [("so sorry", 2, "sorry|"), ("well", 0, ""), ("sorry", 2, "sorry|"), ("hm", 0, "")] * 6
    found = validate(
        "epitome", levels_file(tmp_path, *rows, ("refuse", 2, "refuse|"), ("fail", 2, "")), judge="sorry", part="all"
    )
    assert (found.n, found.unjudged, found.judge) == (26, 2, "sorry-1")
    assert found.failures == ("the judge gave no judgement", "RoleFailure: no answer")
    spearman = found.measures["emotional-reactions.spearman"]
    assert (spearman.value, spearman.n) == (pytest.approx(1.0), 24)
    assert spearman.baselines["question mark"] is None
    assert found.measures["emotional-reactions.evidence_f1"].value == pytest.approx(1.0)
    assert found.measures["emotional-reactions.evidence_f1"].baselines["whole reply"] < 1.0  # type: ignore[operator]
    assert found.trusted


def test_a_judge_that_mostly_fails_is_not_trusted(tmp_path: Path) -> None:
    folder = levels_file(tmp_path, ("refuse", 2, ""), ("sorry", 1, ""), ("fail", 0, ""))
    found = validate("epitome", folder, judge="sorry", part="all")
    assert (found.unjudged, found.trusted) == (2, False)
    args = ["validate", "judge", "epitome", "--data", str(folder), "--judge", "sorry", "--part", "all"]
    result = CliRunner().invoke(cli.app, args)
    assert result.exit_code == 3
    assert "2 of 3 replies went unjudged: the judge gave no judgement" in result.output


def talk(*turns: tuple[str, str, str]) -> dict[str, object]:
    dialog: list[dict[str, str]] = []
    for user, reply, feedback in turns:
        dialog.append({"speaker": "usr", "text": user, **({"feedback": feedback} if feedback else {})})
        dialog.append({"speaker": "sys", "text": reply})
    return {"dialog": [*dialog, {"speaker": "usr", "text": "later bye", "feedback": "3"}]}


def test_ratings_meet_the_replies_that_they_cover(tmp_path: Path) -> None:
    """In each talk the turn rated 5 holds the one "sorry"; turn number and length are the same either way round."""
    up = talk(("hello", "well now", ""), ("it broke", "so sorry", "1"), ("oh", "well now", "5"))
    down = talk(("hello", "so sorry", ""), ("it broke", "well now", "5"), ("oh", "well now", "1"))
    file = tmp_path / "t.jsonl"
    file.write_text("\n".join(json.dumps(t) for t in [up, down] * 5), encoding="utf-8")
    found = validate("esconv", file, judge="sorry", part="all")
    assert found.measures["within_r"].n == 30
    assert found.measures["within_r"].value == pytest.approx(1.0, abs=0.15)
    assert found.measures["within_r_partial"].value > 0.8  # type: ignore[operator]
    assert set(found.measures["within_r"].baselines) == {"turn number", "length", "question mark", "all three fitted"}


def test_failed_talks_are_cut_to_their_first_tokens(tmp_path: Path) -> None:
    good, bad = talk(("I lost it", "so sorry", "")), talk(("I lost it", "well well", ""))
    late = talk(("I lost it", "well " * 100, ""), ("and", "sorry", ""))  # beyond the first 80 tokens: never judged
    (tmp_path / "Failed.json").write_text(json.dumps([bad] * 4 + [late]), encoding="utf-8")
    (tmp_path / "test.jsonl").write_text("\n".join(json.dumps(good) for _ in range(5)), encoding="utf-8")
    found = validate("failed", tmp_path, judge="sorry", part="all")
    assert found.n == 10
    assert found.measures["auc"].value == 1.0


def test_pairs_show_ceiling_and_baselines(tmp_path: Path) -> None:
    rows = [
        {"context": [f"Seeker: lost {k}"], "replies": ["sorry", "well then"], "votes": {"overall": ["A", "A", "tie"]}}
        for k in range(6)
    ]
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(json.dumps(r) for r in rows), encoding="utf-8")
    found = validate("pairs", file, judge="sorry", part="all").measures["overall.accuracy"]
    assert (found.value, found.ceiling) == (1.0, pytest.approx(2.5 / 3))
    assert found.baselines == {"longer wins": 0.0, "asks wins": 0.5, "chance": 0.5}


def test_json_on_the_command_line(tmp_path: Path) -> None:
    rows = [("so sorry", 2, "sorry|"), ("well", 0, "")] * 12
    args = ["validate", "judge", "epitome", "--data", str(levels_file(tmp_path, *rows)), "--judge", "sorry"]
    result = CliRunner().invoke(cli.app, [*args, "--part", "all", "--limit", "10", "--format", "json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {"dataset", "part", "judge", "licence", "n", "unjudged", "measures"} <= set(found)
    assert found["n"] == 10
    keys = {"value", "low", "high", "n", "baselines", "ceiling", "note"}
    assert set(found["measures"]["emotional-reactions.spearman"]) == keys
    shown = CliRunner().invoke(cli.app, [*args, "--part", "all"])
    assert "emotional-reactions.spearman" in shown.output
    assert "licence: no licence file" in shown.output
    listed = CliRunner().invoke(cli.app, ["validate", "data"]).output
    assert all(name in listed for name in data.SOURCES)


def test_the_embedded_judge_is_represented_by_its_open_form(tmp_path: Path) -> None:
    folder = levels_file(tmp_path, ("I am so sorry for your loss", 2, ""), ("no", 0, ""), ("yes", 0, ""))
    assert validate("epitome", folder, part="all").judge == OpenJudge.id
    assert validate("epitome", folder, part="all", as_is=True).judge == f"{EmbeddedJudge.id}+gate-1"


def test_a_supervised_model_stands_among_the_baselines(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    rows = [("oh so sorry", 2, "sorry|"), ("well well now", 0, "")] * 15
    found = validate("epitome", levels_file(tmp_path, *rows), judge="sorry", part="all", supervised=True)
    baselines = found.measures["emotional-reactions.macro_f1"].baselines
    assert baselines["supervised TF-IDF"] == pytest.approx(1.0)


def test_mistakes_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown data set"):
        validate("epitomy", tmp_path)
    with pytest.raises(ConfigError, match="unknown judge 'sorryy'"):
        validate("epitome", levels_file(tmp_path, ("a", 0, "")), judge="sorryy")
    with pytest.raises(RecordError, match="is empty"):
        validate("epitome", levels_file(tmp_path), part="all")


# --- open talk -------------------------------------------------------------------------------------------------------


def opened(user: str, reply: str, *history: Exchange) -> Judgement:
    view = JudgeView(open_profile(history, user), history, Exchange(user, reply))
    return asyncio.run(OpenJudge().judge(view))


LOST = "My brother died in March and I can't sleep. I keep his keys in my pocket."


@pytest.mark.parametrize(
    ("reply", "axis", "level"),
    [
        ("I'm so sorry, that must have been a terrible spring for you.", "A", 2),
        ("Hang in there, you are not alone with this.", "A", 1),
        ("It must be awful to wake up and find it true again.", "C", 2),
        ("I lost my sister the same way and I slept on the floor for weeks.", "C", 2),
        ("I completely understand how you feel.", "C", 1),
        ("What happened?", "P", 1),
        ("Did he give you the keys, or did you find them later?", "P", 2),
        ("You should see a doctor about sleeping pills.", "A", 0),
        ("Have you tried melatonin?", "P", 0),
        ("I think you should move house.", "C", 0),
        ("Sorry for my bad spelling.", "A", 0),
        ("Trust me on this one, my friend.", "C", 0),
    ],
)
def test_what_a_stranger_s_words_show(reply: str, axis: str, level: int) -> None:
    levels = opened(LOST, reply).levels
    assert {"C": levels.c_prog, "A": levels.a_prog, "P": levels.p_prog}[axis] == level


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("How are you feeling today?", "invites"),
        ("can you tell me more about it", "invites"),
        ("why do you feel like that", "invites"),
        ("how long has your landlord known", "explores"),
        ("Is it the waiting that is worst for you?", "explores"),
        ("Why don't you just call her?", ""),
        ("Do you want to talk?", ""),
        ("How can I help you?", ""),
        ("What should I do?", ""),
        ("Who cares?", ""),
        ("The boat leaves at nine.", ""),
    ],
)
def test_questions_about_the_person(question: str, kind: str) -> None:
    assert asks(read_sentence(question)) == kind


def test_formulas_and_dismissals_count_against_a_reply() -> None:
    assert "A.neg.1.brushes" in {e.anchor for e in opened(LOST, "Nice weather today.").evidence}
    assert opened(LOST, "Why?").levels == Levels(a_neg=-1, p_prog=1)
    assert "A.neg.1.dismisses" in {e.anchor for e in opened(LOST, "Don't think about it, it happens.").evidence}
    assert opened(LOST, "").levels.a_neg < 0
    assert sum(opened("Hi there.", "Hello.").levels) >= 0  # nothing was told yet, nothing is brushed aside


def test_comfort_said_before_earns_nothing_again() -> None:
    first = Exchange(LOST, "I'm so sorry to hear that.")
    again = opened("And my mother is ill.", first.reply, first)
    assert opened(*(LOST, first.reply)).levels.a_prog == 2
    assert sum(again.levels[0::2]) == 0


def test_quotes_are_the_reply_s_own_words_even_where_it_was_split_into_tokens() -> None:
    split = "i ' m so sorry . what did your brother ' s friends say ?"
    assert tidy(split) == "i'm so sorry. what did your brother's friends say?"
    found = opened(LOST, split)
    assert (found.levels.a_prog, found.levels.p_prog) == (2, 2)
    assert all(e.quote in split for e in found.evidence)
    assert verbatim("i'm so sorry.", split) == "i ' m so sorry ."


def test_the_profile_is_the_person_s_own_words_so_far() -> None:
    profile = open_profile((Exchange("I sold the boat.", "Why?"),), "I feel ashamed of it. Ok.")
    said = [line.say for _, line in profile.lines]
    assert said == ["I sold the boat.", "I feel ashamed of it."]
    assert profile.lines[1][1].kind == "feeling"
    assert profile.lines[1][1].feeling == "ashamed"
    assert profile.key == open_profile((Exchange("I sold the boat.", "Other."),), "I feel ashamed of it. Ok.").key
    assert open_profile((), "").lines  # somebody who has said nothing can be judged for, too


def test_with_a_real_profile_the_open_acts_earn_nothing() -> None:
    """In the world the ledger decides: the open form of the judge is the embedded judge there."""
    scenario = get_scenario("career-01")
    view = JudgeView(
        profiles_of(scenario)[1], (), Exchange(scenario.opening.say, "I'm so sorry to hear that. I'm here for you.")
    )
    found, world = (asyncio.run(j.judge(view)) for j in (OpenJudge(), EmbeddedJudge()))
    assert found == world
    assert sum(found.levels[0::2]) == 0


def test_it_says_which_languages_it_does_not_read() -> None:
    view = JudgeView(open_profile((), "\u4f60\u597d", "zh"), (), Exchange("\u4f60\u597d", "\u55ef"))
    with pytest.raises(RoleFailure, match="reads English"):
        asyncio.run(OpenJudge().judge(view))


def test_what_it_shares_with_the_world_s_judge_is_there() -> None:
    assert set(anchors_of("epm_v1")) >= _SHARED
    assert not set(anchors_of("epm_v1")) & set(anchors_of("open_v1"))


# --- people's own data, where it is at hand --------------------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "epitome_dev").is_dir(), reason="the shared data is not here")
def test_levels_and_evidence_on_a_sample_of_the_working_part() -> None:
    found = validate("epitome", SHARED / "epitome_dev", part="working", limit=200).measures
    figure = {name: m.value or 0.0 for name, m in found.items()}
    assert figure["emotional-reactions.spearman"] > 0.45
    assert figure["interpretations.spearman"] > 0.35
    assert figure["explorations.macro_f1"] > 0.61
    assert figure["evidence_gain"] > 1.5


@pytest.mark.skipif(not (SHARED / "esconv_cc_by_nc").is_dir(), reason="the shared data is not here")
def test_failed_talks_on_the_working_part() -> None:
    found = validate("failed", SHARED / "esconv_cc_by_nc", part="working").measures
    assert (found["auc"].value or 0) > 0.72
    assert (found["auc_partial"].value or 0) > 0.60
