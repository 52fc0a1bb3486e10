"""Runs of words that are one token each: what companions say to many, never what one person told."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import given
from hypothesis import strategies as st
from sftfiles import talk

from echo_env.trainers.scratch import make_tokenizer
from echo_env.trainers.sftdata import Chat
from echo_env.trainers.superwords import superwords

NOUNS = tuple(a + b for a in ("lan", "har", "pia", "orch", "lad", "vio") for b in ("tern", "bour", "no", "ard", "der"))


def told(number: int, noun: str) -> Chat:
    messages = talk(
        f"I want my {noun} back and nothing else.", f"What would a first step with the {noun} be, by your own lights?",
        f"It was a good {noun}.",
        f"I want my {noun} back and nothing else. Tell me about the {noun}, whenever you like.",
    )  # fmt: skip
    return Chat(f"c{number}", f"c{number}", "skilled-1", f"train-{number:04}", "en", "", messages)


CHATS = [told(k, noun) for k, noun in enumerate(NOUNS)]
RUNS = superwords(CHATS, 100)
TEXTS = [m.text for chat in CHATS for m in chat.messages]
TOKENIZER = make_tokenizer(TEXTS, 400, 512, RUNS)


def test_fixed_phrases_are_found_and_slots_are_not():
    assert set(RUNS) == {
        "What would a first step with",
        " be, by your own lights?",
        "Tell me about",
        " whenever you like.",
    }
    assert RUNS[0] == "What would a first step with", "the one that spares the most tokens comes first"


def test_what_the_users_say_themselves_is_theirs():
    assert not any("nothing else" in run for run in RUNS)


def test_what_is_said_to_few_is_left_alone():
    alone = Chat("x", "x", "skilled-1", "train-0099", "en", "", talk("Hm.", "Never said to others."))
    assert superwords([*CHATS, alone], 100) == RUNS


def test_so_many_at_most():
    assert superwords(CHATS, 2) == RUNS[:2]
    assert superwords(CHATS, 0) == []


def test_a_run_is_one_token_and_its_slot_reads_as_what_was_told():
    ids = TOKENIZER("What would a first step with the piano be, by your own lights?").input_ids
    names = [TOKENIZER.decode([i]) for i in ids]
    assert (names[0], names[-1]) == ("What would a first step with", " be, by your own lights?")
    assert ids[1:-1] == TOKENIZER(" the piano").input_ids


def test_where_two_runs_begin_the_longer_is_taken():
    tokenizer = make_tokenizer(TEXTS, 400, 512, ["Tell me", "Tell me about"])
    assert tokenizer.decode(tokenizer("Tell me about it").input_ids[:1]) == "Tell me about"


@given(st.lists(st.sampled_from([*RUNS, " ", "the piano", "'so'", "é", "你好", "\n"]), max_size=12).map("".join))
def test_every_text_comes_back_as_it_was(text):
    assert TOKENIZER.decode(TOKENIZER(text).input_ids) == text
