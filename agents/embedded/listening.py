"""How a companion of the embedded world listens: what a sentence of the user's is about, and what may lie under it.

For policies, from the observation alone. The ear is a ridge regression on static sentence vectors, fitted at first use
on the lines of the train split; it has seen no line of the benchmark.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from echo_env.agents.embedded import chinese
from echo_env.agents.embedded.encoders import encoder_for, encoder_of
from echo_env.agents.embedded.language import Sentence, lexicon, plain, read, read_sentence
from echo_env.profiles import CLUSTER_OF, FEELINGS, Kind, Line, data_root, get_scenario, scenario_ids
from echo_env.yamlfiles import read_yaml

KINDS = ("fact", "belief", "feeling", "strength", "wish")
FEELING_WORDS = tuple(CLUSTER_OF)
TRAIN_SCENARIOS = 96
"""How many train scenarios the ear is fitted on."""
RIDGE = 2.0
TURNS = 1024
"""Width of the hashed turns of phrase."""

_MIRROR = {
    "my": "your", "our": "your", "a": "the", "an": "the", "this": "that", "these": "those", "no": "the", "every": "the",
    "each": "the",
}  # fmt: skip
LONGEST_QUOTE = 10
"""Characters of a Chinese quotation."""
Matrix = NDArray[np.float64]


_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


@dataclass(frozen=True, slots=True)
class Heard:
    """One sentence of the user's, listened to."""

    text: str
    phrases: tuple[str, ...]
    """Noun phrases in second person, most telling first."""
    kind: str
    """Most likely kind: fact, belief, feeling, strength or wish."""
    certainty: dict[str, float]
    """Score of each kind, about 0..1."""
    named: tuple[str, ...]
    """Feelings that the user put into words."""
    sensed: str
    """Most likely feeling that is shown and not named."""
    confidence: float
    """Its score, about 0..1."""
    stirred: float
    """Score of there being any feeling in it, about 0..1."""


def noun_phrases(text: str, language: str = "en") -> list[str]:
    """Return what a text speaks of, as short noun phrases in second person: "my knee" -> "your knee".

    A determiner and the words of content after it; names; and, failing these, a few words in quotation marks.
    """
    found: list[str] = []
    # the fullest sentence first: it is what they came to tell
    for sentence in sorted(read(text, language).sentences, key=lambda s: -len(s.content)):
        found += _phrases(sentence, language)
    return list(dict.fromkeys(found))


def _phrases(sentence: Sentence, language: str = "en") -> list[str]:
    if language == "zh":
        return _quotes(sentence)
    raw = _WORD.findall(sentence.text)
    found: list[tuple[float, str]] = []
    i = 0
    while i < len(sentence.words):
        word = sentence.words[i]
        start, head = i, ""
        if word in lexicon().determiners:
            start, head = i + 1, _MIRROR.get(word, word)
        elif not (raw[i][:1].isupper() and i > 0 and sentence.stems[i]):
            i += 1
            continue
        run = _run(sentence, start, raw)
        if run:
            rank = len(run) - 1.5 * (run[-1].lower() in lexicon().times) + 0.1 * min(10, len(run[-1]))
            found.append((rank, " ".join([*([head] if head else []), *run])))
        i = start + max(1, len(run))
    ranked = [phrase for _, phrase in sorted(found, key=lambda f: -f[0])]
    return ranked if any(map(points, ranked)) else [*ranked, *_quote(sentence, raw)]


def _quotes(sentence: Sentence) -> list[str]:
    """Return what a Chinese sentence speaks of: a stretch of each clause in quotation marks, most telling first."""
    lex = lexicon("zh")
    found: list[tuple[int, str]] = []
    for clause in chinese.CLAUSE.split(sentence.text):
        said = read_sentence(clause, "zh")
        own = [bool(s) and s in said.content and s not in lex.everyday for s in said.stems]
        told, stretch = chinese.stretch(said.words, said.stems, own, lex.determiners, LONGEST_QUOTE)
        if told:
            found.append((told, f"\u201c{stretch}\u201d"))
    return [phrase for _, phrase in sorted(found, key=lambda f: -f[0])]


def points(phrase: str, language: str = "en") -> bool:
    """Whether a phrase points at one thing: a word of its own kind, or two that say so together."""
    content = read_sentence(phrase, language).content
    return len(content) >= 2 or bool(content - lexicon(language).everyday)


def _quote(sentence: Sentence, raw: list[str]) -> list[str]:
    """Words of the sentence in quotation marks, round its longest word of content that is not an everyday one."""
    usable = [bool(s) and not _odd(w) for w, s in zip(sentence.words, sentence.stems, strict=True)]
    own = [10 * (s not in lexicon().everyday) for s in sentence.stems]
    at = max(range(len(raw)), key=lambda i: own[i] + len(raw[i]) if usable[i] else 0, default=-1)
    if at < 0 or not usable[at]:
        return []
    end = at + 1
    while end < min(len(raw), at + 3) and usable[end]:
        end += 1
    return ["'" + " ".join(raw[at:end]).lower() + "'"]


def _odd(word: str) -> bool:
    """Whether a word would look odd by itself in quotation marks: a contraction, an adverb, a number, a feeling."""
    return "'" in word or word.endswith("ly") or "-" in word or word.isdigit() or word in lexicon().feeling_of


def _verbal(word: str) -> bool:
    return word in lexicon().verbs or word.endswith(("ed", "ing", "n't")) or word in lexicon().feeling_of


def _run(sentence: Sentence, start: int, raw: list[str]) -> list[str]:
    run: list[str] = []
    for j in range(start, min(start + 3, len(sentence.words))):
        word = sentence.words[j]
        if not sentence.stems[j] or (_verbal(word) if run else word in lexicon().verbs):
            break
        run.append(raw[j])
    if run:
        run[-1] = re.sub(r"['\u2019]s$", "", run[-1])  # "Malik's been": the end of a phrase owns nothing
    return run


@dataclass(frozen=True, slots=True)
class Ear:
    """A fitted listener."""

    kinds: Matrix
    """Shape (features, 5)."""
    feelings: Matrix
    """Shape (features, 34); the last column stands for no feeling."""
    language: str = "en"

    def hear(self, text: str) -> list[Heard]:
        """Listen to a message: one entry for each sentence that says something."""
        said = [s for s in read(text, self.language).sentences if s.content or s.voiced]
        fullest = max((len(s.content) for s in said), default=0)
        # a short sentence beside a full one is a reaction ("You lost me there."), not what they came to tell
        return [self._sentence(s) for s in said if len(s.content) >= 0.5 * fullest or s.voiced]

    def _sentence(self, sentence: Sentence) -> Heard:
        x = features(sentence, self.language)
        kinds, feelings = x @ self.kinds, x @ self.feelings
        named = tuple(sorted(sentence.voiced))
        best = int(np.argmax(feelings[:-1]))
        certainty = {k: float(v) for k, v in zip(KINDS, kinds, strict=True)}
        kind = max(certainty, key=lambda k: certainty[k])
        return Heard(
            text=sentence.text,
            phrases=tuple(_phrases(sentence, self.language)),
            kind=kind,
            certainty=certainty,
            named=named,
            sensed=FEELING_WORDS[best],
            confidence=float(feelings[best]),
            stirred=1.0 - float(feelings[-1]),
        )


_CUES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b(i want|i'd like|i wish|i need|i'd love|i hope|i'd give|what i want|if i could|i just want|i'd rather)\b",
        r"\b(want|like|wish|hope|love) to\b|\bi'd like\b|\bone (day|evening|night|morning)\b",
        r"\b(should have|should've|shouldn't have|if i'd|if i had|my fault|supposed to|ought to|deserve)\b",
        r"\b(always|never|nobody|no one|everyone|everybody|only|whole|any)\b",
        r"\b(real|proper|decent|good|people like|that's what|that's just|a person|a man|a woman|means|must)\b",
        r"\b(still|kept|keep|every (day|week|night|morning|\w+day)|managed|made sure)\b",
        r"\b(taught|fixed|finished|built|wrote|mended|learned|learnt|stayed|drove|cooked|carried|went back|without)\b",
        r"\b(told|said|sent|called|rang|asked|gave|sold|signed|put|took)\b",
        r"\b(i'm|i am|i feel|i felt|i was)\b",
        r"\b(they|he|she|it)\b",
        r"\?",
    )
)


def wishes(text: str, language: str = "en") -> bool:
    """Whether a text says in so many words that somebody wants or wishes something: the first two cues of the ear."""
    lowered = plain(text)
    return any(cue.search(lowered) for cue in _cues(language)[:2])


def _cues(language: str) -> tuple[re.Pattern[str], ...]:
    return chinese.KIND_CUES if language == "zh" else _CUES


def features(sentence: Sentence, language: str = "en") -> Matrix:
    """Return a sentence's vector, turns of phrase, cues, whether it names a feeling, 1: shape (1294,) in English."""
    lowered = plain(sentence.text)
    cues = [0.35 * (cue.search(lowered) is not None) for cue in _cues(language)]
    vector = encoder_of(encoder_for(language)).encode(sentence.words)
    tail = [*cues, 0.35 * bool(sentence.feelings), 0.35 * sentence.vague, 0.35]
    return np.concatenate([vector.astype(np.float64), turns_of_phrase(sentence.words, language), tail])


def turns_of_phrase(tokens: tuple[str, ...], language: str = "en") -> Matrix:
    """Return how a sentence speaks, whatever it speaks of, shape (1024,), length 1: its runs of function words.

    Runs of two and three function words, a word of content being one blank, hashed. Static vectors see no order; what
    tells a wish from a fact ("what I'd", "if I could") stands in just this.
    """
    lex = lexicon(language)
    kept = ["^"]
    for word in tokens:
        kept.append(word if word in lex.stopwords or word in lex.negators else "_")
        if kept[-2:] == ["_", "_"]:
            kept.pop()
    kept.append("$")
    counts = np.zeros(TURNS)
    for n in (2, 3):
        for i in range(len(kept) - n + 1):
            counts[zlib.crc32(" ".join(kept[i : i + n]).encode()) % TURNS] += 1.0
    return counts / np.linalg.norm(counts)


def fit(lines: list[Line], language: str = "en") -> Ear:
    """Fit an ear on lines with known kinds and feelings, by ridge regression on one-hot targets."""
    sentences = [read_sentence(line.say, language) for line in lines]
    x = np.stack([features(s, language) for s in sentences])
    kinds = np.array([[line.kind == k for k in KINDS] for line in lines], dtype=np.float64)
    feelings = np.zeros((len(lines), len(FEELING_WORDS) + 1))
    for row, line in zip(feelings, lines, strict=True):
        row[FEELING_WORDS.index(line.feeling) if line.feeling else -1] = 1.0
        if line.feeling:  # a near word is half right
            near = FEELINGS[CLUSTER_OF[line.feeling]]
            row[[FEELING_WORDS.index(w) for w in near if w != line.feeling]] = 0.25
    gram = x.T @ x + RIDGE * np.eye(x.shape[1])
    solved = np.linalg.solve(gram, x.T @ np.hstack([kinds, feelings])).astype(np.float64)
    return Ear(solved[:, : len(KINDS)], solved[:, len(KINDS) :], language)


@lru_cache(maxsize=2)
def trained_ear(language: str = "en") -> Ear:
    """Return the ear fitted on the train split, once a process; in Chinese on lines written for it."""
    if language != "en":
        data = read_yaml(data_root() / "voices" / f"ear_{language}.yaml")
        return fit([_heard_line(*entry) for entry in data["lines"]], language)
    lines: dict[str, Line] = {}
    ids = scenario_ids("train")
    for name in ids[:: max(1, len(ids) // TRAIN_SCENARIOS)]:
        lines.update({line.say: line for line in get_scenario(name).lines()})
    return fit(list(lines.values()))


@lru_cache(maxsize=1 << 12)
def heard(text: str, language: str = "en") -> tuple[Heard, ...]:
    """Listen to a message with the trained ear.

    Kept, because a companion hears the whole conversation again every turn for what comes back.
    """
    return tuple(trained_ear(language).hear(text))


def _heard_line(kind: Kind, feeling: str | None, say: str) -> Line:
    return Line(say=say, about=say[:12].ljust(3), kind=kind, feeling=feeling)
