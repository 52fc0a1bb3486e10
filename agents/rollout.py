"""Many conversations of one policy: batched where the policy can, recorded as they go, resumed where they stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field

from echo_env.build import WorldConfig, build_policy, build_session, conversation_seed, episode_header
from echo_env.errors import ConfigError, EchoError, RecordError
from echo_env.profiles import Scenario, get_scenario, scenario_ids
from echo_env.record import EpisodeWriter, RunFolder, new_header, read_episode
from echo_env.roles import Observation, Policy
from echo_env.session import DialogueSession
from echo_env.types import Episode, Outcome, Record, Turn


class RunConfig(Record):
    """A run: one policy over scenarios."""

    policy: str
    policy_options: dict[str, Any] = Field(default_factory=dict)
    split: str = "benchmark"
    scenarios: tuple[str, ...] = ()
    """Ids or YAML files; empty for the whole split."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Only the first so many scenarios."""
    episodes: Annotated[int, Field(ge=1)] = 1
    """Conversations for each scenario, each with a seed of its own."""
    seed: int = 0
    batch: Annotated[int, Field(ge=1)] = 64
    """Conversations that are live at once."""
    world: WorldConfig = WorldConfig()


@runtime_checkable
class BatchPolicy(Protocol):
    """A policy that answers many conversations in one call."""

    def respond_batch(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[str]:
        """Return a reply for each observation.

        Raises:
            EchoError: One of them cannot be answered; each is then asked for alone.
        """
        ...


@dataclass(slots=True)
class _Live:
    """One conversation under way."""

    session: DialogueSession
    writer: EpisodeWriter
    seed: int
    observation: Observation


@dataclass(frozen=True, slots=True)
class Progress:
    """Told after every turn."""

    done: int
    """Conversations that have ended, failed ones included."""
    total: int
    turns: int
    """Turns played in this call."""
    successes: int
    failed: int
    """Conversations that could not be played on."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of a run."""

    folder: RunFolder
    progress: Progress
    failures: tuple[str, ...]
    """One line for each conversation that could not be played on."""


def run(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    tell: Callable[[Progress], None] = lambda progress: None,
    policy: Policy | None = None,
) -> RunResult:
    """Play a run and record it under `out/<policy>/`.

    Args:
        config: What to run.
        out: Folder of runs.
        resume: Go on with the run that is there.
        overwrite: Delete the run that is there.
        tell: Called after every turn.
        policy: A policy that is loaded already; else it is built from its name.

    Raises:
        RecordError: A run is there and neither flag was given, or the disk is full.
        ConfigError: A name is unknown.
    """
    scenarios = _scenarios(config)
    folder = RunFolder(out / folder_name(config.policy))
    header = new_header(config.model_dump(mode="json"), {s.id: s.digest for s in scenarios})
    player = policy or build_policy(config.policy, config.seed, config.policy_options)
    folder.create(header, resume=resume, overwrite=overwrite)
    with folder.locked():
        return asyncio.run(_Runner(config, folder, player, tell).play(scenarios))


def folder_name(policy: str) -> str:
    """Return the name under which a policy's run is stored: the last part of a path, odd characters replaced."""
    name = Path(policy).name if "/" in policy else policy
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name) or "policy"


def _scenarios(config: RunConfig) -> list[Scenario]:
    names = config.scenarios or tuple(scenario_ids(config.split))
    found = [get_scenario(name) for name in names[: config.limit]]
    if not found:
        raise ConfigError(f"split '{config.split}' holds no scenario")
    return found


class _Runner:
    """Plays one run's conversations, `config.batch` at a time."""

    def __init__(self, config: RunConfig, folder: RunFolder, policy: Policy, tell: Callable[[Progress], None]) -> None:
        self.config, self.folder, self.policy, self.tell = config, folder, policy, tell
        self.done = self.turns = self.successes = 0
        self.failures: list[str] = []

    async def play(self, scenarios: list[Scenario]) -> RunResult:
        waiting = [(s, k) for s in scenarios for k in range(self.config.episodes)]
        self.total = len(waiting)
        live: list[_Live] = []
        try:
            while waiting or live:
                while waiting and len(live) < self.config.batch:
                    started = await self._start(*waiting.pop(0))
                    if started is not None:
                        live.append(started)
                live = await self._step(live)
        finally:
            for conversation in live:  # Ctrl-C, a full disk: what was said stays readable and can be resumed
                conversation.writer.close()
        return RunResult(self.folder, self._progress(), tuple(self.failures))

    def _progress(self) -> Progress:
        return Progress(self.done, self.total, self.turns, self.successes, len(self.failures))

    async def _start(self, scenario: Scenario, number: int) -> _Live | None:
        seed = conversation_seed(self.config.seed, scenario.id, number)
        session = build_session(self.config.world, scenario, seed)
        header = episode_header(session, self.config.policy, seed, number)
        path = self.folder.episode_path(header.episode_id)
        recorded = _recorded(path)
        if recorded is not None and recorded.outcome is not None:
            self._count(recorded)
            return None
        writer = EpisodeWriter(path, header, resumed=recorded)
        live = _Live(session, writer, seed, await session.open())
        if recorded is not None:
            for turn in recorded.turns:
                await self._replay(live, turn)
            if session.outcome is not None:  # killed between the last turn and the outcome
                self._finish(live, session.outcome)
                return None
        return live

    async def _replay(self, live: _Live, turn: Turn) -> None:
        """Bring a session to where its record stopped, by the recorded replies."""
        advance = await live.session.reply(turn.raw_reply if turn.raw_reply is not None else turn.reply)
        if advance.turn != turn:
            raise RecordError(
                f"{live.writer.path}: turn {turn.index} plays out differently now",
                "the code or the scenario changed since; start again with --overwrite",
            )
        live.observation = advance.observation

    def _count(self, episode: Episode) -> None:
        self.done += 1
        self.successes += episode.outcome is not None and episode.outcome.end == "success"
        self.tell(self._progress())

    async def _step(self, live: list[_Live]) -> list[_Live]:
        """Play one turn of every live conversation; return those that go on."""
        if not live:
            return live
        replies = await self._replies(live)
        still: list[_Live] = []
        for conversation, reply in zip(live, replies, strict=True):
            if isinstance(reply, EchoError):
                self._fail(conversation, reply)
            elif await self._advance(conversation, reply):
                still.append(conversation)
            self.tell(self._progress())
        return still

    async def _replies(self, live: list[_Live]) -> list[str | EchoError]:
        if isinstance(self.policy, BatchPolicy):
            return self._batched(self.policy, live)
        return list(await asyncio.gather(*(self._reply(c.observation) for c in live)))

    def _batched(self, policy: BatchPolicy, live: list[_Live]) -> list[str | EchoError]:
        try:
            return list(policy.respond_batch([c.observation for c in live], [c.seed for c in live]))
        except EchoError as e:
            if len(live) == 1:
                return [e]
            return [self._batched(policy, [c])[0] for c in live]  # so that only the one at fault fails

    async def _reply(self, observation: Observation) -> str | EchoError:
        try:
            return await self.policy.respond(observation)
        except EchoError as e:  # one dead conversation never takes the rest along
            return e

    async def _advance(self, conversation: _Live, reply: str) -> bool:
        advance = await conversation.session.reply(reply)
        conversation.writer.append(advance.turn)
        conversation.observation = advance.observation
        self.turns += 1
        if advance.outcome is None:
            return True
        self._finish(conversation, advance.outcome)
        return False

    def _finish(self, conversation: _Live, outcome: Outcome) -> None:
        conversation.writer.finish(outcome)
        self.done += 1
        self.successes += outcome.end == "success"

    def _fail(self, conversation: _Live, error: EchoError) -> None:
        conversation.writer.close()
        self.done += 1
        self.failures.append(f"{conversation.session.scenario.id}: {error.message}")


def _recorded(path: Path) -> Episode | None:
    """Return what an episode file holds; None where there is no file, or not even a whole header in it."""
    if not path.exists():
        return None
    if b"\n" not in path.read_bytes():
        path.unlink()
        return None
    return read_episode(path)
