"""The sentient user's emotion as a reward: SAGE (arXiv 2505.02847), and RLVER (arXiv 2507.03112), which trains on it.

A simulated person's mood, 0..100, starts at 40 and moves by at most 10 with each reply; the reward of a conversation is
the mood in which it ends, out of 100. SAGE ends a talk where the mood reaches 100 or falls below 10, or after ten
turns. Here the director and the rules end a conversation, as for every recipe, and the mood goes on moving until then:
a reply after a high point still counts. `sage_end` tells from the recorded moods where SAGE would have ended, and
`max_turns=10` sets its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from echo_env.driving import waits
from echo_env.errors import ConfigError
from echo_env.recipes import reply_judge
from echo_env.rewards import ReplyJudge, ReplyView, Step, verdict_of
from echo_env.types import Verdict

KIND = "sage"
START = 40.0
"""SAGE's first mood; RLVER starts at 30."""
LARGEST = 10
"""Largest change by one reply, in points."""
DONE, GONE = 100.0, 10.0
"""Mood at which SAGE's person is content, and below which they break off."""
TURNS = 10
"""SAGE's limit."""
MISSING_SHARE = 0.1
"""Share of turns without a verdict above which a conversation has no final mood: too much of the way is not known."""

State = Literal["S", "A", "B", "C", "F"]


def state_of(emotion: float) -> State:
    """Return SAGE's name for a mood: S from 100, A from 70, B from 40, C from 10, F below."""
    steps: tuple[tuple[float, State], ...] = ((DONE, "S"), (70.0, "A"), (40.0, "B"), (GONE, "C"))
    return next((state for least, state in steps if emotion >= least), "F")


def moved(emotion: float, change: float) -> float:
    """Return the mood after a change; change within -10..10, mood within 0..100."""
    return min(100.0, max(0.0, emotion + min(LARGEST, max(-LARGEST, change))))


class SageEnd(NamedTuple):
    """Where SAGE would have ended a conversation."""

    turn: int
    emotion: float


def sage_end(emotions: Sequence[float]) -> SageEnd | None:
    """Return where SAGE's rules end a conversation: mood 100, below 10, or the tenth turn; None where it goes on.

    Args:
        emotions: Mood after each turn, 0..100.
    """
    for turn, emotion in enumerate(emotions[:TURNS], 1):
        if emotion >= DONE or emotion < GONE or turn == TURNS:
            return SageEnd(turn, emotion)
    return None


def emotion_before(view: ReplyView, start: float = START) -> float:
    """Return the mood before a reply: as the last verdict that there is left it, else the first mood."""
    known = (v.value for verdicts in reversed(view.earlier) for v in verdicts if v.kind == KIND)
    return next((round(100 * value, 6) for value in known if value is not None), start)


def emotion_verdict(judge: str, before: float, change: float, reasoning: str) -> Verdict:
    """Return a verdict: the mood after the reply out of 100; the change as judged, and the mood before, in points."""
    return Verdict(
        kind=KIND,
        judge=judge,
        value=moved(before, change) / 100,
        parts={"change": change, "before": before},
        reasoning=reasoning,
    )


class SageRecipe:
    """The mood in which a conversation ends.

    Args:
        judge: Says how a reply moves the mood.
        dense: Whether each turn is worth what it moved, in place of the last one the mood that it ends in. The
            sums differ by the first mood alone.
    """

    def __init__(self, judge: ReplyJudge, dense: bool = False) -> None:
        self.judge, self.dense = judge, dense
        self.id = "sage_dense-1" if dense else "sage-1"
        self.waits = waits(judge)

    async def verdicts(self, view: ReplyView) -> tuple[Verdict, ...]:
        """Ask how the reply moved the mood; `missing` counts the earlier replies of which nobody knows."""
        verdict = await verdict_of(KIND, self.judge, view)
        missing = sum(v.value is None for verdicts in view.earlier for v in verdicts)
        if missing:
            verdict = verdict.model_copy(update={"parts": {**verdict.parts, "missing": float(missing)}})
        return (verdict,)

    def turn(self, step: Step) -> dict[str, float] | None:
        """Return {"emotion": ...}: the final mood out of 100 where it ends here, else 0; `dense`: what it moved.

        None where the verdict is missing, and for a last turn before which too many were.
        """
        verdict = next((v for v in step.verdicts if v.kind == KIND), None)
        if verdict is None or verdict.value is None:
            return None
        if self.dense:
            return {"emotion": verdict.value - verdict.parts["before"] / 100}
        if step.end is None:
            return {"emotion": 0.0}
        too_many = verdict.parts.get("missing", 0.0) > MISSING_SHARE * step.after.turns
        return None if too_many else {"emotion": verdict.value}


def sage(judges: str = "embedded", start: float = START, dense: bool = False) -> SageRecipe:
    """Build the recipe `sage`.

    Args:
        judges: Name of the judge: "embedded", or "llm:FILE".
        start: First mood, from 10 up to 100: SAGE 40, RLVER 30.
        dense: Reward each turn by what it moved.

    Raises:
        ConfigError: The first mood is none to start with, or the name is unknown.
    """
    if not GONE <= start < DONE:
        raise ConfigError(f"a mood starts from {GONE:.0f} up to {DONE:.0f}, got {start}", "SAGE 40, RLVER 30")
    return SageRecipe(reply_judge("sage", judges, start=start), dense)
