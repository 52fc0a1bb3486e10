"""`echo-env play`: talk with one of the people yourself, or watch a policy do it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from echo_env.build import WorldConfig
    from echo_env.profiles import Scenario
    from echo_env.roles import Policy
    from echo_env.session import DialogueSession
    from echo_env.types import Turn

T = TypeVar("T")
HUMAN = "human"
LEGEND = (
    "    (C: do they make sense of it; A: do they feel met; P: do they trust their own strength. 0 is balance,\n"
    "     a minus is what is lacking. work: how much nearer the reply brought them. levels: what the judge found,\n"
    "     +1 or +2 for good, -1 or -2 for harm.)"
)
ENDS = {
    "success": "they found their balance",
    "collapse": "five replies in a row made it worse",
    "stagnation": "nothing moved any more",
    "oscillation": "it went back and forth and led nowhere",
    "patience": "their patience ran out",
    "director": "they had enough",
    "budget": "cut off",
    "unjudged": "three replies in a row could not be judged",
    "unreachable": "the person could not be reached",
}


def play(
    scenario: Annotated[str | None, typer.Option(help="Id or YAML file; else one is drawn by the seed.")] = None,
    split: Annotated[str, typer.Option(help="Split to draw from.")] = "benchmark",
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    hide: Annotated[bool, typer.Option("--hide", help="Hide the EPM line under each reply.")] = False,
    policy: Annotated[str | None, typer.Option(help="Watch a policy in place of typing yourself.")] = None,
    backend: Annotated[str, typer.Option(help="The world: embedded, or llm: and a models file or model.")] = "embedded",
    judge: Annotated[str | None, typer.Option(help="Another judge than the world's own.")] = None,
    actor: Annotated[str | None, typer.Option(help="Another actor than the world's own.")] = None,
    recipe: Annotated[str, typer.Option(help="Reward recipe.")] = "epm",
    save: Annotated[Path | None, typer.Option(help="Record the talk in this folder of runs; talks add up.")] = None,
) -> None:
    """Talk with one of the people yourself, or watch a policy do it."""
    import random

    from echo_env.build import WorldConfig, build_policy
    from echo_env.profiles import get_scenario, scenario_ids

    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a sign shows another in its place
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    person = get_scenario(scenario or random.Random(seed).choice(scenario_ids(split)))
    world = WorldConfig(backend=backend, judge=judge, actor=actor, recipe=recipe)
    watched = build_policy(policy, seed) if policy else None
    screen = _Screen(person.persona.name.split()[0], policy or "you", hide)
    try:
        with _recorded(save, world, person, policy or HUMAN, seed) as (session, record):
            _talk(session, watched, screen, record)
    except EOFError:
        typer.echo("")
    except KeyboardInterrupt:
        typer.echo("")
        raise typer.Exit(130) from None


def _talk(session: DialogueSession, watched: Policy | None, screen: _Screen, record: Callable[[Turn], None]) -> None:
    from echo_env.agents.human import read_reply

    if watched is None:
        typer.echo("You are the companion. Type your reply and press Enter; Ctrl-D leaves.", err=True)
    observation = screen.wait_for(session.open(), session)
    screen.start(session)
    while session.outcome is None:
        screen.say(screen.person, observation.user)
        reply = screen.wait_for(watched.respond(observation), watched) if watched else read_reply()
        if watched is not None or not sys.stdin.isatty():
            screen.say(screen.companion, reply)
        advance = screen.wait_for(session.reply(reply), session)
        record(advance.turn)
        screen.state(advance.turn)
        observation = advance.observation
    if session.outcome.closing:
        screen.say(screen.person, session.outcome.closing)
    typer.echo(f"ended: {session.outcome.end} after {session.turns} turns")
    typer.echo(f"({ENDS[session.outcome.end]})", err=True)


@dataclass(slots=True)
class _Screen:
    """What is shown, in colour where there is a terminal for it."""

    person: str
    companion: str
    hide: bool
    explained: bool = False

    def say(self, who: str, text: str) -> None:
        """Show an utterance."""
        from echo_env.agents.human import printable

        typer.echo(f"{_styled(f'{who}:', 'name')} {printable(text)}")

    def start(self, session: DialogueSession) -> None:
        """Show where the person stands before a word is said."""
        if not self.hide and any(session.scenario.p0):
            c, a, p = session.scenario.p0
            typer.echo(_styled(f"    at the start  C {c:.0f}  A {a:.0f}  P {p:.0f}", "state"))

    def state(self, turn: Turn) -> None:
        """Show what a reply did, and what went wrong beside it."""
        from echo_env.env import epm_line

        lines = [f"{v.kind}  {'missing' if v.value is None else f'{v.value:.2f}'}" for v in turn.verdicts]
        if turn.judgement is not None or not turn.verdicts:
            lines = [epm_line(turn) if turn.judgement is not None else "EPM  not judged", *lines]
        if not self.hide:
            for line in lines:
                typer.echo(_styled(f"    {line}", "state"))
            if not self.explained and turn.judgement is not None:
                typer.echo(LEGEND, err=True)
                self.explained = True
        if turn.failure:
            typer.echo(f"    ({' '.join(turn.failure.split())})", err=True)

    def wait_for(self, coroutine: Coroutine[Any, Any, T], role: object) -> T:
        """Drive what may wait for a remote model, with a sign on a terminal that it does."""
        from echo_env.driving import drive, waits

        waiting = waits(role)
        shown = waiting and sys.stderr.isatty()
        if shown:
            sys.stderr.write("...")
            sys.stderr.flush()
        try:
            return drive(coroutine, waiting=waiting)
        finally:
            if shown:
                sys.stderr.write("\r   \r")
                sys.stderr.flush()


def _styled(text: str, kind: str) -> str:
    """Return a text in colour, on a terminal that has any and where nobody asked for none (no-color.org)."""
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or (os.environ.get("TERM") or "dumb") == "dumb"
    return text if plain else typer.style(text, bold=True) if kind == "name" else typer.style(text, dim=True)


@contextmanager
def _recorded(
    save: Path | None, world: WorldConfig, person: Scenario, policy: str, seed: int
) -> Iterator[tuple[DialogueSession, Callable[[Turn], None]]]:
    """Yield a session and what records its turns: as a further episode of the run in the folder, where one is given.

    Whoever leaves has cut the talk off: it is recorded as finished, so that it can be scored. A talk in which nothing
    was said leaves no record.
    """
    from echo_env.build import build_session, conversation_seed, episode_header
    from echo_env.record import EpisodeWriter, RunFolder, new_header
    from echo_env.types import Outcome

    if save is None:
        yield build_session(world, person, conversation_seed(seed, person.id)), lambda turn: None
        return
    from echo_env.agents.rollout import folder_name

    folder = RunFolder(save / folder_name(policy))
    folder.create(new_header({"policy": policy, "world": world.model_dump(mode="json")}, {}), resume=True)
    with folder.locked():
        number = 0
        while folder.episode_path(f"{person.id}.{number}").exists():
            number += 1
        own = conversation_seed(seed, person.id, number)
        session = build_session(world, person, own)
        said: list[Turn] = []
        with EpisodeWriter(
            folder.episode_path(f"{person.id}.{number}"), episode_header(session, policy, own, number)
        ) as writer:

            def record(turn: Turn) -> None:
                writer.append(turn)
                said.append(turn)

            try:
                yield session, record
            finally:
                if said:
                    writer.finish(session.outcome or Outcome(end="budget", turns=len(said)))
                    typer.echo(f"recorded in {save}; tables of it:  echo-env report {save}", err=True)
                else:
                    writer.close()
                    writer.path.unlink()
