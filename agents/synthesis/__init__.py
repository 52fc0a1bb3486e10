"""Conversations between a companion agent and a user agent, guided by a director agent (Echo-N1 section 2.1, Figure 2).

    plan -> (user agent -> companion agent -> director agent) x exchanges -> one line of chat format

The companion is asked with exactly the messages that the line holds, its system instruction first: a model trained on
the line sees what the companion saw. The two others read the talk in a data block. The director keeps to a topic, moves
on, or closes; it may close from the plan's fewest exchanges on, and at its most the person takes leave anyway.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from functools import partial

from pydantic import BaseModel

from echo_env.agents.llm.asks import Ask, ChatMessage, LlmFailure, Tool
from echo_env.agents.llm.client import LlmClient
from echo_env.agents.synthesis.conversations import ChatLine, Conversation, Job, Meta
from echo_env.agents.synthesis.facets import Plan, facets
from echo_env.types import Usage

ROLES = ("companion", "user", "director")
"""As a models file calls them."""
DRAWS = 2
"""How often a message is asked for until it is one."""
_QUOTED = re.compile(r'\s*(?:"(.*)"|“(.*)”|「(.*)」)\s*', re.DOTALL)


class Direction(BaseModel):
    """Arguments of every function of the director."""

    direction: str
    """One sentence to the player of the person."""


TOOLS = {
    "stay": Tool("stay", "Go on with this topic.", Direction),
    "move_on": Tool("move_on", "Go over to the next topic.", Direction),
    "close": Tool("close", "Bring the chat to its end: the next message takes leave.", Direction),
}


@dataclass(slots=True)
class _Talk:
    """One conversation under way."""

    client: LlmClient
    plan: Plan
    messages: list[ChatMessage]
    topic: int = 0
    usage: Usage = field(default_factory=Usage)

    async def user(self, direction: str) -> None:
        """Let the person write."""
        asked = self.plan.user_messages(self.plan.topics[self.topic], self._transcript(), direction)
        self.messages.append(ChatMessage("user", await self._say("user", asked)))

    async def companion(self) -> None:
        """Let the companion answer."""
        self.messages.append(ChatMessage("assistant", await self._say("companion", tuple(self.messages))))

    async def direct(self, exchange: int) -> tuple[str, bool]:
        """Return the direction for the next message, and whether it is to be the person's last."""
        if exchange + 1 >= self.plan.longest:
            return facets(self.plan.language).cues.close, True
        names = ["stay", *["move_on"] * (self.topic + 1 < len(self.plan.topics))]
        names += ["close"] * (exchange + 1 >= self.plan.shortest)
        asked = self.plan.director_messages(self.topic, exchange, self._transcript(), ", ".join(names))
        answer = await self.client.ask(self._ask("director", asked, tools=tuple(TOOLS[n] for n in names)))
        self.usage += answer.usage
        assert isinstance(answer.parsed, Direction)
        self.topic += answer.tool == "move_on"
        return answer.parsed.direction, answer.tool == "close"

    async def _say(self, role: str, asked: tuple[ChatMessage, ...]) -> str:
        wrong = ""
        for number in range(DRAWS):
            answer = await self.client.ask(self._ask(role, asked, draw=number))
            self.usage += answer.usage
            said = self._words(answer.text)
            wrong = self._wrong(said)
            if not wrong:
                return said
        raise LlmFailure(f"{role}: {wrong}", kind="check", attempts=DRAWS)

    def _ask(self, role: str, asked: tuple[ChatMessage, ...], *, draw: int = 0, tools: tuple[Tool, ...] = ()) -> Ask:
        seed = zlib.crc32(f"{self.plan.id}/{role}/{len(self.messages)}".encode()) % 2**31
        return Ask(role, asked, prompt=self.plan.prompt(role).key, tools=tools, seed=seed, draw=draw)

    def _labels(self) -> tuple[str, str]:
        labels = facets(self.plan.language).labels
        return labels["person"], labels["companion"]

    def _transcript(self) -> str:
        person, companion = self._labels()
        said = [f"{person if m.role == 'user' else companion}: {m.content}" for m in self.messages[1:]]
        return "\n".join(said) or "-"

    def _words(self, text: str) -> str:
        """Return a message without a speaker's name before it and quotation marks around it."""
        names = "|".join(map(re.escape, (*self._labels(), self.plan.persona.name, self.plan.companion)))
        text = re.sub(rf"\A\s*(?:{names})\s*[:\uff1a]\s*", "", text)
        quoted = _QUOTED.fullmatch(text)
        inner = next(filter(None, quoted.groups()), "") if quoted else ""
        return (inner if inner and not re.search(r'["“”「」]', inner) else text).strip()

    def _wrong(self, said: str) -> str:
        """Return why a message cannot stand, "" where it can."""
        names = "|".join(map(re.escape, self._labels()))
        if not said:
            return "nothing was said"
        if re.search(rf"^(?:{names})\s*[:\uff1a]", said, re.MULTILINE):
            return "it speaks for both sides"
        if "<data" in said or "</data" in said:
            return "it quotes its instructions"
        if any(m.content.casefold() == said.casefold() for m in self.messages[1:]):
            return "the same message stands in the talk already"
        return ""


async def converse(client: LlmClient, plan: Plan) -> Conversation:
    """Return one conversation, from its opening to its close.

    Raises:
        LlmFailure: An agent gave no usable answer; what was answered before is in the client's cache.
    """
    talk = _Talk(client, plan, [plan.companion_system()])
    direction, last, end = facets(plan.language).cues.open, False, "length"
    for exchange in range(1, plan.longest + 1):
        await talk.user(direction)
        await talk.companion()
        if last:
            break
        direction, last = await talk.direct(exchange)
        if last and exchange + 1 < plan.longest:
            end = "director"
    meta = Meta(
        id=plan.id,
        source="synthesis",
        language=plan.language,
        seed=plan.seed,
        number=plan.number,
        facets=plan.drawn(),
        models={role: client.models.of(role).model for role in ROLES},
        prompts={role: plan.prompt(role).key for role in ROLES},
        turns=exchange,
        end=end,
        usage=talk.usage,
    )
    return Conversation(messages=tuple(ChatLine(role=m.role, content=m.content) for m in talk.messages), meta=meta)


def jobs(client: LlmClient, plans: list[Plan]) -> list[Job]:
    """Return the conversations of plans, to be had."""
    return [Job(plan.id, partial(converse, client, plan)) for plan in plans]
