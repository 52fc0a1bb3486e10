"""Muon (Jordan et al. 2024) in fp32: torch's own computes in bf16, which most CPUs emulate at a seventh of the speed.

Otherwise it is `torch.optim.Muon` with its defaults; matrices of one shape are orthogonalised together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of the quintic iteration: the steepest at zero."""
STEPS = 5
EPS = 1e-7


class Muon(torch.optim.Optimizer):
    """Momentum whose step is orthogonalised: every direction of a matrix moves alike.

    Args:
        matrices: Parameters of two dimensions.
        lr: Learning rate; of a tall matrix it is raised by the root of its height over its width.
        weight_decay: Decoupled.
        momentum: Of the gradient's mean, Nesterov's.
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # takes none
        """Take a step."""
        for group in self.param_groups:
            alike: defaultdict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    if p not in self.state:
                        self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                    mean = self.state[p]["momentum_buffer"]
                    mean.lerp_(p.grad, 1 - group["momentum"])
                    alike[p.shape].append((p, p.grad.lerp(mean, group["momentum"])))
            for (rows, columns), found in alike.items():
                lr = group["lr"] * math.sqrt(max(1.0, rows / columns))
                for (p, _), update in zip(found, orthogonal(torch.stack([u for _, u in found])), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-lr)


def orthogonal(updates_NRC: Tensor) -> Tensor:
    """Return matrices with the same singular vectors and singular values near 1, by Newton and Schulz's iteration."""
    tall = updates_NRC.shape[1] > updates_NRC.shape[2]
    x = updates_NRC.mT if tall else updates_NRC
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
