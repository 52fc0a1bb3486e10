"""The embedded UnifiReward: checks the steps of a reply by rules, and the reply by the evidence of the EPM judge.

A stand-in that needs no model. It knows what the person has told, by their profile:

- history is right where it takes up the newest message, by two content words or more, and names one stage of support;
  and that stage is not action while all that there is of the talk is its opening;
- emotion is right where it names a feeling of the newest message, or one near it, and at most two kinds of feeling; of
  a message that shows none, one of the message before, or that there is none;
- strategy is right where it names one of the eight, and that suits what was told: a feeling, a fact, a belief ...

It does not read whether a step is true beyond these, and takes no note of how strong a feeling is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from echo_env.agents.embedded.actor import asks_for_help
from echo_env.agents.embedded.language import read, voiced_feelings
from echo_env.agents.embedded.pairwise import EmbeddedEmpathy
from echo_env.agents.transcript import told
from echo_env.epm import NEGLIGIBLE
from echo_env.errors import RoleFailure
from echo_env.peer import KIND, STAGES, STRATEGIES, StepName, Strategy, named, points, read_steps
from echo_env.profiles import CLUSTER_OF, Line
from echo_env.rewards import ReplyView
from echo_env.roles import JudgeView
from echo_env.types import Verdict

TAKEN_UP = 2
"""Content words of the newest message that a history step holds at least, where the message has them."""
KINDS_OF_FEELING = 2
"""Clusters of feelings that an emotion step may name; more is a list."""
NO_FEELING = ("neutral", "calm", "中性", "平静")
SUITS: dict[str, frozenset[Strategy]] = {
    "feeling": frozenset({"naming feelings", "affirmation", "self-disclosure"}),
    "fact": frozenset({"questioning", "restatement"}),
    "belief": frozenset({"questioning", "restatement"}),
    "strength": frozenset({"affirmation"}),
    "wish": frozenset({"affirmation", "questioning", "restatement"}),
    "help": frozenset({"suggestion", "information"}),
    "nothing": frozenset({"questioning", "restatement"}),
    "opening": frozenset({"small talk"}),
}
"""Which strategies suit what was told: by its kind, or a question what to do, nothing new, or the first message."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a newest message tells, beside what was told before."""

    words: frozenset[str]
    """Content stems of the newest message."""
    lines: tuple[Line, ...]
    """Lines of the story that the newest message tells."""
    feelings: frozenset[str]
    """Feelings that it voices or shows."""
    earlier: frozenset[str]
    """Feelings of the message before."""
    wants_help: bool
    first: bool
    """Whether it is the first message."""


class EmbeddedSteps:
    """Judges steps and replies in one conversation. Give each conversation its own."""

    id = "embedded-steps-1"

    def __init__(self) -> None:
        self._pairwise = EmbeddedEmpathy()

    async def verdict(self, view: ReplyView) -> Verdict:
        """Return the sum of the parts, 0..3.

        Raises:
            RoleFailure: There is no reference, a reply could not be judged, or it was said in chit-chat.
        """
        if view.judged.profile.chitchat:
            raise RoleFailure(
                "in chit-chat there are no needs to weigh replies by", "the recipe `humanlike` is for that"
            )
        steps = read_steps(view.raw or view.judged.exchange.reply)
        heard, language = _listen(view.judged), view.judged.profile.language
        faults: dict[StepName, str] = {
            "history": _history(steps.texts["history"], heard, language),
            "emotion": _emotion(steps.texts["emotion"], heard, language),
            "strategy": _strategy(steps.texts["strategy"], heard),
        }
        compared = await self._pairwise.verdict(view)
        own, other = (max(0.0, compared.parts[side]) for side in ("reply", "reference"))
        as_good = own > 0 and own >= other - NEGLIGIBLE  # of two that move nobody, neither will do
        parts = points(steps, {name: not fault for name, fault in faults.items()}, float(as_good))
        reasons = [f"{name}: {fault or 'right'}" for name, fault in faults.items()]
        return Verdict(
            kind=KIND,
            judge=self.id,
            value=sum(parts.values()),
            parts=parts,
            reasoning=" | ".join([*reasons, f"response: {own:+.2f} against {other:+.2f}"]),
            reference=view.reference or "",
        )


def _listen(judged: JudgeView) -> _Heard:
    profile, language, newest = judged.profile, judged.profile.language, judged.exchange.user
    before = [e.user for e in judged.history[-1:]]
    lines = dict(profile.lines)
    here = tuple(lines[i] for i in sorted(told(profile.lines, [newest])))
    past = [lines[i] for i in told(profile.lines, before)]
    return _Heard(
        words=read(newest, language).content,
        lines=here,
        feelings=_felt(here) | voiced_feelings(newest, language),
        earlier=_felt(past).union(*(voiced_feelings(text, language) for text in before)),
        wants_help=asks_for_help(newest) or (bool(profile.needs) and profile.needs[0].axis == "P" and bool(before)),
        first=not before,
    )


def _felt(lines: Iterable[Line]) -> frozenset[str]:
    return frozenset(line.feeling for line in lines if line.feeling)


def _history(text: str, heard: _Heard, language: str) -> str:
    """Return what is wrong with a history step; "" where nothing is."""
    if len(read(text, language).content & heard.words) < min(TAKEN_UP, len(heard.words)):
        return "takes up nothing of the newest message" if text else "missing"
    stages = named(text, STAGES)
    if len(stages) != 1:
        return "names no one stage"
    return "too early for action" if stages == ["action"] and heard.first else ""


def _emotion(text: str, heard: _Heard, language: str) -> str:
    clusters = {CLUSTER_OF[f] for f in read(text, language).feelings if f in CLUSTER_OF}
    if not text:
        return "missing"
    if len(clusters) > KINDS_OF_FEELING:
        return "a list of feelings"
    felt = {CLUSTER_OF[f] for f in heard.feelings or heard.earlier if f in CLUSTER_OF}
    if clusters & felt:
        return ""
    nothing = not heard.feelings and not clusters and any(word in text.lower() for word in NO_FEELING)
    return "" if nothing else "names no feeling that was shown"


def _strategy(text: str, heard: _Heard) -> str:
    chosen = named(text, STRATEGIES)
    if len(chosen) != 1:
        return "names no one strategy" if text else "missing"
    calls = {str(line.kind) for line in heard.lines}
    calls |= {
        call
        for call, holds in (("feeling", heard.feelings), ("help", heard.wants_help), ("opening", heard.first))
        if holds
    }
    fits = any(chosen[0] in SUITS[call] for call in calls or {"nothing"})
    return "" if fits else f"{chosen[0]} does not suit what was told"
