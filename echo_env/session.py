"""One conversation, turn by turn: the loop that the environment, rollouts and evaluation all drive.

    Observation -> Policy -> reply -> Judge -> EPM -> Director -> Actor -> Observation

A judge's failure is a missing judgement, never a zero: the turn has no reward and the conversation goes on; three such
turns in a row end it as truncated.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from echo_env.epm import EpmState, Scorer
from echo_env.errors import EpisodeOver
from echo_env.profiles import Scenario
from echo_env.rewards import Recipe, Step
from echo_env.roles import (
    ActorView,
    Cast,
    Cue,
    DirectorView,
    Exchange,
    JudgeView,
    Observation,
    cue_of,
    profiles_of,
)
from echo_env.types import TRUNCATIONS, Direction, End, EpmDelta, Judgement, Message, Outcome, Turn

UNJUDGED_LIMIT = 3
"""Unjudged turns in a row after which a conversation is truncated."""

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)

T = TypeVar("T")


def visible(text: str) -> str:
    """Return what of a policy's output the others may see: `<think>` blocks removed, an unclosed one to the end."""
    return _THOUGHT.sub("", text).strip() if "<think" in text.lower() else text.strip()


@dataclass(frozen=True, slots=True)
class Advance:
    """What one reply led to."""

    turn: Turn
    observation: Observation
    """The conversation after the reply, the user's answer last; their last words where it ended."""
    outcome: Outcome | None

    @property
    def terminated(self) -> bool:
        """Whether the task itself ended here."""
        return self.outcome is not None and self.outcome.end not in TRUNCATIONS

    @property
    def truncated(self) -> bool:
        """Whether the conversation was cut off here."""
        return self.outcome is not None and self.outcome.end in TRUNCATIONS


class DialogueSession:
    """Drives one conversation.

    Args:
        scenario: Who the companion talks with.
        cast: Actor, director and judge, built for this conversation alone.
        scorer: The EPM rules; its `max_turns` is the person's patience.
        recipe: What a turn is worth.
        budget: Turns after which the caller cuts the conversation off (truncation), or None.
    """

    def __init__(
        self, scenario: Scenario, cast: Cast, scorer: Scorer, recipe: Recipe, *, budget: int | None = None
    ) -> None:
        self.scenario, self.cast, self.scorer, self.recipe, self.budget = scenario, cast, scorer, recipe, budget
        self.state: EpmState = scorer.start(scenario.p0)
        self.outcome: Outcome | None = None
        self._actor_profile, self._judge_profile = profiles_of(scenario)
        self._history: tuple[Exchange, ...] = ()
        self._messages: tuple[Message, ...] = ()
        self._judgements: tuple[Judgement | None, ...] = ()
        self._deltas: tuple[EpmDelta | None, ...] = ()
        self._unjudged = 0

    @property
    def turns(self) -> int:
        """Replies so far."""
        return len(self._history)

    @property
    def observation(self) -> Observation:
        """All that the policy may see."""
        return Observation(self._messages, self.scenario.language)

    async def open(self) -> Observation:
        """Let the person speak first.

        Raises:
            RoleFailure: The actor gave no opening.
        """
        if self._messages:
            raise EpisodeOver("the conversation has been opened already", "start a new session")
        opening = await self.cast.actor.speak(ActorView(self._actor_profile, (), Cue("flow")))
        self._messages = (Message(role="user", text=opening),)
        return self.observation

    async def reply(self, text: str) -> Advance:
        """Answer the person, and play the turn through.

        Args:
            text: The policy's output; `<think>` blocks are kept in the record and shown to nobody.

        Raises:
            EpisodeOver: The conversation has ended, or was not opened.
        """
        if not self._messages:
            raise EpisodeOver("the conversation has not been opened", "call open(), or env.reset()")
        if self.outcome is not None:
            raise EpisodeOver(
                f"the conversation ended after turn {self.turns} ({self.outcome.end})", "call reset() for a new one"
            )
        exchange = Exchange(self._messages[-1].text, visible(text))
        judgement, failure = await self._judge(exchange)
        before, self.state = self.state, self.scorer.advance(self.state, judgement.levels if judgement else None)
        self._take_in(exchange, judgement)
        end = self._end()
        direction: Direction | None = None
        if end is None:
            direction, missed = await self._direct()
            failure = failure or missed
            if direction.function == "end_conversation":
                end = "director"
        answer, silent = await self._answer(end, direction)
        if silent and end is None:
            end, failure = "unreachable", failure or silent
        parts = self.recipe.turn(Step(self.scorer, before, self.state, end)) if judgement else {}
        turn = Turn(
            index=self.turns,
            user=exchange.user,
            reply=exchange.reply,
            raw_reply=text if text != exchange.reply else None,
            judgement=judgement,
            epm=self._deltas[-1],
            direction=direction,
            reward=sum(parts.values()) if judgement else None,
            reward_parts=parts,
            failure=failure,
        )
        self._messages = (*self._messages, Message(role="companion", text=exchange.reply))
        if answer:
            self._messages = (*self._messages, Message(role="user", text=answer))
        if end is not None:
            self.outcome = Outcome(end=end, turns=self.turns, closing=answer)
        return Advance(turn, self.observation, self.outcome)

    def _take_in(self, exchange: Exchange, judgement: Judgement | None) -> None:
        self._history = (*self._history, exchange)
        self._judgements = (*self._judgements, judgement)
        self._deltas = (*self._deltas, self.scorer.delta(self.state))
        self._unjudged = 0 if judgement else self._unjudged + 1

    def _end(self) -> End | None:
        if self.state.end is not None:
            return self.state.end
        if self._unjudged >= UNJUDGED_LIMIT:
            return "unjudged"
        return "budget" if self.budget is not None and self.turns >= self.budget else None

    async def _judge(self, exchange: Exchange) -> tuple[Judgement | None, str]:
        try:
            judgement = await self.cast.judge.judge(JudgeView(self._judge_profile, self._history, exchange))
        except Exception as e:  # any fault of a judge, ours or a plugged-in one's, is recorded as a missing judgement
            return None, f"judge: {type(e).__name__}: {e}"
        return judgement, "" if judgement is not None else "judge: no judgement"

    async def _direct(self) -> tuple[Direction, str]:
        view = DirectorView(
            scenario=self.scenario,
            history=self._history,
            p0=self.scenario.p0,
            judgements=self._judgements,
            epm=self._deltas,
            min_turns=self.scorer.min_turns,
        )
        try:
            direction = await self.cast.director.direct(view)
        except Exception as e:  # without a director the person goes on by themselves; the record says so
            return Direction(function="continue_naturally"), f"director: {type(e).__name__}: {e}"
        if direction.function == "end_conversation" and self.turns < self.scorer.min_turns:
            refused = f"refused to end at turn {self.turns}, before turn {self.scorer.min_turns}"
            return Direction(function="continue_naturally", reason=refused), ""
        return direction, ""

    async def _answer(self, end: End | None, direction: Direction | None) -> tuple[str, str]:
        cue = Cue("close" if end == "success" else "leave")
        if end is None and direction is not None:
            cue = cue_of(direction)
        try:
            return await self.cast.actor.speak(ActorView(self._actor_profile, self._history, cue)), ""
        except Exception as e:  # the person cannot be reached; the record says why
            return "", f"actor: {type(e).__name__}: {e}"


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, without an event loop (which a notebook has running already).

    Raises:
        RuntimeError: It did wait, on a remote role for example.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("this conversation waits for remote roles: drive it with 'await session.reply(...)'")
