"""Replies for many conversations at once, with the log-probabilities that they were drawn at.

The batch, the key-value memory and the drawing are those of the local policy (`agents/generation.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echo_env.agents.generation import Past, common, generate, weights_version
from echo_env.agents.loading import reusable
from echo_env.errors import ConfigError
from echo_env.trainers.trajectory import Stop

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Sample:
    """A reply as it was drawn."""

    prompt: list[int]
    ids: list[int]
    """What was drawn, the token that ended it included."""
    logprobs: list[float]
    """Log-probability of each id under the distribution that it was drawn from."""
    stop: Stop


class Sampler:
    """Draws replies from a model that is being trained.

    A reply depends on its prompt, its seed and the weights, not on what else is in the batch (but for the rounding of
    float sums, about 1e-6). Log-probabilities are those of the distribution drawn from: the trainer's are the same
    at the same temperature and top_p=1.

    Args:
        model: What draws. It is put into evaluation mode while it does.
        stops: Ids that end a reply.
        temperature: Divides the logits; above 0.
        top_p: Share of the probability mass to draw from, in (0, 1].
        reuse_tokens: Most tokens whose keys and values are kept between turns, over all conversations; 0 keeps none.

    Raises:
        ConfigError: An option is out of range.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stops: frozenset[int],
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        reuse_tokens: int = 65_536,
    ) -> None:
        if temperature <= 0 or not 0 < top_p <= 1:
            raise ConfigError(
                f"temperature={temperature}, top_p={top_p} cannot be used", "temperature > 0, 0 < top_p <= 1"
            )
        self.model, self.stops, self.temperature, self.top_p = model, stops, temperature, top_p
        self._limit = reuse_tokens if reusable(model) else 0
        self._pasts: dict[Hashable, Past] = {}
        self._held = 0
        self._weights = -1

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        max_new: Sequence[int] | int,
        seeds: Sequence[int],
        keys: Sequence[Hashable] | None = None,
    ) -> list[Sample]:
        """Draw a reply to each prompt.

        Args:
            prompts: All ids before the reply; none of them empty.
            max_new: Most ids to draw, one number for each prompt or one for all; at least 1.
            seeds: The draw of id k of a reply depends on its seed and k alone.
            keys: Which conversation each prompt belongs to. A conversation that is sampled again, with a prompt that
                begins with what was read before, is read on from there. Without keys all is read from the start.
        """
        import torch

        if not prompts:
            return []
        self._check_weights()
        asked = [list(p) for p in prompts]
        limits = [max_new] * len(prompts) if isinstance(max_new, int) else list(max_new)
        noise = torch.stack([_noise(seed, max(limits)) for seed in seeds])
        known = [self._recall(k, p) for k, p in zip(keys or [None] * len(asked), asked, strict=True)]
        mode = self.model.training
        self.model.train(False)
        try:
            with torch.inference_mode():
                drawn = generate(
                    self.model,
                    asked,
                    known,
                    noise,
                    limits,
                    stops=self.stops,
                    temperature=self.temperature,
                    top_p=self.top_p,
                    remember=bool(keys) and self._limit > 0,
                )
        finally:
            self.model.train(mode)
        for key, one in zip(keys or (), drawn, strict=False):
            self._remember(key, one.past)
        return [
            Sample(p, d.ids, d.logprobs, "end" if d.ids[-1] in self.stops else "length")
            for p, d in zip(asked, drawn, strict=True)
        ]

    def forget(self) -> None:
        """Drop what was read of conversations. Needed after weights were changed through `.data`."""
        self._pasts.clear()
        self._held = 0

    def _recall(self, key: Hashable, prompt: list[int]) -> Past:
        """Return what is known of a start of a prompt, its last id excluded: that one has to be read again."""
        known = self._pasts.get(key)
        return known.start(common(known.ids, prompt[:-1])) if known else Past([], [])

    def _remember(self, key: Hashable, past: Past | None) -> None:
        """Keep what was read as the newest; drop the oldest beyond the limit."""
        self._held -= len(self._pasts.pop(key).ids) if key in self._pasts else 0
        if past is None or len(past.ids) > self._limit:
            return
        self._pasts[key] = past
        self._held += len(past.ids)
        while self._held > self._limit:
            self._held -= len(self._pasts.pop(next(iter(self._pasts))).ids)

    def _check_weights(self) -> None:
        weights = weights_version(self.model)
        if weights != self._weights:
            self.forget()
        self._weights = weights


def _noise(seed: int, length: int) -> Tensor:
    """Return uniform numbers, [length]; a longer list of the same seed begins with them."""
    import torch

    return torch.rand(length, generator=torch.Generator().manual_seed(seed % 2**63))
