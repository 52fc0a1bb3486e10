"""What OpenRLHF alone needs to know: machines, memory, where Ray listens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from echo_env.types import Record

Positive = Annotated[int, Field(ge=1)]


class OpenRLHFSettings(Record):
    """`engine.*` of engine=openrlhf."""

    dry_run: bool = True
    """Write what the engine takes, check it and stop. The only way yet: running it needs a cluster of GPUs."""
    nodes: Positive = 1
    """Machines that train."""
    gpus: Positive = 8
    """GPUs on each of them, for the policy; the reference is placed on as many."""
    vllm_engines: Positive = 8
    """Engines that sample."""
    tensor_parallel: Positive = 1
    """GPUs of each engine."""
    gpu_memory: Annotated[float, Field(gt=0, le=1)] = 0.6
    """Share of a GPU's memory that an engine takes."""
    colocate: bool = True
    """Policy, reference and engines on the same GPUs, by turns; else each on its own."""
    ahead: Annotated[int, Field(ge=0)] = 0
    """Batches that sampling may run ahead of training; 0 takes turns. Goes with `colocate` off."""
    zero_stage: Literal[1, 2, 3] = 3
    """DeepSpeed: what is spread over GPUs; 3 is the weights too."""
    train_batch: Positive = 1
    """Sequences in one forward pass of training, on each GPU."""
    rollout_batch: Positive = 4
    """Sequences in one forward pass for log-probabilities, on each GPU."""
    packing: bool = True
    """Lay sequences end to end instead of padding them; needs flash-attention."""
    checkpointing: bool = True
    """Compute activations twice to hold fewer."""
    offload_adam: bool = False
    """Keep the optimiser's state in the machine's memory."""
    attention: str = "flash_attention_2"
    """Attention of training, as transformers names it."""
    dtype: Literal["bf16", "fp16"] = "bf16"
    address: Annotated[str, Field(pattern=r"^(https?|ray)://[^\s'\"]+$")] = "http://127.0.0.1:8265"
    """Where Ray takes jobs."""
