"""Muon in fp32: torch's own, but for what bf16 rounds away."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from echo_env.trainers.muon import Muon, orthogonal

SHAPES = ((30, 20), (20, 30), (30, 20), (16, 16))


def trained(kind: type[torch.optim.Optimizer], steps: int) -> list[torch.Tensor]:
    """Return four matrices after some steps along the same gradients."""
    draws = torch.Generator().manual_seed(0)
    matrices = [torch.nn.Parameter(torch.randn(shape, generator=draws)) for shape in SHAPES]
    optimiser = kind(matrices, lr=0.05, weight_decay=0.1)  # type: ignore[call-arg]
    for _ in range(steps):
        for p in matrices:
            p.grad = torch.randn(p.shape, generator=draws)
        optimiser.step()
    return [p.detach() for p in matrices]


def test_it_moves_as_torchs_own() -> None:
    start = trained(Muon, 0)
    for begun, ours, theirs in zip(start, trained(Muon, 5), trained(torch.optim.Muon, 5), strict=True):
        moved = (theirs - begun).norm()
        assert moved > 0.5
        assert (ours - theirs).norm() < 0.02 * moved


@pytest.mark.parametrize("shape", [(3, 8, 20), (3, 20, 8), (2, 12, 12)])
def test_all_directions_move_alike(shape: tuple[int, int, int]) -> None:
    update = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    made = orthogonal(update)
    values = torch.linalg.svdvals(made)
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.3
    left, _, right = torch.linalg.svd(update, full_matrices=False)
    turned = left.mT @ made @ right.mT
    off = turned - torch.diag_embed(turned.diagonal(dim1=1, dim2=2))
    assert float(off.abs().max()) < 1e-9


def test_it_goes_on_from_its_state() -> None:
    draws = torch.Generator().manual_seed(2)
    gradients = [torch.randn(6, 4, generator=draws) for _ in range(4)]
    one, other = (torch.nn.Parameter(torch.ones(6, 4)) for _ in range(2))
    whole, first = (Muon([p], lr=0.1, weight_decay=0.0) for p in (one, other))
    for k, gradient in enumerate(gradients):
        one.grad, other.grad = gradient.clone(), gradient.clone()
        whole.step()
        if k == 2:
            state, first = first.state_dict(), Muon([other], lr=0.1, weight_decay=0.0)
            first.load_state_dict(state)
        first.step()
    assert torch.equal(one, other)
