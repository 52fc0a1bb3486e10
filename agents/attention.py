"""Attention and the key-value memory of one layer, without the copies that cost most on a CPU.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel
    from transformers.cache_utils import DynamicLayer

_PLAIN_ATTENTION = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})
"""Model types whose attention is keys, queries and values and no more, so that `_attend` may stand in."""
_ROOM = 64
"""Positions by which the key-value memory grows."""


@cache
def memory_layer() -> type[DynamicLayer]:
    """Return the key-value memory of one layer: grown in steps and thinned in place, where transformers' copies."""
    from transformers.cache_utils import DynamicLayer

    class Layer(DynamicLayer):  # type: ignore[no-untyped-call]
        stock: tuple[Tensor, ...] = ()

        def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
            used = self.get_seq_length()
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            keys, values = self.stock or (None, None)
            self.stock = (_append(keys, used, key_states), _append(values, used, value_states))
            return self.show(used + key_states.shape[-2])

        def show(self, length: int) -> tuple[Tensor, Tensor]:
            self.keys, self.values = keys, values = self.stock[0][:, :, :length], self.stock[1][:, :, :length]
            return keys, values

        def spread(self, rows: Tensor) -> None:
            length = self.get_seq_length()
            self.stock = tuple(states[rows] for states in self.stock)
            self.show(length)

        def batch_select_indices(self, indices: Tensor) -> None:
            length, rows = self.get_seq_length(), indices.tolist()
            for states in self.stock:
                for place, row in enumerate(rows):
                    if place != row:
                        states[place, :, :length] = states[row, :, :length]
            self.stock = tuple(states[: len(rows)] for states in self.stock)
            self.show(length)

    return Layer


def _append(stock: Tensor | None, used: int, new: Tensor) -> Tensor:
    """Return states [B, heads, room, size] that hold `new` after the `used` positions of `stock`."""
    end = used + new.shape[-2]
    if stock is None or stock.shape[-2] < end:
        more = new.new_empty(*new.shape[:-2], end + _ROOM, new.shape[-1])
        if stock is not None:
            more[:, :, :used] = stock[:, :, :used]
        stock = more
    stock[:, :, used:end] = new
    return stock


def _attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Attend as transformers' `sdpa`, to the same bits, but without copying shared heads for each new token.

    With a mask, transformers repeats keys and values for every query head, which on a CPU costs more than the rest of
    the step.
    """
    import torch.nn.functional as functional
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if query.shape[2] > 1 or query.device.type != "cpu" or module.training:
        whole: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return whole
    out = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=options.get("scaling"), enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None


def share_heads(model: PreTrainedModel) -> None:
    """Switch a model with fewer key-value heads than query heads to `_attend`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config = model.config
    if config.model_type in _PLAIN_ATTENTION and config._attn_implementation == "sdpa":
        AttentionInterface.register("echo_env", _attend)
        AttentionMaskInterface.register("echo_env", sdpa_mask)
        model.set_attn_implementation("echo_env")
