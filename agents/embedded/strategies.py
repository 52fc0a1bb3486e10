"""Support strategies as words, and a conversation as numbers: the two halves of `echo/Strategy-v0`.

Both work from the observation alone, with the ear and the phrases of `skilled`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from echo_env.agents.embedded.language import joined, read
from echo_env.agents.embedded.listening import KINDS, Heard
from echo_env.agents.embedded.policies import Adviser
from echo_env.agents.embedded.skilled import Listener, Move, feeling_move
from echo_env.roles import Observation

STRATEGIES = ("question", "reflect", "resonate", "connect", "reframe", "affirm", "empower", "advise")
"""What a companion may do in a turn: ask, put in other words, answer the feeling, tie to something told earlier, offer
another view, affirm a strength, hand back a choice, give advice."""
INTENSITIES = ("single", "warm", "full")
"""One sentence; the feeling answered first; and the same for a second thing that was said, or a question on the one."""
PATIENCE = 45

FEATURES = (
    "turn", "sentences", "words", "asks", "news", *(f"kind_{k}" for k in KINDS), "named", "sensed",
    "earlier", *(f"used_{s}" for s in STRATEGIES), *(f"last_{i}" for i in INTENSITIES),
)  # fmt: skip
"""Names of the observation's entries, each within 0..1."""

_MOVES: dict[str, Move] = {
    "question": "ask", "reflect": "reflect", "connect": "link", "reframe": "reframe", "affirm": "affirm",
    "empower": "empower",
}  # fmt: skip
_NOTHING = Heard("", (), "fact", dict.fromkeys(KINDS, 0.0), (), "", 0.0, 0.0)


@lru_cache(maxsize=64)
def _listener(observation: Observation, seed: int) -> Listener:
    """Listen once for both halves of a turn."""
    return Listener.of(observation, seed)


def observe(observation: Observation, actions: list[tuple[int, int]], seed: int) -> NDArray[np.float32]:
    """Return the features of a conversation, shape (24,), each within 0..1.

    Args:
        observation: The conversation.
        actions: (strategy, intensity) of the turns so far.
        seed: The companion's seed.
    """
    listener = _listener(observation, seed)
    heard = listener.heard
    reading = read(observation.user, observation.language)
    before = frozenset().union(
        *(read(m.text, observation.language).content for m in observation.messages[:-1] if m.role == "user")
    )
    news = len(reading.content - before) / max(1, len(reading.content))
    recent = [s for s, _ in actions[-5:]]
    values = [
        listener.turn / PATIENCE,
        len(heard) / 3,
        len(reading.words) / 60,
        float(any(s.question for s in reading.sentences)),
        news,
        *(max((h.certainty[k] for h in heard), default=0.0) for k in KINDS),
        float(any(h.named for h in heard)),
        max((h.confidence for h in heard), default=0.0),
        float(bool(listener.earlier)),
        *(recent.count(k) / 5 for k in range(len(STRATEGIES))),
        *(float(bool(actions) and actions[-1][1] == k) for k in range(len(INTENSITIES))),
    ]
    return np.clip(np.array(values, dtype=np.float32), 0.0, 1.0)


def realise(observation: Observation, strategy: int, intensity: int, seed: int) -> str:
    """Put a strategy into words.

    Args:
        observation: The conversation.
        strategy: Index into `STRATEGIES`.
        intensity: Index into `INTENSITIES`.
        seed: The companion's seed.
    """
    listener = _listener(observation, seed)
    heard = listener.heard or (_NOTHING,)
    felt = max(heard, key=lambda h: bool(h.named) + h.stirred)
    parts = [_sentence(listener, heard, felt, STRATEGIES[strategy], seed)]
    if intensity >= 1 and STRATEGIES[strategy] != "resonate":
        parts.insert(0, feeling_move(listener, felt))
    rest = tuple(h for h in heard if h.text not in (felt.text,))
    if intensity == 2 and rest and STRATEGIES[strategy] in _MOVES:
        parts.append(listener.say(_MOVES[STRATEGIES[strategy]], rest[0]))
    elif intensity == 2:
        parts.append(listener.say("reflect" if STRATEGIES[strategy] == "question" else "ask", felt, spare=True))
    return joined(parts, observation.language)


def _sentence(listener: Listener, heard: tuple[Heard, ...], felt: Heard, strategy: str, seed: int) -> str:
    if strategy == "resonate":
        return feeling_move(listener, felt)
    if strategy == "advise":
        return Adviser(seed).advice(listener.observation)
    if strategy == "connect" and not listener.earlier:
        return listener.say("reflect", felt, spare=True)
    key = {"reframe": "belief", "affirm": "strength", "empower": "wish"}.get(strategy, "fact")
    about = max(heard, key=lambda h: h.certainty[key])
    return listener.say(_MOVES[strategy], about, spare=True)
