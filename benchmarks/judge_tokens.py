"""What the language-model judge reads a turn, and what it saves over one that reads the whole conversation.

    python benchmarks/judge_tokens.py

Synthetic conversations on one fixed profile, every message of one length, every summary as long as it may be. Tokens
are SmolLM2's where its weights are installed, else characters by four. No model is asked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from echo_env.agents.judge import SUMMARY_WORDS, LlmJudge, Verdict
from echo_env.agents.llm.asks import Answer, Ask
from echo_env.agents.llm.client import LlmClient
from echo_env.agents.llm.config import models_config
from echo_env.agents.transcript import talk
from echo_env.errors import EchoError
from echo_env.profiles import Scenario, get_scenario
from echo_env.roles import Exchange, JudgeView, profiles_of
from echo_env.types import Usage

TURNS, HISTORY_TURNS = 40, 30
LENGTHS = ((20, 25), (30, 45), (40, 90))
"""Words of a person's message and of a reply; the first is how the embedded world talks, the last a chatty model."""
_BLOCK = re.compile(r'<data name="(older|recent)">\n(.*?)\n</data>', re.DOTALL)


class Listening(LlmClient):
    """Finds nothing, sums up at full length, and keeps what it was asked."""

    def __init__(self, words: list[str]) -> None:
        super().__init__(models_config("none/none"))
        self.asks: list[Ask] = []
        self._summary = " ".join(words[:SUMMARY_WORDS])

    async def ask(self, ask: Ask, model: object = None) -> Answer:
        """Return an empty verdict with a summary."""
        self.asks.append(ask)
        return Answer("", Verdict(evidence=(), summary=self._summary), "", "", Usage())


def tokenizer() -> tuple[str, Callable[[str], int]]:
    """Return what counts tokens, and its name."""
    try:
        from transformers import AutoTokenizer

        from echo_env.agents.smollm2 import smollm2_folder

        loaded = AutoTokenizer.from_pretrained(smollm2_folder())
    except (ImportError, EchoError):
        return "characters by four", lambda text: len(text) // 4
    return "SmolLM2's tokens", lambda text: len(loaded(text)["input_ids"])


def conversation(scenario: Scenario, words: tuple[int, int]) -> tuple[list[str], tuple[Exchange, ...]]:
    """Return the words of a story, and a talk of them in messages of so many words."""
    said = " ".join(line.say for line in scenario.lines()).split() * 40
    user, reply = words
    size = user + reply
    pieces = [said[k * size : (k + 1) * size] for k in range(TURNS)]
    return said, tuple(Exchange(" ".join(p[:user]), " ".join(p[user:])) for p in pieces)


def asked(scenario: Scenario, words: tuple[int, int]) -> tuple[list[Ask], tuple[Exchange, ...]]:
    """Return what a judge asks over a conversation, and the conversation."""
    said, exchanges = conversation(scenario, words)
    client = Listening(said)
    judge, profile = LlmJudge(client), profiles_of(scenario)[1]
    for k, exchange in enumerate(exchanges):
        asyncio.run(judge.judge(JudgeView(profile, exchanges[:k], exchange)))
    return client.asks, exchanges


def main() -> None:
    """Print both figures by length of message."""
    scenario = get_scenario("career-01")
    name, count = tokenizer()
    print(f"{name}; {scenario.id}; words of message + reply")
    for words in LENGTHS:
        asks, exchanges = asked(scenario, words)
        read = [sum(count(m.content) for m in ask.messages) for ask in asks]
        shown = [
            sum(count(text) for m in ask.messages for _, text in _BLOCK.findall(m.content))
            for ask in asks[:HISTORY_TURNS]
        ]
        whole = sum(count(talk(exchanges[:k], scenario.language)) for k in range(HISTORY_TURNS))
        print(
            f"{words[0]:3} + {words[1]:3}   turn 1 {read[0]:,}, turn 10 {read[9]:,}, turn 40 {read[39]:,}"
            f" ({read[39] / read[9]:.2f} x turn 10)   history over {HISTORY_TURNS} turns {sum(shown):,} of {whole:,}"
            f" ({sum(shown) / whole:.0%})"
        )


if __name__ == "__main__":
    main()
