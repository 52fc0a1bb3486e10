"""The reference companion that listens well: a hand-written policy that reads the observation and nothing else.

Each turn it answers what was just said: a feeling, a view or a thread to something told earlier, and a strength or a
wish. Its phrases are data (`sim_profiles/voices/companion_*.yaml`), written without sight of the rubric; each serves
at most once in forty turns. The same moves are the strategies of `echo/Strategy-v0`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple, Self

from echo_env.agents.embedded.encoders import encoder_for, encoder_of
from echo_env.agents.embedded.language import called, joined, read, read_sentence
from echo_env.agents.embedded.listening import Heard, heard, noun_phrases, points
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
STRENGTH = 0.2
"""Certainty from which a sentence is answered as a strength."""
STIRRED = 0.45
"""Score from which a sentence that names no feeling is answered as one that holds some."""
MOST = 5
"""Sentences of a reply at most."""
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
    def of(cls, observation: Observation, seed: int = 0) -> Self:
        """Listen to a conversation."""
        return replace(cls.to_newest(observation, seed), earlier=_thread(observation))

    @classmethod
    def to_newest(cls, observation: Observation, seed: int = 0) -> Self:
        """Listen without looking for a thread: `earlier` is empty."""
        told = [_recalled(h, observation) for h in heard(observation.user, observation.language)]
        return cls(observation, tuple(told), "", seed)

    def say(self, move: Move, heard: Heard, feeling: str = "", spare: bool = False, k: int = 0) -> str:
        """Put a move into words.

        Args:
            move: What to do.
            heard: The sentence it is about.
            feeling: The feeling to name, for "name", "unspoken" and "bright".
            spare: Take the sentence's second noun phrase, where it has one.
            k: How many times this turn has used the move before, or more.
        """
        it, feeling = self.noun(heard, spare), called(feeling, self.observation.language, heard.text)
        text = self.phrase(move, k).format(it=it, feeling=feeling, Feeling=feeling.capitalize(), earlier=self.earlier)
        return text[:1].upper() + text[1:]

    def noun(self, heard: Heard, spare: bool = False) -> str:
        """Return the noun phrase by which a sentence is taken up; `spare`: its second, where it has one."""
        language = self.observation.language
        said = "what you said" if language == "en" else "你说的这些"
        found = heard.phrases or tuple(noun_phrases(self.observation.user, language)) or (said,)
        return _pointing(found, spare, language)

    def phrase(self, move: Move, k: int) -> str:
        """Return the phrase of a move that is due, with its slots; `k` as for `say`."""
        bank = list(phrases(self.observation.language)[move])
        random.Random(f"{self.seed}:{move}:{self.observation.messages[0].text}").shuffle(bank)
        return bank[(self.turn + k * (len(bank) // 2)) % len(bank)]


def _pointing(found: tuple[str, ...], spare: bool, language: str) -> str:
    """Pick a phrase that points at one thing, or two phrases that do so together."""
    usable = [p for p in found if points(p, language)] or [(" and " if language == "en" else "和").join(found[:2])]
    return usable[1] if spare and len(usable) > 1 else usable[0]


def _recalled(now: Heard, observation: Observation) -> Heard:
    """Hear a sentence that comes back to something told before as what was told then."""
    content = read_sentence(now.text, observation.language).content
    for message in observation.messages[-3::-2]:
        for earlier in heard(message.text, observation.language):
            shared = content & read_sentence(earlier.text, observation.language).content
            if len(shared) >= 2 and len(shared) >= 0.5 * len(content):
                return replace(earlier, phrases=now.phrases)
    return now


def _thread(observation: Observation) -> str:
    """Find what was told earlier and belongs with the newest message: the likest sentence of some turns back."""
    users = [m.text for m in observation.messages if m.role == "user"]
    language = observation.language
    speaker = encoder_of(encoder_for(language))
    now = [speaker.encode(s.telling) for s in read(users[-1], language).sentences if len(s.content) >= 2]
    best, thread = 0.0, ""
    for text in users[:-LINK_BACK] if now else ():
        for s in read(text, language).sentences:
            if len(s.content) < 2:
                continue
            vector = speaker.encode(s.telling)
            likeness = max(float(v @ vector) for v in now)
            if likeness > best:
                old = [
                    p
                    for p in noun_phrases(s.text, language)
                    if p.strip("\u201c\u201d").lower() not in users[-1].lower()
                ]
                new = sorted(old, key=lambda p: points(p, language), reverse=True)
                best, thread = (likeness, new[0]) if new else (best, thread)
    return thread


class Answer(NamedTuple):
    """A sentence to be said: the arguments of `Listener.say`."""

    move: Move
    heard: Heard
    feeling: str = ""
    spare: bool = False
    k: int = 0


def feeling_move(listener: Listener, heard: Heard, sure: float = SURE) -> str:
    """Answer the feeling in a sentence: name it where it was voiced, sense it where it is plain, else let it be."""
    return listener.say(*feeling_answer(heard, sure))


def feeling_answer(heard: Heard, sure: float = SURE, k: int = 0) -> Answer:
    """Return how the feeling in a sentence is answered: the arguments as for `feeling_move`."""
    if heard.named:
        bright = CLUSTER_OF[heard.named[0]] == "bright"
        return Answer("bright" if bright else "name", heard, heard.named[0], k=k)
    if heard.confidence >= sure:
        return Answer("unspoken", heard, heard.sensed, k=k)
    return Answer("validate", heard, k=k)


class Skilled:
    """Listens, understands, ties threads, and hands back the choice.

    Args:
        seed: Seed for the order of its phrases.
    """

    id = "skilled"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    async def respond(self, observation: Observation) -> str:
        """Return up to five sentences: for what is felt, wanted, believed, can be done, and what belongs with it."""
        listener = Listener.of(observation, self.seed)
        told = answers(listener)
        if listener.earlier and listener.heard:
            told.append(thread(listener, spare=True))
        return joined([listener.say(*answer) for answer in told[:MOST] or [otherwise(listener)]], observation.language)


def answers(listener: Listener) -> list[Answer]:
    """Answer what was told by what it is: feelings first, then wishes, beliefs and strengths; to silence, lean in."""
    heard = listener.heard
    if not heard:
        return [Answer("lean", Heard("", (), "fact", {}, (), "", 0.0, 0.0))]
    parts = [feeling_answer(h, k=k) for k, h in enumerate(h for h in heard if h.named)]
    stirred = max((h for h in heard if not h.named), key=lambda h: h.stirred, default=None)
    if stirred is not None and stirred.stirred >= STIRRED and stirred.kind not in ("wish", "strength"):
        parts.append(feeling_answer(stirred, k=len(parts)))
    for kind, move, least in _CALLED_FOR:
        about = [h for h in heard if h.certainty[kind] > least]
        parts += [Answer(move, h, spare=True, k=k) for k, h in enumerate(about)]
    return parts


def thread(listener: Listener, spare: bool = False) -> Answer:
    """Tie the newest message to `listener.earlier`."""
    return Answer("link", max(listener.heard, key=lambda h: h.certainty["fact"]), spare=spare)


def otherwise(listener: Listener) -> Answer:
    """Where nothing calls for an answer of its own, ask and reflect in turn."""
    return Answer("ask" if listener.turn % 2 else "reflect", listener.heard[0])


_CALLED_FOR: tuple[tuple[str, Move, float], ...] = (
    ("wish", "empower", WISH),
    ("belief", "reframe", BELIEF),
    ("strength", "affirm", STRENGTH),
)
"""Kind of thing, the move that it calls for, and the certainty from which it gets it."""
