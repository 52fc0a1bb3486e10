"""How a reply speaks, apart from what it speaks about: a linear reading of words and word pairs.

Fitted at load on the phrases of `sim_profiles/reactions/manner.yaml`, which is nobody's story; the judge's reading has
other examples and another form, so that the two can disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from echo_env.agents.embedded.language import Sentence, read
from echo_env.profiles import data_root
from echo_env.yamlfiles import read_yaml

RIDGE = 1.0
"""Weight of the penalty, on unit counts."""


@dataclass(frozen=True, slots=True)
class Manner:
    """A fitted reading."""

    warmth_of: dict[str, float]
    """What a word or a pair of words says for warmth."""
    offset: float
    kinds: tuple[str, ...]
    """The cold manners."""
    kinds_of: dict[str, tuple[float, ...]]
    """What a word or a pair says for each cold manner."""

    def warmth(self, sentence: Sentence, story: frozenset[str]) -> float:
        """Return how warmly a sentence speaks, about -1 to +1, words of the person's story left out."""
        get = self.warmth_of.get
        return self.offset + sum([get(g, 0.0) for g in _grams(_plain_words(sentence, story))])

    def coldest(self, sentences: tuple[Sentence, ...], story: frozenset[str]) -> str:
        """Return the cold manner that a reply comes nearest to."""
        totals = [0.0] * len(self.kinds)
        for sentence in sentences:
            for gram in _grams(_plain_words(sentence, story)):
                for k, weight in enumerate(self.kinds_of.get(gram, ())):
                    totals[k] += weight
        return self.kinds[max(range(len(totals)), key=totals.__getitem__)]


def _plain_words(sentence: Sentence, story: frozenset[str]) -> list[str]:
    return [w for w, s in zip(sentence.words, sentence.stems, strict=True) if not s or s not in story]


def _grams(words: list[str]) -> list[str]:
    return [*words, *[f"{a} {b}" for a, b in pairwise(["^", *words, "$"])]]


@lru_cache(maxsize=2)
def manner(language: str = "en") -> Manner:
    """Fit the reading, once a process (about 0.1 s)."""
    data = read_yaml(data_root() / "reactions" / "manner.yaml")
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
    return Manner(
        warmth_of={g: float(weights[k, 0]) for g, k in grams.items()},
        offset=float(weights[-1, 0]),
        kinds=kinds,
        kinds_of={g: tuple(float(v) for v in weights[k, 1:]) for g, k in grams.items()},
    )
