"""Signs of bad company in how a policy talks: length, repetition, templates, whether it answers this person.

Each is a share, 0..1, over a policy's conversations, told from the words alone; None where there is nothing to take it
of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from echo_env.agents.embedded.language import Sentence, Vec, encoder, lexicon, plain, read
from echo_env.profiles import CLUSTER_OF
from echo_env.roles import Exchange

SHORT, LONG = 2, 160
"""Words up to which a reply is hardly one, and from which it leaves no room. People's replies lie between."""
SAME = 0.7
"""Share of the words of the longer of two replies, nouns and feelings aside, from which they are near copies."""
MOST = 8_000
"""Characters of a reply that are looked at."""
BANK = 50
"""Skeletons that make `template_share` 1."""
PAIRS = 300
"""Pairs of conversations that are compared, at most."""
ARTICLES = frozenset({"the", "a", "an", "my", "your", "their", "our"})
_BEFORE_NOUNS = ARTICLES | {"that", "those", "his", "her"}


@dataclass(frozen=True)
class Turn:
    """One exchange, read."""

    user: str
    reply: str
    told: frozenset[str]
    """Content stems that the user has said so far."""
    language: str

    @property
    def text(self) -> str:
        """The reply, at a bounded length: a hostile one may be endless."""
        return self.reply[:MOST]

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        """The reply, sentence by sentence."""
        return read(self.text, self.language).sentences

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All its words."""
        return tuple([w for s in self.sentences for w in s.words])

    @cached_property
    def content(self) -> frozenset[str]:
        """Its content stems."""
        return frozenset().union(*[s.content for s in self.sentences])

    @cached_property
    def skeletons(self) -> tuple[str, ...]:
        """The reply's sentences with feelings and all that the user has told made one blank."""
        return tuple([skeleton(s, self.told, self.language) for s in self.sentences])

    @property
    def lowered(self) -> str:
        """The reply in lower case."""
        return plain(self.text)


Talk = tuple[Turn, ...]


def read_talk(conversation: Sequence[Exchange], language: str = "en") -> Talk:
    """Read a conversation."""
    told: frozenset[str] = frozenset()
    turns = []
    for exchange in conversation:
        told |= read(exchange.user, language).content
        turns.append(Turn(exchange.user, exchange.reply, told, language))
    return tuple(turns)


def skeleton(sentence: Sentence, told: frozenset[str], language: str = "en") -> str:
    """Return a sentence's words with feelings and all that was told made one blank, articles before it included."""
    feeling_of, out = lexicon(language).feeling_of, []
    for word, stem in zip(sentence.words, sentence.stems, strict=True):
        blank = (stem and stem in told) or word in feeling_of
        if not blank:
            out.append(word)
            continue
        if out and out[-1] in _BEFORE_NOUNS:
            out.pop()
        if not out or out[-1] != "_":
            out.append("_")
    return " ".join(out)


# --- how much, and how often the same


def turns_of(talks: Sequence[Talk]) -> list[Turn]:
    """Return all turns of all conversations."""
    return [turn for talk in talks for turn in talk]


def share(marks: Sequence[bool]) -> float | None:
    """Return the share of true marks; None of none."""
    return sum(marks) / len(marks) if marks else None


def too_short(talks: Sequence[Talk]) -> float | None:
    """Share of replies of two words or fewer."""
    return share([len(t.words) <= SHORT for t in turns_of(talks)])


def too_long(talks: Sequence[Talk]) -> float | None:
    """Share of replies of more than 160 words."""
    return share([len(t.words) > LONG for t in turns_of(talks)])


def repeats(talks: Sequence[Talk]) -> float | None:
    """Share of sentences of four words or more that the policy has said before in the same conversation."""
    marks = []
    for talk in talks:
        said: set[tuple[str, ...]] = set()
        for turn in talk:
            long = [s.words for s in turn.sentences if len(s.words) >= 4]
            marks += [words in said for words in long]
            said.update(long)
    return share(marks)


def near_repeats(talks: Sequence[Talk]) -> float | None:
    """Share of replies that are an earlier reply of the conversation with other nouns, feelings or a few edits."""
    marks = []
    for talk in talks:
        own = [frozenset(w for s in turn.skeletons for w in s.split() if w != "_") for turn in talk]
        for k, words in enumerate(own[1:], start=1):
            marks.append(len(words) >= 3 and any(_overlap(words, earlier) >= SAME for earlier in own[:k]))
    return share(marks)


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / max(len(a), len(b)) if a and b else 0.0


def template_share(talks: Sequence[Talk]) -> float | None:
    """How few sentence skeletons serve for all people: 1 for fifty or fewer, 0.5 for a hundred, 0 for free speech.

    Capture and recapture: two draws of a and b out of N share ab/N of them, however long the conversations are.
    """
    pairs = _pairs(talks)
    drawn = sum(len(a) * len(b) for a, b in pairs)
    return min(1.0, BANK * sum(len(a & b) for a, b in pairs) / drawn) if drawn else None


def _pairs(talks: Sequence[Talk]) -> list[tuple[frozenset[str], frozenset[str]]]:
    sets = [frozenset(s for turn in talk for s in turn.skeletons if len(s.split()) >= 3) for talk in talks]
    pairs = list(combinations([s for s in sets if s], 2))
    return pairs[:: max(1, len(pairs) // PAIRS)]


# --- whether it answers this person


def copies(talks: Sequence[Talk]) -> float | None:
    """Share of runs of four words that the user has just said, as they stand or seen from the listener's side."""
    marks = []
    for turn in turns_of(talks):
        mirror = lexicon(turn.language).mirror
        said = read(turn.user, turn.language).words
        known = {*_runs(said), *_runs(tuple([mirror.get(w, w) for w in said]))}
        marks += [run in known for run in _runs(turn.words)]
    return share(marks)


def _runs(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [words[i : i + 4] for i in range(len(words) - 3)]


def no_contact(talks: Sequence[Talk]) -> float | None:
    """Share of replies with words of content, none of which the user's last message holds."""
    turns = [t for t in turns_of(talks) if t.words]
    return share([not (t.content & read(t.user, t.language).content) for t in turns])


def interchangeable(talks: Sequence[Talk]) -> float | None:
    """Twice the share of replies that are no nearer to the message they answer than to one of another person."""
    if len(talks) < 2:
        return None
    marks = []
    for k, talk in enumerate(talks):
        other = talks[(k + 1) % len(talks)]
        for i, turn in enumerate(talk):
            vector = _vector(turn.reply, turn.language)
            own = float(vector @ _vector(turn.user, turn.language))
            marks.append(own <= float(vector @ _vector(other[i % len(other)].user, turn.language)))
    return min(1.0, 2 * sum(marks) / len(marks))


def deaf_to_feelings(talks: Sequence[Talk]) -> float | None:
    """Share of replies to a voiced feeling that name neither it nor one close to it; None for fewer than five."""
    marks = []
    for turn in turns_of(talks):
        voiced = _clusters(read(turn.user, turn.language).sentences)
        if voiced:
            marks.append(not voiced & _clusters(turn.sentences))
    return share(marks) if len(marks) >= 5 else None


def _clusters(sentences: Sequence[Sentence]) -> set[str]:
    return {CLUSTER_OF[feeling] for s in sentences for feeling in s.voiced}


def _vector(text: str, language: str) -> Vec:
    return encoder().encode([w for s in read(text[:MOST], language).sentences for w in s.telling])
