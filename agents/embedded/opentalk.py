"""Talk without a profile: who the person is has to be taken from their own words.

People's conversations come without a scenario. A judge still gets a `JudgeProfile`: its lines are the sentences that
the person has said so far, their kinds and feelings guessed by the ear (`listening`), their needs neutral.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from functools import lru_cache

from echo_env.agents.embedded.language import read
from echo_env.agents.embedded.listening import Heard, trained_ear
from echo_env.profiles import CLUSTER_OF, Kind, Line, Need, Persona, Situation
from echo_env.roles import Exchange, JudgeProfile
from echo_env.types import Vector

MOST_LINES = 60
"""Newest sentences of the person that are kept as lines."""
SENSED = 0.35
"""Score of the ear from which a sentence is taken to show a feeling that it does not name."""
OPEN_DEFICIT: Vector = (-32.32 / math.sqrt(3),) * 3
"""Stands for a deficit that nobody rated: the corpus's mean size (Echo-N1 section 5.3.3), the same on each axis."""

_PERSONA = Persona(
    name="Somebody", age=30, job="not known", traits=("not known", "a stranger"), register_="plain",
    speech="As in their messages.", defensiveness="low",
)  # fmt: skip
_SITUATION = Situation(summary="Told in their own messages.", trigger="Told in their own messages.")
_NEEDS: tuple[Need, Need, Need] = (
    Need(axis="A", wants="company in what they feel", hurts="...", asks=("...", ". . .")),
    Need(axis="C", wants="to be understood", hurts="...", asks=("...", ". . .")),
    Need(axis="P", wants="to find their own way on", hurts="...", asks=("...", ". . .")),
)
"""Nobody knows what this person needs: nothing in particular is met, and nothing hurts more than elsewhere."""


def open_profile(history: Sequence[Exchange], user: str, language: str = "en") -> JudgeProfile:
    """Return a profile made of what a person has said up to now.

    Args:
        history: Finished exchanges.
        user: The newest message.
        language: Its language; a guess at kinds and feelings is made for English alone.
    """
    said = [*(e.user for e in history), user]
    return _profile(tuple(tidy(text) for text in said), language)


@lru_cache(maxsize=256)
def _profile(said: tuple[str, ...], language: str) -> JudgeProfile:
    lines = [line for text in said for line in _lines(text, language)]
    lines = lines[-MOST_LINES:] or [Line(say="...", about="nothing yet", kind="fact")]
    digest = hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]
    return JudgeProfile(
        key=f"open-{language}-{digest}",
        language=language,
        persona=_PERSONA,
        situation=_SITUATION,
        threshold="low",
        needs=_NEEDS,
        lines=tuple((f"said{k}.0", line) for k, line in enumerate(lines)),
    )


def is_open(profile: JudgeProfile) -> bool:
    """Whether a profile was made of a person's own words by `open_profile`."""
    return profile.key.startswith("open-")


@lru_cache(maxsize=1 << 12)
def _lines(text: str, language: str) -> tuple[Line, ...]:
    if language != "en":
        return (Line(say=text[:400], about=text[:60].ljust(3), kind="fact"),) if text.strip() else ()
    heard = {h.text: h for h in trained_ear().hear(text)}
    found = []
    for sentence in read(text).sentences:
        if sentence.content or sentence.voiced:
            found.append(_line(sentence.text, heard.get(sentence.text)))
    return tuple(found)


_KINDS: tuple[Kind, ...] = ("fact", "belief", "feeling", "strength", "wish")


def _line(text: str, heard: Heard | None) -> Line:
    kind: Kind = next((k for k in _KINDS if heard is not None and k == heard.kind), "fact")
    feeling = None
    if heard is not None and heard.named:
        feeling = next((f for f in heard.named if f in CLUSTER_OF), None)
        kind = "feeling" if feeling else kind
    elif heard is not None and kind != "feeling" and heard.confidence >= SENSED:
        feeling = heard.sensed
    if kind == "feeling" and feeling is None:
        kind = "fact"
    about = heard.phrases[0] if heard is not None and heard.phrases else text
    return Line(say=text[:400], about=about[:60].ljust(3), kind=kind, feeling=feeling)


# --- text that was split into tokens ---------------------------------------------------------------------------------

_CLITIC = re.compile(r"\b(\w+) ?(['\u2019]) ?(m|re|s|ve|ll|d|t)\b", re.IGNORECASE)
_NOT = re.compile(
    r"\b(do|does|did|is|are|was|were|have|has|had|would|could|should|ca|wo|ai) (n['\u2019]t)\b", re.IGNORECASE
)
_STOP = re.compile(r"[ \t]+([.,!?;:%)\]\u2026])")


def tidy(text: str) -> str:
    """Return a text as people type it where it was split into tokens: "i ' m sorry ." -> "i'm sorry."."""
    if not re.search(r"\w ['\u2019]|['\u2019] \w|\w [.,!?]|n't", text):
        return text
    text = _CLITIC.sub(r"\1\2\3", text)
    text = _NOT.sub(r"\1\2", text)
    return _STOP.sub(r"\1", text)
