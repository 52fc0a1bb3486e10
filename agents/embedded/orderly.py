"""A reference companion that listens by a few plain words and speaks as regularly as possible: to be learnt from.

`skilled` shuffles its phrases anew for each person, weighs every sentence with a fitted ear, and ties its threads by
likeness: a model that reads its conversations cannot know which of forty phrases comes next, and hears next to nothing
of why one move is taken and not another. Here two plain signs decide, and they show at the first word of a reply:
where the newest message says that something is wanted or wished, it is handed back; a feeling that was put into words
is named, else what was told is validated; and who wishes nothing is affirmed. Then a thread goes to what the companion
itself took up two replies ago. The phrases come in the order of the bank, from one of a few places by the person, so
what was said last tells what comes next.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Self

from echo_env.agents.embedded.language import joined
from echo_env.agents.embedded.listening import heard, wishes
from echo_env.agents.embedded.skilled import Answer, Listener, Move, answers, feeling_answer, phrases, thread
from echo_env.roles import Observation

BACK = 2
"""Replies back that a thread reaches."""
ROWS, STARTS = 40, 4
"""Phrases of each move at most, so that one place in the order serves for all moves; places where a talk may begin."""
ONLY_NAMED = 2.0
"""A confidence that no unspoken feeling reaches: `orderly` names what was named."""


class InOrder(Listener):
    """A listener to the newest message alone, whose phrases come in order."""

    @classmethod
    def to_newest(cls, observation: Observation, seed: int = 0) -> Self:
        """Listen to what stands in the message, whatever it comes back to."""
        return cls(observation, heard(observation.user, observation.language), "", seed)

    def phrase(self, move: Move, k: int) -> str:
        """Return the phrase that is due: the same row of every move's bank, one further each turn."""
        bank = phrases(self.observation.language)[move][:ROWS]
        first = random.Random(f"{self.seed}:{self.observation.messages[0].text}").randrange(STARTS) * ROWS // STARTS
        return bank[(first + self.turn + k * (len(bank) // 2)) % len(bank)]


class Orderly:
    """Answers a wish, what is felt, or the person, two of them, and goes back to what it took up two replies ago.

    Args:
        seed: Seed of the place where its phrases begin.
    """

    id = "orderly"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    async def respond(self, observation: Observation) -> str:
        """Return up to three sentences."""
        listener = replace(self.listener(observation), earlier=self._taken_up(observation))
        return joined([listener.say(*answer) for answer in self.chosen(listener)], observation.language)

    def listener(self, observation: Observation) -> InOrder:
        """Return who hears the newest message."""
        return InOrder.to_newest(observation, self.seed)

    def chosen(self, listener: Listener) -> list[Answer]:
        """Return what is to be said."""
        return [*told(listener), *([thread(listener)] if listener.earlier and listener.heard else [])]

    def _taken_up(self, observation: Observation) -> str:
        """Return the noun phrase that the reply of `BACK` turns ago began with; empty where it is spoken of now."""
        then = replace(observation, messages=observation.messages[: -2 * BACK])
        if not then.messages:
            return ""
        listener = self.listener(then)
        noun = listener.noun(told(listener)[0].heard)
        return "" if noun.strip("\u201c\u201d").lower() in observation.user.lower() else noun


def told(listener: Listener) -> list[Answer]:
    """Return what is answered, without the thread: a wish and what is felt, or what is felt and the person."""
    said = listener.heard
    if not said:
        return answers(listener)
    felt = feeling_answer(next((h for h in said if h.named), said[0]), ONLY_NAMED)
    about, spare = said[-1], len(said) == 1
    if any(wishes(h.text, listener.observation.language) for h in said):
        return [Answer("empower", about, spare=spare), felt]
    return [felt, Answer("affirm", about, spare=spare)]
