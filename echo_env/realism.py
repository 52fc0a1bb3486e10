"""How lifelike a simulated person is: measures over transcripts, for any actor, recording or human.

Everything here is a pure function of what was said. No measure looks into an actor's state, so that the embedded actor,
a language model and people are measured alike.
"""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from echo_env.profiles import Line, Scenario, data_root
from echo_env.roles import chapter_of
from echo_env.types import Record
from echo_env.yamlfiles import read_yaml

Conversation = Sequence[str]
"""One speaker's messages in one conversation, in order."""

_UNIT = re.compile(r"[\u3400-\u9fff]|[^\W_]+(?:['-][^\W_]+)*")
_ENDING = re.compile(r"[.!?\u2026\u3002\uff01\uff1f]+[\"\u201d')\]]*(?:\s+|$|(?=[\u3400-\u9fff]))|\n+")
NEAR = 0.8
"""Share of words in common (Jaccard) from which two messages count as nearly the same."""
SAMPLE = 5000
"""Units on which distinct-n is taken, since it falls with the length of a text."""


def units(text: str) -> list[str]:
    """Split a text into lower-case words; a Chinese character is a word of its own."""
    return _UNIT.findall(text.replace("\u2019", "'").lower())


def sentences(text: str) -> list[str]:
    """Split a text at full stops, question and exclamation marks and line breaks."""
    ends = [m.end() for m in _ENDING.finditer(text)]
    pieces = [text[a:b].strip() for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    return [p for p in pieces if _UNIT.search(p)]


# --- text statistics


class TextStats(Record):
    """What a speaker's messages look like."""

    conversations: int
    messages: int
    words_mean: float
    """Words a message; characters for Chinese."""
    words_median: float
    words_sd: float
    sentences_mean: float
    questions: float
    """Share of messages that hold a question mark."""
    exclamations: float
    distinct_1: float | None
    """Different words by all words, over samples of `SAMPLE` words; None where there are fewer."""
    distinct_2: float | None
    repeats_exact: float
    """Share of messages that were said before in the same conversation, capitals and signs aside."""
    repeats_near: float
    """Share of messages that have `NEAR` of their words in common with an earlier one, exact ones included."""


def text_stats(talks: Sequence[Conversation]) -> TextStats:
    """Measure one speaker's side of many conversations.

    Raises:
        ValueError: There is not a message in them.
    """
    messages = [m for talk in talks for m in talk]
    if not messages:
        raise ValueError("there are no messages to measure")
    lengths = [len(units(m)) for m in messages]
    found = [repeats(talk) for talk in talks]
    return TextStats(
        conversations=len(talks),
        messages=len(messages),
        words_mean=statistics.fmean(lengths),
        words_median=statistics.median(lengths),
        words_sd=statistics.pstdev(lengths),
        sentences_mean=statistics.fmean([len(sentences(m)) for m in messages]),
        questions=_share(messages, "?\uff1f"),
        exclamations=_share(messages, "!\uff01"),
        distinct_1=distinct(talks, 1),
        distinct_2=distinct(talks, 2),
        repeats_exact=sum(len(r.exact) for r in found) / len(messages),
        repeats_near=sum(len(r.near) for r in found) / len(messages),
    )


def _share(messages: Sequence[str], signs: str) -> float:
    return sum(any(c in m for c in signs) for m in messages) / len(messages)


class Repeats(Record):
    """Messages of one conversation that came before, by index."""

    exact: tuple[int, ...]
    near: tuple[int, ...]
    """Exact ones included."""


def repeats(talk: Conversation) -> Repeats:
    """Find the messages that were said before in one conversation; capitals, signs and white space do not count."""
    exact: list[int] = []
    near: list[int] = []
    seen: set[tuple[str, ...]] = set()
    bags: list[frozenset[str]] = []
    for k, message in enumerate(talk):
        said = tuple(units(message)) or (message.strip(),)
        bag = frozenset(said)
        if said in seen:
            exact.append(k)
        if said in seen or any(_jaccard(bag, b) >= NEAR for b in bags):
            near.append(k)
        seen.add(said)
        bags.append(bag)
    return Repeats(exact=tuple(exact), near=tuple(near))


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b)


def distinct(talks: Sequence[Conversation], n: int, seed: int = 0) -> float | None:
    """Return distinct-n: different n-grams by all n-grams, over the first `SAMPLE` words of the shuffled conversations.

    None where there are fewer words than that. n-grams do not cross messages.
    """
    order = list(range(len(talks)))
    random.Random(seed).shuffle(order)
    grams: list[tuple[str, ...]] = []
    left = SAMPLE
    for message in (m for k in order for m in talks[k]):
        said = units(message)[:left]
        grams += zip(*(said[i:] for i in range(n)), strict=False)
        left -= len(said)
        if not left:
            return len(set(grams)) / len(grams)
    return None


# --- tone


@dataclass(frozen=True, slots=True)
class ToneCues:
    """The cues of one language, from `sim_profiles/reactions/tone.yaml`."""

    warm: tuple[re.Pattern[str], ...]
    cold: tuple[re.Pattern[str], ...]
    dodges: tuple[re.Pattern[str], ...]


@lru_cache(maxsize=1)
def tone_cues() -> ToneCues:
    """Load the cues."""
    data = read_yaml(data_root() / "reactions" / "tone.yaml")
    kinds = [tuple(re.compile(p) for p in data[kind]) for kind in ("warm", "cold", "dodges")]
    return ToneCues(*kinds)


def tone(message: str) -> float:
    """Return how a message speaks to its reader, -1 (closing up) to +1 (opening up), from its words alone.

    (w - c) / (w + c), where w and c count the warm and the cold cues that occur in its first two sentences, where
    people react; 0 without any. Words in quotation marks are others' and do not count. English.
    """
    cues = tone_cues()
    warm = cold = 0
    for sentence in sentences(message)[:2]:
        said = _unquoted(sentence)
        warm += sum(bool(p.search(said)) for p in cues.warm)
        cold += sum(bool(p.search(said)) for p in cues.cold)
    return (warm - cold) / (warm + cold) if warm + cold else 0.0


def dodges(message: str) -> bool:
    """Whether a message openly declines to answer, or admits that it has no answer. English."""
    said = _unquoted(message)
    return any(p.search(said) for p in tone_cues().dodges)


_QUOTED = re.compile(r"\"[^\"]*\"|\u201c[^\u201d]*\u201d|(?<!\w)'[^']*'(?!\w)")


def _unquoted(text: str) -> str:
    return _QUOTED.sub(" ", text.replace("\u2019", "'").lower())


class Reaction(Record):
    """A labelled reply, and the person's messages before and after it."""

    good: bool
    """How a person labelled the reply beforehand."""
    before: str
    """What the reply answers: the line of the story, without what the person said around it."""
    reply: str
    after: str

    @property
    def moved(self) -> float:
        """How far the tone moved; above 0 is towards opening up."""
        return tone(self.after) - tone(self.before)

    @property
    def right(self) -> bool:
        """Whether it moved the way that the label says, or stayed at the end that lies there; else no move is wrong."""
        end = 1.0 if self.good else -1.0
        return self.moved * end > 0 or tone(self.before) == tone(self.after) == end


class ToneAgreement(Record):
    """How the tone of people's next message goes with how they rated what they had heard."""

    ratings: int
    mean_tone: dict[str, float]
    """By rating."""
    within: float
    """Correlation within conversations: both sides less their conversation's mean."""
    low: float
    """95 % interval, bootstrap over conversations."""
    high: float


def tone_agreement(
    talks: Sequence[Sequence[tuple[float, str]]], seed: int = 0, draws: int = 400
) -> ToneAgreement | None:
    """Compare tone with people's own ratings; None where no conversation has two different ratings and tones."""
    scored = [[(rating, tone(message)) for rating, message in talk] for talk in talks]
    by_rating: dict[str, list[float]] = {}
    for rating, value in (pair for talk in scored for pair in talk):
        by_rating.setdefault(f"{rating:g}", []).append(value)
    centred = [_centred(talk) for talk in scored if len(talk) > 1]
    whole = _correlation([p for talk in centred for p in talk])
    if whole is None:
        return None
    rnd = random.Random(seed)
    drawn = [_correlation([p for talk in rnd.choices(centred, k=len(centred)) for p in talk]) for _ in range(draws)]
    ordered = sorted(r for r in drawn if r is not None)
    return ToneAgreement(
        ratings=sum(map(len, scored)),
        mean_tone={k: statistics.fmean(v) for k, v in sorted(by_rating.items())},
        within=whole,
        low=ordered[int(0.025 * len(ordered))],
        high=ordered[int(0.975 * len(ordered))],
    )


def _centred(talk: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    a, b = statistics.fmean([x for x, _ in talk]), statistics.fmean([y for _, y in talk])
    return [(x - a, y - b) for x, y in talk]


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    return statistics.correlation(a, b) if len(set(a)) > 1 and len(set(b)) > 1 else None


# --- facts


class Facts(Record):
    """What a person may not contradict."""

    first_name: str
    age: int
    job: frozenset[str]
    """Words of their job."""
    relations: frozenset[str]
    """Who is in their life, by the lexicon's names: "sister", "husband"."""


@lru_cache(maxsize=1)
def _relation_of() -> dict[str, str]:
    data = read_yaml(data_root() / "lexicons" / "en.yaml")["relations"]
    return {word: relation for relation, forms in data.items() for word in forms}


def facts_of(scenario: Scenario) -> Facts:
    """Collect the checkable facts of a profile."""
    p, s = scenario.persona, scenario.situation
    asks = [a for n in scenario.needs for a in n.asks]
    told = " ".join([*(line.say for line in scenario.lines()), s.summary, s.trigger, *asks, *scenario.ending.says])
    known = _relation_of()
    plain = [v for w in units(told) for v in (w, w.removesuffix("'s"), w.removesuffix("s"))]
    return Facts(
        first_name=p.name.split()[0],
        age=p.age,
        job=frozenset(w for w in units(p.job) if len(w) > 3),
        relations=frozenset(known[w] for w in plain if w in known),
    )


_AGE = re.compile(
    r"\bi'?( a)?m (\d{1,3})(?= *[.,;!]| *$| years| this year)|\bmy age is (\d{1,3})|^(\d{1,3}), since you ask"
)
_NAMED = re.compile(r"\b(?i:my name is|my name's|you can call me|call me) ([A-Z][\w'-]+)")
_WORKS = re.compile(r"\bi work as (?:an? |the )?([^.!?;]+)|\bi'm (?:an? )([^.!?;,]+) by (?:trade|profession)")
_DENIAL = re.compile(r"\b(no|not|never|which|what|who|some|any|nothing|nobody|if|invented|wrote|leave)\b|n't\b|\?")


def contradictions(message: str, facts: Facts) -> list[str]:
    """Return what in a message contradicts the person's age, name, job or relations, in words. English.

    Cautious: only plain claims count ("I'm 45.", "my name is ...", "I work as ...", "my husband" of someone whose story
    has none), and a sentence that denies or asks claims nothing.
    """
    found: list[str] = []
    for sentence in sentences(message.replace("\u2019", "'")):
        low = sentence.lower()
        ages = [int(next(filter(None, m.groups()[1:]))) for m in _AGE.finditer(low)]
        found += [f"age {a}" for a in ages if a != facts.age]
        found += [f"name {m[1]}" for m in _NAMED.finditer(sentence) if m[1] != facts.first_name]
        jobs = [units(m[1] or m[2]) for m in _WORKS.finditer(low)]
        found += [f"job {' '.join(j)}" for j in jobs if facts.job.isdisjoint(j)]
        if not _DENIAL.search(low):
            mine = re.findall(r"\bmy ([\w'-]+)", low)
            relations = [_relation_of().get(w.removesuffix("'s"), "") for w in mine]
            found += [f"relation {r}" for r in relations if r and r not in facts.relations]
    return found


# --- reveal order

DEPTH = {
    "opening": 0, "beat1": 0, "now": 1, "beat2": 1, "young_adult": 2, "beat3": 2, "beat4": 3, "teens": 3,
    "childhood": 3, "turn": 4,
}  # fmt: skip
"""How deep a chapter lies: what one tells anyone (0) to what one hardly tells at all (4)."""
TOLD = 0.7
"""Share of a line's longer words that a message must hold for the line to count as told."""


def told_lines(talk: Conversation, lines: Iterable[tuple[str, Line]]) -> dict[str, int]:
    """Return the lines of a story that were told, with the index of the message, by their words.

    A line counts as told where a message holds `TOLD` of its words of four letters and more, so that a free retelling
    counts as well.
    """
    bags = [frozenset(units(m)) for m in talk]
    found: dict[str, int] = {}
    for item, line in lines:
        need = frozenset(w for w in units(line.say) if len(w) > 3)
        first = next((k for k, bag in enumerate(bags) if need and len(need & bag) >= TOLD * len(need)), None)
        if first is not None:
            found[item] = first
    return found


class Reveal(Record):
    """How a story opened over one conversation."""

    told: float
    """Share of the lines that were told."""
    deep: float
    """Share of the deep lines, childhood, teens, last beat and turning point, that were told."""
    turn_at: float | None
    """When the first line of the turning point came, as a share of the conversation; None where it did not."""
    order: float | None
    """Rank correlation of a line's depth with the turn in which it came; None with fewer than six lines."""


def reveal(talk: Conversation, scenario: Scenario) -> Reveal:
    """Measure how a story opened."""
    lines = tuple(scenario.items())
    told = told_lines(talk, lines)
    depth = {item: DEPTH[chapter_of(item)] for item, _ in lines}
    deep = [i for i in depth if depth[i] >= 3]
    turns = [k for i, k in told.items() if depth[i] == 4]
    ranks = [(float(depth[i]), float(k)) for i, k in told.items()]
    return Reveal(
        told=len(told) / len(lines),
        deep=sum(i in told for i in deep) / len(deep) if deep else 0.0,
        turn_at=min(turns) / len(talk) if turns else None,
        order=rank_correlation(ranks) if len(ranks) >= 6 else None,
    )


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's rank correlation with mid-ranks; None where one side does not vary."""
    return _correlation(list(zip(_ranks([x for x, _ in pairs]), _ranks([y for _, y in pairs]), strict=True)))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]
