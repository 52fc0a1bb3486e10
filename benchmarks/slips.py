"""How much a companion may get wrong: `orderly` with slips, to tell what a policy that imitates it has to get right.

    PYTHONPATH=benchmarks echo-env run --policy slips:Slips --option moves=0.2 --out FOLDER

Each slip is drawn anew for every answer.
"""

from __future__ import annotations

import random
from dataclasses import replace

from echo_env.agents.embedded.listening import Heard, noun_phrases, points
from echo_env.agents.embedded.orderly import InOrder, Orderly
from echo_env.agents.embedded.skilled import Answer, Listener, Move
from echo_env.roles import Observation

OTHER: dict[Move, Move] = {
    "name": "validate", "bright": "validate", "validate": "name", "affirm": "empower", "empower": "affirm",
}  # fmt: skip
"""The move that a slip takes instead."""
FEELINGS = ("sad", "tired", "worried", "lonely")
"""Named where the sentence holds no feeling."""


class Vague(InOrder):
    """Takes up what many people's stories hold ("the day"), where the message has it."""

    def noun(self, heard: Heard, spare: bool = False) -> str:
        """Return the first phrase of the message that points at nothing."""
        found = [phrase for phrase in noun_phrases(self.observation.user) if not points(phrase)]
        return found[0] if found else super().noun(heard, spare)


class Slips(Orderly):
    """`orderly`, now and then wrong.

    Args:
        moves: Share of its answers that make the other move of their place.
        nouns: Share of its answers that take up a thing from the message before.
        vague: Share of its replies that take up everyday words of the message.
        sentences: Answers of a reply at most, 1 or 2, the thread not counted.
        threads: Whether it ties threads.
        seed: Seed of the phrases and of the slips.
    """

    id = "slips"

    def __init__(
        self,
        moves: float = 0.0,
        nouns: float = 0.0,
        vague: float = 0.0,
        sentences: int = 2,
        threads: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.moves, self.nouns, self.vague, self.sentences, self.threads = moves, nouns, vague, sentences, threads

    def listener(self, observation: Observation) -> InOrder:
        """Return who hears the newest message, in a share of the replies one who hears only the everyday in it."""
        slips = random.Random(f"{self.seed}:vague:{observation.user}").random() < self.vague
        return (Vague if slips else InOrder).to_newest(observation, self.seed)

    def chosen(self, listener: Listener) -> list[Answer]:
        """Return what is to be said, slips included."""
        rnd = random.Random(f"{self.seed}:{listener.turn}:{listener.observation.user}")
        right = super().chosen(listener)
        ties = [answer for answer in right if answer.move == "link" and self.threads]
        answered = [answer for answer in right if answer.move != "link"][: self.sentences]
        return [self._slipped(answer, listener, rnd) for answer in answered] + ties

    def _slipped(self, answer: Answer, listener: Listener, rnd: random.Random) -> Answer:
        if rnd.random() < self.moves and answer.move in OTHER:
            answer = answer._replace(move=OTHER[answer.move], feeling=answer.feeling or rnd.choice(FEELINGS))
        if rnd.random() < self.nouns and listener.turn:
            messages = listener.observation.messages[:-2]
            before = InOrder.to_newest(replace(listener.observation, messages=messages), self.seed).heard
            if before:
                answer = answer._replace(heard=replace(answer.heard, phrases=before[0].phrases))
        return answer
