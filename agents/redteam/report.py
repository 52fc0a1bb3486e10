"""What attacks earn: every attack with every person of a split, under any judge and any scorer, recorded as it goes.

Conversations that could not be played or scored enter no mean; they are counted and shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from echo_env import registry
from echo_env.agents.redteam.regression import Regression, write_regression
from echo_env.agents.rollout import Progress, RunConfig, RunResult, run
from echo_env.build import WorldConfig
from echo_env.cases import Case, episode_case, mean
from echo_env.errors import ConfigError, unknown_name
from echo_env.metrics import summarise
from echo_env.scorers import get_scorer
from echo_env.types import End, Record

REFERENCES = ("adviser", "skilled")
"""Policies that are played beside the attacks: what honest but poor company earns, and what good company does."""
PREFIX = "attack:"


class RedteamConfig(Record):
    """Which attacks are played against what."""

    attacks: tuple[str, ...] = ()
    """Names with or without "attack:"; empty for all."""
    references: tuple[str, ...] = REFERENCES
    split: str = "benchmark"
    scenarios: tuple[str, ...] = ()
    """Ids or YAML files; empty for the whole split."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Only the first so many scenarios."""
    seed: int = 0
    world: WorldConfig = WorldConfig()


class Worst(Record):
    """The conversation in which a policy earned most."""

    scenario: str
    earned: float
    """Sum of its rewards."""
    end: End
    turns: int
    transcript: str
    """The episode's file, relative to the folder of the report; empty where that was not kept."""


class AttackResult(Record):
    """What one policy earned."""

    name: str
    """Without "attack:"."""
    success_rate: float | None
    """Share of the scored conversations that ended in success, 0..1; None where none was scored."""
    successes: int
    epm_q: float | None
    """Total of the mean indices, 0..100."""
    mean_return: float | None
    """Mean over the scored conversations of the sum of rewards."""
    gained: float | None
    """The same without the terminal part: with the recipe `epm`, the share of the distance closed; below 0, it grew."""
    mean_turns: float | None
    conversations: int
    """Played to their end, scored or not."""
    unscored: int
    """Of these, left out because too few turns were judged."""
    unjudged_turns: int
    failed: int
    """Conversations that could not be played on; in no other number."""
    worst: Worst | None
    below_adviser: bool | None = None
    """Whether its mean return is less than the adviser's; None where either is missing."""


class RedteamReport(Record):
    """The whole suite."""

    judge: str
    """Id of the judge, as recorded; its registered name where nothing was recorded."""
    scorer: str
    recipe: str
    split: str
    seed: int
    scenarios: int
    attacks: tuple[AttackResult, ...]
    """The highest mean return first."""
    references: tuple[AttackResult, ...]

    def without_transcripts(self) -> RedteamReport:
        """Return the report for a folder that is not kept."""
        return self.model_copy(update={"attacks": _bare(self.attacks), "references": _bare(self.references)})

    @property
    def breaches(self) -> tuple[AttackResult, ...]:
        """Attacks that succeeded somewhere, or did not stay below the adviser."""
        return tuple([a for a in self.attacks if a.successes or a.below_adviser is False])


def _bare(results: tuple[AttackResult, ...]) -> tuple[AttackResult, ...]:
    return tuple(
        [
            r.model_copy(update={"worst": r.worst.model_copy(update={"transcript": ""})}) if r.worst else r
            for r in results
        ]
    )


@dataclass(frozen=True, slots=True)
class _Played:
    """One policy's run, before it is held against the others."""

    result: AttackResult
    judge: str
    regression: Regression | None


def attack_names(asked: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the registered names of attacks.

    Args:
        asked: Names with or without "attack:"; any other policy by "module:attribute"; empty for all.

    Raises:
        ConfigError: There is no such attack.
    """
    known = [n for n in registry.names("policy") if n.startswith(PREFIX)]
    if not asked:
        return tuple(registry.ATTACKS) + tuple(n for n in known if n not in registry.ATTACKS)
    found = [n if ":" in n else PREFIX + n for n in asked]
    for name in found:
        if name.startswith(PREFIX) and name not in known:
            raise unknown_name("attack", name.removeprefix(PREFIX), [n.removeprefix(PREFIX) for n in known])
    return tuple(dict.fromkeys(found))


def redteam(
    config: RedteamConfig,
    out: Path,
    *,
    workers: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    tell: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> RedteamReport:
    """Play the suite and record it.

    Runs go to `out/runs/<policy>/`, the conversation in which an attack earned most to `out/regressions/<attack>.yaml`.

    Args:
        config: What to play.
        out: Folder for the records.
        workers: Processes; each plays one policy at a time. The result does not depend on it.
        resume: Go on with the runs that are there.
        overwrite: Delete the runs that are there.
        tell: Called with the name of a policy and its conversations done and in all, after every turn for one process,
            after every policy for several.

    Raises:
        ConfigError: A name is unknown.
        RecordError: Runs are there and neither flag was given, or the disk is full.
    """
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite exclude each other")
    attacks = attack_names(config.attacks)
    get_scorer(config.world.scorer)
    played: dict[str, _Played] = {}
    names = [*config.references, *attacks]
    jobs = [(name, config, out, resume, overwrite) for name in dict.fromkeys(names)]
    for name, found in _several(jobs, workers, tell) if workers > 1 else _alone(jobs, tell):
        played[name] = found
    for name in attacks:
        regression = played[name].regression
        if regression is not None:
            write_regression(out / "regressions" / f"{played[name].result.name}.yaml", regression)
    return _report(config, attacks, played)


_Job = tuple[str, RedteamConfig, Path, bool, bool]


def _alone(jobs: list[_Job], tell: Callable[[str, int, int], None]) -> Iterator[tuple[str, _Played]]:
    for job in jobs:
        name = job[0]
        yield name, _play(*job, tell=lambda p, name=name: tell(name, p.done, p.total))  # type: ignore[misc]


def _several(jobs: list[_Job], workers: int, tell: Callable[[str, int, int], None]) -> Iterator[tuple[str, _Played]]:
    with ProcessPoolExecutor(workers) as pool:
        waiting = {pool.submit(_play, *job): job[0] for job in jobs}
        try:
            for done in as_completed(waiting):
                found = done.result()
                tell(waiting[done], found.result.conversations, found.result.conversations + found.result.failed)
                yield waiting[done], found
        except BaseException:  # Ctrl-C, a full disk: what has not begun is not played
            pool.shutdown(cancel_futures=True)
            raise


def _play(
    name: str,
    config: RedteamConfig,
    out: Path,
    resume: bool,
    overwrite: bool,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> _Played:
    settings = RunConfig(
        policy=name,
        split=config.split,
        scenarios=config.scenarios,
        limit=config.limit,
        seed=config.seed,
        world=config.world,
    )
    played = run(settings, out / "runs", resume=resume, overwrite=overwrite, tell=tell)
    scorer = get_scorer(config.world.scorer)
    cases = [episode_case(name, episode, scorer, "epm") for episode in played.folder.episodes()]
    best = _best(cases)
    return _Played(
        result=_result(name, cases, best, played, out),
        judge=next((c.record.header.judge for c in cases if c.record), ""),
        regression=Regression.of(name, config.world, best.record) if best and best.record else None,
    )


def _finished(cases: Sequence[Case]) -> list[Case]:
    return [c for c in cases if c.record is not None and c.record.outcome is not None]


def _scored(cases: Sequence[Case]) -> list[Case]:
    return [c for c in _finished(cases) if c.score is not None and c.score.scored and c.total_reward is not None]


def _best(cases: Sequence[Case]) -> Case | None:
    scored = _scored(cases)
    return max(scored, key=lambda c: (c.total_reward or 0.0, c.scenario), default=None)


def _result(name: str, cases: list[Case], best: Case | None, played: RunResult, out: Path) -> AttackResult:
    finished, scored = _finished(cases), _scored(cases)
    scores = [c.score for c in scored if c.score is not None]
    summary = summarise(scores, draws=0) if scores else None
    turns = [turn for c in finished if c.record for turn in c.record.turns]
    return AttackResult(
        name=name.removeprefix(PREFIX),
        success_rate=summary.success_rate if summary else None,
        successes=summary.successes if summary else 0,
        epm_q=summary.composite.epm_q if summary and summary.composite else None,
        mean_return=mean([c.total_reward for c in scored if c.total_reward is not None]),
        gained=mean([_gained(c) for c in scored]),
        mean_turns=mean([c.record.outcome.turns for c in scored if c.record and c.record.outcome]),
        conversations=len(finished),
        unscored=len(finished) - len(scored),
        unjudged_turns=sum(turn.judgement is None for turn in turns),
        failed=played.progress.failed,
        worst=_worst(best, played, out),
    )


def _gained(case: Case) -> float:
    parts = [turn.reward_parts for turn in case.record.turns] if case.record else []
    return math.fsum(value for p in parts for part, value in p.items() if part != "terminal")


def _worst(best: Case | None, played: RunResult, out: Path) -> Worst | None:
    if best is None or best.record is None or best.record.outcome is None or best.total_reward is None:
        return None
    return Worst(
        scenario=best.scenario,
        earned=best.total_reward,
        end=best.record.outcome.end,
        turns=best.record.outcome.turns,
        transcript=played.folder.episode_path(best.episode).relative_to(out).as_posix(),
    )


def _report(config: RedteamConfig, attacks: Sequence[str], played: dict[str, _Played]) -> RedteamReport:
    adviser = played["adviser"].result.mean_return if "adviser" in played else None
    results = [_beside(played[name].result, adviser) for name in attacks]
    results.sort(key=lambda r: (-(r.mean_return if r.mean_return is not None else -math.inf), r.name))
    one = next(iter(played.values())).result
    return RedteamReport(
        judge=next((p.judge for p in played.values() if p.judge), config.world.judge or config.world.backend),
        scorer=get_scorer(config.world.scorer).id,
        recipe=config.world.recipe,
        split=config.split,
        seed=config.seed,
        scenarios=one.conversations + one.failed,
        attacks=tuple(results),
        references=tuple(played[name].result for name in config.references),
    )


def _beside(result: AttackResult, adviser: float | None) -> AttackResult:
    if adviser is None or result.mean_return is None:
        return result
    return result.model_copy(update={"below_adviser": result.mean_return < adviser})
