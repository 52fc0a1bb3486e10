"""Log-probabilities and entropies of chosen tokens, with logits only where they are needed.

Of a multi-turn conversation a policy sampled a third of the tokens or less, and the vocabulary head is the dearest
layer of a small model. So the body runs over everything, and the head over the positions that predict chosen tokens.

Axes: B rows, T tokens, D width, P chosen positions, V vocabulary.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

AT_ONCE = 2**25
"""Logits (P x V) computed at once where a gradient is kept; more are computed in pieces, and again on the way back."""


class Scores(NamedTuple):
    """What a model makes of the chosen tokens; 0 everywhere else. float32."""

    logprobs_BT: Tensor
    entropy_BT: Tensor
    """Of the distribution that each token was drawn from, in nats. Has a gradient only where it was asked for."""


class Head:
    """A model, and the way to its logits.

    Args:
        model: A causal language model, bare or under peft.
        full: Compute all logits, as the model's own `forward` does; None finds out on a few tokens whether the way by
            the body gives the same. (It does not where a model scales or caps its logits: then all are computed.)
    """

    def __init__(self, model: Any, *, full: bool | None = None) -> None:
        self.model = model
        self.base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.full = not _same_both_ways(self.base) if full is None else full

    def scores(
        self,
        ids_BT: Tensor,
        chosen_BT: Tensor,
        *,
        temperature: float = 1.0,
        explore: bool = False,
    ) -> Scores:
        """Score the chosen tokens given those before them.

        Args:
            ids_BT: Token ids, padded on the right: a causal model never looks there from a token.
            chosen_BT: Which to score; never a row's first.
            temperature: That of sampling.
            explore: Keep the gradient of the entropy.
        """
        rows_P, places_P = chosen_BT[:, 1:].nonzero(as_tuple=True)
        targets_P = ids_BT[rows_P, places_P + 1]
        everywhere_BT = torch.ones_like(ids_BT, dtype=torch.bool)  # with nothing masked, attention takes its fast path
        if self.full:
            whole_BTV = self.base(input_ids=ids_BT, attention_mask=everywhere_BT, use_cache=False).logits
            logprobs_P, entropy_P = _of_logits(whole_BTV[rows_P, places_P], targets_P, temperature, explore)
        else:
            body = self.base.get_decoder()
            hidden_BTD = body(input_ids=ids_BT, attention_mask=everywhere_BT, use_cache=False).last_hidden_state
            logprobs_P, entropy_P = self._headed(hidden_BTD[rows_P, places_P], targets_P, temperature, explore)
        place = rows_P, places_P + 1
        zeros_BT = logprobs_P.new_zeros(ids_BT.shape)
        return Scores(zeros_BT.index_put(place, logprobs_P), zeros_BT.index_put(place, entropy_P))

    def _headed(self, hidden_PD: Tensor, targets_P: Tensor, temperature: float, explore: bool) -> tuple[Tensor, Tensor]:
        """Apply the vocabulary head, in pieces where all at once would take too much memory."""
        head = self.base.get_output_embeddings()

        def score(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return _of_logits(head(hidden), targets, temperature, explore)

        piece = max(AT_ONCE // int(self.base.config.get_text_config().vocab_size), 1)
        if len(hidden_PD) <= piece:
            return score(hidden_PD, targets_P)
        pairs = zip(torch.split(hidden_PD, piece), torch.split(targets_P, piece), strict=True)
        if torch.is_grad_enabled():
            parts = [checkpoint(score, hidden, targets, use_reentrant=False) for hidden, targets in pairs]
        else:
            parts = [score(hidden, targets) for hidden, targets in pairs]
        logprobs, entropies = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)


def autocast(device: torch.device) -> AbstractContextManager[None]:
    """Return bf16 arithmetic on a GPU; on a CPU it would crawl."""
    if device.type != "cuda":
        return nullcontext()
    return cast("AbstractContextManager[None]", torch.autocast("cuda", dtype=torch.bfloat16))


def _of_logits(logits_PV: Tensor, targets_P: Tensor, temperature: float, explore: bool) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy of each position."""
    logits_PV = logits_PV.float() / temperature if temperature != 1 else logits_PV.float()
    norm_P = logits_PV.logsumexp(-1)
    logprobs_P = logits_PV.gather(-1, targets_P[:, None])[:, 0] - norm_P
    with torch.set_grad_enabled(explore and torch.is_grad_enabled()):
        kept_PV, kept_P = (logits_PV, norm_P) if explore else (logits_PV.detach(), norm_P.detach())
        entropy_P = kept_P - ((kept_PV - kept_P[:, None]).exp() * kept_PV).sum(-1)
    return logprobs_P, entropy_P


@torch.no_grad()
def _same_both_ways(base: Any) -> bool:
    """Return whether the head over the body's output gives the logits of the whole model."""
    head = base.get_output_embeddings()
    if head is None:
        return False
    ids = torch.arange(1, 5, device=base.device)[None] % int(base.config.get_text_config().vocab_size)
    attention = torch.ones_like(ids, dtype=torch.bool)
    try:
        hidden = base.get_decoder()(input_ids=ids, attention_mask=attention, use_cache=False).last_hidden_state
        by_parts = head(hidden)
    except (AttributeError, TypeError, RuntimeError):  # an architecture of another make
        return False
    whole = base(input_ids=ids, attention_mask=attention, use_cache=False).logits
    same: bool = by_parts.shape == whole.shape and torch.allclose(by_parts.float(), whole.float(), atol=1e-4, rtol=1e-4)
    return same
