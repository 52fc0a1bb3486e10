"""Words under other names: the users' own and rare ones only, the same throughout a conversation."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from sftfiles import talk

from echo_env.trainers.renaming import COMMON, renamed
from echo_env.trainers.sftdata import Chat

NOUNS = ("lantern", "harbour", "piano", "orchard", "ladder", "parrot", "violin", "quarry", "saddle", "kettle", "mirror",
         "tunnel")  # fmt: skip


def told(name: str, noun: str) -> Chat:
    messages = talk(
        f"My {noun} is gone. {noun.capitalize()}!", f"Tell me about '{noun}', whenever you like.",
        f"THE {noun.upper()} was hers.", f"So the {noun}, and nothing else.",
    )  # fmt: skip
    return Chat(name, name, "skilled-1", "train-0001", "en", "", messages)


CHATS = [told(f"c{k}", noun) for k, noun in enumerate(NOUNS)]


def text(chat: Chat) -> str:
    return "\n".join(m.text for m in chat.messages)


def test_none_is_renamed_where_none_is_asked_for():
    assert renamed(CHATS, 0.0, 0) == CHATS


def test_a_word_has_one_name_throughout_its_conversation_in_its_own_case():
    for before, after, noun in zip(CHATS, renamed(CHATS, 1.0, 0), NOUNS, strict=True):
        found = re.search(r"'(\w+)'", text(after))
        assert found
        name = found[1]
        swap = {noun: name, noun.capitalize(): name.capitalize(), noun.upper(): name.upper()}
        expected = re.sub("|".join(swap), lambda m, swap=swap: swap[m[0]], text(before))
        assert text(after) == expected
        assert [m.role for m in after.messages] == [m.role for m in before.messages]


def test_common_words_and_the_companions_own_stay():
    words = Counter(w for chat in renamed(CHATS, 1.0, 0) for w in re.findall(r"\w+", text(chat).lower()))
    for kept in ("gone", "hers", "tell", "whenever", "nothing"):
        assert words[kept] == len(CHATS)
    assert COMMON * len(CHATS) >= 1  # so that a word of one conversation is rare here


def test_words_that_no_companion_takes_up_keep_their_name():
    wish = [talk(f"I wish for a {noun}.", "Go on.") for noun in NOUNS]
    wishes = [replace(chat, messages=messages) for chat, messages in zip(CHATS, wish, strict=True)]
    assert renamed(wishes, 1.0, 0) == wishes


def test_a_feeling_keeps_its_name():
    homesick = [told(f"c{k}", noun) for k, noun in enumerate(("homesick", *NOUNS))]
    after = renamed(homesick, 1.0, 0)
    assert after[0] == homesick[0]
    assert text(after[1]) != text(homesick[1])


def test_some_names_are_known_words_and_some_are_made_up():
    names = {re.search(r"'(\w+)'", text(c))[1] for seed in range(5) for c in renamed(CHATS, 1.0, seed)}
    assert names & set(NOUNS)
    assert names - set(NOUNS)


def test_a_share_of_them_is_renamed():
    changed = [a != b for seed in range(20) for a, b in zip(CHATS, renamed(CHATS, 0.5, seed), strict=True)]
    assert 0.3 < sum(changed) / len(changed) < 0.7


def test_the_same_seed_gives_the_same_names_whatever_the_order():
    assert renamed(CHATS, 1.0, 3) == renamed(CHATS, 1.0, 3) == renamed(CHATS[::-1], 1.0, 3)[::-1]
    assert renamed(CHATS, 1.0, 3) != renamed(CHATS, 1.0, 4)
