"""RLlib's PPO on `echo/Strategy-v0`: the fast check that the world can be learnt.

RLlib samples with `runners` processes and learns in this one (its new API stack). The run's folder is that of
`runs.py`; beside it, `policy.npz` is the policy without RLlib (`echo-env run --policy strategy:RUN/policy.npz`), and
`results.json` measures it against all constant strategies and the best fixed sequence, on people whom none of them met.

A reward that is missing, because a judge failed, ends the run: RLlib has no place for a turn without one, and 0
would be a lie. The embedded judge does not fail.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import gymnasium as gym
from pydantic import Field, model_validator

from echo_env.agents.strategypolicy import Network
from echo_env.errors import RoleFailure, missing_extra
from echo_env.profiles import get_scenario, scenario_ids
from echo_env.record import new_header
from echo_env.strategy import StrategyEnv
from echo_env.trainers import checkpoints, strategyplay
from echo_env.trainers.job import NEVER_TRAINED, Checkpoints, InFolder, Positive, Share
from echo_env.trainers.runs import Run, open_run
from echo_env.trainers.stopping import wish_to_stop
from echo_env.trainers.strategyplay import CONSTANTS, Choice, Found, Meeting, Played, Row, meetings, row
from echo_env.types import Record

if TYPE_CHECKING:
    from ray.rllib.algorithms.ppo import PPO, PPOConfig

NAME = "echo/Strategy-v0"
FIGURES = (
    "update", "turns", "reward", "length", "success", "entropy", "policy_loss", "value_loss", "explained",
    "seconds", "elapsed_s", "processor_s",
)  # fmt: skip
"""Keys of a line of `metrics.jsonl`: updates and turns so far; mean reward, turns and strict success of the newest 100
conversations (with exploration; None before the first has ended); RLlib's figures of the update; seconds of the update,
of all of them, and processor seconds of all processes."""


class Ppo(Record):
    """Proximal policy optimisation (Schulman et al. 2017), as RLlib has it."""

    turns: Positive = 1000
    """Of an update."""
    minibatch: Positive = 125
    epochs: Positive = 10
    lr: float = Field(3e-3, gt=0)
    discount: Share = 0.9
    """Of a turn. The reward is dense, so a short sight costs little and lowers the variance."""
    trace: Share = 0.8
    """Lambda of the generalised advantage estimate."""
    clip: float = Field(0.2, gt=0)
    entropy: float = Field(1e-3, ge=0)
    """Coefficient of the entropy bonus."""
    hidden: tuple[Positive, ...] = (64,)
    """Width of the tanh layers, of the policy and of the critic each."""


class Evaluation(Record):
    """What the policy is measured against at the end."""

    split: str = "benchmark"
    conversations: Positive | None = None
    """How many people of the split; None is all."""
    plan_turns: int = Field(40_000, ge=0)
    """Turns that the search for the best fixed sequence may play on the train split; 0 tries the first candidates."""
    plan_people: Positive = 16
    """How many people the search tries a sequence on."""


class StrategyJob(InFolder):
    """One training run."""

    seed: int = Field(0, ge=0)
    split: str = "train"
    updates: Positive = 1000
    minutes: float | None = Field(10, gt=0)
    """Time after which the run stops cleanly; what a resumed run took before counts, the evaluation does not."""
    processor_minutes: float | None = Field(None, gt=0)
    """The same in processor time of all processes: what to limit where others use the machine too."""
    runners: int = Field(2, ge=0)
    """Processes that talk; 0 talks in this one."""
    conversations: Positive = 8
    """Of each runner, at a time."""
    ppo: Ppo = Ppo()
    checkpoints: Checkpoints = Checkpoints(every=10)
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.split in {*NEVER_TRAINED, self.evaluation.split}:
            raise ValueError(f"{self.split} measures and is never trained on: use split=train")
        if self.ppo.minibatch > self.ppo.turns:
            raise ValueError("ppo.minibatch is more than ppo.turns")
        return self


class Results(Record):
    """What a run came to: `results.json`."""

    rows: tuple[Row, ...]
    """The trained policy, the best fixed sequence, then all constants, best first."""
    sequence: Found
    updates: int
    turns: int
    elapsed_s: float
    """Seconds of training."""
    processor_s: float
    """Processor seconds of training, of all processes."""


class Lean(gym.Wrapper[Any, Any, Any, Any]):
    """What RLlib needs of the environment: `info` holds the success of a finished conversation, and nothing else.

    The records in `info` would travel with every turn from process to process.
    """

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Meet a person."""
        return self.env.reset(**options)[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Support in one way.

        Raises:
            RoleFailure: There is no reward, because a judge failed.
        """
        features, reward, terminated, truncated, info = self.env.step(action)
        if math.isnan(float(reward)):
            raise RoleFailure("the judge gave no reward, and RLlib cannot leave a turn out")
        outcome = info.get("outcome")
        told = {} if outcome is None else {"success": float(outcome.end == "success")}
        return features, float(reward), terminated, truncated, told


def make_config(job: StrategyJob) -> PPOConfig:
    """Return RLlib's configuration of a job."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    register_env(NAME, lambda options: Lean(StrategyEnv(**options)))
    ppo = job.ppo
    network = DefaultModelConfig(
        fcnet_hiddens=list(ppo.hidden), fcnet_activation="tanh", head_fcnet_hiddens=[], vf_share_layers=False
    )
    config = (
        PPOConfig()
        .environment(NAME, env_config={"split": job.split})
        .env_runners(num_env_runners=job.runners, num_envs_per_env_runner=job.conversations)
        .learners(num_learners=0)
        .rl_module(model_config=network)
        .training(
            train_batch_size_per_learner=ppo.turns, minibatch_size=ppo.minibatch, num_epochs=ppo.epochs, lr=ppo.lr,
            gamma=ppo.discount, lambda_=ppo.trace, clip_param=ppo.clip, entropy_coeff=ppo.entropy, use_kl_loss=False,
            vf_loss_coeff=0.5, grad_clip=0.5,
        )
        .callbacks(on_episode_end=_note_success)
        .debugging(seed=job.seed, log_level="ERROR")
    )  # fmt: skip
    return cast("PPOConfig", config)


def _note_success(*, episode: Any, metrics_logger: Any, **_: Any) -> None:
    metrics_logger.log_value("success", episode.get_infos(-1)["success"], reduce="mean", window=100)


def train(job: StrategyJob, say: Callable[[str], None] = lambda line: None) -> Results | None:
    """Run a job: train, save, measure. None: Ctrl-C ended it; it can be resumed.

    Args:
        job: The job.
        say: Takes a line about how it goes, for a person.

    Raises:
        ConfigError: Something in the job cannot be used.
        RecordError: The folder is taken, the disk is full, a checkpoint is broken.
        missing_extra: Ray is not installed.
    """
    for package in ("ray", "torch"):
        if find_spec(package) is None:
            raise missing_extra(package, "rllib")
    start = checkpoints.newest(job.out / "checkpoints") if job.resume else None
    people = {name: get_scenario(name).digest for name in scenario_ids(job.split)}
    header = new_header(job.settings(), people)
    with open_run(job, header) as run, _ray(job.runners + 1):
        algorithm = make_config(job).build_algo()
        try:
            if start is not None:
                algorithm.restore_from_path((start / "rllib").absolute())
            with wish_to_stop() as interrupted:
                last = _learn(job, run, algorithm, start, interrupted, say)
                network_of(algorithm.get_module()).save(run.path / "policy.npz")
                if interrupted():
                    return None
        finally:
            algorithm.stop()
        results = measure(job, Network.load(run.path / "policy.npz"), last, say)
        (run.path / "results.json").write_text(results.model_dump_json(indent=1) + "\n", encoding="utf-8")
        return results


def _learn(
    job: StrategyJob,
    run: Run,
    algorithm: PPO,
    start: Path | None,
    interrupted: Callable[[], bool],
    say: Callable[[str], None],
) -> Mapping[str, Any]:
    """Update until the job says stop; return the figures of the last update."""
    done = 0 if start is None else checkpoints.step_of(start)
    run.back_to(done)
    figures = run.logged()[-1] if done else dict.fromkeys(FIGURES, 0)
    elapsed, processor = figures["elapsed_s"], figures["processor_s"] - _processor_seconds(algorithm)
    while done < job.updates and not interrupted() and not _late(job, figures):
        began = time.monotonic()
        result = algorithm.train()
        done, seconds = done + 1, time.monotonic() - began
        elapsed += seconds
        figures = _figures(result) | {
            "update": done, "seconds": seconds, "elapsed_s": elapsed,
            "processor_s": processor + _processor_seconds(algorithm),
        }  # fmt: skip
        run.log(figures)
        say(_line(figures))
        if job.checkpoints.every and done % job.checkpoints.every == 0:
            _save(run, algorithm, done, job.checkpoints.keep)
    if done:
        _save(run, algorithm, done, job.checkpoints.keep)
    return figures


def _late(job: StrategyJob, figures: Mapping[str, Any]) -> bool:
    """Return whether another update like the last would go beyond a limit."""
    updates = max(1, figures["update"])
    limits = ((job.minutes, "elapsed_s"), (job.processor_minutes, "processor_s"))
    return any(limit is not None and figures[key] * (1 + 1 / updates) > 60 * limit for limit, key in limits)


def _save(run: Run, algorithm: PPO, done: int, keep: int) -> None:
    def fill(folder: Path) -> None:
        algorithm.save_to_path((folder / "rllib").absolute())  # RLlib takes what is not absolute for a URI

    checkpoints.save(run.checkpoints, done, fill, keep=keep)


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is logged of an update."""
    talks, learner = result["env_runners"], result["learners"]["default_policy"]
    found = {
        "turns": int(result["num_env_steps_sampled_lifetime"]),
        "reward": talks.get("episode_return_mean"),
        "length": talks.get("episode_len_mean"),
        "success": talks.get("success"),
        "entropy": learner["entropy"],
        "policy_loss": learner["policy_loss"],
        "value_loss": learner["vf_loss_unclipped"],
        "explained": learner["vf_explained_var"],
    }
    numbers = {key: None if value is None else float(value) for key, value in found.items()}
    return {key: value if value is not None and math.isfinite(value) else None for key, value in numbers.items()}


def _line(figures: Mapping[str, Any]) -> str:
    shown = ("turns", "reward", "success", "length", "entropy", "elapsed_s", "processor_s")
    told = [f"{key} {figures[key]:.4g}" for key in shown if figures[key] is not None]
    return f"update {figures['update']}: {', '.join(told)}"


def _processor_seconds(algorithm: PPO) -> float:
    """Return the processor time of this process and the runners, in seconds."""
    runners = algorithm.env_runner_group
    others = runners.foreach_env_runner(lambda _: time.process_time(), local_env_runner=False) if runners else []
    return float(time.process_time() + sum(others))


def network_of(module: Any) -> Network:
    """Return the policy of an RLModule as a network without RLlib."""
    weights = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    # in order: a state dict keeps the order of the layers
    names = [n for part in ("encoder.actor_encoder.", "pi.") for n in weights if n.startswith(part) and "weight" in n]
    return Network(tuple((weights[name], weights[name.replace("weight", "bias")]) for name in names))


# ---- measuring -----------------------------------------------------------------------------------------------------


def measure(job: StrategyJob, network: Network, last: Mapping[str, Any], say: Callable[[str], None]) -> Results:
    """Measure the policy, the best fixed sequence and all constants with the same people and seeds."""
    import ray

    remote = ray.remote(strategyplay.play)

    def play_all(choices: Sequence[Choice], people: Sequence[Meeting]) -> list[list[Played]]:
        return list(ray.get([remote.remote(choice, people) for choice in choices]))

    people = meetings(job.evaluation.split, job.evaluation.conversations)
    say(f"searching the best fixed sequence: {job.evaluation.plan_turns} turns on {job.split}")
    asked = job.evaluation
    found = strategyplay.search_plan(play_all, job.split, asked.plan_turns, asked.plan_people, job.seed)
    say(f"meeting {len(people)} people of {job.evaluation.split}")
    names = ["PPO (RLlib)", "best fixed sequence", *CONSTANTS]
    played = play_all([network, found.plan, *CONSTANTS.values()], people)
    rows = [row(name, one) for name, one in zip(names, played, strict=True)]
    constants = sorted(rows[2:], key=lambda r: (-r.success, -r.reward))
    return Results(
        rows=(*rows[:2], *constants),
        sequence=found,
        updates=int(last["update"]),
        turns=int(last["turns"] or 0),
        elapsed_s=last["elapsed_s"],
        processor_s=last["processor_s"],
    )


# ---- Ray -----------------------------------------------------------------------------------------------------------


@contextmanager
def _ray(processors: int) -> Iterator[None]:
    """Run Ray for as long as it is needed: on this machine alone, quiet, without dashboard, reports or leftovers."""
    # Ray lowers its workers' priority, so that on a busy machine others starve them
    quiet = {
        "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in quiet}
    os.environ.update(quiet)
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)

    folder = tempfile.mkdtemp(prefix="echo-")  # Ray's sockets need a short path
    try:
        with chdir(folder):  # workers look for packages in the folder that Ray is started in: not in a source tree
            ray.init(
                num_cpus=processors, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1", _temp_dir=folder, object_store_memory=128 * 1024 * 1024,
            )  # fmt: skip
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
