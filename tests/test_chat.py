"""Chat templates as token ids: what follows a reply, supervised masks, templates that rewrite the history."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tinypolicy import TEMPLATE, tiny_tokenizer

from echo_env.errors import ConfigError
from echo_env.session import visible
from echo_env.trainers.chat import ChatFormat
from echo_env.types import Message

FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and '</think>' in m.content and"
    " not loop.last %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Keeps the thinking of the last message alone, as Qwen3's does."""
BRACKETS = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% elif m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}<|im_end|>{% endif %}"
    "{% endfor %}"
)
"""No system prompt and nothing between a reply's end and the next message, as Mistral's."""
THINKING = TEMPLATE.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")
"""Opens the thinking itself."""

texts = st.text(st.characters(codec="utf-8", exclude_characters="<|"), min_size=1, max_size=12) | st.sampled_from(
    ["我很难过。", "她昨天走了，家里很安静。", "🙂👩‍👩‍👧", "é" * 3, "I hear you.", " ", "\n"]
)


def chat_with(template: str = TEMPLATE, system: str | None = "Be kind.", **special: Any) -> ChatFormat:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    if special:
        tokenizer.add_special_tokens(special)
    return ChatFormat(tokenizer, stops=frozenset({tokenizer.eos_token_id}), system=system)


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return chat_with()


def said(*words: str) -> list[Message]:
    return [Message(role="companion" if k % 2 else "user", text=text) for k, text in enumerate(words)]


def whole(chat: ChatFormat, words: Sequence[str]) -> str:
    """What the template writes of a conversation, ready for the next reply."""
    return str(chat.tokenizer.decode(chat.prompt(said(*words))))


class TestFollowing:
    def test_a_reply_that_was_cut_is_closed_once(self, chat: ChatFormat) -> None:
        """OpenRLHF#1128: a turn that generation cut lacks its end; the next context must hold exactly one."""
        before, words = chat.prompt(said("My dog died.")), chat.reply("I am so")[:-1]
        cut = [*before, *words, *chat.following("And then?", stopped=chat.closed(words))]
        ended = [*before, *chat.reply("I am so"), *chat.following("And then?", stopped=True)]
        assert cut == ended
        assert cut[len(before) :].count(chat.end[-1]) == 2, "the reply's end, and the user's"
        assert chat.tokenizer.decode(cut) == whole(chat, ["My dog died.", "I am so", "And then?"])

    @pytest.mark.parametrize("template", [TEMPLATE, BRACKETS, FORGETFUL, THINKING])
    def test_it_is_what_the_template_writes(self, template: str) -> None:
        chat = chat_with(template)
        _, _, rest = whole(chat, ["a", "a reply", "Then what?"]).partition("a reply")
        assert chat.tokenizer.decode(chat.following("Then what?", stopped=False)) == rest
        assert chat.end == (chat.tokenizer.eos_token_id,)

    def test_another_stop_than_the_templates_does_not_close_a_reply(self, chat: ChatFormat) -> None:
        both = ChatFormat(chat.tokenizer, stops=chat.stops | {7}, system="")
        assert not both.closed([5, 7])
        assert both.closed([5, *both.end])
        assert not both.closed([])

    def test_a_template_that_ends_no_reply_is_refused(self) -> None:
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        with pytest.raises(ConfigError, match="ends a reply with none"):
            ChatFormat(tokenizer, stops=frozenset({tokenizer.eos_token_id}))


class TestAppend:
    @pytest.mark.parametrize("template", [TEMPLATE, BRACKETS])
    def test_a_template_that_keeps_what_was_said_passes(self, template: str) -> None:
        chat_with(template).check_append()

    @pytest.mark.parametrize("template", [FORGETFUL, THINKING])
    def test_one_that_rewrites_it_is_told_apart_at_the_start(self, template: str) -> None:
        """verl#2165: a template that drops thinking breaks the prefix; it is found before anything is sampled."""
        with pytest.raises(ConfigError, match="rewrites its history") as e:
            chat_with(template).check_append()
        assert "history=rerender" in e.value.hint

    @settings(max_examples=25)
    @given(st.lists(texts, min_size=8, max_size=8))
    def test_each_of_four_prompts_begins_with_the_one_before(self, chat: ChatFormat, words: list[str]) -> None:
        """prime-rl#1334: the prefix went wrong from the third turn on."""
        grown, prompts = chat.prompt(said(words[0])), []
        for k in range(1, 8, 2):
            prompts.append(grown)
            grown = [*grown, *chat.reply(words[k])]
            if k + 1 < 8:
                grown += chat.following(words[k + 1], stopped=True)
        assert all(after[: len(before)] == before for before, after in pairwise(prompts))
        assert chat.tokenizer.decode(prompts[-1]) == whole(chat, words[:7])


class TestConversation:
    @settings(max_examples=25)
    @given(st.lists(texts, min_size=2, max_size=7))
    def test_the_mask_is_the_replies_and_their_ends(self, chat: ChatFormat, words: list[str]) -> None:
        """TRL#5144: mask and ids of one length, whatever was said, CJK and emoji included."""
        ids, mask = chat.conversation(said(*words))
        assert len(ids) == len(mask)
        runs = [[i for i, _ in run] for own, run in groupby(zip(ids, mask, strict=True), key=lambda x: x[1]) if own]
        assert [chat.tokenizer.decode(run) for run in runs] == [f"{text}<|im_end|>" for text in words[1::2]]
        spoken = words if len(words) % 2 == 0 else words[:-1]
        assert f"{chat.tokenizer.decode(ids)}\n" == str(
            chat.tokenizer.apply_chat_template(
                [{"role": "system", "content": "Be kind."}]
                + [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(spoken)],
                tokenize=False,
            )
        )

    @pytest.mark.parametrize("words", [(), ("only me",)])
    def test_without_a_reply_there_is_nothing_to_train_on(self, chat: ChatFormat, words: tuple[str, ...]) -> None:
        with pytest.raises(ConfigError, match="holds a reply"):
            chat.conversation(said(*words))

    def test_two_messages_of_one_speaker_are_refused(self, chat: ChatFormat) -> None:
        with pytest.raises(ConfigError, match="alternates"):
            chat.conversation([*said("a", "b"), Message(role="companion", text="c")])


class TestText:
    def test_special_tokens_are_no_words(self, chat: ChatFormat) -> None:
        start = chat.tokenizer.convert_tokens_to_ids("<|im_start|>")
        assert chat.text([*chat.reply("I hear you."), start]) == "I hear you."

    def test_thinking_stays_hidden_though_its_tags_are_special(self) -> None:
        chat = chat_with(additional_special_tokens=["<think>", "</think>"])
        reply = chat.reply("<think>what a bore</think>I hear you.")
        assert visible(chat.text(reply)) == "I hear you."

    def test_thinking_that_the_template_opens_stays_hidden_when_it_is_cut(self) -> None:
        chat = chat_with(THINKING)
        assert visible(chat.text(chat.reply("what a bore")[:-1])) == ""
        assert visible(chat.text(chat.reply("what a bore</think>I hear you."))) == "I hear you."


def test_what_does_not_fit_loses_its_oldest_exchanges(chat: ChatFormat) -> None:
    talk = said("first", "one", "second", "two", "third", "three", "fourth")
    limit = len(chat.prompt([talk[0], *talk[3:]]))
    assert chat.fitting(talk, limit) == chat.prompt([talk[0], *talk[3:]])
    assert chat.fitting(talk, 10_000) == chat.prompt(talk)


def test_the_system_prompt_comes_first_or_goes_with_the_first_message() -> None:
    assert whole(chat_with(), ["hi"]).startswith("<|im_start|>system\nBe kind.<|im_end|>")
    assert whole(chat_with(BRACKETS), ["hi"]) == "[INST] Be kind.\n\nhi [/INST]"
    assert "system" not in whole(chat_with(system=""), ["hi"])
    assert "kind friend" in whole(chat_with(system=None), ["hi"])
