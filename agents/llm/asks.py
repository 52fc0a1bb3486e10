"""What is asked of a language model, what comes back, and what is recorded where nothing usable does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel

from echo_env.errors import RoleFailure
from echo_env.types import Usage

Failure = Literal[
    "timeout",  # no answer in time
    "rate_limit",  # 429
    "server",  # 5xx
    "refused",  # the request was not accepted (4xx), or the model would not answer it
    "connection",  # the connection could not be made, or was lost
    "cut",  # the answer stops half way: at the token limit, or the body ended early
    "empty",  # no text
    "format",  # not JSON, or not of the form asked for
    "check",  # of the form, but wrong: a quote that stands nowhere, for example
    "too_long",  # far longer than the tokens allowed for
    "replay_miss",  # not in the cassette, or not readable there
    "auth",  # the key was not accepted
    "other",
]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a request."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    arguments: type[BaseModel]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, as a role makes it."""

    role: str
    messages: tuple[ChatMessage, ...]
    prompt: str = ""
    """Id of the prompt with its version and digest; part of the key."""
    schema: type[BaseModel] | None = None
    """What the answer must be; at most one of this and `tools`."""
    tools: tuple[Tool, ...] = ()
    """Exactly one of these must be called, once."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values that the texts of a field (by its name, wherever it stands in the form) are to be chosen from. A server
    that holds its model to the form cannot give others; of any other, `check` asks the same. With `tools` they must be
    words of our own, which the model sees; with a schema they reach own servers alone. Not part of the key."""
    seed: int | None = None
    temperature: float | None = None
    """None is the model's own, as for `max_tokens`."""
    max_tokens: int | None = None
    draw: int = 0
    """Number of the draw: repeated draws of one request are asked, and kept, each for itself."""
    check: Callable[[BaseModel], str] | None = None
    """Returns what is wrong with a parsed answer, "" for nothing. Not part of the key."""
    may_be_cut: bool = False
    """Whether a text that ends at the token limit is an answer, as a policy's is, and no failure."""

    def __post_init__(self) -> None:
        if self.schema is not None and self.tools:
            raise ValueError("an ask has a schema or tools, not both")
        if not self.messages:
            raise ValueError("an ask has messages")


@dataclass(frozen=True, slots=True)
class Answer:
    """A usable answer."""

    text: str
    """Without thinking."""
    parsed: BaseModel | None
    """The schema's or the called tool's model; None where neither was asked for."""
    tool: str
    """Name of the called tool, or ""."""
    thinking: str
    usage: Usage
    """What it took when it was asked, a repair included; the same when it comes from the cache."""


class LlmFailure(RoleFailure):
    """No usable answer. Recorded as missing, never scored.

    Args:
        message: What happened, short and without secrets.
        hint: What to do about it.
        kind: What sort of failure.
        attempts: Calls that were made for it.
    """

    def __init__(self, message: str | LlmFailure, hint: str = "", kind: Failure = "other", attempts: int = 0) -> None:
        super().__init__(message, hint)
        self.kind: Failure = message.kind if isinstance(message, LlmFailure) else kind
        self.attempts: int = message.attempts if isinstance(message, LlmFailure) else attempts

    def __reduce__(self) -> tuple[type[LlmFailure], tuple[object, ...]]:  # type: ignore[override]
        """Pickle whole."""
        return (type(self), (self.message, self.hint, self.kind, self.attempts))
