"""From rollouts to figures: what one update looks like, to a file and to a person."""

from __future__ import annotations

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from echo_env.agents.detectors import detect
from echo_env.agents.rejudge import rejudge
from echo_env.agents.scoring import score_replies
from echo_env.build import WorldConfig, build_judge, build_session, episode_header
from echo_env.errors import ConfigError
from echo_env.profiles import get_scenario
from echo_env.roles import Exchange
from echo_env.trainers import monitors
from echo_env.trainers.advantages import trajectory_rewards
from echo_env.trainers.display import Display
from echo_env.trainers.job import Job
from echo_env.trainers.outcomes import Rollout
from echo_env.trainers.runs import Run
from echo_env.trainers.runstate import RunState
from echo_env.trainers.trajectory import Trajectory, reward_table
from echo_env.types import Episode

Value = float | None


def update_of(
    rollouts: Sequence[Rollout], learned: Mapping[str, Value], keys: Iterable[str], gap: tuple[float, float] | None
) -> monitors.Update:
    """Return the monitored figures of one update, over all that was played, filtered or not.

    Args:
        rollouts: Of the update.
        learned: What `Learner.update` returned.
        keys: Parts of the reward, those of earlier updates included.
        gap: `held_out_gap`, where it was measured.
    """
    trajectories = [r.trajectory for r in rollouts if r.trajectory is not None]
    replies = [ids for t in trajectories for ids in replies_of(t)]
    lengths = [len(ids) for ids in replies]
    cut = [reply.stop == "length" for t in trajectories for reply in t.replies()]
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        groups[trajectory.group].append(trajectory)
    missing = [reward for t in trajectories for reward in t.rewards]
    rewards = trajectory_rewards(reward_table(trajectories)).tolist() if trajectories else []
    return monitors.Update(
        reward=mean(rewards),
        parts=monitors.mean_parts([p for r in rollouts for p in r.parts], list(keys)),
        judge_failures=monitors.failure_share(missing),
        length_mean=fmean(lengths) if lengths else 0.0,
        length_p95=monitors.percentile_95(lengths) if lengths else 0.0,
        at_cap=fmean(cut) if cut else 0.0,
        entropy=learned["entropy"],
        kl=learned["kl"],
        clip_low=learned["clip_low"],
        clip_high=learned["clip_high"],
        zero_spread=monitors.zero_spread_share([[t.score for t in group] for group in groups.values()]),
        distinct_1=monitors.distinct_n(replies, 1),
        distinct_2=monitors.distinct_n(replies, 2),
        similarity=monitors.group_similarity(_side_by_side(groups.values())),
        judge=gap[0] if gap else None,
        held_out=gap[1] if gap else None,
    )


def replies_of(trajectory: Trajectory) -> list[tuple[int, ...]]:
    """Return the ids of each reply."""
    return [s.ids[reply.start : reply.end] for s in trajectory.sequences for reply in s.replies]


def _side_by_side(groups: Iterable[Sequence[Trajectory]]) -> list[list[tuple[int, ...]]]:
    """Return the replies of siblings at one and the same turn."""
    rows = []
    for group in groups:
        talks = [replies_of(t) for t in group]
        rows += [[talk[turn] for talk in talks if turn < len(talk)] for turn in range(max(map(len, talks)))]
    return rows


def mean(values: Iterable[Value]) -> Value:
    """Return the mean of what is there, neither None nor NaN; None where nothing is."""
    known = [v for v in values if v is not None and not math.isnan(v)]
    return fmean(known) if known else None


def outcomes(rollouts: Sequence[Rollout]) -> dict[str, Value]:
    """Return how conversations ended: shares of successes and failures to play, means of score, turns and tokens."""
    ended = [r.outcome.end == "success" for r in rollouts if r.outcome is not None]
    trajectories = [r.trajectory for r in rollouts if r.trajectory is not None]
    return {
        "conversations": float(len(rollouts)),
        "failed": sum(r.trajectory is None for r in rollouts) / max(len(rollouts), 1),
        "success": fmean(ended) if ended else None,
        "score": mean(t.score for t in trajectories),
        "turns": mean(float(len(t.rewards)) for t in trajectories),
        "generated": float(sum(t.policy_tokens for t in trajectories)),
    }


def detected(rollouts: Sequence[Rollout]) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the shares that `agents/detectors.py` finds in conversations, repeated templates among them, and flags.

    Habits of speech are those of a language: where several are spoken, the one that most conversations are in.
    """
    talks: dict[str, list[list[Exchange]]] = defaultdict(list)
    for rollout in rollouts:
        about = rollout.task.scenario or rollout.task.prompt
        if about is not None and rollout.trajectory is not None and rollout.turns:
            talks[about.language].append([Exchange(t.user, t.reply) for t in rollout.turns])
    language = max(talks, key=lambda one: len(talks[one]), default="en")
    report = detect(talks[language], language)
    return report.scores, report.flags


# ---- a judge that never trains -------------------------------------------------------------------------------------


def held_out_gap(rollouts: Sequence[Rollout], world: WorldConfig, judge: str) -> tuple[tuple[float, float] | None, str]:
    """Return the mean reward of a reply by the judge that trains and by another, over replies that both scored.

    With it comes what was first wrong with the other's verdicts, "" where nothing was.
    """
    known = [r for r in rollouts if r.trajectory is not None and r.turns]
    pairs = asyncio.run(_pairs(known, world, judge))
    gap = monitors.judge_gap([a for a, _, _ in pairs], [b for _, b, _ in pairs])
    return gap, next((why for _, _, why in pairs if why), "")


def check_held_out(world: WorldConfig, judge: str) -> None:
    """Refuse a held-out judge where another judge would change nothing.

    Raises:
        ConfigError: The recipe brings judges of its own, or there is no such judge.
    """
    from echo_env.build import recipe_of
    from echo_env.rewards import JudgedRecipe

    own = build_session(world, get_scenario("train-0000"), 0).cast.judge.id
    if build_judge(judge).id == own:
        raise ConfigError(f"'{judge}' is the judge that trains: its gap to itself says nothing", "take another one")
    if isinstance(recipe_of(world), JudgedRecipe):
        raise ConfigError(
            f"recipe '{world.recipe}' has judges of its own, which a held-out EPM judge does not stand in for",
            "leave monitor.held_out out, or take recipe epm",
        )


async def _pairs(rollouts: Sequence[Rollout], world: WorldConfig, judge: str) -> list[tuple[Value, Value, str]]:
    pairs: list[tuple[Value, Value, str]] = []
    for rollout in rollouts:
        if rollout.task.prompt is not None:
            replies = [(rollout.task.prompt, turn.reply) for turn in rollout.turns]
            scored = await score_replies(world.model_copy(update={"judge": judge}), replies)
            pairs += [(t.reward, s.reward, s.failure) for t, s in zip(rollout.turns, scored, strict=True)]
            continue
        other = await rejudge(episode_of(rollout, world), build_judge(judge), rollout.task.scenario)
        pairs += [(t.reward, s.reward, s.failure) for t, s in zip(rollout.turns, other.turns, strict=True)]
    return pairs


# ---- for people ----------------------------------------------------------------------------------------------------


def episode_of(rollout: Rollout, world: WorldConfig) -> Episode:
    """Return a conversation's record."""
    task = rollout.task
    if task.scenario is None:
        raise ConfigError("a single reply has no episode record")
    session = build_session(world, task.scenario, task.seed)
    header = episode_header(session, "policy in training", task.seed, task.number)
    return Episode(header=header, turns=rollout.turns, outcome=rollout.outcome)


def readable(rollout: Rollout) -> str:
    """Return a conversation as text."""
    task, trajectory = rollout.task, rollout.trajectory
    end = f", {rollout.outcome.end}" if rollout.outcome else ""
    score = "not scored" if trajectory is None or trajectory.score is None else f"score {trajectory.score:.3f}"
    lines = [f"# {task.group}, sibling {task.number}: {score}{end}"]
    for exchange in task.prompt.history if task.prompt else ():
        lines += [f"user    {exchange.user}", f"        {exchange.reply}"]
    for k, turn in enumerate(rollout.turns):
        reward = trajectory.rewards[k] if trajectory is not None and k < len(trajectory.rewards) else None
        lines += [f"user    {turn.user}", f"policy  {turn.reply}   [{'-' if reward is None else f'{reward:+.3f}'}]"]
    if rollout.outcome is not None:
        lines.append(f"user    {rollout.outcome.closing}")
    return "\n".join([*lines, *([f"failed: {rollout.failure}"] if rollout.failure else [])])


# ---- one update after another ---------------------------------------------------------------------------------------


class Watch:
    """Makes the figures of each update."""

    def __init__(self, job: Job) -> None:
        self.job = job
        if job.monitor.held_out:
            check_held_out(job.world, job.monitor.held_out)

    def figures(
        self, state: RunState, rollouts: Sequence[Rollout], learned: Mapping[str, Value], update: int, display: Display
    ) -> dict[str, Any]:
        """Return an update's figures, the same keys always, and add them to the history.

        Args:
            state: Of the run.
            rollouts: All that were played.
            learned: What `Learner.update` returned.
            update: Its number.
            display: Who is told what takes its time.
        """
        watched = self.job.monitor
        gap = None
        if watched.held_out and update % watched.held_out_every == 0:
            display.now(f"asking {watched.held_out}")
            gap, why = held_out_gap(spread_out(rollouts, watched.held_out_sample), self.job.world, watched.held_out)
            if gap is None and why:
                display.say(f"{watched.held_out} judged nothing: {why}")
        scores: dict[str, Value] | None = None
        flags: tuple[str, ...] = ()
        if watched.detectors_every and update % watched.detectors_every == 0:
            display.now("looking for habits")
            scores, flags = detected(rollouts)
        known = state.history[-1].parts if state.history else {}
        keys = sorted({*known, *(key for r in rollouts for part in r.parts for key in part)})
        current = update_of(rollouts, learned, keys, gap)
        state.history.append(current)
        return {
            "update": update, **current.model_dump(), **outcomes(rollouts), **learned,
            "detectors": scores, "flags": list(flags),
        }  # fmt: skip


def alarms(state: RunState, figures: dict[str, Any], display: Display) -> list[str]:
    """Add the alarms that stand to the figures, and show those that are new."""
    standing = monitors.alarms(state.history)
    for alarm in standing:
        if alarm.name not in state.raised:
            display.say(f"{alarm.severity.upper()} {alarm.name}: {alarm.message}")
    names = [alarm.name for alarm in standing]
    state.raised = set(names)
    figures["alarms"] = names
    state.last = json.loads(json.dumps(figures))
    return names


def spread_out(rollouts: Sequence[Rollout], count: int) -> list[Rollout]:
    """Return some rollouts, spread evenly over the groups."""
    whole = [r for r in rollouts if r.trajectory is not None]
    count = min(count, len(whole))
    return [whole[k * len(whole) // count] for k in range(count)]


def keep_samples(run: Run, job: Job, update: int, rollouts: Sequence[Rollout]) -> None:
    """Keep some whole conversations of the first update, and of every so many."""
    if not job.monitor.samples or (update != 1 and update % job.monitor.samples_every):
        return
    chosen = spread_out(rollouts, job.monitor.samples)
    whole = [r for r in chosen if r.outcome is not None and r.task.scenario is not None]
    run.sample(update, [readable(r) for r in chosen], [episode_of(r, job.world) for r in whole])
