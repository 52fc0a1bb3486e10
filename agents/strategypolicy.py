"""A trained strategy policy: a small network over what can be counted in a conversation, and the phrases of `skilled`.

What `python trainers/strategy.py` writes, without what trained it: numpy is enough. By name: `strategy:FILE`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from echo_env.agents.embedded.strategies import FEATURES, INTENSITIES, STRATEGIES, observe, realise
from echo_env.errors import ConfigError
from echo_env.roles import Observation

Floats = NDArray[np.float32]
Action = tuple[int, int]
"""Indices of a strategy and an intensity."""


@dataclass(frozen=True)
class Network:
    """A network with tanh between its layers, and a score for each strategy and each intensity at its end.

    Args:
        layers: Weights, shape (out, in), and biases, shape (out,), from the features to the scores.
    """

    layers: tuple[tuple[Floats, Floats], ...]

    def scores(self, features: Floats) -> Floats:
        """Return the logits, shape (11,): of the strategies, then of the intensities."""
        *hidden, (weights, bias) = self.layers
        for w, b in hidden:
            features = np.tanh(w @ features + b)
        return weights @ features + bias

    def act(self, features: Floats) -> Action:
        """Return the likeliest action. Nothing is drawn: the same features have the same action."""
        scores = self.scores(features)
        return int(np.argmax(scores[: len(STRATEGIES)])), int(np.argmax(scores[len(STRATEGIES) :]))

    def save(self, file: Path) -> None:
        """Write it, with the names of what it reads and chooses."""
        names = {"features": FEATURES, "strategies": STRATEGIES, "intensities": INTENSITIES}
        arrays = {f"{part}{k}": a for k, layer in enumerate(self.layers) for part, a in zip("wb", layer, strict=True)}
        part = file.with_name(f"{file.stem}.part.npz")
        np.savez(part, **{n: np.array(v) for n, v in names.items()}, **arrays)  # type: ignore[arg-type]  # numpy's stub
        part.replace(file)

    @classmethod
    def load(cls, file: Path) -> Network:
        """Read one.

        Raises:
            ConfigError: The file is none, or was trained on other features or actions than there are now.
        """
        try:
            with np.load(file, allow_pickle=False) as found:
                held = {name: found[name] for name in found.files}
        except (OSError, ValueError, zipfile.BadZipFile) as e:
            raise ConfigError(
                f"'{file}' holds no strategy policy: {e}", "python trainers/strategy.py  trains one"
            ) from e
        now = {"features": FEATURES, "strategies": STRATEGIES, "intensities": INTENSITIES}
        moved = [name for name, names in now.items() if tuple(held.get(name, ())) != names]
        if moved:
            raise ConfigError(f"'{file}' was trained with other {moved[0]} than there are now", "train it again")
        return cls(tuple((held[f"w{k}"], held[f"b{k}"]) for k in range(sum(name[0] == "w" for name in held))))


class StrategyPolicy:
    """Supports in the way that a network chooses. A reply is a function of the conversation.

    Args:
        file: Written by `Network.save`.
        seed: Seed of the order of its phrases.
    """

    id = "strategy"

    def __init__(self, file: str | Path, *, seed: int = 0) -> None:
        self._network = Network.load(Path(file).expanduser())
        self._seed = seed

    async def respond(self, observation: Observation) -> str:
        """Return the reply. What was chosen before is found by choosing again: it is part of what the network reads."""
        actions: list[Action] = []
        for said in range(1, len(observation.messages) + 1, 2):
            so_far = Observation(observation.messages[:said], observation.language)
            actions.append(self._network.act(observe(so_far, actions, self._seed)))
        return realise(observation, *actions[-1], self._seed)


def policy_of(file: str) -> Callable[..., StrategyPolicy]:
    """Return what builds the policy of a file; what stands behind "strategy:" in a policy's name."""
    return lambda **options: StrategyPolicy(file, **options)
