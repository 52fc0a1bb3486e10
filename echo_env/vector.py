"""Vector environments for `gym.make_vec`: Gymnasium's own loop over environments without a checker round each.

The environments are those of `gym.make`, held to Gymnasium's contract by this package's tests; checking every step of
every copy again would cost more than the vector saves.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gymnasium.vector import AutoresetMode, SyncVectorEnv

from echo_env.env import CompanionEnv
from echo_env.strategy import StrategyEnv


def companion(
    num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any
) -> SyncVectorEnv:
    """Return `num_envs` copies of `echo/Companion-v0`; `options` are those of `CompanionEnv`."""
    return SyncVectorEnv([partial(CompanionEnv, **options)] * num_envs, autoreset_mode=autoreset_mode)


def strategy(
    num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **options: Any
) -> SyncVectorEnv:
    """Return `num_envs` copies of `echo/Strategy-v0`; `options` are those of `StrategyEnv`."""
    return SyncVectorEnv([partial(StrategyEnv, **options)] * num_envs, autoreset_mode=autoreset_mode)
