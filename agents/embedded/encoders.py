"""What the embedded judge needs of a sentence encoder, and the encoders there are, by name.

The judge was written over static vectors. Another encoder spreads its likenesses differently, so every bar that a
cosine or a fitted score is held against comes with the encoder, as its `Scale`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from echo_env.agents.embedded.chinese import characters
from echo_env.agents.embedded.language import Vec, encoder
from echo_env.errors import unknown_name

Tokens = tuple[str, ...] | list[str]


@dataclass(frozen=True, slots=True)
class Scale:
    """What likenesses and scores mean under one encoder.

    Those of `wordllama` are the reference. Another encoder's are set by a rule, not by hand: as rare among our own
    texts as the reference's (`benchmarks/likeness.py` states the rule and prints the values).
    """

    alike: float
    """Cosine between content words from which a paraphrase without a shared word refers to a line."""
    hurts: float
    """Cosine from which a sentence that shares two words with what hurts this person says just that."""
    surely_hurts: float
    """The same for a sentence that shares no word with it."""
    harm_least: float
    """Least score of harm that no cue points at."""
    cued_least: float
    """Score that is enough where one of the act's cues occurs."""
    listening: float = 0.6
    """Contingency of a companion that listens, at least: how far its acts go with what was told."""
    sampled: int = 2
    """One in so many of a rubric's examples is scored as if left out, to set the thresholds."""


class Encoder(Protocol):
    """Turns words into vectors of length 1."""

    name: str
    dim: int
    """Width of the vectors."""

    def encode(self, tokens: Tokens) -> Vec:
        """Return the unit vector of a list of words, shape (dim,); zeros where there are none."""
        ...

    def encode_all(self, lists: Sequence[Tokens]) -> list[Vec]:
        """Return the vector of each list, at once where that is faster."""
        ...

    def spans(self, tokens: Tokens, spans: tuple[slice, ...]) -> list[Vec]:
        """Return the unit vector of each span of a list of words; zeros for an empty one."""
        ...


SCALES: dict[str, Scale] = {
    "wordllama": Scale(alike=0.5, hurts=0.62, surely_hurts=0.85, harm_least=0.2, cued_least=0.15),
    "minilm": Scale(
        alike=0.518, hurts=0.573, surely_hurts=0.838, harm_least=0.209, cued_least=0.153, listening=0.565, sampled=1
    ),
    "characters": Scale(
        alike=0.233, hurts=0.309, surely_hurts=0.717, harm_least=0.304, cued_least=0.231, listening=0.589, sampled=1
    ),
}


@lru_cache(maxsize=8)
def encoder_of(name: str) -> Encoder:
    """Return this process's encoder of a name; loaded on first use.

    Raises:
        ConfigError: There is no such encoder, or its weights are not installed.
    """
    if name == "wordllama":
        return encoder()
    if name == "characters":
        return characters()
    if name == "minilm":
        from echo_env.agents.embedded.minilm import MiniLM

        return MiniLM()
    raise unknown_name("encoder", name, SCALES)


def encoder_for(language: str, name: str = "wordllama") -> str:
    """Return the name of the encoder that stands in for another in a language: those for English know no Chinese."""
    return "characters" if language == "zh" else name
