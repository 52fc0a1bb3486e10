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

from echo_env.agents.embedded.language import encoder, read
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
STRENGTH = 0.4
"""Certainty from which a sentence is answered as a strength."""
STIRRED = 0.45
"""Score from which a sentence that names no feeling is answered as one that holds some."""
ANSWERED = 3
"""How many of the things that were told get an answer of their own."""
LINK_BACK = 2
"""How many turns back a thread reaches at least: near ones belong to the same chapter."""


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
    """A noun phrase from the earlier sentence that is likest to the newest message; empty early on."""
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
        return cls(observation, tuple(heard), _thread(observation), seed)

    def say(self, move: Move, heard: Heard, feeling: str = "", spare: bool = False, k: int = 0) -> str:
        """Put a move into words.

        Args:
            move: What to do.
            heard: The sentence it is about.
            feeling: The feeling to name, for "name", "unspoken" and "bright".
            spare: Take the sentence's second noun phrase, where it has one.
            k: How many times this turn has used the move before, or more.
        """
        found = heard.phrases or tuple(noun_phrases(self.observation.user)) or ("what you said",)
        it = found[1] if spare and len(found) > 1 else found[0]
        bank = list(phrases(self.observation.language)[move])
        random.Random(f"{self.seed}:{move}:{self.observation.messages[0].text}").shuffle(bank)
        text = bank[(self.turn + k * (len(bank) // 2)) % len(bank)].format(
            it=it, feeling=feeling, Feeling=feeling.capitalize(), earlier=self.earlier
        )
        return text[:1].upper() + text[1:]


def _thread(observation: Observation) -> str:
    """Find what was told earlier and belongs with the newest message: the likest sentence of some turns back."""
    users = [m.text for m in observation.messages if m.role == "user"]
    now = [encoder().encode(s.telling) for s in read(users[-1], observation.language).sentences if len(s.content) >= 2]
    best, thread = 0.0, ""
    for text in users[:-LINK_BACK] if now else ():
        for s in read(text, observation.language).sentences:
            likeness = max(float(v @ encoder().encode(s.telling)) for v in now)
            if len(s.content) >= 2 and likeness > best:
                new = [p for p in noun_phrases(s.text, observation.language) if p.lower() not in users[-1].lower()]
                best, thread = (likeness, new[0]) if new else (best, thread)
    return thread


def feeling_move(listener: Listener, heard: Heard, sure: float = SURE, k: int = 0) -> str:
    """Answer the feeling in a sentence: name it where it was voiced, sense it where it is plain, else let it be."""
    if heard.named:
        bright = CLUSTER_OF[heard.named[0]] == "bright"
        return listener.say("bright" if bright else "name", heard, heard.named[0], k=k)
    if heard.confidence >= sure:
        return listener.say("unspoken", heard, heard.sensed, k=k)
    return listener.say("validate", heard, k=k)


class Skilled:
    """Listens, understands, ties threads, and hands back the choice.

    Args:
        seed: Seed for the order of its phrases.
    """

    id = "skilled"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    async def respond(self, observation: Observation) -> str:
        """Return a sentence for each thing that was told, by its kind, and a thread to what belongs with it."""
        listener = Listener.of(observation, self.seed)
        if not listener.heard:
            return listener.say("lean", Heard("", (), "fact", {}, (), "", 0.0, 0.0))
        parts = [_answer(listener, heard, k) for k, heard in enumerate(listener.heard[:ANSWERED])]
        if listener.earlier:
            seen = max(listener.heard, key=lambda h: h.certainty["fact"])
            parts.append(listener.say("link", seen, spare=True))
        return " ".join(parts)


def _answer(listener: Listener, heard: Heard, k: int) -> str:
    """Answer one thing by what it is: a feeling, a wish, a belief, a strength, or what happened."""
    sure = heard.certainty
    if heard.named:
        return feeling_move(listener, heard, k=k)
    if sure["wish"] > WISH:
        return listener.say("empower", heard, k=k)
    if sure["belief"] > BELIEF:
        return listener.say("reframe", heard, k=k)
    if sure["strength"] > STRENGTH:
        return listener.say("affirm", heard, k=k)
    if heard.stirred >= STIRRED:
        return feeling_move(listener, heard, k=k)
    return listener.say("ask" if listener.turn % 2 else "reflect", heard, k=k)
