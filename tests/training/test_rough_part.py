"""A rough part of the kernel: where it begins, that it can leave again, and when it is taken."""

import numpy as np
import pytest
import torch

from orthogp.kernel.covariance import Covariance
from orthogp.kernel.grouped import GroupedMaternKernel
from orthogp.likelihoods import Gaussian
from orthogp.model import default_kernel
from orthogp.training import Rows
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.predictive import learn_to_predict
from orthogp.training.rough_part import SHARE, rough_part

D = 3


def kernel_with(lengthscale: list[float]):
    kernel = default_kernel(D, ard=True, variance=2.0)
    kernel.kernels[0].base_kernel.lengthscale = torch.tensor(lengthscale)
    return kernel


def test_it_begins_at_the_lengthscales_of_the_first_part():
    lengthscale = [0.5, 2.0, 1.0]
    rough = rough_part(kernel_with(lengthscale))
    x, z = np.zeros(D), np.array([0.3, -1.0, 0.7])
    expected = SHARE * 4.0 * np.exp(-np.linalg.norm((x - z) / lengthscale))
    found = rough(*(torch.tensor(p[None], dtype=torch.float32) for p in (x, z))).to_dense()
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_inputs_of_a_column_share_its_lengthscale():
    rough = rough_part(default_kernel(D, ard=True, groups=[0, 1, 1]))
    assert isinstance(rough.base_kernel, GroupedMaternKernel)
    assert rough.base_kernel.raw_lengthscale.shape == (1, 2)


def test_values_say_whether_it_has_joined():
    h = Hyperparameters(Covariance(kernel_with([1.0] * D)), Gaussian(), tries_rough_part=True)
    x, before, count = torch.randn(5, D).double(), h.values(), len(h.parameters)
    plain = h.covariance.block(x, x)
    h.covariance.kernel.kernels[0].base_kernel.lengthscale = torch.tensor([0.5, 2.0, 1.0])
    h.add_rough_part()
    joined, block = h.values(), h.covariance.block(x, x)
    assert len(joined) == len(before)
    assert len(h.parameters) == count + 2
    diagonal = block.diagonal().detach()
    torch.testing.assert_close(diagonal, torch.full_like(diagonal, 4.0 * (1.0 + SHARE)))
    h.set(before)
    torch.testing.assert_close(h.covariance.block(x, x), plain)
    h.set(joined)
    torch.testing.assert_close(h.covariance.block(x, x), block)


@pytest.mark.parametrize("rough", [True, False])
def test_it_is_taken_where_the_function_is_rough(rough):
    """A draw of an Ornstein–Uhlenbeck process takes it, a sine with the same noise does not."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 4.0, 300)
    draw = np.linalg.cholesky(np.exp(-np.abs(x[:, None] - x))) @ rng.normal(size=300)
    y = (draw if rough else np.sin(2.0 * x)) + 0.02 * rng.normal(size=300)
    y = (y - y.mean()) / y.std()
    rows = Rows(torch.from_numpy(x[:, None]).float(), torch.from_numpy(y).float())
    h = Hyperparameters(Covariance(default_kernel(1, ard=True)), Gaussian(), tries_rough_part=True)
    learned = learn_to_predict(h, rows, torch.Generator().manual_seed(0))
    assert (learned.chosen == "rough_part") == h.has_rough_part == rough
