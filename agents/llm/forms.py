"""One question with an answer of a given form: what judges, reviewers and inner voices have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from pydantic import BaseModel, BeforeValidator

from echo_env.agents.llm.asks import Ask, ChatMessage
from echo_env.agents.llm.client import LlmClient
from echo_env.agents.llm.config import ModelConfig
from echo_env.agents.llm.rolemodels import unless_set
from echo_env.agents.transcript import cut
from echo_env.types import Usage

F = TypeVar("F", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Filled(Generic[F]):
    """A form as a model filled it in."""

    form: F
    thinking: str
    usage: Usage


def at_most(most: int) -> BeforeValidator:
    """Return what shortens a text that runs on: its beginning will do, and a repair costs another call."""
    return BeforeValidator(lambda value: cut(value, most) if isinstance(value, str) else value)


def beginning(most: int) -> BeforeValidator:
    """Return what shortens a quote that runs on to the letter: its beginning is a quote as well."""
    return BeforeValidator(lambda value: value[:most] if isinstance(value, str) else value)


async def fill(
    client: LlmClient,
    role: str,
    prompt: str,
    messages: tuple[ChatMessage, ...],
    form: type[F],
    *,
    model: ModelConfig | None = None,
    check: Callable[[F], str] | None = None,
    max_tokens: int | None = None,
    seed: int | None = 0,
) -> Filled[F]:
    """Ask for a form. A judge does not roll dice unasked: the temperature is 0 where the models file names none.

    Args:
        client: Whom to ask.
        role: In which role, by the names of the models file.
        prompt: Key of the prompt that the messages come from.
        messages: The prompt, filled in.
        form: What the answer must be.
        model: Another model than the role's.
        check: Returns what is wrong with an answer, "" for nothing.
        max_tokens: Longest answer where the models file says nothing; None is the default.
        seed: Of what is drawn, should the models file want dice; None leaves it to the server.

    Raises:
        LlmFailure: There is no usable answer.
    """
    asked = model or client.models.of(role)
    answer = await client.ask(
        Ask(
            role=role,
            messages=messages,
            prompt=prompt,
            schema=form,
            seed=seed,
            temperature=unless_set(asked, "temperature", 0.0),
            max_tokens=None if max_tokens is None else unless_set(asked, "max_tokens", max_tokens),
            check=None if check is None else lambda found: check(cast(F, found)),
        ),
        model,
    )
    return Filled(cast(F, answer.parsed), answer.thinking, answer.usage)
