"""The typed job: what is trained, on what, how, for how long. YAML composes it; this model is the law.

A job knows no engine: what one engine alone understands stands under `engine`, which that engine validates itself.
Nothing behind this module sees Hydra or OmegaConf.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from echo_env.build import WorldConfig
from echo_env.errors import ConfigError
from echo_env.profiles import HAND_WRITTEN
from echo_env.trainers.advantages import BaselineName
from echo_env.trainers.losses import Objective
from echo_env.types import Record

NEVER_TRAINED = frozenset({*HAND_WRITTEN} - {"chitchat"})
"""Splits that measure. A policy that has seen them cannot be measured any more."""
StopReason = Literal["length", "entropy", "gap", "judge_failures"]
"""Names of `monitors.Alarm`."""

MAY_CHANGE = frozenset(
    {"name", "out", "resume", "overwrite", "dry_run", "updates", "minutes", "monitor", "checkpoints", "logger"}
)
"""Settings that decide how long a run takes and what is seen of it, never what it computes."""

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
R = TypeVar("R", bound=BaseModel)


class Lora(Record):
    """Low-rank adapters (peft). The frozen reference is then the model with its adapter switched off."""

    rank: Positive = 16
    alpha: float = Field(32.0, gt=0)
    targets: str | tuple[str, ...] = "all-linear"
    """Modules by name; "all-linear" is every linear layer but the vocabulary head."""


class Model(Record):
    """The policy before training."""

    path: str
    """A folder in Hugging Face format, or the registered name of one ("smollm2-135m")."""
    system: str | None = None
    """System prompt; None is the shipped `prompts/companion.md`, "" is none at all."""
    lora: Lora | None = None
    """None trains all weights."""


class Data(Record):
    """What is talked about."""

    split: str = "train"
    scenarios: tuple[str, ...] = ()
    """Ids or YAML files; empty for the whole split."""
    prompts: Path | None = None
    """Mode `pseudo`: a file of prompts (jsonl, `prompts.py`)."""


class Mode(Record):
    """What a rollout is."""

    name: Literal["multiturn", "pseudo"] = "multiturn"
    """`multiturn`: whole conversations in the environment, each turn rewarded. `pseudo`: a fixed history, one reply."""
    history: Literal["append", "rerender"] = "append"
    """`append`: token ids only grow. `rerender`: each turn is its own sequence, as the template renders it."""
    reply_tokens: Positive = 48
    """Longest reply, in tokens; a longer one is cut, with stop reason "length", and the conversation goes on."""
    episode_tokens: int | None = Field(None, ge=1)
    """Most tokens that the policy may sample in one conversation; then it is truncated."""
    context: Positive = 2048
    """Most tokens of prompt and reply together."""
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.reply_tokens >= self.context:
            raise ValueError(f"context {self.context} leaves no room for a prompt beside {self.reply_tokens} tokens")
        return self


class Overlong(Record):
    """Soft overlong punishment of each reply (DAPO eq. 13), in its reward and never in what filters read."""

    slope: float = Field(0.2, gt=0, le=1)
    """Width of the slope before the cap, as a share of `reply_tokens`. DAPO: 4096 of 20480."""
    factor: float = Field(1.0, ge=0)
    """What the full penalty is."""


class Algorithm(Record):
    """How rewards become a gradient."""

    name: str
    group: Positive = 8
    """Siblings: conversations with one scenario and seed."""
    estimator: Literal["group", "reinforce_pp"] = "group"
    """`group`: baselines over siblings. `reinforce_pp`: returns of tokens with the KL inside, whitened over all."""
    baseline: BaselineName = "grpo"
    objective: Objective = Objective()
    credit: Literal["trajectory", "turn"] = "trajectory"
    turn_discount: Share = 1.0
    """Of a turn, in the returns of turn credit."""
    turn_weight: Share = 0.5
    """Share of turn credit beside the trajectory's; 1 is turn credit alone."""
    dynamic_sampling: bool = False
    """Leave out groups without spread, and collect others in their place (DAPO 3.2)."""
    max_extra: float = Field(1.0, ge=0)
    """Most groups collected in their place, as a share of an update's groups."""
    score: Literal["verdict", "distance", "reward"] = "verdict"
    """What filters read of a rollout, all raw: its verdict, the share of the distance closed, or the recipe's pay."""
    overlong: Overlong | None = None
    redundancy: bool = False
    """PEER eq. 3: rewards divided by likeness to siblings and history. Rewards must not be negative."""
    reward_kl: float = Field(0.0, ge=0)
    """Coefficient of the KL inside the reward; for `reinforce_pp`."""
    token_discount: Share = 1.0
    """Of a token, for `reinforce_pp`."""
    reward_clip: tuple[float, float] | None = None
    """Bounds of the (baselined) rewards, for `reinforce_pp`."""
    epochs: Positive = 1
    """Passes over an update's trajectories."""
    minibatches: Positive = 1
    """Optimiser steps in one pass."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.estimator == "group" and (self.reward_kl or self.reward_clip):
            raise ValueError("a KL or a bound inside the reward goes with estimator 'reinforce_pp'")
        if self.estimator == "reinforce_pp" and self.credit == "turn":
            raise ValueError("turn credit needs estimator 'group': 'reinforce_pp' credits tokens")
        if self.estimator == "group" and self.group < 2:
            raise ValueError("a baseline over siblings needs a group of at least 2")
        if self.dynamic_sampling and self.group < 2:
            raise ValueError("a group of one has no spread: dynamic_sampling would leave out everything")
        return self

    @property
    def steps(self) -> int:
        """Optimiser steps of one update."""
        return self.epochs * self.minibatches

    @property
    def needs_reference(self) -> bool:
        """Whether the gradient depends on the frozen reference."""
        return bool(self.objective.kl_coef or self.reward_kl)


class Optimiser(Record):
    """AdamW and its learning rate."""

    lr: float = Field(1e-6, gt=0)
    betas: tuple[Share, Share] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up; `linear` and `cosine` come down to 0 with the last of `updates`."""
    warmup: int = Field(0, ge=0)
    """Updates over which the learning rate climbs."""
    max_grad_norm: float = Field(1.0, gt=0)


class Monitor(Record):
    """What is watched beside the figures of every update."""

    reference_kl: bool = True
    """Measure the KL to the frozen reference in every update, even where the loss has none of it. (One more pass.)"""
    samples: int = Field(2, ge=0)
    """Whole conversations kept, each time."""
    samples_every: Positive = 10
    """Updates."""
    detectors_every: int = Field(10, ge=0)
    """Updates between looks of `agents/detectors.py` at an update's conversations; 0 never looks."""
    held_out: str | None = None
    """A judge that never trains ("second"), by name; it scores `held_out_sample` conversations every so often."""
    held_out_every: Positive = 5
    held_out_sample: Positive = 8
    eval_every: int = Field(0, ge=0)
    """Updates between evaluations; 0 never evaluates."""
    eval_split: str = "dev"
    eval_scenarios: Positive = 8
    stop_on: tuple[StopReason, ...] = ()
    """Alarms that end the run."""


class Checkpoints(Record):
    """What is kept of the weights. The last update's are always saved."""

    every: int = Field(20, ge=0)
    """Updates; 0 saves at the end only."""
    keep: Positive = 2
    """The last so many stay, and the best."""


class Logger(Record):
    """Where figures go beside `metrics.jsonl`."""

    name: Literal["none", "wandb"] = "none"
    project: str = "echo-env"
    mode: Literal["offline", "online"] = "offline"


class Engine(BaseModel):
    """Who runs the job. What else stands here is that engine's own, and it is that engine that checks it."""

    model_config = {"frozen": True, "extra": "allow"}

    name: Literal["local", "openrlhf"] = "local"

    def settings(self) -> dict[str, Any]:
        """Return what is not the job's business."""
        return dict(self.model_extra or {})


class InFolder(Record):
    """What every job that fills a run's folder says about it."""

    name: str = Field(min_length=1)
    out: Path
    """The run's folder."""
    resume: bool = False
    """Go on with the run that is there."""
    overwrite: bool = False
    """Delete the run that is there."""
    dry_run: bool = False
    """Print the resolved job and stop."""

    @model_validator(mode="after")
    def _check_folder(self) -> Self:
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite contradict each other")
        return self

    @property
    def may_change(self) -> frozenset[str]:
        """Settings that a resumed run may have other than the run it goes on with."""
        return MAY_CHANGE

    def settings(self) -> dict[str, Any]:
        """Return the resolved job as plain data, for a file."""
        return self.model_dump(mode="json")


class Job(InFolder):
    """One training run."""

    seed: int = Field(0, ge=0)
    updates: Positive = 100
    minutes: float | None = Field(None, gt=0)
    """Time after which the run stops cleanly, whatever `updates` says; what a resumed run took before counts."""
    groups: Positive = 8
    """Groups in each update; conversations are this times `algo.group`."""
    model: Model
    mode: Mode = Mode()
    data: Data = Data()
    world: WorldConfig = WorldConfig()
    algo: Algorithm
    optim: Optimiser = Optimiser()
    monitor: Monitor = Monitor()
    checkpoints: Checkpoints = Checkpoints()
    logger: Logger = Logger()
    engine: Engine = Engine()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.data.split in {*NEVER_TRAINED, self.monitor.eval_split}:
            raise ValueError(f"{self.data.split} measures and is never trained on: use data.split=train")
        if self.algo.needs_reference and self.mode.temperature != 1 and self.algo.objective.kl == "k1":
            raise ValueError("the KL k1 at another temperature than 1 is not that of the policy")
        if self.mode.name == "pseudo" and self.algo.credit == "turn":
            raise ValueError("a single reply has no turns to credit: use algo.credit=trajectory with mode=pseudo")
        return self

    @property
    def may_change(self) -> frozenset[str]:
        """As for every job; but a rate that comes down over `updates` depends on how many there are to be."""
        return MAY_CHANGE - (frozenset() if self.optim.schedule == "constant" else {"updates"})


def make_job(settings: Mapping[str, Any]) -> Job:
    """Return the job of some settings.

    Raises:
        ConfigError: A key is unknown, with the nearest spelling; a value does not fit.
    """
    return checked(Job, settings)


def checked(kind: type[R], settings: Mapping[str, Any], within: str = "") -> R:
    """Return a record of some settings, or say in one line what is wrong with the first that is.

    Args:
        kind: The record.
        settings: Plain data.
        within: What stands before the names of the settings, "engine" for example.

    Raises:
        ConfigError: A key is unknown, with the nearest spelling; a value does not fit.
    """
    try:
        return kind.model_validate(dict(settings))
    except ValidationError as e:
        fault = e.errors()[0]
        place = [str(part) for part in fault["loc"]]
        where = ".".join([*([within] if within else []), *place])
        if fault["type"] == "extra_forbidden":
            known = _fields(kind, place[:-1])
            near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
            hint = (f"did you mean '{near[0]}'? " if near else "") + f"known: {', '.join(known)}"
            raise ConfigError(f"there is no setting '{where}'", hint) from None
        message = str(fault["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"setting '{where}': {message}" if where else message, "see  dry_run=true  for all") from None


def _fields(kind: type[BaseModel], place: list[str]) -> list[str]:
    """Return the fields of the record at a place within another."""
    for part in place:
        field = kind.model_fields.get(part)
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        inner = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        if inner is None:
            return []
        kind = inner
    return sorted(kind.model_fields)
