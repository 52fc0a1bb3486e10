"""Several judges as one: the median of their levels, all of their evidence, and how far they disagreed.

By name: `ensemble:embedded,second`, wherever a judge's name is taken.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import cast

from echo_env import registry
from echo_env.driving import waits
from echo_env.errors import ConfigError, redact
from echo_env.levels import LEVEL_NAMES
from echo_env.roles import Judge, JudgeView
from echo_env.types import Evidence, Judgement, Levels

_SPREAD = re.compile(r"\b([CAP]\.(?:Prog|Neg)) (\d)")


class EnsembleJudge:
    """Judges by the median of several judges' levels, on each axis and in each direction.

    Of two middle levels the one nearer to 0 counts: no judge is outvoted towards more, and doubt speaks for the reply.
    A member that fails is left out and counted in the note; where all fail there is no judgement.

    Args:
        judges: The members. Each judges every view once.

    Raises:
        ConfigError: Fewer than two judges.
    """

    def __init__(self, judges: Sequence[Judge]) -> None:
        if len(judges) < 2:
            raise ConfigError("an ensemble takes two judges or more", "for example  ensemble:embedded,second")
        self._judges = tuple(judges)
        self.id = "ensemble:" + ",".join(j.id for j in judges)
        self.rubric = "+".join(dict.fromkeys(j.rubric for j in judges))
        self.waits = waits(*judges)

    async def judge(self, view: JudgeView) -> Judgement | None:
        """Judge the newest exchange by the median of those members that could."""
        answers = await self._asked(view)
        found = [a for a in answers if isinstance(a, Judgement)]
        if not found:
            return None
        failed = [
            f"{judge.id}: {answer or 'no judgement'}"
            for judge, answer in zip(self._judges, answers, strict=True)
            if not isinstance(answer, Judgement)
        ]
        return Judgement(
            levels=median_levels([j.levels for j in found]),
            evidence=tuple(_signed(e, j.judge) for j in found for e in j.evidence),
            judge=self.id,
            note=_note(len(answers), failed, found),
        )

    async def _asked(self, view: JudgeView) -> list[Judgement | str]:
        """Return each member's judgement, or why there is none; at once where one may wait."""
        asked = [_ask(judge, view) for judge in self._judges]
        if not self.waits:
            return [await one for one in asked]
        return list(await asyncio.gather(*asked))


async def _ask(judge: Judge, view: JudgeView) -> Judgement | str:
    try:
        return await judge.judge(view) or ""
    except Exception as e:  # told in the ensemble's note
        return redact(f"{type(e).__name__}: {e}")[:200]


def _signed(evidence: Evidence, judge: str) -> Evidence:
    """Return evidence that says in its reason which judge found it."""
    reason = f"{judge}: {evidence.reason}" if evidence.reason else judge
    return evidence.model_copy(update={"reason": reason})


def median_levels(levels: Sequence[Levels]) -> Levels:
    """Return the median of each of the six levels; of two middle ones that nearer to 0."""
    columns = zip(*levels, strict=True)
    return Levels(*(median_low([abs(v) for v in column]) * (-1 if k % 2 else 1) for k, column in enumerate(columns)))


def spread(levels: Sequence[Levels]) -> Levels:
    """Return, of each of the six levels, the largest minus the smallest."""
    return Levels(*(max(column) - min(column) for column in zip(*levels, strict=True)))


def _note(members: int, failed: Sequence[str], found: Sequence[Judgement]) -> str:
    apart = zip(LEVEL_NAMES, spread([j.levels for j in found]), strict=True)
    parts = [f"spread {', '.join(f'{name} {s}' for name, s in apart if s) or '0'} of {len(found)} judges"]
    if failed:
        parts.append(f"{len(failed)} of {members} failed: {'; '.join(failed)}")
    parts += [f"{j.judge}: {j.note}" for j in found if j.note]
    return " | ".join(parts)


def recorded_spread(judgement: Judgement) -> Levels | None:
    """Return how far an ensemble's judges were apart, as its judgement records it; None for another judge's."""
    head = judgement.note.partition(" | ")[0]
    if not (judgement.judge.startswith("ensemble:") and head.startswith("spread ")):
        return None
    told = {name: int(size) for name, size in _SPREAD.findall(head)}
    return Levels(*(told.get(name, 0) for name in LEVEL_NAMES))


def ensemble_of(members: str) -> Callable[[], EnsembleJudge]:
    """Return what builds an ensemble of registered judges.

    Args:
        members: Their names, separated by commas; "module:attribute" is a name too.

    Raises:
        ConfigError: A name is unknown, or there are fewer than two.
    """
    names = [name.strip() for name in members.split(",") if name.strip()]
    if len(names) < 2:
        raise ConfigError(f"'ensemble:{members}' names fewer than two judges", "for example  ensemble:embedded,second")
    makers = [cast("Callable[[], Judge]", registry.resolve("judge", name)) for name in names]
    return lambda: EnsembleJudge([make() for make in makers])
