"""A tokenizer's chat template as token ids: prompts, what follows a reply, and the masks of supervised training.

Nothing about a template is written down here: what it puts after a reply and before the next is found by rendering.
Under `history=append` a conversation's ids only grow. What the policy sampled stays as it was sampled, and what the
template writes between two replies is tokenised by itself and put behind it. Supervised training lays out its
conversations in the same way, so that a policy meets the same ids in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from echo_env.agents.loading import takes_system
from echo_env.agents.policy import chat_of, shorten, system_prompt
from echo_env.errors import ConfigError
from echo_env.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_USER, _REPLY = "@user-3f7@", "@reply-9c1@"
"""Words that no template holds, by which a rendering is cut."""
_TALK = (
    "I could not sleep again.",
    "What kept you awake?",
    "The flat is too quiet.",
    "<think>They miss somebody.</think>Who used to be there?",
    "My brother. He moved out.",
    "That is a lot of quiet to come home to.",
    "It is.",
)
"""What the start-up check plays through: three replies, one of them with a block of thinking, and a last message."""


class ChatFormat:
    """What a chat template makes of a conversation, in token ids.

    Args:
        tokenizer: With a chat template.
        stops: Ids that end a reply.
        system: System prompt; None is the shipped `prompts/companion.md`, "" is none at all.

    Raises:
        ConfigError: The template ends replies with none of the stops, or does not show what is said.
    """

    stops: frozenset[int]
    """Ids that end a reply."""
    end: tuple[int, ...]
    """What the template closes a reply with; the last of it is one of the stops."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, stops: frozenset[int], system: str | None = None) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        self._system = system_prompt(system).text
        self._system_role = takes_system(tokenizer)
        tags = {tokenizer.get_vocab().get(tag) for tag in ("<think>", "</think>")}
        self._unseen = frozenset(tokenizer.all_special_ids) - tags
        between = self._between(_USER)
        close = next((i for i, token in enumerate(between) if token in stops), None)
        if close is None:
            raise ConfigError(
                "the chat template ends a reply with none of the tokens that end generation",
                "set eos_token (or generation_config.eos_token_id) to the template's own end of a turn",
            )
        self.end = tuple(between[: close + 1])
        asked = self._rendered(_alternating([_USER]), reply_next=True)
        told = self._rendered(_alternating([_USER, _REPLY, _USER]), reply_next=True)
        self._lead = told.removeprefix(asked).partition(_REPLY)[0] if told.startswith(asked) else ""
        opening = asked.rpartition(_USER)[2]
        self._thinking = "<think>" if opening.count("<think>") > opening.count("</think>") else ""

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return a conversation as it is rendered whole, the user's newest message last, ready for the reply."""
        return self._ids(self._rendered(messages, reply_next=True))

    def fitting(self, messages: Sequence[Message], limit: int) -> list[int]:
        """Return `prompt` of a conversation, its oldest exchanges dropped until it fits. It may still not."""
        return self.prompt(shorten(messages, lambda kept: len(self.prompt(kept)) <= limit))

    def closed(self, reply: Sequence[int]) -> bool:
        """Whether sampled ids end as the template ends a reply; else `following` has to close them."""
        return bool(reply) and reply[-1] == self.end[-1]

    def following(self, user_text: str, *, stopped: bool) -> list[int]:
        """Return the ids between the last sampled one and the next reply.

        Args:
            user_text: What the user answered.
            stopped: Whether the reply closed itself (`closed`); a reply that was cut is closed here, once.
        """
        ids = self._between(user_text)
        return ids[len(self.end) :] if stopped else ids

    def text(self, reply: Sequence[int]) -> str:
        """Return what sampled ids say, without special tokens; `<think>` tags stay, for the session to cut out.

        Where the template itself opens the thinking, so does the text: a reply that was cut inside is all thinking.
        """
        return self._thinking + str(self.tokenizer.decode([t for t in reply if t not in self._unseen]))

    def reply(self, text: str) -> list[int]:
        """Return a reply as a policy samples it: its words, after the space that some templates want, and its end."""
        return [*self._ids(self._lead + text), self.end[-1]]

    def conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Lay out a conversation for supervised training, as rollouts under `append` would.

        Args:
            messages: User and companion in turn, the user first. What the user says after the last reply is left out.

        Returns:
            Ids, and for each whether it is the companion's: a word of a reply, or the token that ends it.

        Raises:
            ConfigError: The speakers do not take turns, or there is no reply.
        """
        speakers = cycle(("user", "companion"))
        if len(messages) < 2 or any(m.role != role for m, role in zip(messages, speakers, strict=False)):
            raise ConfigError("a conversation to train on alternates, the user first, and holds a reply")
        ids = self.prompt(messages[:1])
        mask = [False] * len(ids)
        for k in range(1, len(messages), 2):
            if k > 1:
                between = self.following(messages[k - 1].text, stopped=True)
                ids, mask = ids + between, mask + [False] * len(between)
            said = self.reply(messages[k].text)
            ids, mask = ids + said, mask + [True] * len(said)
        return ids, mask

    def check_append(self) -> None:
        """Check that growing ids gives what the template renders, over a short talk.

        Raises:
            ConfigError: The template rewrites what was said before.
        """
        talk = _alternating(_TALK)
        for last in range(3, len(talk) + 1, 2):
            ids, _ = self.conversation(talk[: last - 1])
            ids += self.following(talk[last - 1].text, stopped=True)
            grown, whole = (str(self.tokenizer.decode(t)) for t in (ids, self.prompt(talk[:last])))
            if grown != whole:
                raise ConfigError(
                    f"the chat template rewrites its history: before reply {last // 2 + 1} of a short talk it has"
                    f" {_difference(grown, whole)}",
                    "use history=rerender",
                )

    def _between(self, user_text: str) -> list[int]:
        """Return what the template writes from the end of a reply to the beginning of the next."""
        talk = _alternating((_USER, _REPLY, user_text))
        _, found, rest = self._rendered(talk, reply_next=True).partition(_REPLY)
        if not found:
            raise ConfigError("the chat template does not show what the assistant said", "use another template")
        return self._ids(rest)

    def _rendered(self, messages: Sequence[Message], *, reply_next: bool) -> str:
        chat = chat_of(messages, self._system, system_role=self._system_role)
        return str(self.tokenizer.apply_chat_template(chat, add_generation_prompt=reply_next, tokenize=False))

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _alternating(texts: Sequence[str]) -> list[Message]:
    """Return texts as messages, the user's first."""
    return [Message(role="companion" if k % 2 else "user", text=text) for k, text in enumerate(texts)]


def _difference(grown: str, whole: str) -> str:
    """Return where a rendering parts from what was said, as a message shows it."""
    at = next((i for i, (a, b) in enumerate(zip(grown, whole, strict=False)) if a != b), min(len(grown), len(whole)))
    return f"{whole[at : at + 40]!r} in place of {grown[at : at + 40]!r}"
