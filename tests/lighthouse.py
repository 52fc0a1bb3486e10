"""One small person, a lighthouse keeper, and what the embedded judge finds in talks with him: for several files."""

import asyncio
from collections.abc import Sequence
from typing import Any

from echo_env.agents.embedded.judge import EmbeddedJudge
from echo_env.profiles import IEDR_ITEMS, STAGES, Scenario
from echo_env.roles import Exchange, JudgeProfile, JudgeView, profiles_of
from echo_env.types import AXES, Axis, Judgement

SAY = {
    "opening": "My sister sold our father's boat while I was out at sea.",
    "childhood.0": "At nine I learned every knot from my father on the kitchen floor.",
    "teens.0": "Nobody keeps a deckhand who drops the rope.",
    "young_adult.0": "I took the lighthouse post, two hours from the next house.",
    "now.0": "Every evening I copy the weather into the log by hand.",
    "beat1.0": "I'm ashamed of the letter that I posted to Karin.",
    "beat2.0": "Any decent brother would have seen the auction coming.",
    "beat3.0": "I want to sail across the strait once more before winter.",
    "beat4.0": "The buyer painted her hull green and gave her another name.",
    "turn.0": "I signed the harbour papers myself, in March, without reading them.",
}
KIND_AND_FEELING = {
    "opening": ("fact", "betrayed"),
    "childhood.0": ("strength", "tender"),
    "teens.0": ("belief", None),
    "young_adult.0": ("fact", "lonely"),
    "now.0": ("strength", None),
    "beat1.0": ("feeling", "ashamed"),
    "beat2.0": ("belief", "guilty"),
    "beat3.0": ("wish", None),
    "beat4.0": ("fact", "grieving"),
    "turn.0": ("fact", None),
}
ASKS = {
    "C": ("Help me lay the dates in a row, like buoys.", "Somebody should check my reckoning."),
    "A": ("Don't mend anything yet, keep me company at the pier.", "Sit on the bollard with me a minute."),
    "P": ("Ask me which course I would steer.", "Leave the tiller in my hands."),
}
HURTS = {
    "C": "Being told that families always quarrel over money.",
    "A": "Being told that a boat is only planks and nails.",
    "P": "Being told that he is too old for the water.",
}
LEVELS = {
    "C": {"C.1": 2, "C.3": 1, "A.1": 1, "P.1": 1},
    "A": {"A.1": 2, "A.3": 1, "C.1": 1, "P.1": 1},
    "P": {"P.2": 1, "C.1": 1, "A.1": 1},
}


def keeper(first: Axis = "A", threshold: str = "low", defensiveness: str = "low") -> Scenario:
    """A lighthouse keeper with ten lines; `first` is what he needs most."""

    def line(item: str) -> dict[str, Any]:
        kind, feeling = KIND_AND_FEELING[item]
        return {"say": SAY[item], "about": "the boat she sold", "kind": kind, "feeling": feeling}

    def chapter(item: str) -> dict[str, Any]:
        return {"event": "Something happened.", "lines": [line(item)]}

    ranked = [first, *(axis for axis in AXES if axis != first)]
    return Scenario.model_validate(
        {
            "id": "lighthouse", "language": "en", "split": "dev", "domain": "family", "threshold": threshold,
            "persona": {
                "name": "Nils Brandt", "age": 61, "job": "lighthouse keeper", "traits": ["patient", "dry"],
                "register": "plain", "speech": "Short sentences.", "defensiveness": defensiveness,
            },
            "needs": [{"axis": a, "wants": "To hear it.", "hurts": HURTS[a], "asks": ASKS[a]} for a in ranked],
            "iedr": {item: {"level": LEVELS[first].get(item, 0), "reason": "Because."} for item in IEDR_ITEMS},
            "life": {stage: chapter(f"{stage}.0") for stage in STAGES},
            "situation": {"summary": "Karin sold the boat that Nils owned with her.", "trigger": "An empty mooring."},
            "opening": line("opening"),
            "beats": [chapter(f"beat{i}.0") for i in (1, 2, 3, 4)],
            "turning_point": chapter("turn.0"),
            "ending": {"event": "He calls Karin.", "says": ["I will ring her now.", "The log is closed for tonight."]},
        }
    )  # fmt: skip


Talk = Sequence[tuple[str, str]]
"""Pairs of a message (or the id of a line) and the reply to it."""


def exchanges(talk: Talk) -> list[Exchange]:
    return [Exchange(SAY.get(user, user), reply) for user, reply in talk]


def verdicts(talk: Talk, scenario: Scenario | None = None, judge: EmbeddedJudge | None = None) -> list[Judgement]:
    profile = profiles_of(scenario or keeper())[1]
    return judge_all(profile, exchanges(talk), judge or EmbeddedJudge())


def judge_all(profile: JudgeProfile, talk: list[Exchange], judge: EmbeddedJudge) -> list[Judgement]:
    async def run() -> list[Judgement]:
        return [await judge.judge(JudgeView(profile, tuple(talk[:k]), e)) for k, e in enumerate(talk)]

    return asyncio.run(run())


def verdict(*talk: tuple[str, str], scenario: Scenario | None = None) -> Judgement:
    """The judgement of the last reply of a talk."""
    return verdicts(talk, scenario)[-1]


def anchors(judgement: Judgement) -> set[str]:
    return {e.anchor for e in judgement.evidence}


STANDS_FOR = "You kept that log by hand, and it shows what you stand for."
STEADY = "It takes a steady person to copy the weather so faithfully."
PLAIN = "The log again, the weather by hand."
WHICH_DAY = "Which day before winter would you choose to cross the strait?"
WRITE_DOWN = "You could write down which day you will sail across the strait."

ASHAMED = ("beat1.0", "Ashamed of that letter to Karin, then.")
AT_SEA = ("opening", "So the boat went while you were at sea.")
MET: dict[Axis, list[tuple[str, str]]] = {
    "C": [AT_SEA, ASHAMED, ("now.0", STANDS_FOR), ("turn.0", "You signed the harbour papers in March, I suppose."),
          ("beat4.0", "Green, that hull, and her name gone with it.")],
    "A": [ASHAMED, AT_SEA, ("now.0", STANDS_FOR), ("childhood.0", "Something tender in those knots."),
          ("turn.0", "You signed the harbour papers in March, I suppose.")],
    "P": [("now.0", STANDS_FOR), AT_SEA, ASHAMED, ("beat3.0", WHICH_DAY),
          ("turn.0", "You signed the harbour papers in March, I suppose.")],
}  # fmt: skip
"""By what he came for first: five turns, each of which meets one thing and harms nothing, so that trust goes from 1 to
5. What he came for is touched in the first turn, and again in time."""
HEARD = MET["A"][:2]
"""Two turns after which he feels heard, if he came for A first."""
