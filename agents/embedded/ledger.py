"""The judge's ledger: what the person has told, what a sentence refers to, and what has been met already.

Built from the conversation alone and from the profile; it never reads the user's hidden state. A thing that was told
pays once: a second serving earns nothing, a third counts against the reply (docs/design.md, "The ledger").
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from echo_env.agents.embedded import chinese
from echo_env.agents.embedded.encoders import SCALES, Scale, encoder_of
from echo_env.agents.embedded.language import Sentence, Vec, lexicon, read, read_sentence, stem
from echo_env.profiles import CLUSTER_OF, Line
from echo_env.roles import JudgeProfile, chapter_of
from echo_env.types import AXES, Axis

TOLD_SHARE = 0.6
"""A line counts as told once this share of its content words stood in one of the user's messages."""
GROUNDED = 0.45
"""Least weight of shared words, or of likeness, for a sentence to refer to a line."""
RAISED = 0.3
"""The same for the user's own words: what they bring up again may be answered again."""
EVERYDAY = 0.4
"""What an everyday word weighs beside another: alone it points at nothing, two of them do."""
CLOSE = 0.5
"""A thing must weigh this share of the closest one: a name that runs through the whole story points at nothing."""
OVERLOOKED_AFTER = 4
"""Turns without anything met on an axis, while the person tells things for it, from which it is overlooked."""
WAITING, BIDS = 8, 3
"""Turns looked back on, and the least number of things told in them that wait for an answer on the axis."""
ABSENT_AFTER = 2
"""Turns in a row in which nothing was met, after which one more leaves the person alone."""
HABIT = 8
"""Turns that told something new, from which a habit can be told."""
ERROR = 0.8
"""By how much a single turn may mislead about the contingency of a companion (`Scale.listening`)."""
CALLED_FOR = {"A.prog.1.names": "feeling", "P.prog.2.empowers": "wish"}
"""Acts that what was told calls for by its kind: a feeling put into words wants to be heard as that, a wish wants a
hand. These two kinds no listener mistakes; what shows no feeling in so many words, or is a belief, even a good one may
miss."""
THREADS = 8
"""How many of the likest things in other chapters belong with a thing: a tie to one of them is a connection."""


@dataclass(frozen=True, slots=True)
class Thing:
    """One line of the profile, or one sentence in which a need shows, ready for matching."""

    id: str
    kind: str
    """A line's kind, or "need"."""
    axis: Axis
    feeling: str | None
    shown: bool
    """Whether the feeling is shown, not named."""
    content: frozenset[str]


@dataclass(frozen=True, slots=True)
class Story:
    """A profile made ready for matching; the same for every conversation with this person."""

    things: tuple[Thing, ...]
    where: dict[str, tuple[int, ...]]
    """Content stem -> indices of the things that hold it."""
    vectors: Vec
    """Shape (things, encoder's width)."""
    vocabulary: frozenset[str]
    relations: frozenset[str]
    hurts: Vec
    """What hurts this person on each axis, as unit vectors: shape (3, encoder's width)."""
    hurt_words: dict[Axis, frozenset[str]]
    """Its content stems."""
    threads: tuple[frozenset[int], ...]
    """For each thing, those in other chapters that belong with it: likest in words, or felt alike."""
    encoder: str
    """Name of what its vectors come from, and those of whatever is compared with them."""
    scale: Scale


_AXIS_OF: dict[str, Axis] = {"fact": "C", "belief": "C", "feeling": "A", "strength": "P", "wish": "P"}


@lru_cache(maxsize=1024)
def story_of(profile: JudgeProfile, encoder: str = "wordllama") -> Story:
    """Prepare a profile, with the vectors of an encoder."""
    lines = [*(line.say for _, line in profile.lines), *(ask for need in profile.needs for ask in need.asks)]
    hurts = {need.axis: need.hurts for need in profile.needs}
    vectors = encoder_of(encoder).encode_all(
        [_telling(t, profile.language) for t in [*lines, *(hurts[a] for a in AXES)]]
    )
    things = [_thing(item, line, profile.language) for item, line in profile.lines]
    for rank, need in enumerate(profile.needs):
        for k, ask in enumerate(need.asks):
            things.append(_build(f"need{rank}.{k}", "need", need.axis, None, False, ask, profile.language))
    where: dict[str, list[int]] = {}
    for i, thing in enumerate(things):
        for s in thing.content:
            where.setdefault(s, []).append(i)
    everything = " ".join(
        [*(line.say for _, line in profile.lines), profile.situation.summary, profile.situation.trigger]
    )
    relation_of = lexicon(profile.language).relation_of
    spoken = [w.removesuffix("'s") for s in read(everything, profile.language).sentences for w in s.words]
    return Story(
        things=tuple(things),
        threads=_threads(things, np.stack(vectors[: len(things)])),
        where={s: tuple(i) for s, i in where.items()},
        vectors=np.stack(vectors[: len(things)]),
        vocabulary=frozenset(where) | _name_stems(profile),
        relations=frozenset(relation_of[w] for w in spoken if w in relation_of)
        | frozenset(r for w in spoken for r in (relation_of.get(w.removesuffix("s")),) if r),
        hurts=np.stack(vectors[len(things) :]),
        hurt_words={axis: read(text, profile.language).content for axis, text in hurts.items()},
        encoder=encoder,
        scale=SCALES[encoder],
    )


def _name_stems(profile: JudgeProfile) -> frozenset[str]:
    if profile.language == "zh":
        return read(profile.persona.name, "zh").content
    return frozenset(stem(w) for w in profile.persona.name.lower().split())


def _threads(things: list[Thing], vectors: Vec) -> tuple[frozenset[int], ...]:
    """Find what belongs together across chapters: each thing's likest ones, and those that are felt alike."""
    likeness = vectors @ vectors.T
    chapters = [chapter_of(t.id) for t in things]
    apart = np.array([[a != b for b in chapters] for a in chapters])
    likeness[~apart] = -1.0
    nearest = np.argsort(-likeness, axis=1, kind="stable")[:, :THREADS]
    tied = np.zeros(likeness.shape, dtype=bool)
    np.put_along_axis(tied, nearest, True, axis=1)
    clusters = [CLUSTER_OF[t.feeling] if t.feeling else None for t in things]
    alike = np.array([[a is not None and a == b for b in clusters] for a in clusters])
    tied = (tied | tied.T | alike) & apart
    return tuple(frozenset(np.flatnonzero(row).tolist()) for row in tied)


def _bids(thing: Thing, axis: Axis) -> bool:
    """Whether a thing asks for an answer on an axis."""
    return thing.feeling is not None if axis == "A" else thing.axis == axis


def _thing(item: str, line: Line, language: str) -> Thing:
    return _build(item, line.kind, _AXIS_OF[line.kind], line.feeling, line.kind != "feeling", line.say, language)


def _build(item: str, kind: str, axis: Axis, feeling: str | None, shown: bool, say: str, language: str) -> Thing:
    reading = read(say, language)
    return Thing(item, kind, axis, feeling, shown and feeling is not None, reading.content)


def _telling(text: str, language: str) -> list[str]:
    return [w for s in read(text, language).sentences for w in s.telling]


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A sentence with the story's words blanked."""

    words: list[str]
    runs: set[str]
    """Its runs of four words; a shorter sentence is one run."""


@lru_cache(maxsize=1 << 12)
def _echoes(words: tuple[str, ...], language: str) -> tuple[frozenset[str], frozenset[str]]:
    """Words and runs of four words of a sentence of the user's, as they stand and seen from the listener's side."""
    mirror = lexicon(language).mirror
    turned = tuple([mirror.get(w, w) for w in words])
    run = lexicon(language).size(4)
    return frozenset(words + turned), frozenset(grams(words, run) | grams(turned, run))


@dataclass(slots=True)
class Ledger:
    """What one conversation has told and met so far."""

    story: Story
    language: str = "en"
    told: dict[int, int] = field(default_factory=dict)
    """Index of a thing -> the turn that told it."""
    fresh: set[int] = field(default_factory=set)
    """What the newest message told."""
    newest: frozenset[str] = frozenset()
    """Words of the newest message, as they stand and seen from the listener's side."""
    voiced: frozenset[str] = frozenset()
    """Feelings that the newest message puts into words, whatever they are about."""
    raised: set[int] = field(default_factory=set)
    """What the newest message spoke of, told now or before."""
    met: Counter[tuple[int, Axis]] = field(default_factory=Counter)
    """(thing, axis) -> how often it was served."""
    visits: Counter[int] = field(default_factory=Counter)
    """Thing -> in how many turns it was served."""
    linked: set[int] = field(default_factory=set)
    """Things that have served as one end of a connection."""
    trust: int = 0
    """Inferred from history by a stated rule: +1 for each thing met, -1 and -2 by the Neg levels of a turn."""
    turn: int = 0
    served_at: dict[Axis, int] = field(default_factory=dict)
    """Axis -> the last turn in which something was met on it."""
    barren: int = 0
    """Turns in a row, up to the last, in which nothing was found for the good."""
    shown: Counter[str] = field(default_factory=Counter)
    """Act -> in how many replies to something new it was shown."""
    called: Counter[str] = field(default_factory=Counter)
    """Act -> on how many turns something told called for it."""
    answered: Counter[str] = field(default_factory=Counter)
    """Act -> how often both."""
    tellings: int = 0
    """Turns that told something new."""
    grams_heard: set[str] = field(default_factory=set)
    """Runs of four words of the user, as they stand and seen from the listener's side."""
    said: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Sentences of the companion, word for word."""
    skeletons: Counter[str] = field(default_factory=Counter)
    """Runs of four words of the companion's sentences with the story's words blanked -> in how many turns."""

    def hear(self, message: str) -> None:
        """Take in the user's next message."""
        self.turn += 1
        reading = read(message, self.language)
        stems = reading.content
        self.voiced = frozenset().union(*(s.voiced for s in reading.sentences))
        self.fresh = {i for i in self._candidates(stems) if self._tells(i, stems)}
        for i in self.fresh:
            self.told.setdefault(i, self.turn)
        weight = self._shared_weight(stems)
        self.raised = self.fresh | {i for i, w in weight.items() if w >= RAISED}
        self.newest = frozenset()
        for sentence in reading.sentences:
            spoken, runs = _echoes(sentence.words, self.language)
            self.newest |= spoken
            self.grams_heard |= runs

    def _candidates(self, stems: frozenset[str]) -> set[int]:
        return {i for s in stems for i in self.story.where.get(s, ())}

    def _tells(self, i: int, stems: frozenset[str]) -> bool:
        content = self.story.things[i].content
        return len(content & stems) >= TOLD_SHARE * len(content)

    def refers_to(self, sentence: Sentence, vector: Vec) -> list[int]:
        """Return the told things that a sentence refers to, closest first.

        Shared words weigh by their rarity in this person's story; a paraphrase without a shared word counts by the
        likeness of its telling words, whose vector is `vector`.
        """
        weight = self._shared_weight(sentence.content)
        if len(sentence.content) >= 2 and self.told:
            likeness, alike = self.story.vectors @ vector, self.story.scale.alike
            for i in self.told:
                if likeness[i] > alike:
                    weight[i] = weight.get(i, 0.0) + float(likeness[i])
        found = [(w + (0.2 if i in self.fresh else 0.0), i) for i, w in weight.items() if w >= GROUNDED]
        closest = max(found, default=(0.0, 0))[0]
        return [i for w, i in sorted(found, key=lambda f: (-f[0], f[1])) if w >= CLOSE * closest]

    def _shared_weight(self, stems: frozenset[str]) -> dict[int, float]:
        """Weigh the told things by the words they share: a word that few things, and few people, hold weighs most."""
        weight: dict[int, float] = {}
        everyday = lexicon(self.language).everyday
        for s in stems:
            holders = self.story.where.get(s, ())
            for i in holders:
                if i in self.told:
                    share = 1.0 / len(holders) ** 0.5
                    weight[i] = weight.get(i, 0.0) + (EVERYDAY * share if s in everyday else share)
        return weight

    def touches(self, sentence: Sentence) -> bool:
        """Whether a sentence names anything at all of what was told."""
        return any(i in self.told for s in sentence.content for i in self.story.where.get(s, ()))

    def open_on(self, i: int, axis: Axis) -> bool:
        """Whether a thing has not been met on an axis."""
        return not self.met[(i, axis)]

    def serve(self, i: int, axis: Axis) -> None:
        """Book a thing as met once more."""
        self.met[(i, axis)] += 1
        self.served_at[axis] = self.turn

    def overlooked(self, axis: Axis) -> bool:
        """Whether the person has told several things for an axis of late, and none was met on it."""
        since = self.turn - OVERLOOKED_AFTER
        return self.served_at.get(axis, 0) <= since and self._waiting(axis, self.turn - WAITING) >= BIDS

    @property
    def left_alone(self) -> bool:
        """Whether turn after turn nothing was met, though something waits for it."""
        since = self.turn - OVERLOOKED_AFTER
        return self.barren >= ABSENT_AFTER and any(self._waiting(axis, since) for axis in AXES)

    def _waiting(self, axis: Axis, since: int) -> int:
        """Count the things told after a turn, or raised again just now, that ask for an answer on an axis in vain."""
        open_ones = [i for i, turn in self.told.items() if (turn > since or i in self.raised) and self.open_on(i, axis)]
        return sum(_bids(self.story.things[i], axis) for i in open_ones)

    def answer(self, acts: set[str]) -> None:
        """Book which acts a reply showed, beside which ones the newest message called for."""
        if not self.fresh:
            return
        kinds = {self.story.things[i].kind for i in self.fresh}
        called = {act for act, kind in CALLED_FOR.items() if kind in kinds}
        self.tellings += 1
        self.called.update(called)
        self.shown.update(acts & CALLED_FOR.keys())
        self.answered.update(acts & called)

    @property
    def contingency(self) -> float:
        """Correlation of the acts shown with the acts called for, over the turns that told something new, -1..1.

        Each act is held against its own rate, so that a companion that does the same whatever is told has 0, however
        fitting its acts look one by one. 0 where nothing has varied yet.
        """
        n = max(1, self.tellings)
        both = sum(self.answered[a] - self.shown[a] * self.called[a] / n for a in CALLED_FOR)
        shown = sum(self.shown[a] * (1 - self.shown[a] / n) for a in CALLED_FOR)
        called = sum(self.called[a] * (1 - self.called[a] / n) for a in CALLED_FOR)
        return both / math.sqrt(shown * called) if shown * called > 0 else 0.0

    @property
    def by_rote(self) -> bool:
        """Whether the acts have nothing to do with what was told: far below what listening shows, error allowed for."""
        return self.tellings >= HABIT and self.contingency < self.story.scale.listening - ERROR / math.sqrt(
            self.tellings
        )

    def worn(self, i: int) -> bool:
        """Whether a thing was served in two turns or more, and was not raised again just now."""
        return self.visits[i] >= 2 and i not in self.raised

    def feelings_voiced(self) -> set[str | None]:
        """Feelings that the person has put into words."""
        return {self.story.things[i].feeling for i in self.told if not self.story.things[i].shown}

    def copied(self, sentence: Sentence) -> bool:
        """Whether most of a sentence's runs of four words are the user's own, or nearly all words the newest ones."""
        known = sum(w in self.newest for w in sentence.words)
        size = lexicon(self.language).size
        runs = grams(sentence.words, size(4))
        heard = sum(g in self.grams_heard for g in runs)
        if len(sentence.words) >= size(5) and known >= 0.9 * len(sentence.words):
            # Chinese sentences share their characters with many others: some of the order must be the same as well
            return self.language == "en" or heard >= 0.3 * len(runs)
        return len(runs) >= 2 and heard >= 0.6 * len(runs)

    def repeats(self, sentence: Sentence, skeleton: Skeleton) -> int:
        """Return how often a sentence, or the template behind it, was used in earlier turns."""
        used = sorted([self.skeletons[g] for g in skeleton.runs])
        whole = len(used) >= 3 or len(skeleton.words) < 4
        return max(self.said[sentence.words], used[len(used) // 2] if whole and used else 0)

    def skeleton(self, sentence: Sentence) -> Skeleton:
        """Return a sentence's words with every run of story words, feelings and names made one blank."""
        feeling_of, vocabulary = lexicon(self.language).feeling_of, self.story.vocabulary
        out: list[str] = []
        if self.language == "zh":
            of_story = _chinese_blanks(sentence.text, vocabulary)
        else:
            of_story = [(w, st in vocabulary) for w, st in zip(sentence.words, sentence.stems, strict=True)]
        for word, blank in of_story:
            if not blank and word not in feeling_of:
                out.append(word)
            elif not out or out[-1] != "_":
                out.append("_")
        return Skeleton(out, grams(out) or {" ".join(out)})

    def remember(self, sentences: tuple[Sentence, ...], skeletons: list[Skeleton]) -> None:
        """Take in the companion's sentences of one turn, after they were judged."""
        self.said.update({s.words for s in sentences})
        self.skeletons.update(set().union(*[s.runs for s in skeletons]))


@lru_cache(maxsize=1 << 12)
def _chinese_blanks(text: str, vocabulary: frozenset[str]) -> list[tuple[str, bool]]:
    """Return the tokens of a Chinese sentence, and which are the story's: a quotation of it as a whole."""
    found: list[tuple[str, bool]] = []
    for part, quoted in chinese.quoted_apart(text):
        said = read_sentence(part, "zh")
        of_story = chinese.blanked(said.words, said.stems, vocabulary)
        found += [(word, blank or (quoted and any(of_story))) for word, blank in zip(said.words, of_story, strict=True)]
    return found


def grams(tokens: list[str] | tuple[str, ...], run: int = 4) -> set[str]:
    """Return the runs of four words, each as one string: strings cost the garbage collector nothing."""
    return {" ".join(tokens[i : i + run]) for i in range(len(tokens) - run + 1)}
