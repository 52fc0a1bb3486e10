"""Bringing a conversation to where its record stopped, without asking a remote model again.

Roles that never wait are played through by the recorded replies, so that any change of the world shows; roles that
wait answer as the record says, since a model asked twice may answer twice differently.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from echo_env.driving import waits
from echo_env.errors import RecordError
from echo_env.rewards import JudgedRecipe, Recipe, ReplyView, Step
from echo_env.roles import Actor, ActorView, Cast, Director, DirectorView, Judge, JudgeView, Remembering
from echo_env.session import Advance, DialogueSession
from echo_env.types import Direction, Episode, Judgement, Turn, Verdict


class _Tape:
    """The recorded turn that the stand-ins answer from."""

    def __init__(self, cast: Cast) -> None:
        self.live = cast
        self.turn: Turn | None = None
        """None while the person speaks first."""
        self.next_message = ""
        """What the person said next; empty where the record ends, and they are asked for real."""


class _RecordedActor:
    def __init__(self, tape: _Tape) -> None:
        self.tape, self.id = tape, tape.live.actor.id

    async def speak(self, view: ActorView) -> str:
        return self.tape.next_message or await self.tape.live.actor.speak(view)


class _RecordedDirector:
    def __init__(self, tape: _Tape) -> None:
        self.tape, self.id = tape, tape.live.director.id

    async def direct(self, view: DirectorView) -> Direction:
        turn = self.tape.turn
        if turn is None or turn.direction is None:
            return await self.tape.live.director.direct(view)
        return turn.direction


class _RecordedJudge:
    def __init__(self, tape: _Tape) -> None:
        self.tape, self.id, self.rubric = tape, tape.live.judge.id, tape.live.judge.rubric

    async def judge(self, view: JudgeView) -> Judgement | None:
        judgement, judge = self.tape.turn.judgement if self.tape.turn else None, self.tape.live.judge
        if judgement is not None and isinstance(judge, Remembering):
            judge.recall(judgement, len(view.history) + 1)
        return judgement


class _RecordedRecipe:
    def __init__(self, tape: _Tape, recipe: Recipe) -> None:
        self.tape, self.recipe, self.id = tape, recipe, recipe.id

    async def verdicts(self, view: ReplyView) -> tuple[Verdict, ...]:
        return self.tape.turn.verdicts if self.tape.turn else ()

    def turn(self, step: Step) -> dict[str, float] | None:
        return self.recipe.turn(step)


def _stand_ins(tape: _Tape) -> Cast:
    cast = tape.live
    actor: Actor = _RecordedActor(tape) if waits(cast.actor) else cast.actor
    director: Director = _RecordedDirector(tape) if waits(cast.director) else cast.director
    judge: Judge = _RecordedJudge(tape) if waits(cast.judge) else cast.judge
    return replace(cast, actor=actor, director=director, judge=judge)


async def reopen(session: DialogueSession, recorded: Episode) -> None:
    """Open a session and play it to the end of its record.

    Args:
        session: A session that was not opened yet, of the scenario and the seed that were recorded.
        recorded: The unfinished episode.

    Raises:
        RecordError: The world answers differently now; naming the turn.
        RoleFailure: The person, asked for what is not on record, cannot be reached.
    """
    tape, recipe, remote = _Tape(session.cast), session.recipe, session.waits
    session.cast = _stand_ins(tape)
    if isinstance(recipe, JudgedRecipe) and waits(recipe):
        session.recipe = _RecordedRecipe(tape, recipe)
    turns = recorded.turns
    try:
        tape.next_message = turns[0].user if turns else ""
        await session.open()
        for turn, after in zip_longest(turns, turns[1:]):
            tape.turn, tape.next_message = turn, after.user if after else ""
            advance = await session.reply(turn.raw_reply if turn.raw_reply is not None else turn.reply)
            if not _same(advance, turn, exact=not remote):
                raise RecordError(
                    f"{recorded.header.episode_id}: turn {turn.index} plays out differently now",
                    "the code or the scenario changed since; start again with --overwrite",
                )
    finally:
        session.cast, session.recipe = tape.live, recipe


def _same(advance: Advance, turn: Turn, *, exact: bool) -> bool:
    """Whether a turn plays as recorded; a failure of a role that is not asked again has no words here."""
    played = advance.turn
    return played == turn if exact else played.model_copy(update={"failure": turn.failure}) == turn
