"""Reading people's data: small files written here, each with what such files hold, and each with one thing wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_env import humandata as files
from echo_env import humanrecords as data
from echo_env.errors import ConfigError, RecordError
from echo_env.roles import Exchange


def say(speaker: str, text: str, feedback: str | None = None) -> dict[str, Any]:
    return {"speaker": speaker, "text": text, **({"feedback": feedback} if feedback else {})}


TALK = {
    "dialog": [
        say("sys", "Hello ."),
        say("usr", "My cat ran off ."),
        say("usr", "Three days ago ."),
        say("sys", "Oh no ."),
        say("sys", "Where did you see her last ?"),
        say("usr", "By the pond .", "4"),
        say("sys", "Let us think about it ."),
        say("usr", "Thank you .", "5"),
        say("sys", "Any time ."),
        say("usr", "Bye ."),
    ]
}


def lines(path: Path, *entries: object) -> Path:
    path.write_text("\n".join(json.dumps(e) for e in entries) + "\n", encoding="utf-8")
    return path


# --- conversations ---------------------------------------------------------------------------------------------------


def test_messages_in_a_row_are_one_and_ratings_cover_what_came_since_the_last(tmp_path: Path) -> None:
    (talk,) = files.load_esconv(lines(tmp_path / "talks.txt", TALK))
    assert talk.exchanges == (
        Exchange("", "Hello ."),
        Exchange("My cat ran off .\nThree days ago .", "Oh no .\nWhere did you see her last ?"),
        Exchange("By the pond .", "Let us think about it ."),
        Exchange("Thank you .", "Any time ."),
    )
    assert talk.ratings == (data.Rating(0, 2, 4.0), data.Rating(2, 3, 5.0))


def test_the_published_list_form_reads_the_same(tmp_path: Path) -> None:
    names = {"usr": "speaker", "sys": "listener"}
    dialog = [
        {
            "speaker": names[m["speaker"]],
            "content": m["text"] + "\n",
            "annotation": {"feedback": m["feedback"]} if "feedback" in m else {},
        }
        for m in TALK["dialog"]
    ]
    file = tmp_path / "FailedESConv.json"
    file.write_text(json.dumps([{"dialog": dialog}]), encoding="utf-8")
    (a,), (b,) = files.load_esconv(file), files.load_esconv(lines(tmp_path / "t.jsonl", TALK))
    assert (a.exchanges, a.ratings) == (b.exchanges, b.ratings)


def test_failed_and_normal_conversations_come_from_two_files(tmp_path: Path) -> None:
    (tmp_path / "FailedESConv.json").write_text(json.dumps([TALK]), encoding="utf-8")
    with pytest.raises(RecordError, match="holds no normal conversations"):
        files.load_failed(tmp_path)
    lines(tmp_path / "test.jsonl", TALK, TALK)
    assert [t.failed for t in files.load_failed(tmp_path)] == [True, False, False]


@given(st.lists(st.tuples(st.booleans(), st.text(min_size=1, max_size=8)), max_size=20))
def test_no_answered_word_is_lost(messages: list[tuple[bool, str]]) -> None:
    found = files.exchanges_of(messages)
    while messages and messages[-1][0]:
        messages = messages[:-1]  # a last word that nobody answers
    assert "\n".join(e.reply for e in found) == "\n".join(t for seeker, t in messages if not seeker)
    spoken = "\n".join(t for seeker, t in messages if seeker)
    assert "\n".join(e.user for e in found if e.user) == spoken
    assert all(e.user for e in found[1:])


def test_sage_recordings_give_points_before_each_reply_and_after_the_last(tmp_path: Path) -> None:
    history = [
        {"role": "user", "content": "It broke.", "emotion-point": 40},
        {"role": "assistant", "content": "When?"},
        {"role": "user", "content": "Today.", "emotion-point": 35},
        {"role": "assistant", "content": "Ouch."},
        {"role": "user", "content": "Yes.", "emotion-point": 50},
    ]
    (talk,) = files.load_sage(lines(tmp_path / "x_result.jsonl", {"history": history}))
    assert talk.points == (40.0, 35.0, 50.0)
    assert len(talk.exchanges) == 2
    assert talk.language == "en"


# --- pairs -----------------------------------------------------------------------------------------------------------

PAIR = {"context": ["Supporter: Hi.", "Seeker: I failed.", "Seeker: Again."], "replies": ["Oh.", "Which one?"]}


def test_pairs(tmp_path: Path) -> None:
    (pair,) = files.load_pairs(lines(tmp_path / "p.jsonl", {**PAIR, "votes": {"overall": ["B", "tie", "B"]}}))
    assert pair.history == (Exchange("", "Hi."),)
    assert pair.user == "I failed.\nAgain."
    assert pair.votes == {"overall": ("B", "tie", "B")}


def rater(tmp_path: Path, k: int, vote: str, replies: list[str] | None = None, times: int = 25) -> None:
    row = {"context": PAIR["context"], "Supporter AB": PAIR["replies"], **dict.fromkeys(files.ASPECTS, vote)}
    rows = [row] * (times - 1) + [{**row, "Supporter AB": replies or PAIR["replies"]}]
    (tmp_path / f"rater_{k}.json").write_text(json.dumps(rows), encoding="utf-8")


def test_a_rater_who_saw_another_pair_has_no_vote_on_it(tmp_path: Path) -> None:
    rater(tmp_path, 1, "A", replies=["Other.", "Words."])
    rater(tmp_path, 2, "B")
    rater(tmp_path, 3, "tie")
    pairs = files.load_muffin(tmp_path)
    assert pairs[0].votes["overall"] == ("A", "B", "tie")
    assert pairs[-1].votes["overall"] == ("B", "tie")
    assert pairs[-1].replies == ("Oh.", "Which one?")


def test_raters_who_saw_different_sets_are_refused(tmp_path: Path) -> None:
    rater(tmp_path, 1, "A")
    rater(tmp_path, 2, "A", times=24)
    with pytest.raises(RecordError, match=r"different numbers of pairs: rater_1\.json 25, rater_2\.json 24"):
        files.load_muffin(tmp_path)
    rater(tmp_path, 2, "A", replies=["Other.", "Words."], times=1)
    rater(tmp_path, 1, "A", times=1)
    with pytest.raises(RecordError, match="the same pairs"):
        files.load_muffin(tmp_path)


# --- levels ----------------------------------------------------------------------------------------------------------

HEAD = "seeker_post,response_post,level,rationales\n"


def test_levels(tmp_path: Path) -> None:
    file = tmp_path / "emotional-reactions-mine.csv"
    file.write_text(
        HEAD + 'I lost it.,"I am so sorry, friend.\nTruly.",2,I am so sorry|Truly.|\nGone.,Ok.,0,\n', encoding="utf-8"
    )
    found = files.load_levels(tmp_path)
    assert list(found) == ["emotional-reactions"]
    first, second = found["emotional-reactions"]
    assert first == data.Labelled("I lost it.", "I am so sorry, friend.\nTruly.", 2, ("I am so sorry", "Truly."))
    assert second.spans == ()


# --- what is wrong, and where ----------------------------------------------------------------------------------------


def write(name: str, text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_text(text, encoding="utf-8")
        return folder / name

    return make


def talk_with(**changes: Any) -> str:
    return json.dumps({"dialog": [{**say("usr", "Hm.", "3"), **changes}, say("sys", "Yes.")]})


GOOD = json.dumps(TALK)
UNRATED = json.dumps({"dialog": [say("sys", "Hi.")]})
PAIR_OF_ONE = '{"context": [], "replies": ["a"], "votes": {}}'
UNKNOWN_SPEAKER = '{"context": ["Hm"], "replies": ["a", "b"], "votes": {}}'
WRONG_VOTE = '{"context": [], "replies": ["a", "b"], "votes": {"x": ["C"]}}'
NO_POINT = '{"history": [{"role": "user", "content": "x"}]}'
WRONG: list[tuple[str, Callable[[Path], Any], Callable[[Path], Path], str]] = [
    ("no file", files.load_esconv, lambda f: f / "none.txt", "there is no such file or folder"),
    ("no json", files.load_esconv, write("a.txt", GOOD + "\n{oops\n"), r"a\.txt: line 2: not valid JSON"),
    ("no list", files.load_esconv, write("a.json", "[1, 2"), r"a\.json: not valid JSON"),
    ("no dialog", files.load_esconv, write("a.txt", '{"talk": []}'), r"line 1: has no 'dialog'; it has talk"),
    ("dialog", files.load_esconv, write("a.txt", '{"dialog": 3}'), r"line 1: 'dialog' must be a list"),
    ("a number", files.load_esconv, write("a.txt", "3"), "line 1: expected an object, found int"),
    ("who", files.load_esconv, write("a.txt", talk_with(speaker="dog")), "line 1, message 1: unknown speaker 'dog'"),
    ("rating", files.load_esconv, write("a.txt", talk_with(feedback="9")), "line 1, message 1: 'feedback' must be"),
    ("unrated", files.load_esconv, write("a.txt", UNRATED), "no conversation in it"),
    ("binary", files.load_pairs, lambda f: (f / "b").write_bytes(b"\xff\xfe") and f / "b", "cannot be read"),
    ("context", files.load_pairs, write("p", UNKNOWN_SPEAKER), "line 1: a line of"),
    ("three", files.load_pairs, write("p", PAIR_OF_ONE), "two replies, not 1"),
    ("vote", files.load_pairs, write("p", WRONG_VOTE), "not 'C'"),
    ("column", files.load_levels, write("explorations.csv", "a,b\n1,2\n"), "has no column seeker_post"),
    ("level", files.load_levels, write("explorations.csv", HEAD + "a,b,1,\na,b,3,\n"), "line 3: the level must be"),
    ("short row", files.load_levels, write("explorations.csv", HEAD + "a,b\n"), "line 2: too few columns"),
    ("name", files.load_levels, write("other.csv", HEAD), "its name must begin with one of"),
    ("point", files.load_sage, write("s", NO_POINT), "'emotion-point' must be"),
]  # fmt: skip


@pytest.mark.parametrize(("load", "make", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_what_is_wrong_is_said_with_its_place(
    load: Callable[[Path], Any], make: Callable[[Path], Path], message: str, tmp_path: Path
) -> None:
    file = make(tmp_path)
    with pytest.raises(RecordError, match=message) as caught:
        load(file)
    assert str(file) in str(caught.value)


def test_a_folder_without_the_files_says_where_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no file") as caught:
        files.load_levels(tmp_path)
    assert "github.com/behavioral-data" in caught.value.hint
    assert data.SOURCES["epitome"].licence in caught.value.hint


# --- parts -----------------------------------------------------------------------------------------------------------


@given(st.text(max_size=40))
def test_a_text_is_in_one_part_whatever_its_white_space(text: str) -> None:
    part = data.part_of(text)
    assert part in ("working", "test")
    assert data.part_of(f"  {text}\n") == part
    assert [text] == data.in_part([text], str, "all") == data.in_part([text], str, part)


def test_the_parts_are_halves_and_stay_what_they_are() -> None:
    """Another split would show the test part's texts to whoever built on the working part."""
    parts = [data.part_of(f"post {k}") for k in range(2000)]
    assert 0.45 < parts.count("working") / 2000 < 0.55
    assert parts[:8] == ["working", "test", "test", "test", "working", "working", "working", "working"]


def test_names() -> None:
    with pytest.raises(ConfigError, match="unknown data set 'epitom'") as caught:
        data.source("epitom")
    assert "did you mean 'epitome'" in caught.value.hint
    with pytest.raises(ConfigError, match="unknown part"):
        data.need_part("half")
    assert all(s.licence and s.where and s.files for s in data.SOURCES.values())
