"""A person as text for language models: card, needs, things of their story; and the phrases for it, by language."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from echo_env.profiles import Kind, Line, Need, Persona, Situation
from echo_env.roles import CueAct
from echo_env.types import Record
from echo_env.yamlfiles import read_yaml

Degree = Literal["low", "high"]


class Phrases(Record):
    """What prompts are put together from, in one language (`prompts/phrases.LANGUAGE.yaml`)."""

    person: str
    companion: str
    """What the two speakers are called."""
    card: str
    between: str
    """What stands between the items of a list."""
    guard: dict[Degree, str]
    opens: dict[Degree, str]
    need: str
    kinds: dict[Kind, str]
    unspoken: str
    tasks: dict[CueAct | Literal["open"], str]
    """What the actor is to do, by the cue's act; "open" is the first message."""
    again: str
    wrong: dict[Literal["empty", "assistant", "prompt", "echo", "repeated", "long"], str]
    """What an actor is told of a message that will not do."""


@lru_cache(maxsize=4)
def phrases(language: str) -> Phrases:
    """Return a language's phrases."""
    return Phrases.model_validate(read_yaml(Path(__file__).parent / "prompts" / f"phrases.{language}.yaml"))


def card(persona: Persona, situation: Situation, language: str) -> str:
    """Return who somebody is and what brings them here."""
    words = phrases(language)
    return words.card.format(
        name=persona.name,
        age=persona.age,
        job=persona.job,
        traits=words.between.join(persona.traits),
        speech=persona.speech,
        guard=words.guard[persona.defensiveness],
        summary=situation.summary,
        trigger=situation.trigger,
    )


def needs(ranked: Sequence[Need], language: str, *, axes: bool = True) -> str:
    """Return what somebody wants to hear and what hurts them, most important first; `axes`: with their letters."""
    form = phrases(language).need
    return "\n".join(
        f"{rank}. {f'{need.axis}: ' * axes}{form.format(wants=need.wants, hurts=need.hurts)}"
        for rank, need in enumerate(ranked, 1)
    )


def things(items: Iterable[tuple[str, Line]], language: str) -> str:
    """Return the things of a story with their ids, a phrase each: "beat1.4: those two years (belief)"."""
    words = phrases(language)
    lines = []
    for item, line in items:
        what = words.kinds[line.kind]
        if line.feeling:
            what += f" {line.feeling}" if line.kind == "feeling" else f", {words.unspoken} {line.feeling}"
        lines.append(f"{item}: {line.about} ({what})")
    return "\n".join(lines)
