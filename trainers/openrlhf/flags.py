"""A job as flags of `openrlhf.cli.train_ppo_ray`. What each setting becomes stands in `fates.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from echo_env.trainers.job import Algorithm, Job
from echo_env.trainers.openrlhf.settings import OpenRLHFSettings

Value = str | int | float | bool | Sequence[str | int | float] | None
UNBOUNDED = (-1_000_000, 1_000_000)
"""Its default clips rewards to +-10. Not in the form 1e6: argparse takes -1e6 for a flag."""
SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
"""Ours -> transformers'; both go to 0 at the end but for the constant."""


def argv_of(flags: dict[str, Value]) -> list[str]:
    """Return flags as a command line: True stands alone, None and False are left out, a sequence is several words."""
    words: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        words.append(f"--{name}")
        if value is True:
            continue
        many = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        words += [_word(v) for v in many]
    return words


def _word(value: str | int | float) -> str:
    return format(value, ".12g") if isinstance(value, float) else str(value)


def flags_of(job: Job, engine: OpenRLHFSettings, *, model: str, folder: Path, evaluate: bool) -> dict[str, Value]:
    """Return the flags, name without dashes -> value.

    Args:
        job: A job that `fates.refuse` has let pass.
        engine: Machines.
        model: The folder of the policy, as the training machines see it.
        folder: The run's folder, as they see it.
        evaluate: Whether there is a data set to evaluate on.
    """
    return {
        "actor.model_name_or_path": model,
        **_machines(engine),
        **_data(job, folder, evaluate),
        **_rollouts(job),
        **_algorithm(job),
        **_optimiser(job),
        **_logging(job, folder),
    }


def _machines(engine: OpenRLHFSettings) -> dict[str, Value]:
    return {
        "actor.num_nodes": engine.nodes,
        "actor.num_gpus_per_node": engine.gpus,
        "ref.num_nodes": engine.nodes,
        "ref.num_gpus_per_node": engine.gpus,
        "vllm.num_engines": engine.vllm_engines,
        "vllm.tensor_parallel_size": engine.tensor_parallel,
        "vllm.gpu_memory_utilization": engine.gpu_memory,
        "vllm.enable_prefix_caching": True,  # a conversation's next prompt begins with its last
        "train.colocate_all": engine.colocate,
        "vllm.enable_sleep": engine.colocate,
        "ds.enable_sleep": engine.colocate,
        "train.async_enable": engine.ahead > 0,
        "train.async_queue_size": engine.ahead or None,
        "ds.zero_stage": engine.zero_stage,
        "ds.param_dtype": engine.dtype,
        "ds.attn_implementation": engine.attention,
        "ds.packing_samples": engine.packing,
        "ds.adam_offload": engine.offload_adam,
        "actor.gradient_checkpointing_enable": engine.checkpointing,
        "train.micro_batch_size": engine.train_batch,
        "rollout.micro_batch_size": engine.rollout_batch,
    }


def _data(job: Job, folder: Path, evaluate: bool) -> dict[str, Value]:
    return {
        "train.agent_func_path": str(folder / "agent.py"),
        "data.prompt_dataset": str(folder / "train.jsonl"),
        "data.input_key": "input",
        "data.label_key": "label",
        "data.max_len": job.mode.context,
        "eval.dataset": str(folder / "eval.jsonl") if evaluate else None,
        "eval.steps": job.monitor.eval_every if evaluate else None,
        "eval.temperature": job.mode.temperature if evaluate else None,
        "eval.n_samples_per_prompt": job.algo.group if evaluate else None,  # the agent file waits for that many
        "train.seed": job.seed,
        "train.num_episodes": 1,
    }


def _rollouts(job: Job) -> dict[str, Value]:
    return {
        "rollout.batch_size": job.groups,
        "rollout.n_samples_per_prompt": job.algo.group,
        "rollout.max_new_tokens": job.mode.reply_tokens,
        "rollout.temperature": job.mode.temperature,
        "rollout.top_p": job.mode.top_p,
    }


def estimator_of(algo: Algorithm) -> str:
    """Return OpenRLHF's name of an estimator and its baseline."""
    if algo.estimator == "reinforce_pp":
        return "reinforce" if algo.baseline == "none" else "reinforce_baseline"
    return {"grpo": "group_norm"}.get(algo.baseline, algo.baseline)


def _algorithm(job: Job) -> dict[str, Value]:
    algo, spec = job.algo, job.algo.objective
    correction = spec.correction
    bounds = [correction.low, correction.high] if correction else None
    return {
        "algo.advantage.estimator": estimator_of(algo),
        "algo.advantage.gamma": algo.token_discount,
        "algo.advantage.lambd": 1,
        "reward.clip_range": algo.reward_clip or UNBOUNDED,
        "actor.policy_loss_type": "gspo" if spec.ratio == "sequence" else "ppo",
        "actor.loss_agg_mode": "token-mean" if spec.aggregation == "token" else "seq-mean-token-mean",
        "actor.eps_clip_low_high": [spec.clip.low, spec.clip.high],
        "actor.dual_clip": spec.clip.dual,
        "actor.entropy_coef": spec.entropy_coef,  # 0 logs it
        "algo.kl.init_coef": spec.kl_coef or algo.reward_kl,
        "algo.kl.use_loss": spec.kl_coef > 0,
        "algo.kl.estimator": spec.kl,
        "algo.kl.unbiased_gradient": spec.kl_coef > 0 and spec.kl_exact,
        "algo.advantage.is_correction_level": correction.level if correction else "off",
        "algo.advantage.is_correction_mode": correction.mode if correction else None,
        "algo.advantage.is_correction_gating": correction.gating if correction else None,
        "algo.advantage.is_correction_threshold": bounds,
        "algo.dynamic_filtering_enable": algo.dynamic_sampling,
        "algo.dynamic_filtering_range": [0, 1] if algo.dynamic_sampling else None,
        "train.batch_size": job.groups * algo.group // algo.minibatches,
        "train.max_epochs": algo.epochs,
    }


def _optimiser(job: Job) -> dict[str, Value]:
    optim, lora = job.optim, job.model.lora
    targets = lora.targets if lora and not isinstance(lora.targets, str) else None  # its default is "all-linear"
    return {
        "actor.optim": "adam",
        "actor.adam.lr": optim.lr,
        "actor.adam.betas": list(optim.betas),
        "actor.adam.eps": optim.eps,
        "actor.adam.weight_decay": optim.weight_decay,
        "actor.max_norm": optim.max_grad_norm,
        "actor.lr_scheduler": SCHEDULES[optim.schedule],
        # Of its steps, which are a multiple of our updates; rounded up there, so that 7.0000001 would be 8.
        "actor.lr_warmup_ratio": max(min(optim.warmup / job.updates, 1.0) - 1e-9, 0.0),
        "ds.lora.rank": lora.rank if lora else 0,
        "ds.lora.alpha": int(lora.alpha) if lora else None,
        "ds.lora.target_modules": targets,
        "ds.lora.dropout": 0 if lora else None,
    }


def _logging(job: Job, folder: Path) -> dict[str, Value]:
    wandb = job.logger.name == "wandb"
    return {
        "ckpt.output_dir": str(folder / "model"),
        "ckpt.path": str(folder / "checkpoints"),
        "ckpt.save_steps": job.checkpoints.every or -1,
        "ckpt.max_num": job.checkpoints.keep,
        "ckpt.save_hf": job.checkpoints.every > 0,
        "ckpt.load_enable": job.resume,
        "logger.tensorboard_dir": str(folder / "tensorboard"),
        "logger.wandb.key": "env" if wandb else None,  # it logs its arguments: the key is in WANDB_API_KEY
        "logger.wandb.project": job.logger.project if wandb else None,
        "logger.wandb.run_name": job.name,
    }
