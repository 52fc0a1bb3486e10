"""Many conversations of one policy, recorded as they go, resumed where they stopped.

A policy that answers many conversations in one call is asked for a turn of all of them at once. For any other, each
conversation runs by itself, `batch` of them at a time, so that one that waits for a remote model holds up no other.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field

from echo_env.agents.llm.client import usage_of_all
from echo_env.agents.modelrecord import recorded_models
from echo_env.agents.replay import reopen
from echo_env.build import WorldConfig, build_policy, build_session, conversation_seed, episode_header
from echo_env.driving import all_or_none
from echo_env.errors import ConfigError, EchoError, RoleFailure
from echo_env.profiles import Scenario, get_scenario, scenario_ids
from echo_env.record import EpisodeWriter, RunFolder, new_header, read_episode
from echo_env.roles import Observation, Policy
from echo_env.session import DialogueSession
from echo_env.types import Episode, Outcome, Record
from echo_env.usage import RoleUsage, since


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


@runtime_checkable
class SeededPolicy(Protocol):
    """A policy that samples: remote models, which are asked one conversation at a time."""

    def for_episode(self, seed: int) -> Policy:
        """Return the policy as it speaks in the conversation with this seed."""
        ...


@dataclass(slots=True)
class _Live:
    """One conversation under way."""

    session: DialogueSession
    writer: EpisodeWriter
    seed: int
    policy: Policy


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
    usage: dict[str, RoleUsage] = field(default_factory=dict)
    """What language models took in this call, by role; `RunFolder.usage` holds it for all calls."""
    gaps: dict[str, int] = field(default_factory=dict)
    """Why turns of this call lack a judgement, verdict or direction -> how many turns."""


def run(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    tell: Callable[[Progress], None] = lambda progress: None,
    policy: Policy | None = None,
    name: str = "",
) -> RunResult:
    """Play a run and record it under `out/<name>/`.

    Args:
        config: What to run.
        out: Folder of runs.
        resume: Go on with the run that is there.
        overwrite: Delete the run that is there.
        tell: Called after every turn.
        policy: A policy that is loaded already; else it is built from its name.
        name: What the run's folder, and so its row in a report, is called; empty for the policy's own (`folder_name`).

    Raises:
        RecordError: A run is there and neither flag was given, or the disk is full.
        ConfigError: A name is unknown.
    """
    scenarios = _scenarios(config)
    folder = RunFolder(out / folder_name(name or config.policy))
    settings = config.model_dump(mode="json")
    models = recorded_models(settings, sorted({s.language for s in scenarios}))
    header = new_header(settings, {s.id: s.digest for s in scenarios}, models)
    player = policy or build_policy(config.policy, config.seed, config.policy_options)
    build_session(config.world, scenarios[0], config.seed)  # a wrong name is told before there is a folder in the way
    folder.create(header, resume=resume, overwrite=overwrite)
    with folder.locked():
        before = usage_of_all()
        try:
            result = asyncio.run(_Runner(config, folder, player, tell).play(scenarios))
        finally:  # what was paid for before Ctrl-C counts as well
            usage = since(usage_of_all(), before)
            folder.add_usage(usage)
    return replace(result, usage=usage)


def folder_name(policy: str) -> str:
    """Return the name under which a policy's run is stored.

    The last part of a path or of a model's name (without its server's URL), odd characters replaced.
    """
    name = policy.partition("@http")[0] if policy.startswith("llm:") else policy
    name = Path(name).name if "/" in name else name
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name) or "policy"


def _scenarios(config: RunConfig) -> list[Scenario]:
    names = config.scenarios or tuple(scenario_ids(config.split))
    found = [get_scenario(name) for name in names[: config.limit]]
    if not found:
        raise ConfigError(f"split '{config.split}' holds no scenario")
    return found


class _Runner:
    """Plays one run's conversations."""

    def __init__(self, config: RunConfig, folder: RunFolder, policy: Policy, tell: Callable[[Progress], None]) -> None:
        self.config, self.folder, self.policy, self.tell = config, folder, policy, tell
        self.done = self.turns = self.successes = 0
        self.failures: list[str] = []
        self.gaps: Counter[str] = Counter()

    async def play(self, scenarios: list[Scenario]) -> RunResult:
        waiting = deque((s, k) for s in scenarios for k in range(self.config.episodes))
        self.total = len(waiting)
        if isinstance(self.policy, BatchPolicy):
            await self._in_step(self.policy, waiting)
        else:
            live = 1 if getattr(self.policy, "alone", False) else self.config.batch
            await all_or_none([self._one_by_one(waiting) for _ in range(min(live, self.total))])
        return RunResult(self.folder, self._progress(), tuple(self.failures), gaps=dict(self.gaps))

    def _progress(self) -> Progress:
        return Progress(self.done, self.total, self.turns, self.successes, len(self.failures))

    async def _one_by_one(self, waiting: deque[tuple[Scenario, int]]) -> None:
        """Play conversations to their ends until none is left to start."""
        while waiting:
            live = await self._start(*waiting.popleft())
            if live is None:
                continue
            try:
                while await self._advance(live, await self._reply(live)):
                    await asyncio.sleep(0)  # the others get their turn, and Ctrl-C is heard, where no role ever waits
            finally:  # Ctrl-C, a full disk: what was said stays readable and can be resumed
                live.writer.close()

    async def _in_step(self, policy: BatchPolicy, waiting: deque[tuple[Scenario, int]]) -> None:
        """Play all live conversations a turn at a time."""
        live: list[_Live] = []
        try:
            while waiting or live:
                while waiting and len(live) < self.config.batch:
                    started = await self._start(*waiting.popleft())
                    if started is not None:
                        live.append(started)
                replies = self._batched(policy, live) if live else []
                moves = [self._advance(c, reply) for c, reply in zip(live, replies, strict=True)]
                if any(c.session.waits for c in live):
                    on = await asyncio.gather(*moves)
                else:
                    on = [await move for move in moves]
                live = [c for c, goes_on in zip(live, on, strict=True) if goes_on]
        finally:
            for conversation in live:
                conversation.writer.close()

    async def _start(self, scenario: Scenario, number: int) -> _Live | None:
        """Open a conversation, or go on with a recorded one; None where there is nothing to play."""
        seed = conversation_seed(self.config.seed, scenario.id, number)
        session = build_session(self.config.world, scenario, seed)
        header = episode_header(session, self.config.policy, seed, number)
        path = self.folder.episode_path(header.episode_id)
        recorded = _recorded(path)
        if recorded is not None and recorded.outcome is not None:
            self._count(recorded)
            return None
        live = _Live(session, EpisodeWriter(path, header, resumed=recorded), seed, seeded(self.policy, seed))
        try:
            await (session.open() if recorded is None else reopen(session, recorded))
        except RoleFailure as e:
            self._fail(live, e)
            return None
        except BaseException:
            live.writer.close()
            raise
        if session.outcome is not None:  # killed between the last turn and the outcome
            self._finish(live, session.outcome)
            return None
        return live

    def _count(self, episode: Episode) -> None:
        self.done += 1
        self.successes += episode.outcome is not None and episode.outcome.end == "success"
        self.tell(self._progress())

    def _batched(self, policy: BatchPolicy, live: list[_Live]) -> list[str | EchoError]:
        try:
            return list(policy.respond_batch([c.session.observation for c in live], [c.seed for c in live]))
        except EchoError as e:
            if len(live) == 1:
                return [e]
            return [self._batched(policy, [c])[0] for c in live]  # so that only the one at fault fails

    async def _reply(self, live: _Live) -> str | EchoError:
        try:
            return await live.policy.respond(live.session.observation)
        except EchoError as e:  # one dead conversation never takes the rest along
            return e

    async def _advance(self, live: _Live, reply: str | EchoError) -> bool:
        """Play a turn; return whether the conversation goes on."""
        if isinstance(reply, EchoError):
            self._fail(live, reply)
            return False
        advance = await live.session.reply(reply)
        live.writer.append(advance.turn)
        self.turns += 1
        if advance.turn.failure:
            self.gaps[advance.turn.failure] += 1
        if advance.outcome is not None:
            self._finish(live, advance.outcome)
        self.tell(self._progress())
        return advance.outcome is None

    def _finish(self, live: _Live, outcome: Outcome) -> None:
        live.writer.finish(outcome)
        self.done += 1
        self.successes += outcome.end == "success"

    def _fail(self, live: _Live, error: EchoError) -> None:
        live.writer.close()
        self.done += 1
        hint = f" ({error.hint})" if error.hint else ""
        self.failures.append(f"{live.session.scenario.id}: {error.message}{hint}")
        self.tell(self._progress())


def seeded(policy: Policy, seed: int) -> Policy:
    """Return the policy as it samples in one conversation, where it makes a difference."""
    return policy.for_episode(seed) if isinstance(policy, SeededPolicy) else policy


def _recorded(path: Path) -> Episode | None:
    """Return what an episode file holds; None where there is no file, or not even a whole header in it."""
    if not path.exists():
        return None
    if b"\n" not in path.read_bytes():
        path.unlink()
        return None
    return read_episode(path)
