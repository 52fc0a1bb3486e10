"""How a reply speaks, apart from what it speaks about: a linear reading of words and word pairs.

Fitted at load on the phrases of `sim_profiles/reactions/manner.yaml`, which is nobody's story; the judge's reading has
other examples and another form, so that the two can disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from echo_env.agents.embedded.cues import reactions
from echo_env.agents.embedded.language import Sentence, read

RIDGE = 1.0
"""Weight of the penalty, on unit counts."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a reply's manner comes to."""

    warmth: float
    """About -1 to +1, the mean over its sentences."""
    signs: tuple[int, ...]
    """The words and pairs of words in it that the reading knows."""


@dataclass(frozen=True, slots=True)
class Manner:
    """A fitted reading."""

    word_of: dict[str, int]
    """A word -> its place in the weights."""
    pair_of: dict[str, dict[str, int]]
    """A word and the next one -> the pair's place; "^" and "$" stand at the ends of a sentence."""
    warmth_of: list[float]
    """What each says for warmth."""
    offset: float
    kinds: tuple[str, ...]
    """The cold manners."""
    weights: NDArray[np.float64]
    """What each says for each of them, shape (signs, kinds)."""

    def hear(self, sentences: tuple[Sentence, ...], story: frozenset[str]) -> Heard:
        """Hear how a reply speaks, words of the person's story left out."""
        signs: list[int] = []
        for s in sentences:
            words = [w for w, stem in zip(s.words, s.stems, strict=True) if not stem or stem not in story]
            signs += [self.word_of[w] for w in words if w in self.word_of]
            follows = self.pair_of["^"]
            for w in (*words, "$"):
                if w in follows:
                    signs.append(follows[w])
                follows = self.pair_of.get(w, _NOTHING)
        warmth = self.offset + sum([self.warmth_of[k] for k in signs]) / len(sentences)
        return Heard(warmth, tuple(signs))

    def coldest(self, heard: Heard) -> str:
        """Return the cold manner that a reply comes nearest to."""
        return self.kinds[int(self.weights[list(heard.signs)].sum(axis=0).argmax())]


_NOTHING: dict[str, int] = {}


def _grams(words: list[str]) -> list[str]:
    return [*words, *[f"{a} {b}" for a, b in pairwise(["^", *words, "$"])]]


@lru_cache(maxsize=2)
def manner(language: str = "en") -> Manner:
    """Fit the reading, once a process (about 0.1 s)."""
    data = reactions("manner", language)
    rows = [
        (side, kind, _grams(list(s.words)))
        for side in ("cold", "warm")
        for kind, phrases in data[side].items()
        for phrase in phrases
        for s in read(phrase, language).sentences
    ]
    grams = {g: k for k, g in enumerate(dict.fromkeys(g for *_, found in rows for g in found))}
    x = np.zeros((len(rows), len(grams) + 1))
    x[:, -1] = 1.0
    for r, (_, _, found) in enumerate(rows):
        x[r, [grams[g] for g in found]] = 1.0
    warm = np.array([side == "warm" for side, *_ in rows])
    share = np.where(warm, 0.5 / warm.mean(), 0.5 / (~warm).mean())  # both sides weigh the same
    kinds = tuple(data["cold"])
    targets = np.stack([np.where(warm, 1.0, -1.0), *[[float(kind == k) for _, kind, _ in rows] for k in kinds]], axis=1)
    # ridge regression in its dual form: fewer phrases than words
    weights = x.T @ np.linalg.solve(x @ x.T + RIDGE * np.diag(1 / share), targets)
    pairs: dict[str, dict[str, int]] = {}
    for gram, k in grams.items():
        first, _, second = gram.partition(" ")
        if second:
            pairs.setdefault(first, {})[second] = k
    return Manner(
        word_of={g: k for g, k in grams.items() if " " not in g},
        pair_of=pairs,
        warmth_of=[float(w) for w in weights[:-1, 0]],
        offset=float(weights[-1, 0]),
        kinds=kinds,
        weights=weights[:-1, 1:],
    )
