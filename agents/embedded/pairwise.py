"""The embedded empathy judge: which of two replies moves this person further, by the evidence of the EPM judge.

Echo-N1 eq. 5 asks whether a reply belongs to the ideal replies to this person more than a reference does. Here a reply
belongs to them by the distance that it closes from where the person stands now (`strict`), and not at all where it
closes none: a reply that harms less than a bad reference is not a good one. Each reply is judged by itself, after the
same history, so the order of the two cannot matter; a tie is not better.
"""

from __future__ import annotations

from dataclasses import dataclass

from echo_env.agents.embedded.openjudge import OpenJudge
from echo_env.agents.embedded.opentalk import OPEN_DEFICIT, is_open
from echo_env.agents.gated import GatedJudge
from echo_env.agents.redteam.fork import fork
from echo_env.epm import NEGLIGIBLE, EpmState
from echo_env.errors import RoleFailure
from echo_env.rewards import ReplyView
from echo_env.roles import Exchange, Judge, JudgeView
from echo_env.scorers import StrictScorer
from echo_env.types import Judgement, Vector, Verdict


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a conversation stands: a judge that has heard it, and what it has come to."""

    key: str
    history: tuple[Exchange, ...]
    judge: Judge
    state: EpmState


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A reply, judged from a place."""

    judgement: Judgement
    work: float
    """Distance closed, in points; negative where it grew."""
    after: _Place

    @property
    def pull(self) -> float:
        """What speaks for the reply, in points from 0."""
        return max(0.0, self.work)


class EmbeddedEmpathy:
    """Compares replies in one conversation. Give each conversation its own."""

    id = "embedded-pairwise-1"

    def __init__(self) -> None:
        self._scorer = StrictScorer()
        self._place: _Place | None = None

    async def verdict(self, view: ReplyView) -> Verdict:
        """Return 1 where the reply closes more distance than the reference, else 0.

        Raises:
            RoleFailure: There is no reference, or a reply could not be judged.
        """
        if view.reference is None:
            raise RoleFailure("there is no reply to compare with", "name a reference policy, or give a reference")
        judged = view.judged
        place = await self._stand(judged, view.deficit)
        own = await self._weigh(place, judged, judged.exchange)
        other = await self._weigh(place, judged, Exchange(judged.exchange.user, view.reference))
        self._place = own.after  # the reply is what goes on; the reference was never said
        return Verdict(
            kind="empathy",
            judge=self.id,
            value=float(own.pull > other.pull + NEGLIGIBLE),
            parts={"process": 1.0, "reply": own.work, "reference": other.work},
            reasoning=f"needs {_needs(place.state.position)}; reply {_told(own)}; reference {_told(other)}",
            reference=view.reference,
        )

    async def _stand(self, judged: JudgeView, deficit: Vector | None) -> _Place:
        """Return the place at the end of the view's history, going on from the last one where it is the same talk."""
        profile = judged.profile
        if is_open(profile):  # whose profile is made anew of each message; nobody knows how far they have come
            return _Place(profile.key, judged.history, GatedJudge(OpenJudge()), self._scorer.start(OPEN_DEFICIT))
        place = self._place
        known = len(place.history) if place is not None and place.key == profile.key else 0
        if place is None or not known or place.history != judged.history[:known]:
            start = self._scorer.start(deficit if deficit is not None and any(deficit) else OPEN_DEFICIT)
            place, known = _Place(profile.key, (), GatedJudge(OpenJudge()), start), 0
        for exchange in judged.history[known:]:
            place = (await self._weigh(place, judged, exchange)).after
        return place

    async def _weigh(self, place: _Place, judged: JudgeView, exchange: Exchange) -> _Weighed:
        judge = fork(place.judge)
        judgement = await judge.judge(JudgeView(judged.profile, place.history, exchange))
        if judgement is None:
            raise RoleFailure("a reply could not be judged")
        before = place.state
        after = self._scorer.advance(before, judgement.levels)
        history = (*place.history, exchange)
        return _Weighed(judgement, after.works[-1], _Place(place.key, history, judge, after))


def _needs(position: Vector) -> str:
    return " ".join(f"{axis} {value:.0f}" for axis, value in zip("CAP", position, strict=True))


def _told(weighed: _Weighed) -> str:
    """Say what a reply did and how far it led: "C.prog.1.reflects, work +1.20"."""
    anchors = dict.fromkeys(e.anchor for e in weighed.judgement.evidence)
    return f"{', '.join(anchors) or 'nothing found'}, work {weighed.work:+.2f}"
