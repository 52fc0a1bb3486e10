"""A client that plays every role by a script and remembers what it was asked: no network, no model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from echo_env.agents.llm.asks import Answer, Ask, LlmFailure
from echo_env.agents.llm.client import LlmClient
from echo_env.agents.llm.config import models_config
from echo_env.types import Usage

BLOCK = re.compile(r'<data name="(\w+)">\n?(.*?)\n?</data>', re.DOTALL)
"""A delimited block of a prompt: its name and what stands in it."""

Said = str | dict[str, Any] | tuple[str, dict[str, Any]]
"""A text, an object for the schema, or a tool with its arguments."""
Script = Callable[[Ask], Said]


class FakeClient(LlmClient):
    """Answers by a script; checks what it says as the real client does, with one repair."""

    def __init__(self, script: Script, name: str = "test/fake-model") -> None:
        super().__init__(models_config(name))
        self.script = script
        self.asks: list[Ask] = []

    async def ask(self, ask: Ask, model: object = None) -> Answer:
        wrong = ""
        for _ in range(2):
            self.asks.append(ask)
            said = self.script(ask)
            if isinstance(said, str):
                if said:
                    return Answer(said, None, "", "", Usage(calls=1))
                raise LlmFailure("the answer is empty", kind="empty")
            tool, value = said if isinstance(said, tuple) else ("", said)
            form = next(t.arguments for t in ask.tools if t.name == tool) if tool else ask.schema
            assert form is not None
            parsed = form.model_validate(value)
            wrong = ask.check(parsed) if ask.check else ""
            if not wrong:
                return Answer("", parsed, tool, "hm", Usage(calls=1, prompt_tokens=10))
        raise LlmFailure(wrong, kind="check", attempts=2)

    def of(self, role: str) -> list[Ask]:
        """What a role was asked."""
        return [a for a in self.asks if a.role == role]


def text_of(ask: Ask) -> str:
    """All that a request says."""
    return "\n".join(m.content for m in ask.messages)


def block(ask: Ask, name: str) -> str:
    """What stands in the block of a name."""
    return dict(BLOCK.findall(text_of(ask)))[name]


@dataclass
class Play:
    """A script in which all roles do something sensible, the director in turn by each function that is open."""

    reply: Callable[[int], str] = lambda turn: f"The clock or the barometer, that sits oddly with you, friend {turn}."
    anchors: tuple[str, ...] = ("C.prog.1.reflects", "A.neg.1.performs")
    turns: dict[str, int] = field(default_factory=dict)

    def __call__(self, ask: Ask) -> Said:
        turn = self.turns[ask.role] = self.turns.get(ask.role, 0) + 1
        answers: dict[str, Callable[[Ask, int], Said]] = {
            "judge": self.judge, "director": self.direct, "actor": self.speak, "policy": self.respond,
            "sentient": self.feel,
        }  # fmt: skip
        return answers[ask.role](ask, turn)

    def judge(self, ask: Ask, turn: int) -> Said:
        reply = block(ask, "reply")
        quote = reply.split("\n")[0].split("<")[0][:30]
        finding = {"quote": quote, "reason": f"JUDGEREASON {turn}", "anchor": self.anchors[turn % len(self.anchors)]}
        return {"evidence": [finding], "summary": f"JUDGESUMMARY {turn} " + "told some more of it " * 30}

    def direct(self, ask: Ask, turn: int) -> Said:
        words = {"reason": f"DIRECTORREASON {turn} C -9", "words": f"Stay with it {'a little ' * (turn % 3)}longer."}
        untold = re.findall(r"^  ((?:beat|turn)\w*\.\d+):", block(ask, "plot"), re.MULTILINE)
        beats = [item for item in untold if item.startswith("beat")]
        closed = text_of(ask)
        choices: list[Said] = [("continue_naturally", words), ("observe_and_wait", words)]
        choices.append(("adjust_empathy_strategy", words | {"kind": ("cognitive", "affective")[turn % 2]}))
        if beats:
            choices.append(("reveal_fragment", words | {"lines": beats[:2]}))
        open_stages = [s for s in ("childhood", "teens", "now") if f"reveal_memory({s})" not in closed]
        choices += [("reveal_memory", words | {"stage": s}) for s in open_stages[:1]]
        return choices[turn % len(choices)]

    def speak(self, ask: Ask, turn: int) -> Said:
        material = block(ask, "material")
        return f"{material.splitlines()[0] if material else 'Well, there it is.'} ({turn}) Umm {'so ' * (turn % 7)}."

    def feel(self, ask: Ask, turn: int) -> Said:
        inner = {"content": "PLANCONTENT", "completion": "PLANCOMPLETION", "activity": "Well I never."}
        return inner | {"analysis": "PLANANALYSIS", "change": (7, -9)[turn % 2]}

    def respond(self, ask: Ask, turn: int) -> Said:
        return self.reply(turn)
