"""Judge recorded conversations anew: same words, another judge."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

from echo_env.build import WorldConfig, build_judge, recipe_of
from echo_env.driving import all_or_none
from echo_env.epm import Scorer
from echo_env.errors import RecordError
from echo_env.faults import fault_of, joined
from echo_env.profiles import Scenario, get_scenario
from echo_env.record import EpisodeWriter, RunFolder, find_runs
from echo_env.rewards import Recipe, Step
from echo_env.roles import Exchange, Judge, JudgeView, profiles_of
from echo_env.scorers import get_scorer
from echo_env.types import Episode, EpisodeHeader, Judgement, Turn

AT_ONCE = 32
"""Episodes that are judged anew at a time."""


def rejudge_runs(root: Path, out: Path, judge: str) -> list[RunFolder]:
    """Write every finished episode of the runs in `root` to `out`, judged by another judge.

    Raises:
        RecordError: There is no run, `out` holds one already, or a scenario has changed since.
    """
    build_judge(judge)  # an unknown name is an error before anything is written
    written = []
    for run in find_runs(root):
        folder = RunFolder(out / run.path.name)
        folder.create(run.header().model_copy(update={"config": {**run.header().config, "rejudged_by": judge}}))
        if run.scenarios.is_dir():
            shutil.copytree(run.scenarios, folder.scenarios)
        asyncio.run(_rejudge_all(run, folder, judge))
        written.append(folder)
    return written


async def _rejudge_all(run: RunFolder, out: RunFolder, judge: str) -> None:
    """Judge a run's finished episodes, `AT_ONCE` of them at a time: a remote judge is slow."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(episode: Episode) -> None:
        async with places:
            _write(out, await rejudge(episode, build_judge(judge), run.scenarios))

    await all_or_none([one(episode) for episode in run.episodes() if episode.outcome is not None])


def _write(folder: RunFolder, episode: Episode) -> None:
    with EpisodeWriter(folder.episode_path(episode.header.episode_id), episode.header) as writer:
        for turn in episode.turns:
            writer.append(turn)
        if episode.outcome is not None:
            writer.finish(episode.outcome)


async def rejudge(episode: Episode, judge: Judge, scenarios: Path | Scenario | None = None) -> Episode:
    """Return an episode with the judgements, EPM and rewards of another judge; its words and its end stay.

    Args:
        episode: The recorded one.
        judge: Whose judgements it is to have.
        scenarios: Folder of scenarios that go before this package's own: those that a run brought with it. Or the
            one that was played, where it is at hand.

    Raises:
        RecordError: The scenario is not the one that was played, or is not at hand.
    """
    header = episode.header
    scenario = scenarios if isinstance(scenarios, Scenario) else scenario_of(header, scenarios)
    if scenario.chitchat:  # EPM does not apply
        return episode
    scorer = get_scorer(header.scorer)
    recipe = recipe_of(WorldConfig(recipe=header.recipe.rpartition("-")[0] or header.recipe))
    profile = profiles_of(scenario)[1]
    history: tuple[Exchange, ...] = ()
    turns: list[Turn] = []
    state = scorer.start(header.p0)
    for turn in episode.turns:
        exchange = Exchange(turn.user, turn.reply)
        try:
            judgement, failure = await judge.judge(JudgeView(profile, history, exchange)), ""
        except Exception as e:  # recorded as a missing judgement, like in a live turn
            judgement, failure = None, fault_of("judge", e)
        others = re.search(r"(?:^|; )((?:director|actor): .*)", turn.failure, re.DOTALL)
        kept = (*(v.failure for v in turn.verdicts), others[1] if others else "")
        failure = joined((failure, *kept))
        before, state = state, scorer.advance(state, judgement.levels if judgement else None)
        end = episode.outcome.end if episode.outcome and turn.index == len(episode.turns) else None
        step = Step(scorer, before, state, end, judgement is not None, turn.verdicts)
        turns.append(_turn(turn, judgement, failure, scorer, recipe, step))
        history = (*history, exchange)
    new = header.model_copy(update={"judge": judge.id, "rubric": judge.rubric})
    return episode.model_copy(update={"header": new, "turns": tuple(turns)})


def scenario_of(header: EpisodeHeader, folder: Path | None = None) -> Scenario:
    """Return the scenario that was played.

    Args:
        header: Of the recorded episode.
        folder: Scenarios that a run brought with it; they go before this package's own.

    Raises:
        RecordError: It is not at hand, or has changed since.
    """
    scenario = _found(header, folder)
    if scenario.digest != header.scenario_hash:
        raise RecordError(
            f"scenario {header.scenario} has changed since it was played: {header.scenario_hash} to {scenario.digest}",
            "go back to the echo-env version of the recording",
        )
    return scenario


def _found(header: EpisodeHeader, folder: Path | None) -> Scenario:
    own = folder / f"{header.scenario}.yaml" if folder else None
    if own and own.is_file():
        return get_scenario(str(own))
    if header.split == "imported":
        raise RecordError(
            f"{header.scenario} is a person of another project and did not come with this run",
            "its recorded levels can be scored:  echo-env score RUNS --scorer strict",
        )
    return get_scenario(header.scenario)


def _turn(turn: Turn, judgement: Judgement | None, failure: str, scorer: Scorer, recipe: Recipe, step: Step) -> Turn:
    parts = recipe.turn(step)
    return turn.model_copy(
        update={
            "judgement": judgement,
            "epm": scorer.delta(step.after),
            "reward": None if parts is None else sum(parts.values()),
            "reward_parts": parts or {},
            "failure": failure,
            "published": None,
        }
    )
