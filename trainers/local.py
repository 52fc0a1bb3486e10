"""engine=local: rollouts, filter, update, monitors, checkpoints, in this process.

The loop is `train`; it reads from top to bottom. A run is a function of its job: what is drawn depends on the seed, the
place in the data and the number of updates alone, so a resumed run goes on as if it had never stopped.
"""

from __future__ import annotations

import copy
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from pydantic import Field

from echo_env.agents.loading import load_model, stop_tokens
from echo_env.agents.modelrecord import recorded_models
from echo_env.build import conversation_seed
from echo_env.errors import ConfigError, unknown_name
from echo_env.profiles import Scenario, get_scenario, scenario_ids
from echo_env.record import new_header
from echo_env.trainers import checkpoints, monitors
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.display import Display
from echo_env.trainers.filters import has_spread
from echo_env.trainers.job import Job, Positive, checked
from echo_env.trainers.learner import Learner, with_adapter
from echo_env.trainers.outcomes import Limits, Overlong, Progress, Rollout, Task
from echo_env.trainers.redundancy import reweighed
from echo_env.trainers.replies import Replies
from echo_env.trainers.rollouts import Conversations
from echo_env.trainers.runs import Run, open_logger, open_run
from echo_env.trainers.sampler import Sampler
from echo_env.trainers.tasks import Order, subjects
from echo_env.trainers.trajectory import Trajectory
from echo_env.trainers.watching import (
    check_held_out,
    detected,
    episode_of,
    held_out_gap,
    mean,
    outcomes,
    readable,
    update_of,
)
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
    """
    engine = checked(LocalEngine, job.engine.model_dump(), "engine")
    order = Order(subjects(job), job.seed)
    start = checkpoints.newest(job.out / "checkpoints") if job.resume else None
    learner = make_learner(job, engine, start)
    world = make_world(job, engine, learner)
    watch = _Watch(job)
    with (
        open_run(job, _header(job, order)) as run,
        display or Display(job.name, job.updates) as display,
        _interrupts() as interrupted,
    ):
        progress = _begin(run, learner, order, start)
        log, reason = open_logger(job), "done"
        display.say(f"{job.name}: {_told(job)}; from update {learner.done}, in {run.path}")
        while learner.done < job.updates and reason == "done":
            began = time.monotonic()

            def tell(played: Progress) -> None:
                if interrupted():
                    raise Interrupted
                display.played(played)

            try:
                batch = collect(world, order, job, learner.done, tell)
            except Interrupted:
                reason = "interrupted"
                break
            played = time.monotonic()
            display.now("learning")
            learned = learner.update(batch.trained)
            figures = watch.figures(progress, batch, learned, learner.done, display)
            figures |= evaluated(world, job, learner.done)
            progress.passed(order, time.monotonic() - began)
            figures |= {
                "rollout_s": played - began, "seconds": time.monotonic() - began, "elapsed_s": progress.elapsed
            }  # fmt: skip
            alarms = _alarms(progress, figures, display)
            run.log(figures)
            log(figures)
            display.updated(figures)
            _keep_samples(run, job, learner.done, batch.rollouts)
            if set(alarms) & set(job.monitor.stop_on):
                reason = "alarm"
            elif interrupted():
                reason = "interrupted"
            elif _late(job, progress, figures["seconds"]):
                reason = "time"
            elif job.checkpoints.every and learner.done % job.checkpoints.every == 0:
                save(run, job, learner, progress)
        if learner.done:
            save(run, job, learner, progress)
        display.say(f"{job.name}: ended after update {learner.done} ({reason})")
    return Trained(run.path, learner.done, reason, progress.last)


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
        policy = with_adapter(model, lora, start / "adapter" if start else None)
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


def make_world(job: Job, engine: LocalEngine, learner: Learner) -> Conversations | Replies:
    """Return where the policy speaks.

    Raises:
        ConfigError: A name in the job's world is unknown, or the template does not go with the history.
    """
    model, mode = learner.model, job.mode
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    stops = stop_tokens(bare, learner.tokenizer)
    chat = ChatFormat(learner.tokenizer, stops=stops, system=job.model.system)
    sampler = Sampler(bare, stops, temperature=mode.temperature, top_p=mode.top_p, reuse_tokens=engine.reuse_tokens)
    limits, overlong = limits_of(job), overlong_of(job)
    if mode.name == "pseudo":
        return Replies(
            job.world, chat, sampler, limits=limits, score=job.algo.score, overlong=overlong, at_once=engine.at_once
        )
    return Conversations(
        job.world, chat, sampler, history=mode.history, limits=limits, score=job.algo.score, overlong=overlong,
        live=engine.live, at_once=engine.at_once,
    )  # fmt: skip


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


def collect(
    world: Conversations | Replies, order: Order, job: Job, version: int, tell: Callable[[Progress], None]
) -> Collected:
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
    return Collected(rollouts, trained, groups, good)


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


# ---- what goes on from update to update -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Progress:
    """What a checkpoint remembers beside weights and optimiser."""

    position: int = 0
    """Place in the data after the last update that was finished."""
    elapsed: float = 0.0
    """Seconds of training, over all starts."""
    history: list[monitors.Update] = field(default_factory=list)
    raised: set[str] = field(default_factory=set)
    """Alarms that were shown."""
    random: dict[str, Any] = field(default_factory=checkpoints.random_states)
    last: dict[str, Any] = field(default_factory=dict)

    def passed(self, order: Order, seconds: float) -> None:
        self.position, self.random = order.position, checkpoints.random_states()
        self.elapsed += seconds

    def state(self) -> dict[str, Any]:
        return {
            "position": self.position, "elapsed": self.elapsed, "raised": sorted(self.raised), "random": self.random,
            "history": [u.model_dump() for u in self.history], "last": self.last,
        }  # fmt: skip


def _begin(run: Run, learner: Learner, order: Order, start: Path | None) -> _Progress:
    """Go on where a checkpoint ends, or begin anew."""
    if start is None:
        run.back_to(0)
        return _Progress()
    state = checkpoints.load_state(start)
    learner.load_state_dict(state["learner"])
    run.back_to(learner.done)
    saved = state["progress"]
    order.position = saved["position"]
    checkpoints.restore_random_states(saved["random"])
    history = [monitors.Update.model_validate(u) for u in saved["history"]]
    return _Progress(saved["position"], saved["elapsed"], history, set(saved["raised"]), saved["random"], saved["last"])


def save(run: Run, job: Job, learner: Learner, progress: _Progress) -> None:
    """Write a checkpoint; how good it is tells the evaluation, else the mean score of the update."""
    import torch

    def fill(folder: Path) -> None:
        learner.save_hf(folder)
        torch.save({"learner": learner.state_dict(), "progress": progress.state()}, folder / "state.pt")

    merit = progress.last.get("eval_score" if job.monitor.eval_every else "score")
    checkpoints.save(run.checkpoints, learner.done, fill, keep=job.checkpoints.keep, merit=merit)


class _Watch:
    """Makes the figures of each update."""

    def __init__(self, job: Job) -> None:
        self.job = job
        if job.monitor.held_out:
            check_held_out(job.world, job.monitor.held_out)

    def figures(
        self, progress: _Progress, batch: Collected, learned: Mapping[str, float | None], update: int, display: Display
    ) -> dict[str, Any]:
        """Return an update's figures, the same keys always, and add them to the history."""
        watched = self.job.monitor
        gap = None
        if watched.held_out and update % watched.held_out_every == 0:
            display.now(f"asking {watched.held_out}")
            gap = held_out_gap(_spread_out(batch.rollouts, watched.held_out_sample), self.job.world, watched.held_out)
        scores, flags = None, ()
        if watched.detectors_every and update % watched.detectors_every == 0:
            display.now("looking for habits")
            scores, flags = detected(batch.rollouts)
        known = progress.history[-1].parts if progress.history else {}
        keys = sorted({*known, *(key for r in batch.rollouts for part in r.parts for key in part)})
        current = update_of(batch.rollouts, learned, keys, gap)
        progress.history.append(current)
        return {
            "update": update, **current.model_dump(), **outcomes(batch.rollouts), **learned,
            "groups": batch.groups, "groups_kept": batch.kept, "detectors": scores, "flags": list(flags),
        }  # fmt: skip


def _alarms(progress: _Progress, figures: dict[str, Any], display: Display) -> list[str]:
    """Add the alarms that stand to the figures, and show those that are new."""
    alarms = monitors.alarms(progress.history)
    for alarm in alarms:
        if alarm.name not in progress.raised:
            display.say(f"{alarm.severity.upper()} {alarm.name}: {alarm.message}")
    names = [alarm.name for alarm in alarms]
    progress.raised = set(names)
    figures["alarms"] = names
    progress.last = json.loads(json.dumps(figures))
    return names


def _spread_out(rollouts: Sequence[Rollout], count: int) -> list[Rollout]:
    """Return some rollouts, spread evenly over the groups."""
    whole = [r for r in rollouts if r.trajectory is not None]
    count = min(count, len(whole))
    return [whole[k * len(whole) // count] for k in range(count)]


def _keep_samples(run: Run, job: Job, update: int, rollouts: Sequence[Rollout]) -> None:
    if not job.monitor.samples or (update != 1 and update % job.monitor.samples_every):
        return
    chosen = _spread_out(rollouts, job.monitor.samples)
    whole = [r for r in chosen if r.outcome is not None and r.task.scenario is not None]
    run.sample(update, [readable(r) for r in chosen], [episode_of(r, job.world) for r in whole])


def _late(job: Job, progress: _Progress, seconds: float) -> bool:
    """Return whether another update like the last would go beyond the time limit."""
    return job.minutes is not None and progress.elapsed + seconds > 60 * job.minutes


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


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a wish that is granted where nothing is half done; the second one ends at once."""
    asked = False

    def wish(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)

    try:
        before = signal.signal(signal.SIGINT, wish)
    except ValueError:  # not the main thread: whoever called hears Ctrl-C
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
