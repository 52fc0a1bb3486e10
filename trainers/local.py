"""engine=local: rollouts, filter, update, monitors, checkpoints, in this process.

The loop is `train`; it reads from top to bottom. A run is a function of its job: what is drawn depends on the seed, the
place in the data and the number of updates alone, so a resumed run goes on as if it had never stopped.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from echo_env.agents.loading import load_model, stop_tokens
from echo_env.agents.modelrecord import recorded_models
from echo_env.agents.policy import SpokenUnder
from echo_env.build import conversation_seed
from echo_env.errors import ConfigError, RoleFailure, unknown_name
from echo_env.profiles import Scenario, get_scenario, scenario_ids
from echo_env.record import new_header
from echo_env.trainers import checkpoints
from echo_env.trainers.ahead import Ahead, Behind, staleness
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.display import Display
from echo_env.trainers.filters import has_spread
from echo_env.trainers.job import Job, Positive, checked
from echo_env.trainers.learner import Learner, with_adapter
from echo_env.trainers.outcomes import Limits, Overlong, Progress, Rollout, Task, Tell
from echo_env.trainers.redundancy import reweighed
from echo_env.trainers.replies import Replies
from echo_env.trainers.rollouts import Conversations
from echo_env.trainers.runs import open_logger, open_run
from echo_env.trainers.runstate import RunState, begin, save
from echo_env.trainers.sampler import Sampler
from echo_env.trainers.stopping import wish_to_stop
from echo_env.trainers.tasks import Order, subjects
from echo_env.trainers.trajectory import Trajectory
from echo_env.trainers.watching import Watch, alarms, keep_samples, mean, outcomes
from echo_env.types import Record

Reason = Literal["done", "time", "alarm", "interrupted"]


class LocalEngine(Record):
    """What this engine alone understands."""

    name: Literal["local"] = "local"
    device: Literal["cpu", "cuda"] = "cpu"
    """On "cuda" the weights are fp32 and the arithmetic bf16."""
    threads: Positive | None = None
    """torch's threads, for the whole process; None leaves them alone."""
    micro_tokens: Positive = 4096
    """Tokens in one forward pass of training, padding included."""
    reuse_tokens: int = Field(262_144, ge=0)
    """Tokens whose keys and values are kept between turns, over all conversations."""
    live: Positive = 128
    """Conversations that are played at the same time."""
    at_once: Positive = 32
    """Of these, how many wait for remote judges at the same time."""
    ahead: Literal[0, 1] = 0
    """1: the next update is played while one is trained, by the weights before (`ahead.py`). Give each of the two its
    cores: with two of them, threads=1."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What became of a run."""

    folder: Path
    updates: int
    reason: Reason
    """Why it ended."""
    last: dict[str, Any] = field(default_factory=dict)
    """Figures of the last update."""


class Interrupted(Exception):
    """Ctrl-C while conversations were being played; raised where nothing is half done."""


def train(job: Job, display: Display | None = None) -> Trained:
    """Train.

    Args:
        job: What to do.
        display: Who is told.

    Raises:
        ConfigError: Something in the job cannot be used.
        RecordError: The folder is taken, the disk is full, a checkpoint is broken.
        RoleFailure: All conversations of an update failed.
    """
    engine = checked(LocalEngine, job.engine.model_dump(), "engine")
    order = Order(subjects(job), job.seed)
    start = checkpoints.newest(job.out / "checkpoints") if job.resume else None
    learner = make_learner(job, engine, start)
    world = make_world(job, engine, learner)
    ahead = ahead_of(job, engine, learner, order)
    watch = Watch(job)
    with (
        open_run(job, _header(job, order)) as run,
        display or Display(job.name, job.updates) as shown,
        wish_to_stop() as interrupted,
        ahead or nullcontext(),
    ):
        state = begin(run, learner, order, start, ahead)
        log = open_logger(job, job.logger)
        failure = ""
        reason: Reason = "time" if _late(job, state, state.last.get("seconds", 0.0)) else "done"
        shown.say(f"{job.name}: {_told(job)}; from update {learner.done}, in {run.path}")

        def tell(played: Progress) -> None:
            if interrupted():
                raise Interrupted
            shown.played(played)

        while learner.done < job.updates and reason == "done":
            began = time.monotonic()
            try:
                if ahead:
                    batch = ahead.next(learner.model, learner.done, tell, more=learner.done + 1 < job.updates)
                else:
                    with learner.autocast():
                        batch = collect(world, order, job, learner.done, tell)
            except Interrupted:
                reason = "interrupted"
                break
            if failure := _nobody(batch):
                break
            played = time.monotonic()
            stale = {"stale": staleness(batch.rollouts, learner.done)} if ahead else {}
            shown.now("learning")
            learned = learner.update(batch.trained)
            with ahead.resting() if ahead else nullcontext():
                figures = watch.figures(state, batch.rollouts, learned, learner.done, shown)
                with learner.autocast():
                    figures |= evaluated(world, job, learner.done)
                keep_samples(run, job, learner.done, batch.rollouts)
            state.passed(batch.position, time.monotonic() - began)
            figures |= {"groups": batch.groups, "groups_kept": batch.kept, "rollout_s": played - began, **stale}
            figures |= {"seconds": time.monotonic() - began, "elapsed_s": state.elapsed}
            raised = alarms(state, figures, shown)
            run.log(figures)
            log(figures)
            shown.updated(figures)
            if set(raised) & set(job.monitor.stop_on):
                reason = "alarm"
            elif interrupted():
                reason = "interrupted"
            elif _late(job, state, figures["seconds"]):
                reason = "time"
            elif job.checkpoints.every and learner.done % job.checkpoints.every == 0:
                save(run, job, learner, state, ahead)
        if learner.done:
            save(run, job, learner, state, ahead)
        if failure:
            raise RoleFailure(
                f"no conversation of update {learner.done + 1} could be played; the first: {failure}",
                "mend that, then go on with  resume=true",
            )
        shown.say(f"{job.name}: ended after update {learner.done} ({reason})")
    return Trained(run.path, learner.done, reason, state.last)


# ---- what a run is made of ------------------------------------------------------------------------------------------


def model_folder(path: str) -> Path:
    """Return the folder of a model that is given as a folder or by its registered name.

    Raises:
        ConfigError: There is neither.
    """
    if Path(path).expanduser().is_dir():
        return Path(path).expanduser()
    if path == "smollm2-135m":
        from echo_env.agents.smollm2 import smollm2_folder

        return smollm2_folder()
    if "/" in path:
        raise ConfigError(f"there is no folder '{path}'", "model.path is a folder in Hugging Face format, or a name")
    raise unknown_name("model", path, ["smollm2-135m"])


def system_of(system: str | None, path: str | None) -> str | None:
    """Return the system prompt of a model: the job's own, else the one that it was trained under before.

    Args:
        system: The job's; None where it has none.
        path: Of the model; None where it is made from the start.
    """
    if system is None and path is not None:
        return SpokenUnder.of(model_folder(path)).system
    return system


def spoken_under(job: Job) -> SpokenUnder:
    """Return the system prompt and the longest reply that a job trains under."""
    return SpokenUnder(system=system_of(job.model.system, job.model.path), max_new_tokens=job.mode.reply_tokens)


def make_learner(job: Job, engine: LocalEngine, start: Path | None = None) -> Learner:
    """Load the policy, from a checkpoint where one is given, and what it is compared with.

    Raises:
        ConfigError: The model cannot be loaded.
    """
    folder, lora = model_folder(job.model.path), job.model.lora
    source = start if start is not None and lora is None else folder
    tokenizer, model = load_model(source, "cpu", engine.threads)  # in fp32, on any device
    policy: Any = model
    reference: Any = None
    if lora is not None:
        policy = with_adapter(model, lora, start / "adapter" if start else None, job.seed)
    elif job.algo.needs_reference or job.monitor.reference_kl:
        reference = copy.deepcopy(model) if source == folder else load_model(folder, "cpu", None)[1]
    if engine.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("engine.device=cuda, but torch sees no GPU", "use engine.device=cpu")
        policy, reference = policy.to("cuda"), None if reference is None else reference.to("cuda")
    return Learner(
        policy, tokenizer, job.algo, job.optim, reference=reference, watch_kl=job.monitor.reference_kl,
        updates=job.updates, temperature=job.mode.temperature, micro_tokens=engine.micro_tokens, seed=job.seed,
        spoken=spoken_under(job),
    )  # fmt: skip


def limits_of(job: Job) -> Limits:
    """Return how much is said."""
    mode = job.mode
    return Limits(reply_tokens=mode.reply_tokens, episode_tokens=mode.episode_tokens, context=mode.context)


def overlong_of(job: Job) -> Overlong | None:
    """Return what a long reply costs."""
    long, cap = job.algo.overlong, job.mode.reply_tokens
    if long is None:
        return None
    return Overlong(cap=cap, cache=max(round(long.slope * cap), 1), factor=long.factor)


def make_world(job: Job, engine: LocalEngine, learner: Learner, model: Any = None) -> Conversations | Replies:
    """Return where the policy speaks.

    Args:
        job: What to do.
        engine: This engine's settings.
        learner: Of the policy.
        model: Who speaks in its place.

    Raises:
        ConfigError: A name in the job's world is unknown, or the template does not go with the history.
    """
    model, mode = learner.model if model is None else model, job.mode
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    stops = stop_tokens(bare, learner.tokenizer)
    chat = ChatFormat(learner.tokenizer, stops=stops, system=learner.spoken.system)
    sampler = Sampler(bare, stops, temperature=mode.temperature, top_p=mode.top_p, reuse_tokens=engine.reuse_tokens)
    limits, overlong = limits_of(job), overlong_of(job)
    score, at_once = job.algo.score, engine.at_once
    if mode.name == "pseudo":  # a single reply closes no distance: its verdict is what there is
        raw: Literal["verdict", "reward"] = "reward" if score == "reward" else "verdict"
        return Replies(job.world, chat, sampler, limits=limits, score=raw, overlong=overlong, at_once=at_once)
    return Conversations(
        job.world, chat, sampler, history=mode.history, limits=limits, score=score, overlong=overlong,
        live=engine.live, at_once=at_once,
    )  # fmt: skip


def ahead_of(job: Job, engine: LocalEngine, learner: Learner, order: Order) -> Ahead[Collected] | None:
    """Return what plays an update ahead; None where every update is played by the weights that it trains.

    Raises:
        ConfigError: The stored log-probabilities are not those of the policy.
    """
    if not engine.ahead:
        return None
    if job.mode.top_p < 1 and job.algo.objective.correction is None:
        raise ConfigError(
            "engine.ahead=1 takes the ratio against the log-probabilities at sampling: mode.top_p has to be 1",
            "leave top_p out, or set algo.objective.correction",
        )
    policy = Behind(learner.model)
    world = make_world(job, engine, learner, policy.model)

    def play(version: int, tell: Tell) -> Collected:
        with learner.autocast():
            return collect(world, order, job, version, tell)

    return Ahead(policy, play)


# ---- one update's rollouts ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Collected:
    """What one update is made from."""

    rollouts: list[Rollout]
    """All that were played."""
    trained: list[Trajectory]
    """Of the groups that are kept, rewards as the algorithm wants them."""
    groups: int
    kept: int
    position: int
    """Place in the data after it."""


def collect(world: Conversations | Replies, order: Order, job: Job, version: int, tell: Tell) -> Collected:
    """Play groups; with dynamic sampling, others in the place of those without spread, up to the limit.

    Groups that are good are trained on whatever becomes of the rest.
    """
    algo, wanted = job.algo, job.groups
    left = wanted + (round(algo.max_extra * wanted) if algo.dynamic_sampling else 0)
    rollouts: list[Rollout] = []
    kept: list[Rollout] = []
    groups = good = 0
    while good < wanted and left > 0:
        count = min(wanted - good, left)
        fresh = world.collect(order.take(count, algo.group), version, tell)
        chosen = _with_spread(fresh) if algo.dynamic_sampling else fresh
        rollouts, kept = rollouts + fresh, kept + chosen
        groups, left = groups + count, left - count
        good = len({r.task.group for r in kept})
        if not algo.dynamic_sampling:
            break
    trained = reweighed(kept) if algo.redundancy else [r.trajectory for r in kept if r.trajectory is not None]
    return Collected(rollouts, trained, groups, good, order.position)


def _nobody(batch: Collected) -> str:
    """Return why the first conversation failed, where all of them did."""
    spoken = any(r.trajectory is not None for r in batch.rollouts)
    return "" if spoken else batch.rollouts[0].failure


def _with_spread(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the rollouts of groups whose scores differ (DAPO 3.2)."""
    scores: dict[str, list[float | None]] = {}
    for rollout in rollouts:
        if rollout.trajectory is not None:
            scores.setdefault(rollout.task.group, []).append(rollout.trajectory.score)
    good = {group for group, own in scores.items() if has_spread(own)}
    return [r for r in rollouts if r.task.group in good]


def evaluated(world: Conversations | Replies, job: Job, update: int) -> dict[str, float | None]:
    """Play held-out scenarios every so often, with the same draws each time; None in between."""
    keys = ("eval_success", "eval_score", "eval_reward", "eval_tokens")
    every = job.monitor.eval_every
    if not every or update % every or not isinstance(world, Conversations):
        return dict.fromkeys(keys)
    rollouts = world.collect(eval_tasks(job))
    told = outcomes(rollouts)
    trajectories = [r.trajectory for r in rollouts if r.trajectory is not None]
    replies = sum(len(t.rewards) for t in trajectories)
    return {
        "eval_success": told["success"],
        "eval_score": told["score"],
        "eval_reward": mean(sum(r for r in t.rewards if r is not None) for t in trajectories),
        "eval_tokens": sum(t.policy_tokens for t in trajectories) / max(replies, 1),
    }


def eval_tasks(job: Job) -> list[Task]:
    """Return the conversations of an evaluation: scenarios spread evenly over the split."""
    ids = scenario_ids(job.monitor.eval_split)
    count = min(job.monitor.eval_scenarios, len(ids))
    names = [ids[k * len(ids) // count] for k in range(count)]
    return [Task(f"eval/{n}", conversation_seed(job.seed, n), get_scenario(n)) for n in names]


def _late(job: Job, state: RunState, seconds: float) -> bool:
    """Return whether another update like the last would go beyond the time limit."""
    return job.minutes is not None and state.elapsed + seconds > 60 * job.minutes


def _header(job: Job, order: Order) -> Any:
    """Return the record of what is run, and with what."""
    scenarios = {s.id: s for _, s in order.subjects if isinstance(s, Scenario)}
    settings = job.settings()
    models = recorded_models(settings["world"], sorted({s.language for s in scenarios.values()} or {"en"}))
    return new_header(settings, {name: s.digest for name, s in scenarios.items()}, models)


def _told(job: Job) -> str:
    """Return a job in a few words."""
    how = f"{job.algo.name}, {job.mode.name}, {job.groups} groups of {job.algo.group}"
    return f"{how}, {'LoRA' if job.model.lora else 'all weights'} of {job.model.path}"
