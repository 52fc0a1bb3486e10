"""The embedded judge for talk without a profile: people's own conversations, recorded or live.

It shares the ledger, the reader and the rubric of the world's judge, played over a profile made of what the person has
said (`opentalk`), and adds the acts of `open_v1`, which a stranger's words show by themselves. Those pay in open talk
alone: for a person with a real profile this judge is `EmbeddedJudge` and nothing else, since comfort and questions that
fit anybody must not earn reward in training (docs/validity.md).
"""

from __future__ import annotations

from echo_env.agents.embedded.anchors import anchors_of
from echo_env.agents.embedded.judge import EmbeddedJudge
from echo_env.agents.embedded.language import read
from echo_env.agents.embedded.openacts import RUBRIC, acts_of
from echo_env.agents.embedded.opentalk import is_open, tidy
from echo_env.errors import RoleFailure
from echo_env.roles import Exchange, JudgeView
from echo_env.types import AXES, Evidence, Judgement, Levels

BASE = "epm_v1"


class OpenJudge:
    """Judges one conversation without a profile; with one, it is the embedded judge."""

    id = "embedded-open-1"
    rubric = f"{BASE}+{RUBRIC}"

    def __init__(self) -> None:
        self._world = EmbeddedJudge(BASE)

    async def judge(self, view: JudgeView) -> Judgement:
        """Judge the newest exchange of a view. The same view always gives the same judgement.

        Raises:
            RoleFailure: The talk is not in English.
        """
        if not is_open(view.profile):
            return await self._world.judge(view)
        if view.profile.language != "en":
            raise RoleFailure(f"this judge reads English, not '{view.profile.language}'")
        plain = JudgeView(view.profile, tuple(_tidied(e) for e in view.history), _tidied(view.exchange))
        # what was said has grown since the last turn, and the profile with it: the ledger is played anew
        found = await EmbeddedJudge(BASE).judge(plain)
        evidence = (*_shared(found), *_open_evidence(plain, found))
        reply = view.exchange.reply
        quoted = tuple(e.model_copy(update={"quote": verbatim(e.quote, reply)}) for e in evidence)
        return Judgement(levels=_levels(quoted), evidence=quoted, judge=self.id, note=found.note)


def _tidied(exchange: Exchange) -> Exchange:
    return Exchange(tidy(exchange.user), tidy(exchange.reply))


_SPOILS = frozenset({"A.neg.2.judges", "A.neg.2.repeats", "C.neg.1.parrots", "C.neg.2.gaslights", "P.neg.2.denies"})
"""Harm that leaves nothing good in the sentence that does it."""
_SHARED = _SPOILS | {
    "C.prog.1.reflects", "C.prog.2.connects", "C.prog.2.reframes", "A.neg.1.cold", "A.neg.1.minimises",
    "A.neg.1.circles",
}  # fmt: skip
"""Findings of the world's judge that hold in open talk too: what was taken up, form, repetition, harm.

Left out is what rests on knowing this person: needs, feelings that only show, relations, whether advice was due, and
that comfort in general terms is hollow: there it is all that a stranger has.
"""


def _shared(found: Judgement) -> list[Evidence]:
    return [e for e in found.evidence if e.anchor in _SHARED and not (e.level > 0 and "?" in e.quote)]


def _open_evidence(view: JudgeView, found: Judgement) -> list[Evidence]:
    """Return what the sentences of a reply show by themselves; one said before, or one that harms, shows nothing."""
    said = {s.words for e in view.history for s in read(e.reply).sentences}
    spoiled = {e.quote for e in found.evidence if e.anchor in _SPOILS}
    evidence: list[Evidence] = []
    if found.note == "noise":
        return evidence
    sentences = read(view.exchange.reply).sentences
    for sentence in sentences:
        if sentence.words not in said and sentence.text not in spoiled:
            evidence += [_evidence(act.anchor, act.quote) for act in acts_of(sentence)]
    words = sum(len(s.words) for s in sentences)
    if 0 < words <= FEW_WORDS and len(read(view.exchange.user).content) >= TOLD:
        evidence.append(_evidence("A.neg.1.brushes", view.exchange.reply))
    return evidence


TOLD = 2
"""Content words of a message from which it has told something."""
FEW_WORDS = 8
"""Words of a reply that leave no room for more than a formula or a bare question."""


def _evidence(anchor: str, quote: str) -> Evidence:
    a = anchors_of(RUBRIC)[anchor]
    return Evidence(axis=a.axis, direction=a.direction, level=a.level, anchor=a.id, quote=quote[:400])


def _levels(evidence: tuple[Evidence, ...]) -> Levels:
    return Levels(
        *(
            (max if direction == "prog" else min)(
                (e.level for e in evidence if e.axis == axis and e.direction == direction), default=0
            )
            for axis in AXES
            for direction in ("prog", "neg")
        )
    )


def verbatim(quote: str, reply: str) -> str:
    """Return a quote of the tidied reply as it stands in the reply itself: they differ in white space alone."""
    if not quote or quote in reply:
        return quote
    places = [i for i, c in enumerate(reply) if not c.isspace()]
    packed = "".join(reply[i] for i in places)
    wanted = "".join(quote.split())
    at = packed.find(wanted)
    return quote if at < 0 else reply[places[at] : places[at + len(wanted) - 1] + 1]
