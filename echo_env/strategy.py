"""`echo/Strategy-v0`: the same conversation with numbers at both ends, for PPO, SB3 and RLlib.

The observation is what can be counted in the conversation; the action is a support strategy and its intensity, which a
phrase bank puts into words. The world behind it is that of `echo/Companion-v0`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete, Space
from numpy.typing import NDArray

from echo_env import registry
from echo_env.env import CompanionEnv

_MODULE = "echo_env.agents.embedded.strategies"
Features = NDArray[np.float32]


class StrategyEnv(gym.Env[Features, NDArray[np.int64]]):
    """Choose how to support, not how to say it.

    Observation: `Box(0, 1, (24,))`, entries named by `feature_names`. Action: `MultiDiscrete([8, 3])`, a strategy and
    an intensity, named by `strategies` and `intensities`.

    Args:
        **options: Those of `CompanionEnv`, except `observe`.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  Gymnasium declares it so

    def __init__(self, **options: Any) -> None:
        self._companion = CompanionEnv(**options)
        self.render_mode = self._companion.render_mode
        self.feature_names = cast("tuple[str, ...]", registry.load(f"{_MODULE}:FEATURES"))
        self.strategies = cast("tuple[str, ...]", registry.load(f"{_MODULE}:STRATEGIES"))
        self.intensities = cast("tuple[str, ...]", registry.load(f"{_MODULE}:INTENSITIES"))
        self.observation_space = Box(0.0, 1.0, (len(self.feature_names),), np.float32)
        self.action_space = cast(
            "Space[NDArray[np.int64]]", MultiDiscrete([len(self.strategies), len(self.intensities)])
        )
        self._actions: list[tuple[int, int]] = []
        self._voice = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Features, dict[str, Any]]:
        """Meet a person; see `CompanionEnv.reset`. `info` also holds the `message`."""
        super().reset(seed=seed)
        message, info = self._companion.reset(seed=int(self.np_random.integers(2**31)), options=options)
        self._actions, self._voice = [], int(self.np_random.integers(2**31))
        return self._observe(), {**info, "message": message}

    def step(self, action: NDArray[np.int64]) -> tuple[Features, float, bool, bool, dict[str, Any]]:
        """Support in one way; see `CompanionEnv.step`. `info` also holds the `message` and the `reply`.

        Raises:
            ValueError: The action is not within the action space.
        """
        chosen = np.asarray(action)
        whole = chosen.shape == (2,) and chosen.dtype.kind in "iu"
        if not whole or not self.action_space.contains(chosen.astype(np.int64)):
            raise ValueError(f"an action is (strategy 0..7, intensity 0..2), got {action!r:.80}")
        pair = (int(chosen[0]), int(chosen[1]))
        realise = cast("Callable[..., str]", registry.load(f"{_MODULE}:realise"))
        reply = realise(self._companion.session.observation, *pair, self._voice)
        message, reward, terminated, truncated, info = self._companion.step(reply)
        self._actions.append(pair)
        return self._observe(), reward, terminated, truncated, {**info, "message": message, "reply": reply}

    def render(self) -> str | None:  # type: ignore[override]
        """Return the conversation so far; see `CompanionEnv.render`."""
        return self._companion.render()

    def _observe(self) -> Features:
        observe = cast("Callable[..., Features]", registry.load(f"{_MODULE}:observe"))
        return observe(self._companion.session.observation, self._actions, self._voice)
