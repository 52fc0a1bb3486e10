"""Pseudo multi-turn scoring: a fixed history, one reply, the reward that `env.step()` would give it.

    scored = await score_reply(WorldConfig(recipe="echo_n1"), ScorablePrompt(user="...", history=(...)), "a reply")

The recipes are those of the environment. A prompt names a scenario, or none: then the person is known by their own
words alone (`embedded/opentalk.py`). What needs siblings (group baselines, redundancy) belongs to the trainer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from pydantic import Field

from echo_env import registry
from echo_env.agents.embedded.opentalk import OPEN_DEFICIT, open_profile
from echo_env.agents.redteam.fork import fork
from echo_env.build import WorldConfig, build_judge, recipe_of, scorer_of
from echo_env.driving import waits
from echo_env.epm import EpmState
from echo_env.errors import ConfigError
from echo_env.faults import fault_of
from echo_env.profiles import get_scenario
from echo_env.rewards import JudgedRecipe, Recipe, ReplyView, Step, no_verdict
from echo_env.roles import Cast, Exchange, Judge, JudgeProfile, JudgeView, profiles_of
from echo_env.scorers import NO_EPM
from echo_env.session import visible
from echo_env.types import CHITCHAT, Judgement, Record, Vector, Verdict, storable


@dataclass(frozen=True, slots=True)
class ScorablePrompt:
    """A point in a conversation at which replies are scored."""

    user: str
    """The user's newest message."""
    history: tuple[Exchange, ...] = ()
    """Finished exchanges before it."""
    scenario: str | None = None
    """Whose profile the judges see: an id or a YAML file; None for somebody who is known by their words alone."""
    language: str = "en"
    """Of a prompt without a scenario."""
    domain: str = ""
    """"chitchat" where a prompt without a scenario is one (Echo-N1 section 2.4): the humanlike reward alone."""
    reference: str | None = None
    """A reply to compare with; else the recipe's reference policy gives one."""


class Scored(Record):
    """What a reply came to."""

    reward: float | None
    """Sum of the parts; None where something that they need is missing."""
    parts: dict[str, float] = Field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    judgement: Judgement | None = None
    """Of the EPM judge, where the recipe is made of EPM."""
    failure: str = ""
    """What is missing, and why."""


async def score_reply(world: WorldConfig, prompt: ScorablePrompt, reply: str) -> Scored:
    """Score one reply.

    Args:
        world: Recipe and its options; judge or backend, and scorer, for a recipe that is made of EPM.
        prompt: Where it was said.
        reply: The policy's output; `<think>` blocks in it are shown to no judge but a recipe's that asks for them.

    Raises:
        ConfigError: A name is unknown, or the recipe does not go with the prompt.
    """
    return (await score_replies(world, [(prompt, reply)]))[0]


async def score_replies(
    world: WorldConfig, replies: Sequence[tuple[ScorablePrompt, str]], at_once: int = 32
) -> list[Scored]:
    """Score replies, in their order; those to one prompt share what its history costs.

    Args:
        world: As for `score_reply`.
        replies: Prompts, each with a reply to it.
        at_once: Replies that wait for remote judges at the same time.

    Raises:
        ConfigError: As for `score_reply`.
    """
    desks = {prompt: _Desk(world, prompt) for prompt in dict.fromkeys(prompt for prompt, _ in replies)}
    if not any(desk.waits for desk in desks.values()):
        return [await desks[prompt].score(reply) for prompt, reply in replies]
    gate = asyncio.Semaphore(at_once)

    async def score(prompt: ScorablePrompt, reply: str) -> Scored:
        async with gate:
            return await desks[prompt].score(reply)

    return list(await asyncio.gather(*(score(prompt, reply) for prompt, reply in replies)))


class _Desk:
    """Scores the replies to one prompt."""

    def __init__(self, world: WorldConfig, prompt: ScorablePrompt) -> None:
        self.prompt, self.world = prompt, world
        self.recipe: Recipe = recipe_of(world)
        self.profile, self.deficit = _person(prompt)
        self.scorer = NO_EPM if self.profile.chitchat else scorer_of(world)
        self._stand: tuple[EpmState, Judge] | None = None
        self._lock = asyncio.Lock()
        judged = not isinstance(self.recipe, JudgedRecipe)
        if judged and self.profile.chitchat:
            raise ConfigError(
                f"recipe '{world.recipe}' is made of EPM, which does not apply to chit-chat",
                "take one with judges of its own:  humanlike or echo_n1",
            )
        self.waits = waits(self.recipe) or (judged and waits(self._judge()))

    async def score(self, text: str) -> Scored:
        text = storable(text)
        exchange = Exchange(self.prompt.user, visible(text))
        view = JudgeView(self.profile, self.prompt.history, exchange)
        if isinstance(self.recipe, JudgedRecipe):
            raw = "" if text == exchange.reply else text
            return await self._by_verdicts(self.recipe, ReplyView(view, raw, self.prompt.reference, self.deficit))
        return await self._by_epm(view)

    async def _by_verdicts(self, recipe: JudgedRecipe, view: ReplyView) -> Scored:
        try:
            verdicts = await recipe.verdicts(view)
        except Exception as e:  # as in a live turn: a fault of the recipe's judges is a missing verdict
            verdicts = (no_verdict("recipe", self.recipe.id, e, view),)
        state = self._start()
        parts = self.recipe.turn(Step(self.scorer, state, state, None, judged=False, verdicts=verdicts))
        return _scored(parts, "; ".join(v.failure for v in verdicts if v.failure), verdicts=verdicts)

    async def _by_epm(self, view: JudgeView) -> Scored:
        async with self._lock:
            if self._stand is None:
                self._stand = await self._replay()
        before, judge = self._stand
        judgement, failure = await _judged(fork(judge), view)
        after = self.scorer.advance(before, judgement.levels if judgement else None)
        parts = self.recipe.turn(Step(self.scorer, before, after, None, judgement is not None))
        return _scored(parts, failure, judgement=judgement)

    async def _replay(self) -> tuple[EpmState, Judge]:
        """Return where the history leads, and a judge that has heard it."""
        state, judge, history = self._start(), self._judge(), self.prompt.history
        if self.prompt.scenario is None:  # nobody knows how far they have come
            return state, judge
        for k, exchange in enumerate(history):
            judgement, _ = await _judged(judge, JudgeView(self.profile, history[:k], exchange))
            state = self.scorer.advance(state, judgement.levels if judgement else None)
        return state, judge

    def _start(self) -> EpmState:
        return self.scorer.start(self.deficit if self.deficit is not None else OPEN_DEFICIT)

    def _judge(self) -> Judge:
        """Return the world's EPM judge; its form for open talk where there is no profile."""
        if self.world.judge is not None:
            judge = build_judge(self.world.judge)
        else:
            judge = cast("Callable[[int], Cast]", registry.resolve("backend", self.world.backend))(0).judge
        open_form = getattr(judge, "open_talk", None)
        return build_judge(open_form) if self.prompt.scenario is None and open_form else judge


def _person(prompt: ScorablePrompt) -> tuple[JudgeProfile, Vector | None]:
    """Return whom the judges judge for, and the deficit that was rated, if any."""
    if prompt.scenario is not None:
        scenario = get_scenario(prompt.scenario)
        return profiles_of(scenario)[1], scenario.p0
    profile = open_profile(prompt.history, prompt.user, prompt.language)
    if prompt.domain == CHITCHAT:
        return replace(profile, needs=()), None
    return profile, None


async def _judged(judge: Judge, view: JudgeView) -> tuple[Judgement | None, str]:
    try:
        judgement = await judge.judge(view)
    except Exception as e:  # as in a live turn: recorded as a missing judgement
        return None, fault_of("judge", e)
    return judgement, "" if judgement else "judge: no judgement"


def _scored(
    parts: dict[str, float] | None,
    failure: str,
    verdicts: tuple[Verdict, ...] = (),
    judgement: Judgement | None = None,
) -> Scored:
    if parts and not all(map(math.isfinite, parts.values())):
        raise ConfigError(f"the recipe gave a reward that is no number: {parts}")
    reward = None if parts is None else sum(parts.values())
    return Scored(reward=reward, parts=parts or {}, verdicts=verdicts, judgement=judgement, failure=failure)
