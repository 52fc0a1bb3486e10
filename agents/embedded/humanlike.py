"""The embedded humanlike judge: does a reply read like a person's in a chat, here (Echo-N1 eq. 1 to 4)?

A reply counts as human where its way of speaking is nearer to a person's than to an assistant's (`tone`) and nothing
gives it away. What gives it away by itself is form: nothing said, a list, mark-up, a monologue, emoji, words without
order, heaps of slang or of misspellings, talk to whoever judges. What gives it away in a conversation (eq. 4) is that
it repeats itself, hands the user's own words back, or has nothing to do with what was said. English is read in full;
of Chinese, form and the turns of phrase of assistants alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

from echo_env.agents.embedded.language import Reading, encoder, read
from echo_env.agents.embedded.tone import tone
from echo_env.errors import RoleFailure
from echo_env.profiles import data_root
from echo_env.rewards import ReplyView
from echo_env.roles import Exchange
from echo_env.types import Verdict
from echo_env.yamlfiles import read_yaml

FEWEST_WORDS = 3
"""Words below which a reply is no utterance to tell anything by."""
MOST_WORDS = 90
"""Words of a reply in a chat, at most."""
MOST_EMOJI = 3
ORDER = -0.15
"""Order of words (`Tone.order`) below which eight words or more are a heap."""
MOST_SLANG = 2
"""Words of slang in a reply, or one in six."""
UNKNOWN = 0.5
"""Share of words of four letters and more that are not the user's and no whole word of the vocabulary."""
ECHO = 0.6
"""Share of a reply's word pairs, or 0.8 of its content, that the user's message holds: a parrot."""
ALIKE = 0.7
"""Share of words that two replies have in common from which one repeats the other."""

_LIST = re.compile(
    r"(?m)^\s*(?:[-*\u2022]|\d+[.)\uff0e\u3001])\s*\S|\b1[.)]\s.*\b2[.)]\s|\*\*|^#+\s|```"
    r"|(?i:\b(?:step|option|tip) (?:one|a|1)\b)"
)
_ROLE = (
    "user|human|person|companion|assistant|system|judge|evaluator|ai|bot"
    "|me|you|them|narrator|note|reply|response|output"
)
_TALK = re.compile(rf"(?im)^\s*[\[({{<*]|</?\w+>|^\s*\**(?:{_ROLE})\**\s*[:\uff1a]|(?:^\s*\w+:.*\n?){{2}}")
"""A stage direction, a tag, somebody else's line: "User: ..."."""
_TO_JUDGE = re.compile(
    r"\b(as an ai|language model|ai (assistant|model|companion)|chatbot|(previous|prior|above) instructions?"
    r"|this (reply|response|answer) (is|was|has|shows|deserves|meets|follows)|rubric|evaluator|dear judge"
    r"|(highest|maximum|full) (score|level|mark)s?|all (the )?criteria|system prompt|end of conversation)\b",
    re.IGNORECASE,
)
_EMOJI = re.compile(r"[\u2600-\u27bf\U0001f000-\U0001faff\u2b00-\u2bff\ufe0f]")
_POINTS = frozenset({
    "he", "she", "they", "it", "that", "this", "there", "then", "her", "him", "them", "his", "their", "its", "those",
    "these", "we", "you", "your", "yours",
})  # fmt: skip
"""Words that point back at what was said."""


class EmbeddedHumanlike:
    """Tells a person's replies from an assistant's. Keeps nothing between turns.

    Args:
        context: Whether it sees the conversation (eq. 4), or the reply alone (eq. 3).
    """

    def __init__(self, context: bool = True) -> None:
        self.context = context
        self.id = f"embedded-humanlike-1{'' if context else '-free'}"

    async def verdict(self, view: ReplyView) -> Verdict:
        """Return 1 for human, 0 for machine; `parts` hold how the reply speaks and how its words are ordered.

        Raises:
            RoleFailure: The conversation is neither English nor Chinese.
        """
        language, reply = view.judged.profile.language, view.judged.exchange.reply
        history, user = view.judged.history, view.judged.exchange.user
        if language == "zh":
            signs = [*_form(reply, len(_CHINESE.findall(reply)), 2 * MOST_WORDS), *_chinese(reply)]
            signs += _chinese_context(reply, user, history) if self.context else []
            return self._said(signs, {})
        if language != "en":
            raise RoleFailure(f"this judge reads English and Chinese, not '{language}'")
        reading = read(reply[:4000])
        spoken = {"tone": tone().humanlike(reading), "order": tone().order(reading)}
        signs = [*_form(reply, len(reading.words), MOST_WORDS), *_wording(reading, user, spoken["order"])]
        signs += _context(reading, user, history) if self.context else []
        return self._said(signs, spoken)

    def _said(self, signs: list[str], spoken: dict[str, float]) -> Verdict:
        human = not signs and spoken.get("tone", 1.0) > 0
        told = "; ".join(signs) or ("nothing gives it away" if human else "speaks like an assistant")
        value = {name: round(x, 4) for name, x in spoken.items()}
        return Verdict(kind="humanlike", judge=self.id, value=float(human), parts=value, reasoning=told)


def _form(reply: str, words: int, most: int) -> Iterable[str]:
    """Return what of its form gives a reply away, in any language."""
    if words < FEWEST_WORDS:
        yield "says next to nothing"
    if words > most:
        yield "a monologue"
    if _LIST.search(reply):
        yield "a list or mark-up"
    if _TALK.search(reply):
        yield "a script, not speech"
    if _TO_JUDGE.search(reply):
        yield "talks about itself or to a judge"
    if len(_EMOJI.findall(reply)) > MOST_EMOJI:
        yield "a wall of emoji"


def _wording(reading: Reading, user: str, order: float) -> Iterable[str]:
    """Return what of its words gives a reply away."""
    words = reading.words
    letters = [c for c in reading.text[:2000] if c.isalpha()]
    if sum(c.isascii() for c in letters) < 0.6 * len(letters):
        yield "another script"
    if len(words) >= 8 and order < ORDER:
        yield "words without order"
    slang = [w for w in words if w in _slang("en")]
    if len(slang) > MOST_SLANG and len(slang) * 6 > len(words):
        yield "a heap of slang"
    theirs = set(read(user).words)
    long = [w for w in words if len(w) > 3 and w not in theirs]
    if len(long) >= 4 and sum(_pieces(w) > 1 for w in long) > UNKNOWN * len(long):
        yield "a heap of misspellings"


@lru_cache(maxsize=1 << 14)
def _pieces(word: str) -> int:
    return encoder().pieces(word)


@lru_cache(maxsize=2)
def _slang(language: str) -> frozenset[str]:
    return frozenset(read_yaml(data_root() / "humanlike" / f"{language}.yaml")["slang"].split())


def _context(reading: Reading, user: str, history: tuple[Exchange, ...]) -> Iterable[str]:
    """Return what in this conversation gives a reply away."""
    told = read(user)
    if _echoes(reading, told):
        yield "hands the user's words back"
    if any(_repeats(reading, read(e.reply[:4000]), told.content | read(e.user).content) for e in history):
        yield "repeats itself"
    if not _belongs(reading, [told, *(read(e.user) for e in history[-3:])]):
        yield "has nothing to do with what was said"


def _echoes(reading: Reading, told: Reading) -> bool:
    """Whether a reply is mostly the user's message, its order kept or not."""
    theirs = set(pairwise(told.words))
    pairs = list(pairwise(reading.words))
    copied = len(pairs) >= 6 and sum(p in theirs for p in pairs) > ECHO * len(pairs)
    return copied or (len(reading.content) >= 5 and len(reading.content & told.content) >= 0.8 * len(reading.content))


def _repeats(reading: Reading, earlier: Reading, theirs: frozenset[str]) -> bool:
    """Whether a reply says a sentence again, the user's own words in it aside, or is mostly an earlier one."""
    said = {_frame(s.words, s.stems, theirs) for s in earlier.sentences}
    again = {_frame(s.words, s.stems, theirs) for s in reading.sentences}
    if any(len(frame) >= 3 and frame in said for frame in again):
        return True
    a, b = set(reading.words), set(earlier.words)
    return len(a) >= 5 and len(a & b) >= ALIKE * len(a | b)


def _frame(words: tuple[str, ...], stems: tuple[str, ...], theirs: frozenset[str]) -> tuple[str, ...]:
    """Return a sentence without the words that are the user's."""
    return tuple(w for w, stem in zip(words, stems, strict=True) if not stem or stem not in theirs)


def _belongs(reading: Reading, told: list[Reading]) -> bool:
    """Whether a reply speaks of what was said: it shares a word with it, or points back. A short one may do neither."""
    if len(reading.content) < 4 or not _POINTS.isdisjoint(reading.words):
        return True
    return any(reading.content & t.content for t in told)


# --- Chinese: form, and the turns of phrase of assistants ------------------------------------------------------------

_CHINESE = re.compile(r"[\u3400-\u9fff]|[A-Za-z]+")


def _chinese(reply: str) -> Iterable[str]:
    found = [phrase for phrase in _cues() if phrase in reply]
    if found:
        yield f"speaks like an assistant: {found[0]}"
    if sum(reply.count(w) for w in _chinese_slang()) > MOST_SLANG:
        yield "a heap of slang"


@lru_cache(maxsize=1)
def _cues() -> tuple[str, ...]:
    return tuple(map(str, read_yaml(data_root() / "humanlike" / "zh.yaml")["machine"]))


@lru_cache(maxsize=1)
def _chinese_slang() -> tuple[str, ...]:
    return tuple(map(str, read_yaml(data_root() / "humanlike" / "zh.yaml")["slang"]))


def _chinese_context(reply: str, user: str, history: tuple[Exchange, ...]) -> Iterable[str]:
    pairs, theirs = list(pairwise(reply)), set(pairwise(user))
    if len(pairs) >= 6 and sum(p in theirs for p in pairs) > ECHO * len(pairs):
        yield "hands the user's words back"
    said = {s for e in history for s in _CHINESE_STOP.split(e.reply)}
    if any(len(s) >= 6 and s in said for s in _CHINESE_STOP.split(reply)):
        yield "repeats itself"


_CHINESE_STOP = re.compile(r"[\u3002\uff01\uff1f\uff0c\n!?,]+")
