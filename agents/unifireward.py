"""UnifiReward as a language model: four rounds of one talk about a reply (PEER section 4.1).

In rounds 1 to 3 it is shown a step each and says whether that is right; in round 4 it compares the reply with a
reference, having seen the steps. It knows the conversation and no profile, as in the paper. The policy's own verdict on
a step that it left out is fixed: not right, and nobody is asked.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field

from echo_env.agents.judge import digest
from echo_env.agents.llm.client import LlmClient, client_of
from echo_env.agents.llm.forms import Filled, at_most, fill
from echo_env.agents.llm.prompting import prompt
from echo_env.agents.llm.rolemodels import short_name
from echo_env.agents.transcript import talk
from echo_env.errors import ConfigError, RoleFailure
from echo_env.peer import KIND, STEPS, StepName, points, read_steps
from echo_env.rewards import ReplyView
from echo_env.types import Usage, Verdict

WINDOW = 6
"""Exchanges before the newest message that are shown in their own words."""
LONGEST = 500
"""Characters of a message in that window."""
LONGEST_STEP = 1_200
"""Characters of a step or a reply that are shown."""
Orders = Literal["one", "both"]
F = TypeVar("F", "StepAnswer", "PairAnswer")


class StepAnswer(BaseModel):
    """Rounds 1 to 3."""

    reason: Annotated[str, at_most(200), Field(max_length=200, description="What decides it, one short sentence.")]
    right: bool


class PairAnswer(BaseModel):
    """Round 4."""

    reason: Annotated[str, at_most(200), Field(max_length=200, description="What decides it, one short sentence.")]
    better: Literal["first", "second", "both", "neither"]


class UnifiReward:
    """Judges the steps and the reply of a policy that shows its steps.

    Args:
        client: Whom to ask; the role is `unifireward`.
        orders: "one": which reply stands first is settled by a checksum of conversation and both replies, without
            regard to whose is whose. "both": it is asked both ways, and each way counts half.
    """

    waits = True

    def __init__(self, client: LlmClient, orders: Orders = "one") -> None:
        if orders not in ("one", "both"):
            raise ConfigError(f"replies are compared in one order or in both, not in '{orders}'", "orders=both")
        written = prompt("unifireward", "en")
        self.id = f"llm:{short_name(client.models.of('unifireward'))}+unifireward-{written.version}"
        self.id += "" if orders == "one" else "+both"
        self._client, self._orders = client, orders

    async def verdict(self, view: ReplyView) -> Verdict:
        """Return the sum of the parts, 0..3.

        Raises:
            LlmFailure: A round has no usable answer.
            RoleFailure: There is no reference.
        """
        if view.reference is None:
            raise RoleFailure("there is no reply to compare with", "name a reference policy, or give a reference")
        steps = read_steps(view.raw or view.judged.exchange.reply)
        sheet = _Sheet(self._client, view, {name: text[:LONGEST_STEP] for name, text in steps.texts.items()})
        right = {name: await sheet.judge_step(name) for name in STEPS}
        response = await self._compare(sheet, view.judged.exchange.reply, view.reference) if steps.response else 0.0
        parts = points(steps, right, response)
        return Verdict(
            kind=KIND,
            judge=self.id,
            value=sum(parts.values()),
            parts=parts,
            reasoning=" | ".join(sheet.reasons),
            reference=view.reference,
            usage=sheet.usage,
        )

    async def _compare(self, sheet: _Sheet, reply: str, reference: str) -> float:
        """Return the share of orders in which the reply is at least as good as the reference."""
        ways = (True, False) if self._orders == "both" else (comes_first(sheet.conversation, reply, reference),)
        return sum([await sheet.compare(reply, reference, first=way) for way in ways]) / len(ways)


class _Sheet:
    """The talk with the judge about one output, as far as it has come."""

    def __init__(self, client: LlmClient, view: ReplyView, steps: dict[StepName, str]) -> None:
        judged = view.judged
        language = judged.profile.language
        self.client, self.steps = client, steps
        self.written = prompt("unifireward", language)
        self.conversation = talk(judged.history[-WINDOW:], language, LONGEST) + judged.exchange.user
        self.values: dict[str, str] = {
            "older": digest(judged.history[:-WINDOW]),
            "talk": talk(judged.history[-WINDOW:], language, LONGEST),
            "message": judged.exchange.user,
            **{str(name): text for name, text in steps.items()},
            "first": "",
            "second": "",
            **{f"{name}_answer": "" for name in STEPS},
        }
        self.reasons: list[str] = []
        self.usage = Usage()

    async def judge_step(self, name: StepName) -> bool:
        if not self.steps[name]:
            answer = StepAnswer(reason="nothing is written", right=False)
        else:
            answer = self._kept(name, await self._round(STEPS.index(name) + 1, StepAnswer))
        self.values[f"{name}_answer"] = json.dumps(answer.model_dump(), ensure_ascii=False)
        return answer.right

    async def compare(self, reply: str, reference: str, *, first: bool) -> bool:
        """Return whether the reply, put first or second, is at least as good as the reference."""
        one, other = (reply, reference) if first else (reference, reply)
        self.values |= {"first": one[:LONGEST_STEP], "second": other[:LONGEST_STEP]}
        answer = self._kept("response", await self._round(4, PairAnswer))
        return answer.better in ("both", "first" if first else "second")

    async def _round(self, number: int, form: type[F]) -> Filled[F]:
        """Ask one round: the system's message, the rounds before with their answers, and this one's question."""
        messages = self.written.render(**self.values)[: 2 * number]
        return await fill(self.client, "unifireward", self.written.key, messages, form)

    def _kept(self, what: str, filled: Filled[F]) -> F:
        self.usage += filled.usage
        self.reasons.append(f"{what}: {filled.form.reason}")
        return filled.form


def comes_first(conversation: str, reply: str, reference: str) -> bool:
    """Return whether the reply is shown first: by a checksum of the conversation and both replies, sorted.

    So a pair is always compared in the same order, and half of all pairs stand each way.
    """
    low, high = sorted((reply, reference))
    low_first = zlib.crc32("\0".join((conversation, low, high)).encode()) % 2 == 0
    return low_first == (reply == low)


def judge_of(name: str) -> Callable[..., UnifiReward]:
    """Return what builds a conversation's UnifiReward: "llm:MODEL", or "llm:" and a models file."""
    client = client_of(name)
    return lambda orders="one": UnifiReward(client, orders)
