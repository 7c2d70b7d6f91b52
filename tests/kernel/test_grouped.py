"""Inputs of one group share a lengthscale: the kernel is that of a full set with equal entries."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel

from orthogp.errors import ConfigurationError, FileError
from orthogp.kernel.covariance import Covariance
from orthogp.kernel.grouped import GroupedMaternKernel, GroupedRBFKernel, add_inputs, group_means
from orthogp.model import default_kernel
from orthogp.storage.modules import build_module, describe_module, tensors_of

GROUPS = [0, 1, 1, 1, 2]


def pair() -> tuple[ScaleKernel, ScaleKernel]:
    """A kernel by groups, and one with a lengthscale an input that has the same values."""
    shared = ScaleKernel(GroupedMaternKernel(GROUPS)).double()
    free = ScaleKernel(MaternKernel(2.5, ard_num_dims=5)).double()
    values = torch.tensor([0.7, 1.3, 2.1], dtype=torch.float64)
    shared.base_kernel.lengthscale = values
    free.base_kernel.lengthscale = values[GROUPS]
    return shared, free


def test_blocks_and_gradients_are_those_of_tied_lengthscales():
    shared, free = pair()
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    covariances = Covariance(shared), Covariance(free)
    assert covariances[0].fused
    blocks = [c.block(x, x[:4]) for c in covariances]
    torch.testing.assert_close(*blocks)
    torch.testing.assert_close(blocks[0], shared(x, x[:4]).to_dense())
    for block in blocks:
        block.square().sum().backward()
    gradients = [k.base_kernel.raw_lengthscale.grad for k in (shared, free)]
    summed = torch.zeros(1, 3, dtype=torch.float64)
    summed.index_add_(1, torch.tensor(GROUPS), gradients[1])
    torch.testing.assert_close(gradients[0], summed)


def test_the_distance_is_a_sum_over_groups():
    kernel = GroupedRBFKernel([0, 0, 1])
    kernel.lengthscale = torch.tensor([2.0, 0.5])
    x, z = np.array([1.0, 2.0, 3.0]), np.array([0.0, 4.0, 2.5])
    squares = (x - z) ** 2
    expected = np.exp(-0.5 * ((squares[0] + squares[1]) / 4.0 + squares[2] / 0.25))
    points = [torch.tensor(p[None], dtype=torch.float32) for p in (x, z)]
    found = Covariance(kernel).block(*points)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_the_default_kernel_starts_by_the_number_of_groups():
    spread = torch.tensor([0.5, 1.0, 0.5, 0.0, 1.0])
    rough, smooth = default_kernel(5, True, 1.0, spread, GROUPS).kernels
    expected = 0.1 * 3**0.5 * group_means(spread, torch.tensor(GROUPS))[GROUPS]
    torch.testing.assert_close(rough.base_kernel.lengthscale[0], expected)
    torch.testing.assert_close(smooth.base_kernel.lengthscale[0], torch.full((5,), 3**0.5))


def test_it_is_saved_and_read_back_without_its_class_being_named_in_code():
    shared, _ = pair()
    tensors = tensors_of(shared)
    read = build_module(describe_module(shared), tensors, ScaleKernel)
    torch.testing.assert_close(read.base_kernel.lengthscale, shared.base_kernel.lengthscale)
    broken = dict(tensors) | {"base_kernel.groups": torch.tensor([0, 1, 1, 1, 3])}
    with pytest.raises(FileError, match="groups"):
        build_module(describe_module(deepcopy(shared)), broken, ScaleKernel)


@pytest.mark.parametrize("groups", [[], [0, 2], [-1, 0], torch.tensor([[0, 1]])])
def test_groups_with_gaps_are_refused(groups):
    with pytest.raises(ConfigurationError, match="number of a group for every input"):
        GroupedRBFKernel(groups)


@pytest.mark.parametrize("groups", [None, [0, 0, 1]])
def test_inputs_that_are_added_begin_with_the_lengthscales_of_others(groups):
    kernel = default_kernel(3, ard=True, groups=groups).double()
    lengthscales = torch.linspace(0.5, 2.0, 3 if groups is None else 2).double()
    for part in kernel.kernels:
        part.base_kernel.lengthscale = lengthscales
    before = kernel.kernels[0].base_kernel.lengthscale.detach()
    wider = deepcopy(kernel)
    add_inputs(wider, torch.tensor([2, 1]))
    for part in wider.kernels:
        found = part.base_kernel.lengthscale.detach()
        torch.testing.assert_close(found, before[:, [0, 1, 2, 2, 1]])
    x, z = torch.randn(2, 4, 3).double()
    padded = [torch.cat([t, torch.zeros(4, 2)], dim=1) for t in (x, z)]
    torch.testing.assert_close(Covariance(wider).block(*padded), Covariance(kernel).block(x, z))
    # Each of them learns a lengthscale of its own.
    Covariance(wider).block(
        torch.cat([x, x[:, :2]], 1), torch.cat([z, z[:, :2]], 1)
    ).sum().backward()
    slopes = wider.kernels[0].base_kernel.raw_lengthscale.grad
    assert (slopes != 0).all()
