"""Generative judges of one reply, prompted: humanlike (Echo-N1 eq. 1 to 4) and empathy against a reference (eq. 5, 6).

They are language models that reason before they decide. What they say is data: the verdict and the quality of the
reasoning are read off their answer by fixed rules. Trained judges (section 3.2) are asked in the same way.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar, cast

from pydantic import BaseModel, Field

from echo_env.agents.llm.asks import ChatMessage
from echo_env.agents.llm.client import LlmClient, client_of
from echo_env.agents.llm.forms import Filled, beginning, fill
from echo_env.agents.llm.prompting import Prompt, prompt
from echo_env.agents.llm.rolemodels import short_name
from echo_env.agents.transcript import talk
from echo_env.errors import RoleFailure
from echo_env.rewards import ReplyView
from echo_env.types import Usage, Verdict

WINDOW = 8
"""Exchanges before the newest that a judge sees, so that what a turn costs stays flat."""
LONGEST = 600
"""Characters of each message in them."""
LONGEST_REPLY = 3000
"""Characters of a reply that are judged."""
MOST_TOKENS = {"humanlike": 400, "empathy": 1000}
"""Of an answer, by role, unless the models file sets it."""
REASONING = 3000
"""Characters of a verdict's reasoning that are kept."""

M = TypeVar("M", bound=BaseModel)


Said = Annotated[str, beginning(240), Field(max_length=240)]


class HumanlikeAnswer(BaseModel):
    """What a humanlike judge answers: reasons first."""

    like_a_person: Said
    like_a_machine: Said
    label: Literal["human", "machine"]


class _Inferred(BaseModel):
    """Profile inference, then alignment inference (section 3.2.2)."""

    situation: Annotated[Said, Field(description="What happened to the person, and how they are today.")]
    need: Annotated[Said, Field(description="What they want from an answer now.")]
    sensitivity: Annotated[Said, Field(description="What would hurt them.")]
    profile_quote: Annotated[Said, Field(description="Words of the person that show it, verbatim.")]
    alignment_a: Annotated[Said, Field(description="How reply A meets this person.")]
    quote_a: Annotated[Said, Field(description="Words of reply A, verbatim.")]
    alignment_b: Annotated[Said, Field(description="How reply B meets this person.")]
    quote_b: Annotated[Said, Field(description="Words of reply B, verbatim.")]


class EmpathyAnswer(_Inferred):
    """What an empathy judge answers: the inference, then the verdict."""

    better: Literal["A", "B", "neither"]


class CheckedEmpathyAnswer(_Inferred):
    """The same with a second look before the verdict (recursive self-correction)."""

    second_look: Annotated[Said, Field(description="What you checked of this, and what changed.")]
    better: Literal["A", "B", "neither"]


class HumanlikeJudge:
    """Tells a person's replies from a model's.

    Args:
        client: Whom to ask.
        context: Whether it sees the conversation (eq. 4), or the reply alone (eq. 3).
    """

    waits = True

    def __init__(self, client: LlmClient, context: bool = True) -> None:
        self._client, self._context = client, context
        self._prompt = "humanlike_context" if context else "humanlike_free"
        self.id = _id(client, "humanlike", prompt(self._prompt))

    async def verdict(self, view: ReplyView) -> Verdict:
        """Return 1 where the label is human (eq. 1 to 4), else 0.

        The label of one answer, drawn at temperature 0, stands for the comparison of the two probabilities.

        Raises:
            LlmFailure: There is no usable answer.
        """
        judged = view.judged
        reply = judged.exchange.reply[:LONGEST_REPLY]
        if not reply.strip():
            return Verdict(kind="humanlike", judge=self.id, value=0.0, reasoning=SILENT)
        language = judged.profile.language
        written = prompt(self._prompt, language)
        values = {"talk": talk(judged.history[-WINDOW:], language, LONGEST), "message": judged.exchange.user}
        messages = written.render(reply=reply, **(values if self._context else {}))
        filled = await _ask(self._client, "humanlike", messages, written.key, HumanlikeAnswer)
        return Verdict(
            kind="humanlike",
            judge=self.id,
            value=float(filled.form.label == "human"),
            reasoning=_lines(filled.form, filled.thinking),
            usage=filled.usage,
        )


class EmpathyJudge:
    """Compares a reply with a reference, in both orders.

    Args:
        client: Whom to ask.
        self_correction: Whether it is told to go back over its reasoning before it decides (section 3.2.2).
    """

    waits = True

    def __init__(self, client: LlmClient, self_correction: bool = False) -> None:
        self._client, self._checked = client, self_correction
        self.id = _id(client, "empathy", prompt("empathy")) + ("-checked" if self_correction else "")

    async def verdict(self, view: ReplyView) -> Verdict:
        """Return 1 where the reply is the better one in both orders (eq. 5), else 0; `parts` hold the process (eq. 6).

        Where the two orders disagree, the reply was not shown to be better: the indicator is 0, and the reasoning says
        so. That is a verdict; a call that fails is none.

        Raises:
            RoleFailure: There is no reference, or no usable answer in one of the orders.
        """
        if view.reference is None:
            raise RoleFailure("there is no reply to compare with", "name a reference policy, or give a reference")
        reply, reference = view.judged.exchange.reply[:LONGEST_REPLY], view.reference[:LONGEST_REPLY]
        if not reply.strip() or reply.strip() == reference.strip():
            told = "the reference's own words" if reply.strip() else SILENT
            return self._verdict(view, 0.0, {"process": 1.0}, told, None)
        first, second = await asyncio.gather(
            self._compare(view, reply, reference), self._compare(view, reference, reply)
        )
        one, other = first.form.better, second.form.better
        won, lost = (one == "A", other == "B"), (one == "B", other == "A")  # the reply stands first, then second
        process = (_process(view, first.form, reply, reference) + _process(view, second.form, reference, reply)) / 2
        agreed = won[0] == won[1] and lost[0] == lost[1]
        told = "the orders agree" if agreed else f"the orders disagree ({one}, then {other})"
        told += f"\n\nreply first\n{_lines(first.form, first.thinking)}"
        told += f"\n\nreply second\n{_lines(second.form, second.thinking)}"
        parts = {"process": process, "reply_first": float(won[0]), "reply_second": float(won[1])}
        return self._verdict(view, float(all(won)), parts, told, first.usage + second.usage)

    async def _compare(self, view: ReplyView, a: str, b: str) -> Filled[EmpathyAnswer] | Filled[CheckedEmpathyAnswer]:
        judged = view.judged
        language = judged.profile.language
        written, again = prompt("empathy", language), prompt("self_correction", language)
        messages = written.render(
            talk=talk(judged.history[-WINDOW:], language, LONGEST),
            message=judged.exchange.user,
            reply_a=a,
            reply_b=b,
            self_correction=f"\n{again.sections[0].content}" if self._checked else "",
        )
        key = f"{written.key}+{again.key}" if self._checked else written.key
        if self._checked:
            return await _ask(self._client, "empathy", messages, key, CheckedEmpathyAnswer)
        return await _ask(self._client, "empathy", messages, key, EmpathyAnswer)

    def _verdict(
        self, view: ReplyView, value: float, parts: dict[str, float], reasoning: str, usage: Usage | None
    ) -> Verdict:
        return Verdict(
            kind="empathy",
            judge=self.id,
            value=value,
            parts=parts,
            reasoning=reasoning,
            reference=view.reference or "",
            usage=usage,
        )


SILENT = "it says nothing"


def process_of(answer: BaseModel, person: str, reply_a: str, reply_b: str) -> float:
    """Return R_process (eq. 6): the share of the required steps of reasoning that an answer really holds, 0..1.

    The steps: situation, need and sensitivity of the person, with a quote of theirs that occurs; how each reply meets
    them, with a quote of it that occurs; and the second look, where it was asked for.

    Args:
        answer: A parsed `EmpathyAnswer` or `CheckedEmpathyAnswer`.
        person: All that the person has said.
        reply_a: What was shown as reply A.
        reply_b: What was shown as reply B.
    """
    said = cast("dict[str, str]", answer.model_dump())
    steps = [_says(said[name]) for name in said if name != "better" and "quote" not in name]
    steps += [
        _occurs(said[q], text) for q, text in (("profile_quote", person), ("quote_a", reply_a), ("quote_b", reply_b))
    ]
    return sum(steps) / len(steps)


def _process(view: ReplyView, answer: BaseModel, a: str, b: str) -> float:
    person = " ".join([*(e.user for e in view.judged.history), view.judged.exchange.user])
    return process_of(answer, person, a, b)


_WORDS = re.compile(r"[\u3400-\u9fff]|\w+")
FEWEST = 3
"""Words, or Chinese characters, from which a step says something."""


def _says(text: str) -> bool:
    return len(_WORDS.findall(text)) >= FEWEST


def _occurs(quote: str, text: str) -> bool:
    """Whether a quote stands in a text, signs and case aside; of an empty text, whether nothing was quoted."""
    wanted, there = _WORDS.findall(quote.lower()), _WORDS.findall(text.lower())
    if not wanted or not there:
        return not wanted and not there
    return f" {' '.join(wanted)} " in f" {' '.join(there)} "


async def _ask(
    client: LlmClient, role: Literal["humanlike", "empathy"], messages: tuple[ChatMessage, ...], key: str, form: type[M]
) -> Filled[M]:
    return await fill(client, role, key, messages, form, max_tokens=MOST_TOKENS[role], seed=None)


def _lines(form: BaseModel, thinking: str) -> str:
    """Return an answer as text, what the model thought before it first."""
    said = "\n".join(f"{name}: {value}" for name, value in form.model_dump().items())
    thought = thinking.strip()
    return f"{thought[:REASONING]}\n{said}" if thought else said


def _id(client: LlmClient, role: str, written: Prompt) -> str:
    return f"llm:{short_name(client.models.of(role))}+{written.name}-{written.version}"


def humanlike_of(models: str) -> Callable[..., HumanlikeJudge]:
    """Return what builds the humanlike judge of "llm:MODELS"; it takes `context`.

    Raises:
        ConfigError: There is no such models file, or it is wrong.
    """
    client = client_of(models)
    return lambda context=True: HumanlikeJudge(client, context)


def empathy_of(models: str) -> Callable[..., EmpathyJudge]:
    """Return what builds the empathy judge of "llm:MODELS"; it takes `self_correction`.

    Raises:
        ConfigError: There is no such models file, or it is wrong.
    """
    client = client_of(models)
    return lambda self_correction=False: EmpathyJudge(client, self_correction)
