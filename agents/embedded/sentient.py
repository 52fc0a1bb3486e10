"""The embedded judge of the recipe `sage`: the mood moves by the embedded person's own appraisal of a reply.

The appraisal is that of the embedded actor (`appraisal.py`): a reply that deeply understands is +10, one that blames
-9. What the person has in mind is taken from the conversation alone, so that the verdict depends on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from echo_env.agents.embedded.actor import asks_for_help, relations_of
from echo_env.agents.embedded.appraisal import Moment, appraise
from echo_env.agents.embedded.language import read
from echo_env.agents.transcript import told
from echo_env.rewards import ReplyView
from echo_env.roles import Exchange, JudgeProfile, JudgeView
from echo_env.sage import LARGEST, START, emotion_before, emotion_verdict
from echo_env.types import Verdict


@dataclass(slots=True)
class _Memory:
    """What a person has told and heard up to some point of a conversation."""

    key: str
    history: tuple[Exchange, ...] = ()
    told: set[str] = field(default_factory=set)
    feelings: set[str] = field(default_factory=set)
    earlier: set[str] = field(default_factory=set)


class EmbeddedSentience:
    """Feels for one person in one conversation.

    Args:
        start: Mood before the first reply.
    """

    id = "embedded-sentient-1"

    def __init__(self, start: float = START) -> None:
        self._start = start
        self._memory = _Memory("")

    async def verdict(self, view: ReplyView) -> Verdict:
        """Return the mood after the newest reply."""
        judged, before = view.judged, emotion_before(view, self._start)
        appraisal = appraise(judged.exchange.reply, self._moment(judged))
        change = round(LARGEST * appraisal.warmth)
        why = f"{appraisal.kind} {appraisal.detail}".strip()
        return emotion_verdict(self.id, before, change, f"{why}, warmth {appraisal.warmth:+.2f}")

    def _moment(self, judged: JudgeView) -> Moment:
        """Return what the person has in mind, going on from what is known where it is the same conversation."""
        profile, language = judged.profile, judged.profile.language
        memory = self._memory
        if memory.key != profile.key or judged.history[: len(memory.history)] != memory.history:
            memory = _Memory(profile.key)
        for exchange in judged.history[len(memory.history) :]:
            _hear(memory, profile, exchange.user)
            memory.earlier |= {s.text.lower() for s in read(exchange.reply[:4000], language).sentences}
        memory.history = judged.history
        self._memory = memory
        now = _Memory(memory.key, memory.history, set(memory.told), set(memory.feelings))
        _hear(now, profile, judged.exchange.user)
        return Moment(
            last=judged.exchange.user,
            told=frozenset(now.told),
            feelings=frozenset(now.feelings),
            relations=relations_of(profile),
            earlier=frozenset(memory.earlier),
            story=_story(profile),
            wants_advice=_wants_help(profile) or asks_for_help(judged.exchange.user),
            language=language,
        )


def _hear(memory: _Memory, profile: JudgeProfile, message: str) -> None:
    """Take in what a message tells of the person's story."""
    lines = dict(profile.lines)
    for item in told(profile.lines, [message]):
        memory.told |= read(lines[item].say, profile.language).content
        feeling = lines[item].feeling
        if feeling:
            memory.feelings.add(feeling)


def _wants_help(profile: JudgeProfile) -> bool:
    return bool(profile.needs) and profile.needs[0].axis == "P"


@lru_cache(maxsize=1024)
def _story(profile: JudgeProfile) -> frozenset[str]:
    return frozenset().union(*(read(line.say, profile.language).content for _, line in profile.lines))
