"""The embedded judge: evidence with quotes, behavioural anchors, levels. Code and static vectors; no model, no network.

For each sentence of a reply it asks what the sentence does (`anchors.Reader`), what of the person's story it
refers to (`Ledger.refers_to`), and whether that was met before. Each finding is an `Evidence` with the sentence as its
quote; a level is the strongest finding of its axis and direction. Everything is relative to this person: the same
advice helps someone who asked for it and rushes someone who has not been heard. What a sentence does is found in
`findings`; here is what only the whole reply shows.
"""

from __future__ import annotations

import re

from echo_env.agents.embedded import chinese
from echo_env.agents.embedded.anchors import Reader, anchors_of, reader, rubric_for
from echo_env.agents.embedded.encoders import encoder_for
from echo_env.agents.embedded.findings import Bench, Whole, compare, find, settle
from echo_env.agents.embedded.language import Reading, Sentence, lexicon, read
from echo_env.agents.embedded.ledger import Ledger, Skeleton, story_of
from echo_env.roles import Exchange, JudgeProfile, JudgeView
from echo_env.types import AXES, Evidence, Judgement, Levels

MAX_WORDS = 160
"""Words of a reply that are judged; a longer one leaves the person no room and says so in its judgement."""
MANY_FEELINGS = 3
"""Feelings named in one reply from which none of them was heard."""
FEW_FUNCTION_WORDS = 0.18
"""A text of eight or more words with a smaller share of function words is a heap of words, not speech."""

_ASKS = re.compile(
    r"\b(what (should|can|do|would) (i|you) do\b|any (advice|ideas|suggestions)|how (do|can|should) i\b"
    r"|tell me what to|help me (decide|figure|work out)|where (do|would) i (even )?(start|begin))",
    re.IGNORECASE,
)


class EmbeddedJudge:
    """Judges one conversation. Give each conversation its own.

    Args:
        rubric_id: Which anchors to judge by. Of a conversation in Chinese, the rubric of that id with "_zh" behind it.
        encoder: Whose vectors to compare by; a name that `encoders.encoder_of` knows. Chinese has its own.
    """

    id = "embedded-2"
    open_talk = "embedded-open"
    """Which registered judge stands in for this one where there is no profile."""

    def __init__(self, rubric_id: str = "epm_v1", encoder: str = "wordllama") -> None:
        self.rubric, self._encoder = rubric_id, encoder
        reader(rubric_id, encoder)  # a broken rubric is an error now, not a failed judgement on every turn
        self._ledger: Ledger | None = None
        self._history: tuple[Exchange, ...] = ()

    async def judge(self, view: JudgeView) -> Judgement:
        """Judge the newest exchange of a view. The same view always gives the same judgement."""
        ledger = self._caught_up(view)
        judgement = self._judge_next(ledger, view.profile, view.exchange)
        self._history = (*view.history, view.exchange)
        return judgement

    def _caught_up(self, view: JudgeView) -> Ledger:
        """Return the ledger at the end of `view.history`, replaying it where it is not the one seen last."""
        if self._ledger is not None and self._history == view.history:
            return self._ledger
        language = view.profile.language
        ledger = Ledger(story_of(view.profile, encoder_for(language, self._encoder)), language)
        for exchange in view.history:
            self._judge_next(ledger, view.profile, exchange)
        self._ledger = ledger
        return ledger

    def _reader(self, language: str) -> Reader:
        """Return what tells acts in a language."""
        return reader(rubric_for(self.rubric, language), encoder_for(language, self._encoder))

    def _judge_next(self, ledger: Ledger, profile: JudgeProfile, exchange: Exchange) -> Judgement:
        ledger.hear(exchange.user)
        anchors = anchors_of(rubric_for(self.rubric, profile.language))
        bench = Bench(ledger, profile, self._reader(profile.language), anchors, asked=_asks_advice(exchange.user))
        reading, note = _bounded(exchange.reply, profile.language)
        if note:
            _judge_form(bench, exchange.reply, note)
        spoken = [ledger.skeleton(s) for s in reading.sentences]
        if note != "noise":
            _judge_sentences(bench, reading, spoken)
        ledger.remember(reading.sentences, spoken)
        ledger.barren = 0 if any(e.level > 0 for e in bench.found) else ledger.barren + 1
        levels = _levels(bench.found)
        ledger.trust = max(-4, ledger.trust + sum(e.level > 0 for e in bench.found) + sum(levels[1::2]))
        return Judgement(levels=levels, evidence=tuple(bench.found), judge=self.id, note=note)


def _asks_advice(user: str) -> bool:
    return _ASKS.search(user) is not None or chinese.ASKS_ADVICE.search(user) is not None


def _levels(found: list[Evidence]) -> Levels:
    """Map evidence to levels: the strongest of each axis and direction."""
    strongest = {(axis, d): 0 for axis in AXES for d in ("prog", "neg")}
    for e in found:
        key = (e.axis, e.direction)
        strongest[key] = max(strongest[key], e.level) if e.level > 0 else min(strongest[key], e.level)
    return Levels(*(strongest[(axis, d)] for axis in AXES for d in ("prog", "neg")))


def _bounded(reply: str, language: str) -> tuple[Reading, str]:
    """Read what of a reply is judged, and say what is wrong with its form.

    That is "" for nothing, or "silence", "noise", "curt", "monologue".
    """
    reading = read(reply[:20_000], language)
    tokens = reading.words
    if not tokens:
        return reading, "silence" if not reply.strip() else "noise"
    known = sum(len(s.words) - len(s.telling) for s in reading.sentences)
    size = lexicon(language).size
    heap = len(tokens) >= size(8) and known < FEW_FUNCTION_WORDS * len(tokens)
    if heap or ((language != "en" or not reply.isascii()) and _foreign(reply, language)):
        return reading, "noise"
    if len(tokens) <= 2 and not reading.content and "?" not in reply:
        return reading, "curt"
    if len(tokens) <= size(MAX_WORDS):
        return reading, ""
    kept: list[Sentence] = []
    for sentence in reading.sentences:
        if sum(len(s.words) for s in kept) + len(sentence.words) > size(MAX_WORDS):
            break
        kept.append(sentence)
    return Reading.of(reply, tuple(kept)), "monologue"


def _foreign(reply: str, language: str) -> bool:
    """Whether most letters of a reply belong to another script than the person's."""
    letters = [c for c in reply[:2_000] if c.isalpha()]
    own = sum(c.isascii() for c in letters) if language == "en" else sum("\u3400" <= c <= "\u9fff" for c in letters)
    return own < 0.6 * len(letters)


def _judge_form(bench: Bench, reply: str, note: str) -> None:
    quote = reply.strip()[:200]
    bench.add("A.neg.1.cold", quote, reason=note)
    if note in ("silence", "noise"):
        bench.add("C.neg.1.ignores", quote, reason=note)
    if note == "noise":
        bench.add("P.neg.1.flatters", quote, reason="words without a sentence")


def _judge_sentences(bench: Bench, reading: Reading, skeletons: list[Skeleton]) -> None:
    """Find what each sentence does, then what counts of it, then what only the whole reply shows."""
    ledger = bench.ledger
    sentences = compare(ledger, reading, skeletons)
    grounds = [spoken.own for spoken in sentences]
    whole = Whole(
        grounded=any(grounds) or any(map(ledger.touches, reading.sentences)),
        echo=2 * sum(len(s.sentence.words) for s in sentences if s.copied) > len(reading.words),
        many_feelings=len(reading.feelings) >= MANY_FEELINGS,
    )
    worn: list[Sentence] = []
    shown: set[str] = set()
    for k, spoken in enumerate(sentences):
        act = find(bench, spoken, _nearest(grounds, k), whole)
        if act is not None:
            shown.add(act)
            if spoken.own and all(map(ledger.worn, spoken.own)):
                worn.append(spoken.sentence)
    ledger.answer(shown)
    _count(bench, reading, shown)
    _judge_whole(bench, reading, whole, worn)


def _nearest(grounds: list[list[int]], k: int) -> list[int]:
    """Return what sentence `k` refers to, else what the one before it does, else the one behind it."""
    beside = (*grounds[max(0, k - 1) : k], *grounds[k + 1 : k + 2])
    return grounds[k] or next((g for g in beside if g), [])


def _count(bench: Bench, reading: Reading, shown: set[str]) -> None:
    """Let the good that was found count, unless the companion does the same whatever is told."""
    if not bench.ledger.by_rote:
        settle(bench)
    elif any(shown) and "P.prog.1.advises" not in shown:
        for anchor in ("C.neg.1.hollow", "A.neg.2.repeats", "P.neg.1.flatters"):
            bench.add(anchor, reading.text[:200], reason="the same acts whatever is told")


def _judge_whole(bench: Bench, reading: Reading, whole: Whole, worn: list[Sentence]) -> None:
    """Add what only the whole reply shows."""
    ledger = bench.ledger
    if whole.many_feelings:
        bench.add("A.neg.1.mismatch", reading.text[:200], reason="names three feelings or more at once")
    progress = any(e.level > 0 for e in bench.found)
    if worn and not progress:
        bench.add("A.neg.1.circles", worn[0].text)
    for axis in AXES:
        if ledger.overlooked(axis) or (axis == "A" and not progress and ledger.left_alone):
            bench.add(f"{axis}.neg.1.overlooks", reading.text[:200])
    opening = not ledger.barren and any(s.question and not s.content for s in reading.sentences)
    if not whole.grounded and not progress and not opening and not any(e.axis == "C" for e in bench.found):
        bench.add("C.neg.1.ignores", reading.text[:200])
