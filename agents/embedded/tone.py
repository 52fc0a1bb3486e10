"""How a text speaks: like a person in a chat, or like an assistant. And whether it speaks at all.

A linear reading of words, word pairs and a few measures (length of words, contractions, abstract endings ...), fitted
at load on the phrases of `sim_profiles/humanlike/en.yaml`. Words of content are blanked in pairs, so that what is
learned is a way of speaking and not a subject. Beside it, the order of words: how much more often than by chance the
kinds of words follow each other as they do here; words drawn at random come out at 0 or below.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from echo_env.agents.embedded.language import Reading, Sentence, read
from echo_env.profiles import data_root
from echo_env.yamlfiles import read_yaml

RIDGE = 3.0
"""Weight of the penalty, on counts a sentence."""
SMOOTHING = 0.5
"""Added to every count of a pair of kinds of words."""
_SLOT = re.compile(r"\{\w+\}")
_ENDINGS = ("ing", "ed", "ly", "tion", "ness", "ment", "ity", "s")
_ABSTRACT = re.compile(r"(tion|ment|ness|ity|ance|ence|ship|ful|ive|ible|able|ing)s?$")
_CONTRACTION = re.compile(r"'(s|re|m|ve|ll|d|t)$")


@dataclass(frozen=True, slots=True)
class Tone:
    """A fitted reading."""

    place_of: dict[str, int]
    weights: NDArray[np.float64]
    """Of the signs, then of the measures, shape (signs + measures,)."""
    offset: float
    center: NDArray[np.float64]
    """Mean of each measure over the phrases."""
    scale: NDArray[np.float64]
    pairs: dict[tuple[str, str], float]
    """Of two kinds of words in a row: log of how much more often than by chance."""
    unseen: float
    """The same of a pair that the phrases never have."""

    def humanlike(self, reading: Reading) -> float:
        """Return how a text speaks: above 0 like a person, below like an assistant; about -1 to 1."""
        row = np.concatenate([_counts(reading, self.place_of), (measures(reading) - self.center) / self.scale])
        return float(row @ self.weights) + self.offset

    def order(self, reading: Reading) -> float:
        """Return how far the order of words is that of speech: about 0.5 and more, 0 for words in random order."""
        found = [self.pairs.get(pair, self.unseen) for s in reading.sentences for pair in pairwise(_kinds(s))]
        return sum(found) / len(found) if found else 0.0


def measures(reading: Reading) -> NDArray[np.float64]:
    """Return what can be counted in a text apart from its words, shape (6,)."""
    words = reading.words or ("",)
    n, sentences = len(words), max(1, len(reading.sentences))
    return np.array(
        [
            sum(map(len, words)) / n,
            sum(bool(_CONTRACTION.search(w)) for w in words) / n,
            sum(len(w) > 5 and bool(_ABSTRACT.search(w)) for w in words) / n,
            reading.text.count("!") / sentences,
            min(1.0, reading.text.count("?") / sentences),
            reading.text.count(",") / n,
        ]
    )


def _signs(sentence: Sentence) -> list[str]:
    blanked = ["^", *("*" if stem else w for w, stem in zip(sentence.words, sentence.stems, strict=True)), "$"]
    plain = [f"{a} {b}" for a, b in pairwise(["^", *sentence.words])]
    triples = [" ".join(blanked[i : i + 3]) for i in range(len(blanked) - 2)]
    return [*sentence.words, *plain, *(f"{a} {b}" for a, b in pairwise(blanked)), *triples]


def _counts(reading: Reading, place_of: dict[str, int]) -> NDArray[np.float64]:
    row = np.zeros(len(place_of))
    for s in reading.sentences:
        for sign in set(_signs(s)):
            if sign in place_of:
                row[place_of[sign]] += 1
    return row / math.sqrt(max(1, len(reading.sentences)))


def _kinds(sentence: Sentence) -> list[str]:
    """Return the kind of each word: itself where it is a function word, else its ending."""
    kinds = [
        next((f"-{e}" for e in _ENDINGS if w.endswith(e)), "-") if stem else w
        for w, stem in zip(sentence.words, sentence.stems, strict=True)
    ]
    return ["^", *kinds, "$"]


def _order(sentences: Iterable[Sentence]) -> tuple[dict[tuple[str, str], float], float]:
    rows = [_kinds(s) for s in sentences]
    singles = Counter(k for row in rows for k in row)
    total = sum(singles.values())
    pairs = Counter(p for row in rows for p in pairwise(row))
    found = {}
    for (a, b), n in pairs.items():
        expected = singles[a] * singles[b] / total
        found[a, b] = math.log((n + SMOOTHING) / (expected + SMOOTHING))
    return found, math.log(SMOOTHING / (SMOOTHING + 1.0))


@lru_cache(maxsize=1)
def tone() -> Tone:
    """Fit the reading, once a process."""
    folder = data_root()
    data = read_yaml(folder / "humanlike" / "en.yaml")
    manner = read_yaml(folder / "reactions" / "manner.yaml")
    voices = read_yaml(folder / "voices" / "en.yaml")
    said = [(side, read(text)) for side in ("human", "machine") for text in data[side]]
    banks = [*manner["cold"].values(), *manner["warm"].values()]
    banks += [bank for register in voices.values() if isinstance(register, dict) for bank in register.values()]
    others = [s for bank in banks for text in bank for s in read(_SLOT.sub("it", text)).sentences]
    texts = [reading for _, reading in said]
    counts = Counter(sign for r in texts for sign in {g for s in r.sentences for g in _signs(s)})
    place_of = {sign: k for k, sign in enumerate(s for s, n in counts.items() if n > 1)}
    human = np.array([side == "human" for side, _ in said])
    raw = np.stack([measures(r) for r in texts])
    center, scale = raw.mean(axis=0), raw.std(axis=0) + 1e-9
    x = np.concatenate([np.stack([_counts(r, place_of) for r in texts]), (raw - center) / scale], axis=1)
    weights, offset = _fit(x, human)
    pairs, unseen = _order([*(s for r in texts for s in r.sentences), *others])
    return Tone(place_of, weights, offset, center, scale, pairs, unseen)


def _fit(x: NDArray[np.float64], human: NDArray[np.bool_]) -> tuple[NDArray[np.float64], float]:
    """Ridge regression on +1 and -1 in its dual form, both sides weighing the same."""
    share = np.where(human, 0.5 / human.mean(), 0.5 / (~human).mean())
    y = np.where(human, 1.0, -1.0)
    rows = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    weights = rows.T @ np.linalg.solve(rows @ rows.T + RIDGE * np.diag(1 / share), y)
    return weights[:-1], float(weights[-1])
