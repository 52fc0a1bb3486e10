"""The rubric's behavioural anchors, and which of them a sentence shows.

Echo-N1 section 4.3.2: first evidence, then behavioural anchors, then numbers by fixed rules. The anchors are data
(`sim_profiles/rubrics/`). Which act a sentence performs is told by a ridge regression, fitted at load on the rubric's
own examples, from its vector, its common turns of phrase, and the anchors' cues.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from echo_env.agents.embedded import chinese
from echo_env.agents.embedded.encoders import SCALES, Encoder, Scale, encoder_of
from echo_env.agents.embedded.language import Vec, lexicon, plain, words
from echo_env.errors import ScenarioError
from echo_env.rubrics import read_rubric, rubric_path
from echo_env.types import Axis, Record

FALSE_ALARMS = {"prog": 0.14, "neg": 0.01}
"""Share of the rubric's other sentences that may pass for an act, by direction. Generous for good acts, which count
only where they meet a thing of their kind; strict for harm, where doubt speaks for the reply, and for advice."""
HARM_ALARMS = 0.02
"""Share of the rubric's harmless sentences that may pass for harm of whichever kind."""
CUE_WEIGHT = 0.5
"""Size of a cue among the features, beside a vector of length 1."""
RIDGE = 4.0
TURNS = 600
"""How many turns of phrase are features: the commonest of the rubric."""


class Anchor(Record):
    """One behaviour and the level it stands for."""

    id: str
    axis: Axis
    direction: Literal["prog", "neg"]
    level: Annotated[int, Field(ge=-2, le=2)]
    found_by: Literal["act", "ledger", "form"]
    grounding: Literal["story", "feeling", "belief", "strength", "wish", "none"] = "none"
    looks_like: str
    cues: tuple[str, ...] = ()
    denied_by: tuple[str, ...] = ()
    """Patterns of a sentence that denies the act; idioms such as "no wonder" deny nothing."""
    for_: Annotated[tuple[str, ...], Field(alias="for")]
    against: tuple[str, ...] = ()


class Rubric(Record):
    """A versioned set of anchors."""

    id: str
    language: str
    anchors: tuple[Anchor, ...]
    neutral: tuple[str, ...] = ()
    """Sentences that show none of the acts."""


@lru_cache(maxsize=8)
def rubric(name: str) -> Rubric:
    """Load a rubric by id.

    Raises:
        ScenarioError: There is no such rubric, or it is malformed.
    """
    try:
        return Rubric.model_validate(read_rubric(name))
    except ValueError as e:
        raise ScenarioError(f"{rubric_path(name)}: {e}") from None


@lru_cache(maxsize=8)
def anchors_of(name: str) -> dict[str, Anchor]:
    """Return a rubric's anchors by id."""
    return {a.id: a for a in rubric(name).anchors}


def can_hurt(anchor: Anchor) -> bool:
    """Whether an act can count against a reply: harm, and advice, which may come too early."""
    return anchor.level < 0 or anchor.id == "P.prog.1.advises"


def rubric_for(name: str, language: str) -> str:
    """Return the id of a rubric in a language: the same anchors, with examples of its own (`epm_v1_zh`)."""
    return name if language == "en" else f"{name}_{language}"


class Cues:
    """Finds which anchors' cues occur in a sentence.

    Looking for a hundred patterns at every position of a sentence costs more than all the rest of judging it. Nearly
    all of them begin with a known word: those are tried only where that word stands.
    """

    def __init__(self, acts: tuple[Anchor, ...]) -> None:
        self._harm = [can_hurt(anchor) for anchor in acts]
        by_word: dict[str, dict[int, list[str]]] = {}
        self._anywhere: list[tuple[int, re.Pattern[str]]] = []
        for k, anchor in enumerate(acts):
            for cue in (part for joined in anchor.cues for part in _alternatives(joined)):
                firsts = _first_words(cue)
                for word in firsts:
                    by_word.setdefault(word, {}).setdefault(k, []).append(f"(?:{cue})")
                if not firsts:
                    self._anywhere.append((k, re.compile(cue)))
        self._by_word = {word: _together(found) for word, found in by_word.items()}
        self._any = re.compile("|".join(f"(?:{pattern.pattern})" for _, pattern in self._anywhere) or r"(?!)")

    def found(self, text: str) -> set[int]:
        """Return the indices of the anchors one of whose cues occurs in a lower-cased text."""
        hits: set[int] = set()
        if self._any.search(text):
            hits = {k for k, pattern in self._anywhere if pattern.search(text)}
        for token in _TOKEN.finditer(text):
            any_of, each = self._by_word.get(token.group(), _NO_CUES)
            if any_of is None or not any_of.match(text, token.start()):
                continue
            for k, pattern in each:
                if k in hits or not pattern.match(text, token.start()):
                    continue
                if not (self._harm[k] and _DENIED.search(text[: token.start()])):
                    hits.add(k)
        return hits


_DENIED = re.compile(r"(\bnot|n't|\bnever|\bwithout|\bno reason to) (?:\w+ ){0,4}$")
"""A denial shortly before a harmful cue: "I don't think you should give up"."""
_DISOWNED = re.compile(r"(i|we)( do not|'d never| don't| won't| wouldn't| can't| will not| would not)\b")
"""How a speaker begins who says what they will not say: "I won't tell you what you must do". On axis C it may be the
harm itself: "I don't think it happened like that"."""
_TOKEN = re.compile(r"[a-z]+?(?=n't)|[a-z]+")
_FIRST = re.compile(r"([a-z]+?(?=n't)|[a-z]+(?![\[a-z]))(\?)?(?![*+{])")


_SUFFIXED = re.compile(r"([a-z]+)\(([a-z|]+)\)(\?)?")


def _first_words(cue: str) -> set[str]:
    """Return the words with which a match of a cue can begin; empty where that cannot be told."""
    if not cue.startswith(r"\b"):
        return set()
    rest = cue[2:]
    options = [rest]
    if rest.startswith("("):
        end = next(i for i in range(len(rest)) if rest[: i + 1].count("(") == rest[: i + 1].count(")"))
        if rest[end + 1 : end + 2] in ("?", "*"):
            return set()
        options = _alternatives(rest[1:end])
    words: set[str] = set()
    for option in options:
        whole, first = _SUFFIXED.match(option), _FIRST.match(option)
        if whole is not None:  # "play(ing)?" begins two words
            words |= {whole.group(1) + end for end in whole.group(2).split("|")}
            words |= {whole.group(1)} if whole.group(3) else set()
        elif first is None or re.match(r"\((?:[^()]*\|)?[a-z]", option[first.end() :]):
            return set()
        else:
            words |= {first.group(1), first.group(1)[:-1]} if first.group(2) else {first.group(1)}
    return words


_Together = tuple[re.Pattern[str] | None, tuple[tuple[int, re.Pattern[str]], ...]]
_NO_CUES: _Together = (None, ())


def _together(found: dict[int, list[str]]) -> _Together:
    """Compile the cues that begin with one word: all of them in one pattern, and those of each anchor."""
    each = tuple((k, re.compile("|".join(cues))) for k, cues in found.items())
    return re.compile("|".join(cue for cues in found.values() for cue in cues)), each


def _alternatives(cue: str) -> list[str]:
    """Split a pattern at the bars that stand outside all brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(cue):
        depth += (char in "([") - (char in ")]")
        if char == "|" and depth == 0:
            parts.append(cue[start:i])
            start = i + 1
    return [*parts, cue[start:]]


@dataclass(frozen=True, slots=True)
class Reader:
    """Tells acts: the fitted half of a rubric."""

    acts: tuple[Anchor, ...]
    cues: Cues
    turns: dict[str, int]
    """Common turns of phrase, numbered."""
    weights: Vec
    """Shape (features, acts): the vector's dimensions, a constant, the cues, the turns of phrase."""
    thresholds: tuple[float, ...]
    """Least score for each act to be shown."""
    denials: dict[str, re.Pattern[str]]
    """What denies an act, by anchor."""
    harm_least: float
    """Least sum of the scores of all harms for the likeliest of them to be shown."""
    encoder: Encoder
    scale: Scale

    def shown(self, text: str, blanked: list[str]) -> dict[str, float]:
        """Return the acts that a sentence shows, with their scores.

        Args:
            text: The sentence.
            blanked: Its words with the story's words blanked ("_"): what is compared is how it speaks, not of what.

        Returns:
            Anchor id -> score.
        """
        lowered = plain(text)
        vector, rows, sizes, cued = self._features(lowered, blanked)
        scores = vector @ self.weights[: len(vector)] + sizes @ self.weights.take(rows, axis=0)
        found = self._decided(
            scores.tolist(), cued, (_DISOWNED.match(lowered) or chinese.DISOWNED.match(lowered)) is not None
        )
        return {act: score for act, score in found.items() if not self.denied(act, lowered)}

    def denied(self, act: str, lowered: str) -> bool:
        """Whether a lower-cased sentence denies an act."""
        pattern = self.denials.get(act)
        return pattern is not None and pattern.search(lowered) is not None

    def _decided(self, scores: list[float], cued: set[int], disowned: bool) -> dict[str, float]:
        found, harm, likeliest, most = {}, 0.0, "", 0.0
        for k, (anchor, score, least) in enumerate(zip(self.acts, scores, self.thresholds, strict=True)):
            if anchor.level < 0:
                harm += score
                if score > most:
                    likeliest, most = anchor.id, score
            if k in cued:
                least = min(self.scale.cued_least, least)
            elif score < least or (disowned and can_hurt(anchor) and anchor.axis != "C"):
                continue
            if score >= least:
                found[anchor.id] = score
        if harm >= self.harm_least and likeliest and not disowned:
            found.setdefault(likeliest, most)
        return found

    def _features(self, lowered: str, blanked: list[str]) -> tuple[Vec, list[int], Vec, set[int]]:
        """Return the sentence's vector; the rows and sizes of its other features; and the cued acts."""
        cued = self.cues.found(lowered)
        question = lowered.rstrip().endswith(("?", "\uff1f"))
        turns = [self.turns[t] for t in turns_of_phrase(blanked, question) if t in self.turns]
        constant = self.encoder.dim
        rows = [constant, *[constant + 1 + k for k in cued], *turns]
        sizes = np.full(len(rows), CUE_WEIGHT, dtype=np.float32)
        if turns:
            sizes[-len(turns) :] = 1.0 / math.sqrt(len(turns))
        return self.encoder.encode([w for w in blanked if w != "_"]), rows, sizes, cued


def turns_of_phrase(blanked: list[str], question: bool) -> set[str]:
    """Return a sentence's words, pairs of neighbours, and pairs with one word between; its ends count as words."""
    run = ["^", *blanked, "?" if question else "."]
    apart = zip(run, run[2:], strict=False)
    return {*run[1:], *map(" ".join, pairwise(run)), *map(" * ".join, apart)}


@dataclass(frozen=True, slots=True)
class Fit:
    """A reader, and how it scores some of its own examples."""

    reader: Reader
    shown: NDArray[np.bool_]
    """Whether an example shows an act, shape (sampled examples, acts)."""
    unseen: Vec
    """Its score for each act, as if it had been left out of the fit; the same shape."""


def reader(name: str, encoder: str = "wordllama") -> Reader:
    """Return a rubric's reader, fitted on first use (some 100 ms with static vectors)."""
    return fitted(name, encoder).reader


@lru_cache(maxsize=8)
def fitted(name: str, encoder: str = "wordllama") -> Fit:
    """Fit a rubric's reader, by the rubric's id, once a process."""
    return fit(rubric(name), encoder)


def fit(found: Rubric, encoder: str = "wordllama") -> Fit:
    """Fit a rubric's reader on its examples (some 100 ms with static vectors).

    Examples against an act, and the neutral ones, teach what none of the acts is.

    Raises:
        ScenarioError: There is no such rubric, or it is malformed.
        ConfigError: There is no such encoder, or its weights are not installed.
    """
    acts = tuple(a for a in found.anchors if a.found_by == "act")
    speaker, scale = encoder_of(encoder), SCALES[encoder]
    examples = _examples(found, acts)
    x, blank = _matrix(acts, [text for text, _ in examples], speaker, scale, found.language)
    y = np.array([[1.0 if a.id == owner else 0.0 for a in acts] for _, owner in examples], dtype=np.float32)
    inverse = np.linalg.inv(x.T @ x + RIDGE * np.eye(x.shape[1], dtype=np.float32))
    weights: Vec = inverse @ (x.T @ y)
    x, y = x[:: scale.sampled], y[:: scale.sampled]
    leverage = np.einsum("ij,ij->i", x @ inverse, x)[:, None]
    unseen = (x @ weights - leverage * y) / (1.0 - leverage)
    thresholds = tuple(_threshold(a, unseen[y[:, k] == 0, k], scale.harm_least) for k, a in enumerate(acts))
    harms = [k for k, a in enumerate(acts) if a.level < 0]
    harm_least = float(np.quantile(unseen[:, harms].sum(axis=1)[~y[:, harms].any(axis=1)], 1.0 - HARM_ALARMS))
    denials = {a.id: re.compile("|".join(a.denied_by)) for a in acts if a.denied_by}
    found_reader = Reader(acts, blank.cues, blank.turns, weights, thresholds, denials, harm_least, speaker, scale)
    return Fit(found_reader, y > 0, unseen)


def _matrix(
    acts: tuple[Anchor, ...], texts: list[str], speaker: Encoder, scale: Scale, language: str
) -> tuple[Vec, Reader]:
    """Return the features of a rubric's examples, and a reader without weights that makes them."""
    said = [spoken(text, language) for text in texts]
    asks = ("?", "\uff1f")
    counts = Counter(t for s, text in zip(said, texts, strict=True) for t in turns_of_phrase(s, text.endswith(asks)))
    first = speaker.dim + 1 + len(acts)
    turns = {t: first + k for k, (t, _) in enumerate(counts.most_common(TURNS))}
    speaker.encode_all([[w for w in words if w != "_"] for words in said])  # at once, for encoders that remember
    blank = Reader(acts, Cues(acts), turns, np.zeros((0, 0), dtype=np.float32), (), {}, 0.0, speaker, scale)
    x = np.zeros((len(texts), first + len(turns)), dtype=np.float32)
    for row, blanked, text in zip(x, said, texts, strict=True):
        row[: speaker.dim], rows, sizes, _ = blank._features(re.sub(r"[{}]", "", plain(text)), blanked)
        row[rows] = sizes
    return x, blank


def _threshold(anchor: Anchor, others: Vec, harm_least: float) -> float:
    rate = FALSE_ALARMS["neg" if can_hurt(anchor) else "prog"]
    passed = float(np.quantile(others, 1.0 - rate))
    return passed if anchor.level > 0 else max(passed, harm_least)


def _examples(found: Rubric, acts: tuple[Anchor, ...]) -> list[tuple[str, str]]:
    shown = [(text, a.id) for a in acts for text in a.for_]
    rest = [text for a in acts for text in a.against] + list(found.neutral)
    rest += [text for a in found.anchors if a.found_by == "ledger" and a.level > 0 for text in a.for_]
    return shown + [(text, "") for text in rest]


def spoken(text: str, language: str = "en") -> list[str]:
    """The words of an example with the story's words, in braces, and feelings blanked, as `Ledger.skeleton` does."""
    out: list[str] = []
    feeling_of = lexicon(language).feeling_of
    for part in _SLOT.split(plain(text)):
        for word in (part,) if part.startswith("{") else words(part, language):
            if not word.startswith("{") and word not in feeling_of:
                out.append(word)
            elif not out or out[-1] != "_":
                out.append("_")
    return out


_SLOT = re.compile(r"(\{[^}]*\})")
