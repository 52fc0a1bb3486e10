"""What the searcher builds replies from: fragments, and how they are put together."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from echo_env.agents.embedded.listening import noun_phrases
from echo_env.agents.redteam.pools import pool

Pool = Literal["plain", "slots"]
"""plain: fixed fragments without slots. slots: also templates for nouns of the user's last message."""
Sentence = tuple[tuple[str, int], ...]
"""A sentence as fragments: (kind, place in its bank)."""
Genes = tuple[Sentence, ...]
"""A reply as sentences."""

FORMS: tuple[tuple[str, ...], ...] = (
    ("whole",), ("question",), ("opener", "middle"), ("opener", "middle", "closer"), ("middle", "closer"), ("middle",),
    ("feeling_frame", "feeling"), ("feeling_frame", "feeling", "closer"),
)  # fmt: skip
SLOT_FORM = ("slot",)
SLOT_BANKS = ("validating", "reframing", "affirming", "empowering")
MOST_SENTENCES = 4
EXPLORE = 0.25
"""Share of the draws that ignore what has paid so far."""
NOUNS = 4
"""Noun phrases of the last message that a slot may be filled with."""


@lru_cache(maxsize=2)
def banks(kind: Pool) -> Mapping[str, tuple[str, ...]]:
    """Return the fragments of a pool by kind."""
    found = dict(pool("fragments"))
    if kind == "slots":
        templates = [t for bank in SLOT_BANKS for t in pool()[bank]]
        found["slot"] = tuple(t.replace("{it}", f"{{it{k}}}") for t in templates for k in range(NOUNS))
    return found


def say(genes: Genes, kind: Pool, user: str = "") -> str:
    """Put a reply into words; slots are filled with noun phrases of the user's message."""
    texts = [_sentence([banks(kind)[k][i] for k, i in sentence]) for sentence in genes]
    if kind == "slots":
        found = noun_phrases(user) or ["it"]
        nouns = {f"it{k}": found[k % len(found)] for k in range(NOUNS)}
        texts = [text.format(**nouns) for text in texts]
    return " ".join([text[:1].upper() + text[1:] for text in texts])


def _sentence(parts: list[str]) -> str:
    text = " ".join([part if k == 0 else part.rstrip(",") for k, part in enumerate(parts)])
    return text if text[-1] in ".?!" else f"{text}."


@dataclass(slots=True)
class Breeder:
    """Draws and varies replies, and learns which fragments pay."""

    kind: Pool
    rnd: random.Random
    weights: dict[tuple[str, int], float] = field(default_factory=dict)

    def draw(self) -> Genes:
        """Return a new reply of one to four sentences."""
        return tuple([self._draw_sentence() for _ in range(self.rnd.choice((1, 2, 2, 3, 3, MOST_SENTENCES)))])

    def vary(self, parent: Genes, other: Genes) -> Genes:
        """Return a reply with one change: a fragment, a sentence more, less or from another reply, or the order."""
        sentences = list(parent)
        at = self.rnd.randrange(len(sentences))
        change = self.rnd.randrange(5)
        if change == 0:
            sentences[at] = self._draw_sentence()
        elif change == 1:
            sentences[at] = self._edit(sentences[at])
        elif change == 2 and len(sentences) > 1:
            del sentences[at]
        elif change == 3 and other:
            sentences[at] = self.rnd.choice(other)
        elif len(sentences) < MOST_SENTENCES:
            sentences.insert(at, self.rnd.choice(other) if other and self.rnd.random() < 0.5 else self._draw_sentence())
        else:
            self.rnd.shuffle(sentences)
        return tuple(dict.fromkeys(sentences))

    def learn(self, genes: Genes, value: float) -> None:
        """Make the fragments of a reply likelier where it paid, less likely where it cost."""
        factor = 1.0 + max(-0.3, min(1.0, 8.0 * value))
        for fragment in {f for sentence in genes for f in sentence}:
            self.weights[fragment] = min(20.0, max(0.05, self.weights.get(fragment, 1.0) * factor))

    def _draw_sentence(self) -> Sentence:
        forms = FORMS if self.kind == "plain" else (*FORMS, *([SLOT_FORM] * len(FORMS)))
        return tuple([(part, self._fragment(part)) for part in self.rnd.choice(forms)])

    def _edit(self, sentence: Sentence) -> Sentence:
        at = self.rnd.randrange(len(sentence))
        part = sentence[at][0]
        return (*sentence[:at], (part, self._fragment(part)), *sentence[at + 1 :])

    def _fragment(self, part: str) -> int:
        size = len(banks(self.kind)[part])
        if self.rnd.random() < EXPLORE:
            return self.rnd.randrange(size)
        best = [self.rnd.randrange(size) for _ in range(2)]
        first, second = (self.weights.get((part, i), 1.0) for i in best)
        return best[0] if self.rnd.random() * (first + second) < first else best[1]
