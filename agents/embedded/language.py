"""Reading text: words, sentences, feelings named, and static sentence vectors.

Everything here is a pure function of the text and of `sim_profiles/lexicons/`. Results are cached by text, since the
judge, the actor and the policies read the same sentences.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import snowballstemmer
from numpy.typing import NDArray

from echo_env.agents.embedded import chinese
from echo_env.profiles import data_root
from echo_env.yamlfiles import read_yaml

Vec = NDArray[np.float32]
DIM = 256
"""Width of the sentence vectors."""

_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*", re.UNICODE)
_ENDS = ".!?\u2026\u3002\uff01\uff1f"
"""What ends a sentence, full-width forms included."""
_SENTENCE = re.compile(
    rf"(?:[^{_ENDS}\n]+|[.!?\u2026](?=[^\s{_ENDS}\"\u201d')\]]))+[{_ENDS}]*[\"\u201d')\]]*|[{_ENDS}]+"
)
"""A sentence ends at a stop before white space or the end; "2.50" and "a.m" are inside of one."""
_TITLES = ("Mr.", "Mrs.", "Ms.", "Dr.", "Prof.", "St.")
_SHORT = ("a.m.", "p.m.", "e.g.", "i.e.", " vs.", " etc.")
_OWN_FEELING = re.compile(
    r"\bi(?:'m| am| was| feel| felt|'ve been)\b(?! sure| guessing| wondering| hearing| sensing)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Lexicon:
    """One language's word lists, from `sim_profiles/lexicons/`."""

    language: str
    stopwords: frozenset[str]
    feeling_of: dict[str, str]
    """Single-word form -> feeling."""
    phrase_of: dict[str, str]
    """Forms of several words -> feeling."""
    phrases: re.Pattern[str]
    """Finds any of them."""
    phrase_starts: frozenset[str]
    """Their first words."""
    emotional: frozenset[str]
    """Single words that name feelings, vague ones included."""
    vague: frozenset[str]
    negators: frozenset[str]
    relation_of: dict[str, str]
    determiners: frozenset[str]
    verbs: frozenset[str]
    times: frozenset[str]
    mirror: dict[str, str]
    everyday: frozenset[str]
    """Stems that so many people's stories hold that one of them alone points at nothing."""
    grain: float
    """How many tokens say what one English word says: what is counted in words is counted in so many tokens."""
    word: re.Pattern[str]
    """Finds the tokens of a text."""
    hollow: frozenset[str]
    """Tokens without content, where pairs of characters carry it."""
    says: dict[str, str]
    """How this language calls a feeling or a relation, where not by its English name."""

    def size(self, words: int) -> int:
        """Return how many tokens so many English words come to."""
        return round(words * self.grain)


@lru_cache(maxsize=4)
def lexicon(language: str = "en") -> Lexicon:
    """Load a language's lexicon."""
    data: dict[str, Any] = read_yaml(data_root() / "lexicons" / f"{language}.yaml")
    forms = [(form.lower(), feeling) for feeling, all_forms in data["feelings"].items() for form in all_forms]
    return Lexicon(
        language=language,
        stopwords=frozenset(data["stopwords"].split()),
        feeling_of={form: feeling for form, feeling in forms if " " not in form},
        phrase_of={form: feeling for form, feeling in forms if " " in form},
        phrases=re.compile(r"\b(?:" + "|".join(re.escape(form) for form, _ in forms if " " in form) + r")\b"),
        phrase_starts=frozenset(words(form)[0] for form, _ in forms if " " in form),
        emotional=frozenset(data["vague"]) | {form for form, _ in forms if " " not in form},
        vague=frozenset(data["vague"]),
        negators=frozenset(data["negators"]),
        relation_of={word: relation for relation, words_ in data["relations"].items() for word in words_},
        determiners=frozenset(data["determiners"].split()),
        verbs=frozenset(data["verbs"].split()),
        times=frozenset(data["times"].split()),
        mirror=dict(data["mirror"]),
        everyday=frozenset(map(stem, data["everyday"].split())),
        grain=data.get("grain", 1.0),
        word=_WORD if language != "zh" else chinese.cutter(_known(data)),
        hollow=_hollow(data) if language == "zh" else frozenset(),
        says={}
        if language == "en"
        else {name: all_[0] for name, all_ in (data["feelings"] | data["relations"]).items()},
    )


def _hollow(data: dict[str, Any]) -> frozenset[str]:
    texts = [data[kind] for kind in ("stopwords", "determiners", "times", "words")]
    return frozenset(word for text in texts for word in text.split()) | frozenset(data["negators"])


def _known(data: dict[str, Any]) -> list[str]:
    """Return all words that stand anywhere in a lexicon."""
    lists = [*data["feelings"].values(), *data["relations"].values(), data["vague"], data["negators"], data["mirror"]]
    texts = [data[kind] for kind in ("stopwords", "determiners", "verbs", "times", "words", "whole")]
    return [*(form for forms in lists for form in forms), *(word for text in texts for word in text.split())]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, read."""

    text: str
    words: tuple[str, ...]
    """Lower-case words in order."""
    stems: tuple[str, ...]
    """A stem for each word; empty for words without content."""
    content: frozenset[str]
    """The stems that carry content, feelings aside."""
    telling: tuple[str, ...]
    """The words that have a stem."""
    feelings: frozenset[str]
    """Feelings that the sentence names and does not deny or claim for its speaker."""
    voiced: frozenset[str]
    """Feelings that it names and does not deny, whoever has them: for the user's own sentences."""
    denied: frozenset[str]
    """Feelings that it names in order to deny them."""
    vague: bool
    """Whether it holds a feeling word that names nothing in particular."""
    question: bool
    relations: frozenset[str]
    """People it calls the listener's own: "your brother" -> brother."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A text, read."""

    text: str
    sentences: tuple[Sentence, ...]
    words: tuple[str, ...]
    """All words in order."""
    content: frozenset[str]
    """All content stems."""
    feelings: frozenset[str]
    """All feelings named."""

    @classmethod
    def of(cls, text: str, sentences: tuple[Sentence, ...]) -> Reading:
        """Put sentences together."""
        return cls(
            text,
            sentences,
            tuple([w for s in sentences for w in s.words]),
            frozenset().union(*[s.content for s in sentences]),
            frozenset().union(*[s.feelings for s in sentences]),
        )


_stemmer = snowballstemmer.stemmer("english")


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Return a word's stem (Snowball English), possessive ending removed."""
    return word if word.isdigit() else str(_stemmer.stemWord(word.removesuffix("'s")))


def plain(text: str) -> str:
    """Lower-case a text and make its apostrophes straight, as the lexicon and all cues have them."""
    return text.replace("\u2019", "'").lower()


def words(text: str, language: str = "en") -> tuple[str, ...]:
    """Split a text into lower-case words; apostrophes are made straight."""
    return tuple((_WORD if language == "en" else lexicon(language).word).findall(plain(text)))


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences that hold at least one word; "Dr. Bell" and "9 a.m. sharp" stay whole."""
    found: list[str] = []
    for piece in (s.strip() for s in _SENTENCE.findall(text)):
        if found and (found[-1].endswith(_TITLES) or (found[-1].endswith(_SHORT) and not piece[:1].isupper())):
            found[-1] = f"{found[-1]} {piece}"
        elif _WORD.search(piece):
            found.append(piece)
    return found


@lru_cache(maxsize=1 << 12)
def read_sentence(text: str, language: str = "en") -> Sentence:
    """Read one sentence."""
    lex = lexicon(language)
    if language == "zh":
        return _read_chinese(text, lex)
    tokens = words(text)
    voiced, denied = _feelings(text, tokens, lex)
    # the speaker talks of their own feelings
    own = bool(voiced) and "you" not in tokens and _OWN_FEELING.search(text) is not None
    stems = tuple([content_stem(w, language) for w in tokens])
    content = frozenset(stems) - _EMPTY
    if not lex.emotional.isdisjoint(tokens):
        content -= {s for w, s in zip(tokens, stems, strict=True) if w in lex.emotional}
    return Sentence(
        text=text,
        words=tokens,
        stems=stems,
        telling=tuple([w for w, s in zip(tokens, stems, strict=True) if s]),
        content=content,
        feelings=frozenset() if own else voiced,
        voiced=voiced,
        denied=denied,
        vague=not lex.vague.isdisjoint(tokens),
        question=text.rstrip("\"\u201d')] ").endswith(("?", "\uff1f")),
        relations=_relations(tokens, lex) if "your" in tokens else frozenset(),
    )


def _read_chinese(text: str, lex: Lexicon) -> Sentence:
    """Read one Chinese sentence: a denial, a relation, a pair of characters does not reach over a comma."""
    clauses = [lex.word.findall(part) for part in chinese.CLAUSE.split(plain(text)) if part]
    tokens = tuple([token for clause in clauses for token in clause])
    stems = chinese.stems_of(clauses, lex.hollow, lex.relation_of.keys() | lex.feeling_of.keys())
    stems = tuple([lex.says[lex.relation_of[s]] if s in lex.relation_of else s for s in stems])
    felt = [(lex.feeling_of[w], c[max(0, i - 4) : i]) for c in clauses for i, w in enumerate(c) if w in lex.feeling_of]
    voiced = frozenset(feeling for feeling, before in felt if lex.negators.isdisjoint(before))
    denied = frozenset(feeling for feeling, _ in felt) - voiced
    own = bool(voiced) and chinese.SECOND.isdisjoint(tokens) and chinese.OWN_FEELING.search(text) is not None
    return Sentence(
        text=text,
        words=tokens,
        stems=stems,
        telling=tuple([w for w, s in zip(tokens, stems, strict=True) if s]),
        content=frozenset(stems) - _EMPTY - lex.emotional,
        feelings=frozenset() if own else voiced,
        voiced=voiced,
        denied=denied,
        vague=not lex.vague.isdisjoint(tokens),
        question=chinese.QUESTION.search(text) is not None,
        relations=frozenset(lex.relation_of[w] for w in chinese.owned(tokens) if w in lex.relation_of),
    )


_EMPTY = frozenset({""})


@lru_cache(maxsize=1 << 16)
def content_stem(word: str, language: str) -> str:
    """Return a word's stem; empty for one without content of its own."""
    return "" if len(word) < 2 or word in lexicon(language).stopwords else stem(word)


def _relations(tokens: tuple[str, ...], lex: Lexicon) -> frozenset[str]:
    owned = (w.removesuffix("'s") for before, w in pairwise(tokens) if before == "your")
    return frozenset(lex.relation_of[w] for w in owned if w in lex.relation_of)


_NO_DENIAL = frozenset(
    {"help", "just", "only", "merely", "simply", "wonder", "surprise", "stop", "stopped", "cease", "ceased"}
)
"""Words that turn a negation: "you can't help being", "not just", "no wonder", "never stopped being"."""


def _denies(before: tuple[str, ...], lex: Lexicon) -> bool:
    """Whether the three words before a feeling deny it."""
    return not lex.negators.isdisjoint(before) and _NO_DENIAL.isdisjoint(before)


def _feelings(text: str, tokens: tuple[str, ...], lex: Lexicon) -> tuple[frozenset[str], frozenset[str]]:
    """Feelings that a sentence names, and those that it denies."""
    found = [(lex.feeling_of[w], tokens[max(0, i - 3) : i]) for i, w in enumerate(tokens) if w in lex.feeling_of]
    if not lex.phrase_starts.isdisjoint(tokens):
        lowered = plain(text)
        found += [(lex.phrase_of[m.group()], words(lowered[: m.start()])[-3:]) for m in lex.phrases.finditer(lowered)]
    if not found:
        return frozenset(), frozenset()
    denied = {feeling for feeling, before in found if _denies(before, lex)}
    return frozenset(feeling for feeling, _ in found) - denied, frozenset(denied)


def joined(parts: Iterable[str], language: str = "en") -> str:
    """Put sentences together to a text."""
    return ("" if language == "zh" else " ").join(parts)


def called(name: str, language: str = "en", by: str = "") -> str:
    """Return how a language calls a feeling or a relation: in the word of the text `by`, where one stands there."""
    lex = lexicon(language)
    if not lex.says:
        return name
    said = (w for w in words(by, language) if name in (lex.feeling_of.get(w), lex.relation_of.get(w)))
    return next(said, lex.says.get(name, name))


@lru_cache(maxsize=1 << 10)
def read(text: str, language: str = "en") -> Reading:
    """Read a text sentence by sentence."""
    return Reading.of(text, tuple([read_sentence(s, language) for s in split_sentences(text)]))


def voiced_feelings(text: str, language: str = "en") -> frozenset[str]:
    """Return the feelings that a speaker puts into words as their own: for the user's messages."""
    return frozenset().union(*(s.voiced for s in read(text, language).sentences))


class WordLlama:
    """Static sentence vectors (PyPI `wordllama`, 256 dimensions, weights in its wheel).

    A sentence's vector is the mean of its words' token vectors, scaled to length 1. Word sums are cached: the
    tokenizer runs once a word, which makes a sentence cost some ten microseconds.
    """

    name = "wordllama"
    dim = DIM

    def __init__(self) -> None:
        import wordllama

        folder = Path(wordllama.__file__).parent
        model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
        self._table: Vec = np.asarray(model.embedding, dtype=np.float32)
        self._tokenizer = model.tokenizer
        self._tokenizer.no_padding()
        self._row_of: dict[str, int] = {}
        self._rows: Vec = np.zeros((4096, DIM), dtype=np.float32)

    def _row(self, word: str) -> int:
        """Return the row that holds a word's summed token vectors."""
        known = self._row_of.get(word)
        if known is None:
            known = len(self._row_of)
            if known >= len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            ids = self._tokenizer.encode(word, add_special_tokens=False).ids
            self._rows[known] = self._table[ids].sum(axis=0)
            self._row_of[word] = known
        return known

    def summed(self, word: str) -> Vec:
        """Return a word's summed token vectors, shape (256,): what `spans` adds up."""
        row = self._row(word)  # which may put a longer table in place of the one there is
        found: Vec = self._rows[row]
        return found

    def pieces(self, word: str) -> int:
        """Return how many tokens the vocabulary takes for a word: one for a common one."""
        return len(self._tokenizer.encode(word, add_special_tokens=False).ids)

    def spans(self, tokens: tuple[str, ...] | list[str], spans: tuple[slice, ...]) -> list[Vec]:
        """Return the unit vector of each span of a list of words, shape (256,) each; zeros for an empty one."""
        if len(self._row_of) > MOST_WORDS:  # bounded: a hostile policy may invent words without end
            self._row_of.clear()
        found = [self._row(w) for w in tokens]
        rows = self._rows[found] if found else self._rows[:0]
        return [_unit(rows[span].sum(axis=0)) for span in spans]

    def encode(self, tokens: tuple[str, ...] | list[str]) -> Vec:
        """Return the unit vector of a list of words, shape (256,); zeros where there are none."""
        return self.spans(tokens, _ALL)[0]

    def encode_all(self, lists: Sequence[tuple[str, ...] | list[str]]) -> list[Vec]:
        """Return the vector of each list of words."""
        return [self.spans(tokens, _ALL)[0] for tokens in lists]


MOST_WORDS = 1 << 17
"""Words whose vectors are kept."""
_ALL = (slice(None),)


def _unit(vector: Vec) -> Vec:
    length = math.sqrt(vector @ vector)
    return vector / length if length > 0 else vector


@lru_cache(maxsize=1)
def encoder() -> WordLlama:
    """Return this process's static encoder; loaded on first use (about 0.4 s)."""
    return WordLlama()
