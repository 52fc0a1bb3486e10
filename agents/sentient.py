"""The sentient user of SAGE (arXiv 2505.02847) as a language model: it first feels, then speaks.

On each reply the person's inner voice says what the reply says, how far it serves what they hope for, what goes
through them, why their mood moves, and by how much. As an actor (`sentient:FILE`) the person then speaks out of that
mood. As the judge of the recipe `sage` the mood is the reward: SAGE's speaker is its own scorer. Both ask the very same
question about a reply, so a client that keeps its answers asks it once.

The director's cue, the story and the end of a conversation stay those of this world (`echo_env.sage`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BaseModel, BeforeValidator, Field

from echo_env.agents.actor import LlmActor, shown
from echo_env.agents.embedded.actor import EmbeddedActor
from echo_env.agents.llm.asks import ChatMessage
from echo_env.agents.llm.client import LlmClient, client_of
from echo_env.agents.llm.forms import Filled, at_most, fill
from echo_env.agents.llm.prompting import prompt
from echo_env.agents.llm.rolemodels import short_name
from echo_env.agents.people import card, phrases
from echo_env.agents.transcript import talk
from echo_env.profiles import Persona, Situation
from echo_env.rewards import ReplyView
from echo_env.roles import Actor, ActorProfile, ActorView, Exchange, JudgeProfile
from echo_env.sage import LARGEST, START, State, emotion_before, emotion_verdict, moved, state_of
from echo_env.types import Verdict
from echo_env.yamlfiles import read_yaml

WINDOW = 5
"""Exchanges before the newest that the inner voice remembers."""
LONGEST = 400
"""Characters of a message in that window."""


def _whole(value: object) -> object:
    """Bring a change to a whole number within its bounds, as SAGE does; what is no number stays, and is refused."""
    if isinstance(value, str):
        value = value.strip().removeprefix("+")
    if isinstance(value, bool):  # which would pass for 1
        return None
    if not isinstance(value, int | float | str):
        return value
    try:
        return min(LARGEST, max(-LARGEST, round(float(value))))
    except (ValueError, OverflowError):
        return value


class Plan(BaseModel):
    """What goes on inside the person on reading a reply, in SAGE's order: the number comes last."""

    content: Annotated[str, at_most(240), Field(max_length=240, description="What the reply says and is after.")]
    completion: Annotated[str, at_most(240), Field(max_length=240, description="How far it serves what they hope.")]
    activity: Annotated[str, at_most(240), Field(max_length=240, description="What goes through them.")]
    analysis: Annotated[str, at_most(300), Field(max_length=300, description="Why the mood moves as it does.")]
    change: Annotated[int, BeforeValidator(_whole), Field(ge=-LARGEST, le=LARGEST, description="-10 to 10.")]


@dataclass(frozen=True, slots=True)
class Sentience:
    """What the inner voice knows of its person: the same, whether they act or are asked how they feel."""

    language: str
    persona: Persona
    situation: Situation
    patience: Literal["low", "high"]
    hopes: tuple[str, ...]
    """First-person lines in which the needs show: what SAGE calls the hidden intention."""
    touchy: tuple[str, ...]

    @classmethod
    def of_actor(cls, p: ActorProfile) -> Sentience:
        """Return it for an actor."""
        hopes = tuple(says[0] for says in p.hopes)
        return cls(p.language, p.persona, p.situation, p.patience, hopes, p.touchy)

    @classmethod
    def of_judge(cls, p: JudgeProfile) -> Sentience:
        """Return it for a judge."""
        patience: Literal["low", "high"] = "low" if p.threshold == "high" else "high"
        hopes, touchy = tuple(n.asks[0] for n in p.needs), tuple(n.hurts for n in p.needs)
        return cls(p.language, p.persona, p.situation, patience, hopes, touchy)


async def feel(client: LlmClient, who: Sentience, history: tuple[Exchange, ...], emotion: float) -> Filled[Plan]:
    """Ask the inner voice about the newest reply.

    Args:
        client: Whom to ask; the role is `sentient`.
        who: Whose inner voice.
        history: Finished exchanges, the one to feel last.
        emotion: Mood before it, 0..100.

    Raises:
        LlmFailure: There is no usable answer.
    """
    written, newest = prompt("sentient_plan", who.language), history[-1]
    messages = written.render(
        person=f"{card(who.persona, who.situation, who.language)}\n{phrases(who.language).opens[who.patience]}",
        hopes="\n".join(who.hopes),
        touchy="\n".join(who.touchy),
        talk=talk(history[-WINDOW - 1 : -1], who.language, LONGEST),
        message=newest.user,
        reply=newest.reply,
        emotion=f"{emotion:.0f}",
        feeling=feeling(emotion, who.language),
    )
    return await fill(client, "sentient", written.key, messages, Plan)


@lru_cache(maxsize=1)
def _moods() -> dict[str, dict[State, str]]:
    return cast("dict[str, dict[State, str]]", read_yaml(Path(__file__).parent / "prompts" / "moods.yaml"))


def feeling(emotion: float, language: str) -> str:
    """Return a mood in words, for the one who speaks out of it."""
    return _moods()[language][state_of(emotion)]


class SentientActor(LlmActor):
    """Plays one person in one conversation, out of a mood of their own.

    Args:
        client: Whom to ask; the roles are `sentient` for the inner voice and `actor` for what is said.
        seed: The conversation's seed.
        start: First mood.
    """

    written = "sentient_reply"

    def __init__(self, client: LlmClient, seed: int = 0, start: float = START) -> None:
        super().__init__(client, seed)
        self.id = f"sentient:{short_name(client.models.of('actor'))}+sentient-{prompt('sentient_plan', 'en').version}"
        self.emotion = start
        self._mind = ""
        self._felt = 0

    async def _messages(self, view: ActorView) -> tuple[ChatMessage, ...]:
        await self._feel(view)
        language = view.profile.language
        values = shown(view) | {"feeling": feeling(self.emotion, language), "mind": self._mind}
        return prompt(self.written, language).render(**values)

    async def _feel(self, view: ActorView) -> None:
        """Feel every reply that was not felt yet; more than one only after a resumed start."""
        who = Sentience.of_actor(view.profile)
        while self._felt < len(view.history):
            plan = (await feel(self._client, who, view.history[: self._felt + 1], self.emotion)).form
            self.emotion, self._mind = moved(self.emotion, plan.change), plan.activity
            self._felt += 1


class SentientJudge:
    """Says how a reply moves the person's mood.

    Args:
        client: Whom to ask; the role is `sentient`.
        start: Mood before the first reply.
    """

    waits = True

    def __init__(self, client: LlmClient, start: float = START) -> None:
        self.id = f"llm:{short_name(client.models.of('sentient'))}+sentient-{prompt('sentient_plan', 'en').version}"
        self._client, self._start = client, start

    async def verdict(self, view: ReplyView) -> Verdict:
        """Return the mood after the newest reply.

        Raises:
            LlmFailure: There is no usable answer.
        """
        judged, before = view.judged, emotion_before(view, self._start)
        who = Sentience.of_judge(judged.profile)
        felt = await feel(self._client, who, (*judged.history, judged.exchange), before)
        found = emotion_verdict(self.id, before, felt.form.change, felt.form.analysis)
        return found.model_copy(update={"usage": felt.usage})


def judge_of(name: str) -> Callable[..., SentientJudge]:
    """Return what builds a conversation's mood judge: "llm:MODEL", or "llm:" and a models file."""
    client = client_of(name)
    return lambda start=START: SentientJudge(client, start)


def actor_of(name: str) -> Callable[[int], Actor]:
    """Return what builds a conversation's actor: "sentient:MODEL", or "sentient:" and a models file.

    The embedded person has always felt before they speak: "sentient:embedded" is the embedded actor.
    """
    if name == "embedded":
        return EmbeddedActor
    client = client_of(name)
    return lambda seed: SentientActor(client, seed)
