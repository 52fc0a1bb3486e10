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
        """Judge the newest exchange of a view. The same view always gives the same judgement."""
        if not is_open(view.profile):
            return await self._world.judge(view)
        plain = JudgeView(view.profile, tuple(_tidied(e) for e in view.history), _tidied(view.exchange))
        # what was said has grown since the last turn, and the profile with it: the ledger is played anew
        found = await EmbeddedJudge(BASE).judge(plain)
        evidence = _merged(found.evidence, _open_evidence(plain, found))
        reply = view.exchange.reply
        quoted = tuple(e.model_copy(update={"quote": verbatim(e.quote, reply)}) for e in evidence)
        return Judgement(levels=_levels(quoted), evidence=quoted, judge=self.id, note=found.note)


def _tidied(exchange: Exchange) -> Exchange:
    return Exchange(tidy(exchange.user), tidy(exchange.reply))


def _open_evidence(view: JudgeView, found: Judgement) -> list[Evidence]:
    """Return what the sentences of a reply show by themselves; a sentence said before, or one that harms, shows nothing."""
    said = {s.words for e in view.history for s in read(e.reply).sentences}
    harmful = {e.quote for e in found.evidence if e.level < 0}
    anchors = anchors_of(RUBRIC)
    evidence = []
    if found.note == "noise":
        return []
    for sentence in read(view.exchange.reply).sentences:
        if sentence.words in said or sentence.text in harmful:
            continue
        for act in acts_of(sentence):
            a = anchors[act.anchor]
            evidence.append(Evidence(axis=a.axis, direction=a.direction, level=a.level, anchor=a.id, quote=act.quote))
    return evidence


def _merged(world: tuple[Evidence, ...], opened: list[Evidence]) -> tuple[Evidence, ...]:
    return (*world, *opened)


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
