"""What becomes of each setting of a job under OpenRLHF: no setting is dropped without a word.

- `flag`: a flag of its command line (`flags.py`).
- `data`: rows of the data set.
- `agent`: kept by our agent file (`talks.py`).
- `refused`: OpenRLHF has nothing like it; another value than the one that asks for nothing is an error.
- `here`: about this command, not about the training.
- `unread`: reads nothing in the form that is not refused.
- `told`: OpenRLHF does it its own way, and the run folder's README says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from echo_env.errors import ConfigError
from echo_env.trainers.job import Job

Fate = Literal["flag", "data", "agent", "refused", "here", "unread", "told"]

FATES: Mapping[str, Fate] = {
    "name": "flag",
    "out": "flag",
    "resume": "flag",
    "overwrite": "here",
    "dry_run": "here",
    "seed": "flag",
    "updates": "data",
    "minutes": "refused",
    "groups": "flag",
    "model.path": "flag",
    "model.system": "agent",
    "model.lora": "flag",
    "model.lora.rank": "flag",
    "model.lora.alpha": "flag",
    "model.lora.targets": "flag",
    "mode.name": "agent",
    "mode.history": "refused",
    "mode.reply_tokens": "agent",
    "mode.episode_tokens": "agent",
    "mode.context": "flag",
    "mode.temperature": "flag",
    "mode.top_p": "flag",
    "data.split": "data",
    "data.scenarios": "data",
    "data.prompts": "data",
    "world.backend": "agent",
    "world.judge": "agent",
    "world.actor": "agent",
    "world.director": "agent",
    "world.scorer": "agent",
    "world.recipe": "agent",
    "world.recipe_options": "agent",
    "world.max_turns": "agent",
    "algo.name": "here",
    "algo.group": "flag",
    "algo.estimator": "flag",
    "algo.baseline": "flag",
    "algo.objective.clip.low": "flag",
    "algo.objective.clip.high": "flag",
    "algo.objective.clip.dual": "flag",
    "algo.objective.ratio": "flag",
    "algo.objective.aggregation": "flag",
    "algo.objective.constant": "unread",
    "algo.objective.correction": "flag",
    "algo.objective.correction.level": "flag",
    "algo.objective.correction.mode": "flag",
    "algo.objective.correction.gating": "flag",
    "algo.objective.correction.low": "flag",
    "algo.objective.correction.high": "flag",
    "algo.objective.kl_coef": "flag",
    "algo.objective.kl": "flag",
    "algo.objective.kl_exact": "flag",
    "algo.objective.entropy_coef": "flag",
    "algo.credit": "refused",
    "algo.turn_discount": "unread",
    "algo.turn_weight": "unread",
    "algo.dynamic_sampling": "flag",
    "algo.max_extra": "told",
    "algo.score": "agent",
    "algo.overlong": "agent",
    "algo.overlong.slope": "agent",
    "algo.overlong.factor": "agent",
    "algo.redundancy": "refused",
    "algo.reward_kl": "flag",
    "algo.token_discount": "flag",
    "algo.reward_clip": "flag",
    "algo.epochs": "flag",
    "algo.minibatches": "flag",
    "optim.lr": "flag",
    "optim.betas": "flag",
    "optim.eps": "flag",
    "optim.weight_decay": "flag",
    "optim.schedule": "flag",
    "optim.warmup": "flag",
    "optim.max_grad_norm": "flag",
    "monitor.reference_kl": "told",
    "monitor.samples": "told",
    "monitor.samples_every": "told",
    "monitor.detectors_every": "told",
    "monitor.held_out": "refused",
    "monitor.held_out_every": "unread",
    "monitor.held_out_sample": "unread",
    "monitor.eval_every": "flag",
    "monitor.eval_split": "data",
    "monitor.eval_scenarios": "data",
    "monitor.stop_on": "refused",
    "checkpoints.every": "flag",
    "checkpoints.keep": "flag",
    "logger.name": "flag",
    "logger.project": "flag",
    "logger.mode": "agent",
    "engine": "flag",
}
"""Setting -> what becomes of it. A test walks the job and finds each of its settings here."""


def refuse(job: Job) -> None:
    """Refuse what OpenRLHF cannot do.

    Raises:
        ConfigError: The job asks for it; the message says what to ask for instead.
    """
    for broken, message, hint in _refusals(job):
        if broken:
            raise ConfigError(f"engine=openrlhf: {message}", hint)


def _refusals(job: Job) -> Iterator[tuple[bool, str, str]]:
    """Yield (whether the job asks for it, what, what instead)."""
    algo, spec = job.algo, job.algo.objective
    local = "use engine=local"
    yield job.minutes is not None, "a run ends with its data, not with a clock", f"minutes=null, or {local}"
    yield (
        job.mode.name == "multiturn" and job.mode.history == "rerender",
        "a conversation is one growing sequence there: mode.history=rerender has no place",
        f"mode.history=append with a template that keeps its history, or {local}",
    )
    yield (
        algo.credit == "turn",
        "one reward a conversation, at its last token: no turn credit",
        (f"algo.credit=trajectory, or {local}"),
    )
    yield algo.redundancy, "rewards are not weighed by likeness (PEER)", f"algo.redundancy=false, or {local}"
    yield (
        spec.aggregation == "constant",
        "it has no aggregation over a constant",
        (f"algo.objective.aggregation=token, or {local}"),
    )
    yield (
        bool(spec.kl_coef and algo.reward_kl),
        "one coefficient serves the KL in the loss or in the reward",
        ("set algo.objective.kl_coef or algo.reward_kl to 0"),
    )
    yield (
        algo.estimator == "group" and algo.baseline == "none",
        "a group without a baseline is not one of its kinds",
        ("algo.estimator=reinforce_pp, or another algo.baseline"),
    )
    yield (
        algo.estimator == "reinforce_pp" and algo.baseline in {"grpo", "rloo"},
        (f"REINFORCE++ with the baseline '{algo.baseline}' is not one of its kinds"),
        "algo.baseline=none or dr_grpo",
    )
    yield (
        algo.token_discount != 1 and (job.mode.name == "multiturn" or algo.baseline != "none"),
        "a discount runs over the user's tokens too, and with a baseline it is ignored",
        f"algo.token_discount=1, or {local}",
    )
    yield (
        algo.group * job.groups % algo.minibatches != 0,
        f"{algo.group * job.groups} samples do not divide into {algo.minibatches} optimiser steps",
        "change groups or algo.minibatches",
    )
    lora = job.model.lora
    yield (
        lora is not None and lora.alpha != int(lora.alpha),
        "alpha of LoRA is a whole number there",
        ("model.lora.alpha=32"),
    )
    yield (
        lora is not None and isinstance(lora.targets, str) and lora.targets != "all-linear",
        "targets of LoRA are names there, not a pattern",
        "model.lora.targets=[q_proj,v_proj]",
    )
    yield (
        job.monitor.held_out is not None,
        "no second judge looks on during training",
        ("monitor.held_out=null; score the checkpoints afterwards:  echo-env score"),
    )
    yield bool(job.monitor.stop_on), "no alarm can end a run", "monitor.stop_on=[]"


def notes(job: Job) -> list[str]:
    """Return what is otherwise than under engine=local, for the README of the run folder."""
    told = [
        f"{job.updates} updates of {job.groups} groups: the data set has a row for each, and OpenRLHF shuffles it.",
        "A sample that nobody could score gets its siblings' mean and one trainable token; 'unscored' counts them.",
        "Samples, detectors and alarms of 'monitor' are engine=local's; OpenRLHF logs its own figures and ours beside.",
    ]
    if job.algo.dynamic_sampling:
        told.append(
            "Groups without spread are replaced from the same rows, so that the run ends earlier the more there are;"
            " 'max_extra' does not bound it."
        )
        told.append("'score' in its logs is 0.5 for a group that is kept and 0 for one that is not; see 'verdict'.")
    if job.monitor.reference_kl and not job.algo.needs_reference:
        told.append("The KL to the reference is measured only where it has a coefficient; here it has none.")
    if job.mode.name == "multiturn" and job.algo.estimator == "reinforce_pp" and job.algo.reward_kl:
        told.append("The KL inside the reward is summed from each of the policy's tokens to the conversation's end.")
    return told
