"""Conversations to fine-tune on, and tiny models, as the tests of SFT need them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echo_env.agents.synthesis.conversations import ChatLine, Conversation, ConversationFile, Meta
from echo_env.trainers.scratch import Shape
from echo_env.types import Message

TINY = {"vocab": 400, "hidden": 32, "layers": 2, "heads": 2, "feedforward": 64, "positions": 512}
SHAPE = Shape(**TINY)

TALKS = (
    ("I lost the key.", "Which key?", "The blue one.", "You miss the house."),
    ("My cat ran off.", "That is hard.", "She was old.", "And yours."),
    ("Work is loud.", "What is loudest?", "The phone.", "Then leave it."),
)


def talk(*texts: str) -> tuple[Message, ...]:
    """The user and the companion in turn."""
    return tuple(Message(role="companion" if k % 2 else "user", text=text) for k, text in enumerate(texts))


def line(
    name: str, texts: Sequence[str], *, scenario: str = "train-0001", companion: str = "skilled-1", system: str = "",
    end: str = "patience", rewards: Sequence[float | None] | None = None, **facets: Any,
) -> Conversation:  # fmt: skip
    """A recorded conversation."""
    said = [ChatLine(role="assistant" if k % 2 else "user", content=text) for k, text in enumerate(texts)]
    turns = len(texts) // 2
    meta = Meta(
        id=name, source="recorded", language="en", seed=0, number=0, facets={"scenario": scenario, **facets},
        models={"companion": companion}, prompts={}, turns=turns, end=end,
        rewards=tuple([1.0] * turns if rewards is None else rewards),
    )  # fmt: skip
    first = [ChatLine(role="system", content=system)] if system else []
    return Conversation(messages=(*first, *said), meta=meta)


def write(path: Path, conversations: Sequence[Conversation]) -> Path:
    """A file of conversations, as `echo-env synthesize` writes them."""
    with ConversationFile(path) as file:
        for conversation in conversations:
            file.append(conversation)
    return path
