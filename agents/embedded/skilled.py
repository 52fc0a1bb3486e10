"""The reference companion that listens well: a hand-written policy that reads the observation and nothing else.

Each turn it answers what was just said: a feeling, a view or a thread to something told earlier, and a strength or a
wish. Its phrases are data (`sim_profiles/voices/companion_*.yaml`), written without sight of the rubric; each serves
at most once in forty turns. The same moves are the strategies of `echo/Strategy-v0`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from echo_env.agents.embedded.listening import Heard, noun_phrases, trained_ear
from echo_env.profiles import CLUSTER_OF, data_root
from echo_env.roles import Observation
from echo_env.yamlfiles import read_yaml

Move = Literal[
    "name", "unspoken", "bright", "validate", "reflect", "ask", "reframe", "affirm", "empower", "link", "lean"
]
SURE = 0.55
"""Confidence from which `skilled` puts an unspoken feeling into words; below it, it lets the feeling be."""
BELIEF, WISH = 0.35, 0.35
"""Certainty from which a sentence is answered as a belief, as a wish."""
LINK_FROM = 4
"""First turn that ties to something told earlier."""
LINK_BACK = 5
"""How many turns back the thread reaches: far enough to be another chapter."""


@lru_cache(maxsize=4)
def phrases(language: str = "en") -> dict[str, tuple[str, ...]]:
    """Return the companion's phrases by move."""
    data = read_yaml(data_root() / "voices" / f"companion_{language}.yaml")
    return {kind: tuple(bank) for kind, bank in data.items() if isinstance(bank, list)}


@dataclass(frozen=True, slots=True)
class Listener:
    """Everything that a companion makes of the conversation so far."""

    observation: Observation
    heard: tuple[Heard, ...]
    """The newest message, sentence by sentence."""
    earlier: str
    """A noun phrase from some turns back; empty early on."""
    seed: int
    """Seed of the order in which phrases are taken."""

    @property
    def turn(self) -> int:
        """Turns so far: 0 at the first message."""
        return len(self.observation.messages) // 2

    @classmethod
    def of(cls, observation: Observation, seed: int = 0) -> Listener:
        """Listen to a conversation."""
        heard = trained_ear().hear(observation.user, observation.language)
        users = [m.text for m in observation.messages if m.role == "user"]
        back = max(0, len(users) - 1 - LINK_BACK)
        earlier = ""
        if len(users) > LINK_FROM:
            found = [p for h in trained_ear().hear(users[back], observation.language) for p in h.phrases]
            new = [p for p in found if p.lower() not in observation.user.lower()]
            earlier = new[0] if new else ""
        return cls(observation, tuple(heard), earlier, seed)

    def say(self, move: Move, heard: Heard, feeling: str = "", spare: bool = False) -> str:
        """Put a move into words.

        Args:
            move: What to do.
            heard: The sentence it is about.
            feeling: The feeling to name, for "name", "unspoken" and "bright".
            spare: Take the sentence's second noun phrase, where it has one.
        """
        found = heard.phrases or tuple(noun_phrases(self.observation.user)) or ("what you said",)
        it = found[1] if spare and len(found) > 1 else found[0]
        bank = list(phrases(self.observation.language)[move])
        random.Random(f"{self.seed}:{move}:{self.observation.messages[0].text}").shuffle(bank)
        text = bank[self.turn % len(bank)].format(
            it=it, feeling=feeling, Feeling=feeling.capitalize(), earlier=self.earlier
        )
        return text[:1].upper() + text[1:]


def feeling_move(listener: Listener, heard: Heard, sure: float = SURE) -> str:
    """Answer the feeling in a sentence: name it where it was voiced, sense it where it is plain, else let it be."""
    if heard.named:
        bright = CLUSTER_OF[heard.named[0]] == "bright"
        return listener.say("bright" if bright else "name", heard, heard.named[0])
    if heard.confidence >= sure:
        return listener.say("unspoken", heard, heard.sensed)
    return listener.say("validate", heard)


class Skilled:
    """Listens, understands, ties threads, and hands back the choice.

    Args:
        seed: Seed for the order of its phrases.
    """

    id = "skilled"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    async def respond(self, observation: Observation) -> str:
        """Return three sentences: for the feeling, for the view, for what they can or want."""
        listener = Listener.of(observation, self.seed)
        if not listener.heard:
            return listener.say("lean", Heard("", (), "fact", {}, (), "", 0.0, 0.0))
        felt = max(listener.heard, key=lambda h: bool(h.named) + h.stirred)
        parts = [feeling_move(listener, felt)]
        seen = max(listener.heard, key=lambda h: h.certainty["belief"])
        if seen.certainty["belief"] > BELIEF:
            parts.append(listener.say("reframe", seen, spare=True))
        elif listener.earlier:
            parts.append(listener.say("link", felt, spare=True))
        else:
            seen = max(listener.heard, key=lambda h: h.certainty["fact"])
            parts.append(listener.say("reflect" if listener.turn % 2 else "ask", seen, spare=True))
        able = max(listener.heard, key=lambda h: max(h.certainty["wish"], h.certainty["strength"]))
        parts.append(listener.say("empower" if able.certainty["wish"] > WISH else "affirm", able))
        return " ".join(parts)
