"""How lifelike a simulated person is: the measures by hand, and small versions of the bars on the embedded one."""

import asyncio
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from echo_env.agents.embedded.answers import place_of
from echo_env.agents.validation.actorcheck import PATIENCE, SameReply, actor_maker, play, policy_row
from echo_env.agents.validation.actorprobes import (
    Question,
    answered,
    asked_rows,
    labelled_replies,
    questions,
    questions_for,
    reacted_row,
)
from echo_env.agents.validation.actorreport import CheckConfig, check_actor
from echo_env.cli import app
from echo_env.errors import ConfigError, RecordError
from echo_env.profiles import benchmark, data_root, get_scenario, scenario_ids
from echo_env.realism import (
    SAMPLE,
    Facts,
    Reaction,
    contradictions,
    distinct,
    dodges,
    facts_of,
    rank_correlation,
    repeats,
    reveal,
    sentences,
    text_stats,
    told_lines,
    tone,
    tone_agreement,
    units,
)
from echo_env.roles import ActorView
from echo_env.speakers import read_side
from echo_env.twosample import FOLDS, auc, two_sample
from echo_env.yamlfiles import read_yaml

PEOPLE = list(benchmark().values())
SHARED = Path(os.environ.get("ECHO_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data"


class Stubborn:
    """An actor that says one thing, which is not even true of it."""

    id = "stubborn"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    async def speak(self, view: ActorView) -> str:
        return "My name is Nobody and I'm 7. The weather is grey."


# --- text


def test_words_and_sentences_of_two_scripts() -> None:
    assert units("Don\u2019t stop: 41 days!") == ["don't", "stop", "41", "days"]
    assert units("我很累。") == ["我", "很", "累"]
    assert sentences("Yes. Is it? I don't know...") == ["Yes.", "Is it?", "I don't know..."]
    assert sentences("我很累。你呢\uff1f") == ["我很累。", "你呢\uff1f"]
    assert sentences("2.50 euros, 3 a.m") == ["2.50 euros, 3 a.m"]


def test_repeats_by_hand() -> None:
    talk = ["I am tired today.", "i am tired, today!", "I am so tired today.", "Something else.", ""]
    # 0 and 1: the same words; 2 shares 4 of 5 words with 0: 0.8 is near
    found = repeats(talk)
    assert found.exact == (1,)
    assert found.near == (1, 2)


def test_text_stats_by_hand() -> None:
    stats = text_stats([["One two. Three?", "one two three"], ["Four!"]])
    assert (stats.conversations, stats.messages) == (2, 3)
    assert stats.words_mean == pytest.approx(7 / 3)
    assert stats.sentences_mean == pytest.approx(4 / 3)
    assert stats.questions == stats.exclamations == pytest.approx(1 / 3)
    assert stats.repeats_exact == pytest.approx(1 / 3)
    assert stats.distinct_1 is None, "seven words are too few to compare"
    with pytest.raises(ValueError, match="no messages"):
        text_stats([])


def test_distinct_is_taken_on_equal_amounts() -> None:
    one_word = [["a " * 50] * 200]
    assert distinct(one_word, 1) == 1 / SAMPLE
    # 5,000 words in messages of 50: 49 pairs in each of 100 messages, all alike
    assert distinct(one_word, 2) == 1 / 4900
    assert distinct([["a b c"]], 1) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=30), max_size=6))
def test_a_repeated_conversation_is_all_repeats(talk: list[str]) -> None:
    found = repeats([*talk, *talk])
    assert set(range(len(talk), 2 * len(talk))) <= set(found.exact)
    assert set(found.exact) <= set(found.near)


# --- tone


@pytest.mark.parametrize(
    "message",
    [
        "Yes, that's exactly it.",
        "Thank you, I needed to hear that.",
        "That helps. I never saw it like that.",
        "You really understand.",
        "Nobody has asked me that before.",
    ],
)
def test_who_opens_up_sounds_warm(message: str) -> None:
    assert tone(message) > 0


@pytest.mark.parametrize(
    "message",
    [
        "Please don't lecture me.",
        "That hurts.",
        "You're not listening.",
        "That's not what I said.",
        "You could say that to anyone.",
        "Whatever. I'd rather not go on.",
    ],
)
def test_who_closes_up_sounds_cold(message: str) -> None:
    assert tone(message) < 0


def test_tone_counts_by_hand() -> None:
    assert tone("We moved in June, and the boxes are still in the hall.") == 0
    assert tone("Thank you. That hurts.") == 0  # one of each
    assert tone("He said 'thank you' and left.") == 0  # others' words
    assert tone("We moved in June. The boxes stand there. Thank you.") == 0  # the third sentence is no reaction


@pytest.mark.parametrize(
    "message", ["I'd rather not talk about that.", "Ask me another time.", "I don't know, really."]
)
def test_an_open_dodge_is_seen(message: str) -> None:
    assert dodges(message)
    assert not dodges("It was in May, at the harbour.")


def test_a_reaction_is_right_when_the_tone_moves_its_way() -> None:
    def reaction(good: bool, after: str) -> Reaction:
        return Reaction(good=good, before="I sold the boat.", reply="...", after=after)

    assert reaction(True, "Yes, exactly.").right
    assert not reaction(False, "Yes, exactly.").right
    assert reaction(False, "That hurts.").right
    assert not reaction(True, "I sold it in May.").right
    assert not reaction(False, "I sold it in May.").right, "no move is not right either"


def test_tone_beside_ratings_by_hand() -> None:
    talk = [(5.0, "Thank you, that helps."), (1.0, "That hurts."), (3.0, "It was in May.")]
    # ratings less their mean 3: 2, -2, 0; tones 1, -1, 0: the same line
    found = tone_agreement([talk, talk])
    assert found is not None
    assert found.within == pytest.approx(1)
    assert found.mean_tone == {"1": -1, "3": 0, "5": 1}
    assert found.ratings == 6
    assert tone_agreement([[(5.0, "Thank you.")]]) is None


# --- facts and story


def test_contradictions_by_hand() -> None:
    facts = Facts(first_name="Ada", age=41, job=frozenset({"baker"}), relations=frozenset({"sister"}))
    assert contradictions("I'm 41. My name is Ada. I work as a baker. My sister rang.", facts) == []
    assert contradictions("I'm 14, and my husband says so.", facts) == ["age 14", "relation husband"]
    assert contradictions("My name is Eva. I work as a pilot.", facts) == ["name Eva", "job pilot"]
    assert contradictions("I have no husband. Who is my brother?", facts) == []
    assert contradictions("I'm 3 streets away.", facts) == []


@pytest.mark.parametrize("scenario", PEOPLE, ids=lambda s: s.id)
def test_nobody_s_own_story_contradicts_them(scenario: object) -> None:
    facts = facts_of(scenario)  # type: ignore[arg-type]
    said = [line.say for line in scenario.lines()]  # type: ignore[attr-defined]
    assert [c for line in said for c in contradictions(line, facts)] == []


def test_told_lines_count_free_retellings() -> None:
    scenario = get_scenario("career-01")
    lines = [(i, line) for i, line in scenario.items() if i in ("opening", "beat1.0")]
    exact = told_lines(["Hello.", scenario.opening.say], lines)
    assert exact == {"opening": 1}
    free = (
        "They've given me until the thirty-first, after thirty-six years on the tugs; my choice, a clock or barometer."
    )
    assert told_lines([free], lines) == {"opening": 0}


def test_reveal_tells_a_story_in_order_from_one_that_begins_at_the_end() -> None:
    scenario = PEOPLE[0]
    order = ["opening", *(f"beat{n}.{k}" for n in range(1, 5) for k in range(3)), "turn.0", "turn.1"]
    lines = dict(scenario.items())
    forwards = reveal([lines[i].say for i in order], scenario)
    backwards = reveal([lines[i].say for i in reversed(order)], scenario)
    assert forwards.order is not None
    assert backwards.order is not None
    assert forwards.order > 0.9 > -0.9 > backwards.order
    assert forwards.turn_at == 13 / 15
    assert backwards.turn_at == 0.0
    assert reveal(["Hello."], scenario).turn_at is None


def test_rank_correlation_by_hand() -> None:
    assert rank_correlation([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    assert rank_correlation([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1)
    # ranks 0.5, 0.5, 2 against 0, 1, 2: covariance 1.5, deviations sqrt(1.5) and sqrt(2)
    assert rank_correlation([(1, 1), (1, 2), (2, 3)]) == pytest.approx(1.5 / (1.5 * 2) ** 0.5)
    assert rank_correlation([(1, 1), (1, 2)]) is None


# --- two samples


def test_auc_by_hand() -> None:
    assert auc([1, 2, 3, 4], [0, 0, 1, 1]) == 1
    assert auc([1, 2, 3, 4], [1, 0, 1, 0]) == 0.25
    assert auc([1, 1], [0, 1]) == 0.5


def crowd(words: str, seed: int, talks: int = 30) -> list[list[str]]:
    """Conversations of eight messages of random words, each conversation with a word of its own."""
    rnd, pool = random.Random(seed), words.split()
    return [[" ".join([f"own{seed}x{k}", *rnd.choices(pool, k=14)]) + "." for _ in range(8)] for k in range(talks)]


WORDS = "we went home and it was late so nobody had the key to the door on that night"


def test_one_crowd_is_not_told_from_itself_and_two_are() -> None:
    pytest.importorskip("sklearn")
    same = two_sample(crowd(WORDS, 1), crowd(WORDS, 2), "function", draws=40)
    # a word that each conversation repeats would give a leaking split away
    assert 0.4 < same.auc < 0.6
    assert same.low <= same.auc <= same.high
    other = two_sample(
        crowd(WORDS, 1), crowd("you should never have to tell them what i said", 2), "function", draws=40
    )
    assert other.auc > 0.95
    assert other.talks == (30, 30)


def test_length_alone_tells_nothing_in_the_views_without_it() -> None:
    pytest.importorskip("sklearn")
    short = crowd(WORDS, 1)
    long = [[f"{m} {m[:-1]} {m[:-1]}." for m in talk] for talk in crowd(WORDS, 2)]
    assert 0.4 < two_sample(short, long, "words", draws=20).auc < 0.6


def test_the_shape_of_a_message_knows_no_language() -> None:
    pytest.importorskip("sklearn")
    chinese = [["我很累。" * 3, "你好吗\uff1f"] * 4] * 10
    english = [["I am so tired. " * 3, "How are you?"] * 4] * 10
    assert two_sample(chinese, english, "shape", draws=20).auc < 0.9
    asking = [["How are you? Why? Who?"] * 8] * 10
    assert two_sample(asking, english, "shape", draws=20).auc > 0.9


def test_too_few_conversations_are_an_error() -> None:
    with pytest.raises(ConfigError, match=f"needs {FOLDS} conversations"):
        two_sample([["a b"]] * 3, [["c d"]] * 9, "shape")


# --- the probes' own data


def test_the_labelled_replies_are_what_they_say() -> None:
    found = labelled_replies()
    first = [e for e in found if e.part in ("working", "test")]
    assert (sum(e.good for e in first), len(first)) == (100, 200)
    assert (sum(e.good for e in found), len(found)) == (201, 402)
    assert len({e.reply for e in found}) == 402
    parts = {p: {e.scenario for e in found if e.part == p} for p in ("working", "test")}
    assert not parts["working"] & parts["test"]
    assert len(parts["working"]) == len(parts["test"]) == 15
    for e in found:
        assert e.to in dict(get_scenario(e.scenario).items()), e


def grams(text: str, n: int = 4) -> set[tuple[str, ...]]:
    said = units(text)
    return set(zip(*(said[k:] for k in range(n)), strict=False))


def test_the_phrases_that_the_actor_learned_from_are_not_the_ones_it_is_tested_on() -> None:
    data = read_yaml(data_root() / "reactions" / "manner.yaml")
    learned = {g for side in ("cold", "warm") for kind in data[side].values() for p in kind for g in grams(p)}
    tested = {g for e in labelled_replies() if e.part == "last" for g in grams(e.reply)}
    assert not learned & tested


def test_every_question_has_an_answer_in_the_profile() -> None:
    for scenario in PEOPLE:
        lines = dict(scenario.items())
        assert all(e["line"] in lines for e in questions()["story"][scenario.id])
        for q in questions_for(scenario):
            assert q.line is not None or q.wants or q.kind == "place", q
            assert "{" not in q.text


def test_answers_are_told_from_their_words() -> None:
    scenario = PEOPLE[0]
    line = ("opening", scenario.opening)
    asked = Question("story", "How long?", line=line)
    assert answered(asked, scenario.opening.say) == "answered"
    assert answered(asked, f"I told you about {scenario.opening.about}.") == "pointed"
    assert answered(asked, "I'd rather not go into that.") == "dodged"
    assert answered(asked, "The soup was cold.") == "none"
    assert answered(Question("age", "How old?", frozenset({"58"})), "I'm 58.") == "answered"


def test_places_in_jobs() -> None:
    assert place_of("taxi driver, nights, Melbourne") == "Melbourne"
    assert place_of("tram mechanic at a depot in Gothenburg") == "Gothenburg"
    assert place_of("baker") == ""


# --- the embedded person: small versions of the bars


def test_no_message_comes_twice_whoever_they_talk_with() -> None:
    """`test_actor` does this for six other companions over the benchmark."""
    make = actor_maker("embedded")
    composed = [get_scenario(i) for split in ("train", "dev") for i in scenario_ids(split)[:4]]
    for text in ("Tell me more.", "What is your name?", "Who is in your family?", "You must feel sad."):
        for scenario in [*PEOPLE[::4], *composed]:
            talk = asyncio.run(play(scenario, make, SameReply(text), PATIENCE, 3))
            assert repeats(talk.messages).exact == (), (scenario.id, text)


def test_direct_questions_are_answered_or_openly_dodged() -> None:
    rows = asyncio.run(asked_rows(PEOPLE[::5], actor_maker("embedded"), seed=1))
    total = sum(r.asked for r in rows)
    met = sum(r.answered + r.pointed + r.dodged for r in rows)
    assert total > 400
    assert met >= 0.95 * total
    for row in rows:
        if row.kind in ("age", "job", "name"):
            assert row.answered == row.asked, row


def test_nine_of_ten_reactions_go_the_right_way() -> None:
    row = asyncio.run(reacted_row(actor_maker("embedded"), "working", seed=0))
    assert row.replies == 100
    assert row.right >= 90, row.missed


def test_who_listens_hears_the_story_in_order_and_who_does_not_hears_none_of_the_depths() -> None:
    make = actor_maker("embedded")
    heard, _ = asyncio.run(policy_row(PEOPLE[::6], make, "skilled", PATIENCE, 0))
    assert heard.turning_points == 1
    assert heard.turn_at is not None
    assert heard.turn_at > 0.3
    assert heard.order is not None
    assert heard.order > 0.4
    assert heard.contradictions == ()
    for name in ("silent", "lecturer"):
        row, _ = asyncio.run(policy_row(PEOPLE[::6], make, name, PATIENCE, 0))
        assert row.deep == 0, name


# --- any actor


def test_a_bad_actor_is_found_out() -> None:
    report = check_actor(
        CheckConfig(
            actor="tests.test_realism:Stubborn" if __name__.startswith("tests.") else f"{__name__}:Stubborn",
            policies=("skilled",),
            limit=2,
            turns=5,
            others=0,
        )
    )
    assert report.actor == "stubborn"
    row = report.policies[0]
    assert row.repeated == 2 * 5
    assert len(row.contradictions) == 2 * 6 * 2  # name and age, in each of six messages
    assert row.told == 0
    assert report.answered is not None
    assert report.answered < 0.2
    assert all(r.right == 0 and r.flat == r.replies for r in report.reactions)


@pytest.fixture
def humans(tmp_path: Path) -> Path:
    """Conversations in ESConv's form, written here."""
    file = tmp_path / "people.jsonl"
    rnd = random.Random(0)
    words = [
        "i",
        "was",
        "so",
        "tired",
        "and",
        "then",
        "he",
        "left",
        "me",
        "there",
        "what",
        "do",
        "you",
        "think",
        "about",
        "it",
        "now",
    ]
    rows = []
    for _ in range(12):
        dialog = []
        for _ in range(6):
            dialog += [
                {"speaker": "usr", "text": " ".join(rnd.choices(words, k=15)) + "?"},
                {"speaker": "sys", "text": "And then?"},
            ]
        rows.append(json.dumps({"dialog": dialog}))
    file.write_text("\n".join(rows))
    return file


def test_the_command_reports_everything(humans: Path) -> None:
    pytest.importorskip("sklearn")
    args = ["validate", "actor", "--policy", "skilled", "--limit", "6", "--others", "0", "--turns", "6"]
    found = CliRunner().invoke(app, [*args, "--humans", str(humans), "--format", "json"])
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert (report["actor"], report["people"]) == ("embedded-2", 6)
    assert [c["name"] for c in report["corpora"]] == ["embedded with skilled", "people.jsonl"]
    told = [s for s in report["samples"] if "embedded" in s["pair"]]
    assert {s["test"]["view"] for s in told} == {"characters", "words", "function", "shape"}
    assert min(s["test"]["auc"] for s in told) > 0.9, "these people are nothing like ours"
    text = CliRunner().invoke(app, [*args[:4], "--limit", "1", "--others", "0", "--turns", "2"])
    assert text.exit_code == 0
    assert "answered or openly dodged" in text.stdout
    assert "reaction sign, working part" in text.stdout


def test_the_command_refuses_what_it_does_not_know() -> None:
    found = CliRunner().invoke(app, ["validate", "actor", "--part", "some"])
    assert isinstance(found.exception, ConfigError)
    assert "--part is one of working, test, fresh, last, all, none" in str(found.exception)


def test_sides_of_three_forms(tmp_path: Path) -> None:
    esconv = tmp_path / "failed.json"
    esconv.write_text(
        json.dumps(
            [
                {
                    "dialog": [
                        {"speaker": "speaker", "content": "Hey\n"},
                        {"speaker": "speaker", "content": "I am low."},
                        {"speaker": "listener", "content": "hi"},
                        {"speaker": "speaker", "content": "Yes."},
                    ]
                }
            ]
        )
    )
    assert read_side(esconv).talks == (("Hey I am low.", "Yes."),)
    sage = tmp_path / "sage.jsonl"
    sage.write_text(
        json.dumps({"history": [{"role": "user", "content": "我很累。"}, {"role": "assistant", "content": "嗯"}]})
    )
    assert read_side(sage).talks == (("我很累。",),)
    assert read_side(sage).chinese
    assert not read_side(esconv).chinese


def test_ratings_and_a_tokeniser_s_spaces(tmp_path: Path) -> None:
    file = tmp_path / "rated.txt"
    said = [
        {"speaker": "sys", "text": "Hello ."},
        {"speaker": "usr", "text": "I ' m tired , and it wo n't end .", "feedback": "4"},
        {"speaker": "usr", "text": "Yes .", "feedback": None},
    ]
    file.write_text(json.dumps({"dialog": said}))
    side = read_side(file)
    assert side.talks == (("I'm tired, and it won't end. Yes.",),)
    assert side.rated == (((4.0, "I'm tired, and it won't end."),),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"dialog": 3}', "entry 1: no conversation"),
        ('{"dialog": [{"speaker": "usr"}]}', "entry 1: a message without words"),
        ('{"dialog": [{"speaker": "usr", "text": "a"}]}\n{', "line 2: not valid JSON"),
        ("[1, 2", "not valid JSON"),
        ('{"dialog": [{"speaker": "sys", "text": "a"}]}', "no message of a seeker"),
    ],
)
def test_a_broken_recording_says_where(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text(text)
    with pytest.raises(RecordError, match=message):
        read_side(file)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared data")
def test_people_and_a_simulator_of_others_can_be_read() -> None:
    people = read_side(SHARED / "esconv_cc_by_nc" / "test.jsonl")
    assert len(people.talks) == 195
    assert not people.chinese
    simulated = read_side(SHARED / "sage_profiles" / "gpt-4o-0808_result.jsonl")
    assert len(simulated.talks) == 100
    assert simulated.chinese
