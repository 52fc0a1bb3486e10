"""Can a classifier tell two crowds of speakers apart? A classifier two-sample test, grouped by conversation.

An area under the curve of 0.5 means that it cannot; 1.0, that it always can. The test says that two corpora differ, not
how: topics, spelling and platform count as much as manners. That is why it comes in four views, of which each leaves
more of the words out, and why a figure needs the yardstick of two crowds of people beside it.
"""

from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from echo_env.errors import ConfigError, missing_extra
from echo_env.profiles import data_root
from echo_env.realism import Conversation, sentences, units
from echo_env.types import Record
from echo_env.yamlfiles import read_yaml

View = Literal["characters", "words", "function", "shape"]
VIEWS: tuple[View, ...] = get_args(View)
"""What the classifier sees of a message: everything, as character n-grams; its first `CUT` words without capitals and
signs, of messages that have so many; the same with every word of content masked; or only its shape, which no language
enters: counts of sentences and signs, relative length, words shared with earlier messages."""
CUT = 12
"""Words to which the views "words" and "function" cut a message; shorter ones are left out: length tells nothing."""
MOST_TURNS = 12
"""Messages taken of each conversation, from its start."""
FOLDS = 5


class TwoSample(Record):
    """How well one crowd is told from another."""

    view: View
    auc: float
    """Of single messages, out of fold."""
    low: float
    """95 % interval, bootstrap over conversations."""
    high: float
    auc_talks: float
    """Of whole conversations, by the mean score of their messages."""
    messages: tuple[int, int]
    talks: tuple[int, int]


def two_sample(
    a: Sequence[Conversation], b: Sequence[Conversation], view: View, seed: int = 0, draws: int = 200
) -> TwoSample:
    """Train classifiers to tell `a` from `b`, and measure them on conversations that they have not seen.

    Both sides get the same number of conversations (the larger is drawn from, by the seed). Logistic regression,
    `FOLDS` folds, no conversation in two of them.

    Raises:
        MissingExtra: scikit-learn is not installed.
        ConfigError: One side has fewer than `FOLDS` conversations with a message that the view can use.
    """
    usable = [_usable(side, view) for side in (a, b)]
    size = min(map(len, usable))
    if size < FOLDS:
        raise ConfigError(f"the two-sample test needs {FOLDS} conversations on each side, view '{view}' has {size}")
    sides = [random.Random(f"{seed}:{k}").sample(list(side), size) for k, side in enumerate(usable)]
    talks = [*sides[0], *sides[1]]
    truth = np.array([0] * size + [1] * size)
    folds = _folds(size, seed)
    scores = _out_of_fold(talks, truth, folds, view)
    rnd = random.Random(f"draws:{seed}")
    picks = [[*rnd.choices(range(size), k=size), *rnd.choices(range(size, 2 * size), k=size)] for _ in range(draws)]
    drawn = sorted(_auc([scores[k] for k in pick], truth[pick]) for pick in picks)
    return TwoSample(
        view=view,
        auc=_auc(scores, truth),
        low=drawn[int(0.025 * draws)],
        high=drawn[math.ceil(0.975 * draws) - 1],
        auc_talks=auc([statistics.fmean(s) for s in scores], list(truth)),
        messages=(sum(map(len, sides[0])), sum(map(len, sides[1]))),
        talks=(size, size),
    )


def auc(scores: Sequence[float], truth: Sequence[int]) -> float:
    """Return the area under the curve: the chance that a 1 scores above a 0, ties by half."""
    values = np.asarray(scores)
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values))
    ranks[order] = np.arange(1, len(values) + 1)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    mid = np.bincount(inverse, weights=ranks) / counts  # ties share their mean rank
    ones = np.asarray(truth) == 1
    n1, n0 = int(ones.sum()), int((~ones).sum())
    return float((mid[inverse][ones].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def _auc(scores: Sequence[Sequence[float]], truth: NDArray[np.int64]) -> float:
    flat = [x for talk in scores for x in talk]
    return auc(flat, [int(t) for talk, t in zip(scores, truth, strict=True) for _ in talk])


def _usable(side: Sequence[Conversation], view: View) -> list[list[str]]:
    """The messages that a view can use, conversations without any left out."""
    taken = [list(talk[:MOST_TURNS]) for talk in side]
    if view in ("words", "function"):
        taken = [[m for m in talk if len(units(m)) >= CUT] for talk in taken]
    return [talk for talk in taken if talk]


def _folds(size: int, seed: int) -> NDArray[np.int64]:
    rnd = np.random.default_rng(seed)
    return np.concatenate([rnd.permutation(np.arange(size) % FOLDS) for _ in range(2)])


def _out_of_fold(
    talks: list[list[str]], truth: NDArray[np.int64], folds: NDArray[np.int64], view: View
) -> list[list[float]]:
    inputs = _shapes(talks, truth) if view == "shape" else talks
    scores: list[list[float]] = [[] for _ in talks]
    for fold in range(FOLDS):
        train, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        model = _classifier(view)
        model.fit([x for k in train for x in inputs[k]], [int(truth[k]) for k in train for _ in inputs[k]])
        for k in test:
            scores[k] = [float(s) for s in model.decision_function(inputs[k])]
    return scores


def _classifier(view: View) -> Any:
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        raise missing_extra("scikit-learn", "validate") from None
    if view == "shape":
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=500, class_weight="balanced"))
    if view == "characters":
        grams = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), lowercase=False, sublinear_tf=True, min_df=2)
    else:
        kept = _masked if view == "function" else _cut
        grams = TfidfVectorizer(analyzer=lambda m: _grams(kept(m)), sublinear_tf=True, min_df=2)
    return make_pipeline(grams, LogisticRegression(C=10.0, max_iter=500, class_weight="balanced"))


def _cut(message: str) -> list[str]:
    return units(message)[:CUT]


def _masked(message: str) -> list[str]:
    return [w if w in _function_words() else "_" for w in _cut(message)]


@lru_cache(maxsize=1)
def _function_words() -> frozenset[str]:
    return frozenset(read_yaml(data_root() / "lexicons" / "en.yaml")["stopwords"].split())


def _grams(words: list[str]) -> list[str]:
    return [*words, *(" ".join(pair) for pair in pairwise(words))]


_SIGNS = (
    "?\uff1f",
    "!\uff01",
    ",\uff0c\u3001",
    ":;\uff1a\uff1b",
    "\u2026",
    "-\u2013\u2014",
    "\"\u201c\u201d'\u2018\u2019",
    "0123456789",
)
"""Kinds of signs, with their full-width forms."""
_DOTS = re.compile(r"\.{2,}|\u2026|\u3002{2,}")


def _shapes(talks: list[list[str]], truth: NDArray[np.int64]) -> list[list[list[float]]]:
    """Describe messages without their words; lengths are relative to the median of their own side."""
    typical = [
        statistics.median([len(units(m)) for talk, t in zip(talks, truth, strict=True) if t == side for m in talk])
        for side in (0, 1)
    ]
    return [[_shape(talk, k, typical[t]) for k in range(len(talk))] for talk, t in zip(talks, truth, strict=True)]


def _shape(talk: list[str], k: int, typical: float) -> list[float]:
    message = talk[k]
    said, parts = units(message), sentences(message)
    bag = set(said)
    earlier = [set(units(m)) for m in talk[:k]]
    shared = [len(bag & e) / max(1, len(bag | e)) for e in earlier]
    lengths = [len(units(p)) / max(1.0, typical) for p in parts] or [0.0]
    size = max(1, len(said))
    return [
        math.log((len(said) + 1) / (typical + 1)),
        float(len(parts)),
        max(lengths) - min(lengths),
        lengths[0],
        *(float(any(c in signs for c in message)) for signs in _SIGNS),
        sum(c in _SIGNS[2] for c in message) / size * typical,
        float(bool(_DOTS.search(message))),
        float(message.rstrip()[-1:] in ".\u3002"),
        len(bag) / size,
        shared[-1] if shared else 0.0,
        max(shared, default=0.0),
    ]
