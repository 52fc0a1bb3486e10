"""Meta-prompts: what the system instructions of one synthesised conversation are composed of (Echo-N1 section 2.1).

A plan draws one value of every facet in `sim_profiles/synthesis/`: persona, relationship stage, topics, tone, way of
typing, companion style, length. It depends on language, seed and number alone, so that a run can be made longer later.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from echo_env.agents.llm.asks import ChatMessage
from echo_env.agents.llm.prompting import Prompt, prompt
from echo_env.errors import ScenarioError, unknown_name
from echo_env.profiles import data_root
from echo_env.types import Record
from echo_env.yamlfiles import read_yaml

LANGUAGES = ("en", "zh")
TOPICS = 3
"""Topics of a conversation at most."""
T = TypeVar("T")


class Persona(Record):
    """Who writes to the companion."""

    name: str
    who: str
    known: str
    """What a companion that has met them knows."""


class Stage(Record):
    """How well the two know each other."""

    name: str
    companion: str
    """As the companion is told; may name `{name}` and `{known}`."""
    user: str
    knows: bool


class Length(Record):
    """How long a conversation is."""

    name: str
    exchanges: tuple[int, int]
    """Fewest and most."""


class Cues(Record):
    """Directions that need no director."""

    open: str
    close: str


class Facets(Record):
    """A facet file."""

    version: int
    persona: tuple[Persona, ...] = Field(min_length=2)
    companion: tuple[str, ...]
    frame: tuple[str, ...]
    stage: tuple[Stage, ...]
    topic: tuple[str, ...] = Field(min_length=TOPICS)
    tone: tuple[str, ...]
    typing: tuple[str, ...]
    style: tuple[str, ...]
    habit: tuple[str, ...]
    length: tuple[Length, ...]
    labels: dict[Literal["person", "companion"], str]
    """How the two sides are called in a transcript."""
    cues: Cues


@cache
def facets(language: str) -> Facets:
    """Return a language's facets.

    Raises:
        ConfigError: There are none in this language.
        ScenarioError: The file does not hold what it must.
    """
    if language not in LANGUAGES:
        raise unknown_name("language", language, LANGUAGES)
    path = data_root() / "synthesis" / f"facets_{language}.yaml"
    try:
        return Facets.model_validate(read_yaml(path))
    except ValidationError as e:
        first = e.errors()[0]
        raise ScenarioError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@dataclass(frozen=True, slots=True)
class Plan:
    """One conversation before it is played."""

    language: str
    seed: int
    number: int
    persona: Persona
    companion: str
    frame: str
    stage: Stage
    topics: tuple[str, ...]
    tone: str
    typing: str
    style: str
    habit: str
    length: Length

    @property
    def id(self) -> str:
        """Language, seed and number: "en-0-00012"."""
        return f"{self.language}-{self.seed}-{self.number:05d}"

    @property
    def shortest(self) -> int:
        """Exchanges at least."""
        return self.length.exchanges[0]

    @property
    def longest(self) -> int:
        """Exchanges at most."""
        return self.length.exchanges[1]

    def drawn(self) -> dict[str, object]:
        """Return the drawn facets by name, for the record."""
        return {
            "persona": self.persona.name,
            "companion": self.companion,
            "stage": self.stage.name,
            "topics": list(self.topics),
            "tone": self.tone,
            "typing": self.typing,
            "style": self.style,
            "habit": self.habit,
            "length": self.length.name,
        }

    def prompt(self, role: str) -> Prompt:
        """Return the prompt of "companion", "user" or "director"."""
        return prompt(f"synth_{role}", self.language)

    def companion_system(self) -> ChatMessage:
        """Return the companion's system instruction, which the written conversation begins with."""
        told = self.stage.companion.format(name=self.persona.name, known=self.persona.known)
        parts = [told, self.style, self.habit]
        random.Random(f"{self.id}/order").shuffle(parts)
        frame = self.frame.format(companion=self.companion)
        return self.prompt("companion").render(frame=frame, manner=("" if self.language == "zh" else " ").join(parts))[
            0
        ]

    def user_messages(self, topic: str, talk: str, direction: str) -> tuple[ChatMessage, ...]:
        """Return what the user agent is sent for the person's next message."""
        return self.prompt("user").render(
            persona=self.persona.who, typing=self.typing, tone=self.tone, stage=self.stage.user,
            topics=" / ".join(self.topics), topic=topic, talk=talk, direction=direction,
        )  # fmt: skip

    def director_messages(self, at: int, exchange: int, talk: str, functions: str) -> tuple[ChatMessage, ...]:
        """Return what the director is sent after an exchange.

        Args:
            at: Index of the topic now.
            exchange: Number of the exchange that has just ended, from 1.
            talk: Transcript.
            functions: Names of the functions that it may call.
        """
        following = self.topics[at + 1] if at + 1 < len(self.topics) else "-"
        return self.prompt("director").render(
            persona=self.persona.who, tone=self.tone, topic=self.topics[at], next=following, exchange=exchange,
            shortest=self.shortest, longest=self.longest, talk=talk, open=functions,
        )  # fmt: skip


def draw(language: str, seed: int, number: int) -> Plan:
    """Return the plan of one conversation.

    Every facet runs through all its values, shuffled, before any comes again.

    Raises:
        ConfigError: There are no facets in this language.
    """
    file = facets(language)

    def pick(name: str, values: Sequence[T]) -> T:
        cycle, place = divmod(number, len(values))
        return random.Random(f"{language}/{seed}/{name}/{cycle}").sample(values, len(values))[place]

    topic = pick("topic", file.topic)
    others = [t for t in file.topic if t != topic]
    later = random.Random(f"{language}/{seed}/later/{number}").sample(others, TOPICS - 1)
    return Plan(
        language=language,
        seed=seed,
        number=number,
        persona=pick("persona", file.persona),
        companion=pick("companion", file.companion),
        frame=pick("frame", file.frame),
        stage=pick("stage", file.stage),
        topics=(topic, *later),
        tone=pick("tone", file.tone),
        typing=pick("typing", file.typing),
        style=pick("style", file.style),
        habit=pick("habit", file.habit),
        length=pick("length", file.length),
    )
