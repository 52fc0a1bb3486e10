"""One conversation, turn by turn: the loop that the environment, rollouts and evaluation all drive.

    Observation -> Policy -> reply -> Judge -> EPM -> Director -> Actor -> Observation

A judge's failure is a missing judgement, never a zero: the turn has no reward and the conversation goes on; three such
turns in a row end it as truncated.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from echo_env.driving import both, waits
from echo_env.epm import EpmState, Scorer, action_vector
from echo_env.errors import ConfigError, EpisodeOver, RoleFailure
from echo_env.faults import fault_of, joined
from echo_env.profiles import Scenario
from echo_env.rewards import JudgedRecipe, Recipe, ReplyView, Step
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
from echo_env.types import TRUNCATIONS, Direction, End, EpmDelta, Judgement, Message, Outcome, Turn, Verdict, storable

UNJUDGED_LIMIT = 3
"""Unjudged turns in a row after which a conversation is truncated."""

_THINK_TAG = re.compile(r"<(/?)think\b[^>]*>", re.IGNORECASE)


def visible(text: str) -> str:
    """Return what of a policy's output the others may see: all but `<think>` blocks.

    An unclosed block runs to the end; one that was opened in the prompt, as some chat templates do, from the start.
    """
    kept: list[str] = []
    depth = at = 0
    for tag in _THINK_TAG.finditer(text):
        if depth == 0:
            kept.append(text[at : tag.start()])
        if not tag.group(1):
            depth += 1
        elif depth == 0:
            kept.clear()
        else:
            depth -= 1
        at = tag.end()
    return "".join(kept if depth else [*kept, text[at:]]).strip()


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
        self._earlier: tuple[tuple[Verdict, ...], ...] = ()
        self._unjudged = 0

    @property
    def waits(self) -> bool:
        """Whether a role or the recipe may wait for a remote model."""
        return waits(self.cast.actor, self.cast.director, self.cast.judge, self.recipe)

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
        self._messages = (Message(role="user", text=await self._speak(Cue("flow"))),)
        return self.observation

    async def reply(self, text: str) -> Advance:
        """Answer the person, and play the turn through.

        Args:
            text: The policy's output; `<think>` blocks are kept in the record and shown to nobody.

        Raises:
            EpisodeOver: The conversation has ended, or was not opened.
            TypeError: The reply is not a string.
        """
        if not self._messages:
            raise EpisodeOver("the conversation has not been opened", "call open(), or env.reset()")
        if self.outcome is not None:
            raise EpisodeOver(
                f"the conversation ended after turn {self.turns} ({self.outcome.end})", "call reset() for a new one"
            )
        if not isinstance(text, str):
            raise TypeError(f"a reply is a string, got {type(text).__name__}: {text!r:.80}")
        text = storable(text)
        exchange = Exchange(self._messages[-1].text, visible(text))
        (judgement, unjudged), verdicts = await self._assess(exchange, text)
        before, self.state = self.state, self.scorer.advance(self.state, judgement.levels if judgement else None)
        self._take_in(exchange, judgement)
        self._earlier = (*self._earlier, verdicts)
        end = self._end()
        direction, undirected = await self._direct() if end is None else (None, "")
        if direction is not None and direction.function == "end_conversation":
            end = "director"
        answer, silent = await self._answer(end, direction)
        if silent and end is None:
            end = "unreachable"
        parts = self.recipe.turn(Step(self.scorer, before, self.state, end, judgement is not None, verdicts))
        if parts and not all(map(math.isfinite, parts.values())):
            raise ConfigError(f"the recipe '{self.recipe.id}' gave a reward that is no number: {parts}")
        turn = Turn(
            index=self.turns,
            user=exchange.user,
            reply=exchange.reply,
            raw_reply=text if text != exchange.reply else None,
            judgement=judgement,
            epm=self._deltas[-1],
            direction=direction,
            reward=None if parts is None else sum(parts.values()),
            reward_parts=parts or {},
            verdicts=verdicts,
            failure=joined((unjudged, *(v.failure for v in verdicts), undirected, silent)),
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
        self._unjudged = 0 if judgement or self.scenario.chitchat else self._unjudged + 1

    def _end(self) -> End | None:
        if self.state.end is not None:
            return self.state.end
        if self._unjudged >= UNJUDGED_LIMIT:
            return "unjudged"
        return "budget" if self.budget is not None and self.turns >= self.budget else None

    async def _assess(self, exchange: Exchange, raw: str) -> tuple[tuple[Judgement | None, str], tuple[Verdict, ...]]:
        """Ask the EPM judge and the recipe's own judges, which need nothing of each other."""
        if not isinstance(self.recipe, JudgedRecipe):
            return await self._judge(exchange), ()
        view = ReplyView(
            JudgeView(self._judge_profile, self._history, exchange),
            "" if raw == exchange.reply else raw,
            deficit=self.scenario.p0,
            earlier=self._earlier,
        )
        asked = self._verdicts(self.recipe, view)
        if self.scenario.chitchat:  # nothing for the EPM judge to judge, which is no failure
            return (None, ""), await asked
        return await both(self._judge(exchange), asked, waiting=waits(self.cast.judge, self.recipe))

    async def _verdicts(self, recipe: JudgedRecipe, view: ReplyView) -> tuple[Verdict, ...]:
        try:
            return await recipe.verdicts(view)
        except Exception as e:  # as with the judge: a fault of the recipe's judges is recorded as a missing verdict
            return (Verdict(kind="recipe", judge=self.recipe.id, value=None, failure=fault_of("recipe", e)),)

    async def _judge(self, exchange: Exchange) -> tuple[Judgement | None, str]:
        try:
            judgement = await self.cast.judge.judge(JudgeView(self._judge_profile, self._history, exchange))
            if judgement is None:
                return None, "judge: no judgement"
            if not isinstance(judgement, Judgement):
                raise RoleFailure(f"a judge returns a Judgement or None, got {type(judgement).__name__}")
            action_vector(judgement.levels)  # levels out of range are no judgement
        except Exception as e:  # any fault of a judge, ours or a plugged-in one's, is recorded as a missing judgement
            return None, fault_of("judge", e)
        return judgement, ""

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
            if not isinstance(direction, Direction):
                raise RoleFailure(f"a director returns a Direction, got {type(direction).__name__}")
        except Exception as e:  # without a director the person goes on by themselves; the record says so
            return Direction(function="continue_naturally"), fault_of("director", e)
        if direction.function == "end_conversation" and self.turns < self.scorer.min_turns:
            refused = f"refused to end at turn {self.turns}, before turn {self.scorer.min_turns}"
            return Direction(function="continue_naturally", reason=refused), ""
        return direction, ""

    async def _answer(self, end: End | None, direction: Direction | None) -> tuple[str, str]:
        cue = Cue("close" if end == "success" or self.scenario.chitchat else "leave")
        if end is None and direction is not None:
            cue = cue_of(direction)
        try:
            return await self._speak(cue), ""
        except Exception as e:  # the person cannot be reached; the record says why
            return "", fault_of("actor", e)

    async def _speak(self, cue: Cue) -> str:
        answer = await self.cast.actor.speak(ActorView(self._actor_profile, self._history, cue))
        if not isinstance(answer, str) or not answer.strip():
            raise RoleFailure(f"an actor returns what the person says, got {answer!r:.40}")
        return storable(answer)
