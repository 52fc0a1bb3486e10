"""A reference policy that shows its steps (`echo_env.peer`): what `skilled` says, and by its ear why.

It fills the form for tests and warm starts. Its steps come from the observation alone.
"""

from __future__ import annotations

from echo_env.agents.embedded.listening import Heard
from echo_env.agents.embedded.skilled import Listener, Skilled
from echo_env.peer import Strategy
from echo_env.roles import Observation

SOOTHING, ACTING = 3, 15
"""Turns from which the stage is comforting, and action."""
PLAIN = 0.45
"""Confidence from which an unspoken feeling is put down; below it, that none is plain."""
_FOR_KIND: dict[str, Strategy] = {
    "feeling": "naming feelings",
    "belief": "restatement",
    "strength": "affirmation",
    "wish": "affirmation",
    "fact": "questioning",
}


class Reasoned:
    """Thinks in three steps, then says what `skilled` says.

    Args:
        seed: Seed for the order of its phrases.
    """

    id = "reasoned"

    def __init__(self, seed: int = 0) -> None:
        self._skilled = Skilled(seed)

    async def respond(self, observation: Observation) -> str:
        """Return a reply with its steps."""
        listener = Listener.of(observation, self._skilled.seed)
        steps = f"<history>{_history(listener)}</history>\n<emotion>{_emotion(listener)}</emotion>\n"
        steps += f"<strategy>{_strategy(listener)}</strategy>"
        return f"<think>\n{steps}\n</think>\n{await self._skilled.respond(observation)}"


def _history(listener: Listener) -> str:
    stage = "exploration" if listener.turn < SOOTHING else "comforting" if listener.turn < ACTING else "action"
    told = "; ".join(dict.fromkeys(p for h in listener.heard for p in h.phrases)) or listener.observation.user
    return f"They speak of {told}. Stage: {stage}."


def _emotion(listener: Listener) -> str:
    felt = _felt(listener)
    return f"{felt}, moderate." if felt else "No feeling is plain: neutral, mild."


def _felt(listener: Listener) -> str:
    named = [f for h in listener.heard for f in h.named]
    if named:
        return named[0]
    sure = max(listener.heard, key=lambda h: h.confidence, default=None)
    return sure.sensed if sure is not None and sure.confidence >= PLAIN else ""


def _strategy(listener: Listener) -> str:
    if any(h.named for h in listener.heard):
        return "naming feelings: a feeling was put into words."
    kind = max((_kind(h) for h in listener.heard), default=(0.0, "fact"))[1]
    return f"{_FOR_KIND[kind]}: what was told is a {kind}."


def _kind(heard: Heard) -> tuple[float, str]:
    return max(heard.certainty.values(), default=0.0), heard.kind
