"""Many small blocks at once beside one block after another: values and gradients."""

import gpytorch
import pytest
import torch

from orthogp.errors import DataError
from orthogp.kernel.covariance import Covariance
from problems import default_sum

D = 3
KERNELS = {
    "isotropic": lambda: default_sum(D),
    "ARD": lambda: default_sum(D, ard=True),
    "Matérn-1/2": lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(0.5)),
    "generic": lambda: gpytorch.kernels.RQKernel(ard_num_dims=D),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("same", [True, False])
def test_a_batch_is_one_block_after_another(name, same):
    covariance = Covariance(KERNELS[name]().double())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, D, generator=generator).double().requires_grad_()
    z = x if same else torch.randn(4, 2, D, generator=generator).double().requires_grad_()
    weight = torch.randn(4, 5, z.shape[1], generator=generator).double()
    sources = [*covariance.parameters(), x, *([] if same else [z])]

    def gradients(blocks):
        return torch.autograd.grad((weight * blocks).sum(), sources)

    batched = covariance.batched_block(x, z)
    plain = torch.stack([covariance.block(a, b) for a, b in zip(x, z, strict=True)])
    torch.testing.assert_close(batched, plain, rtol=0, atol=1e-10)
    for ours, expected in zip(gradients(batched), gradients(plain), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("tables", "rows"), [(1, 1), (3, 8), (40, 17)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("moves", [True, False])
def test_the_covariances_within_tables(name, tables, rows, dtype, moves):
    covariance = Covariance(KERNELS[name]().double())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tables, rows, D, generator=generator).to(dtype).requires_grad_(moves)
    weight = torch.randn(tables, rows, rows, generator=generator).to(dtype)
    found = covariance.batched_block(x, x)
    plain = torch.stack([covariance.block(part, part) for part in x.double()])
    rounding = 1e-10 if dtype == torch.float64 else 2e-6
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), plain, rtol=0, atol=rounding)
    sources = [*covariance.parameters(), *([x] if moves else [])]
    ours = torch.autograd.grad((weight * found).sum(), sources)
    for one, expected in zip(
        ours, torch.autograd.grad((weight * plain).sum(), sources), strict=True
    ):
        scale = tables * rows * rounding
        torch.testing.assert_close(one, expected, rtol=rounding, atol=10.0 * scale)


@pytest.mark.cuda
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("tables", "rows", "columns"), [(1, 1, 1), (7, 40, 1), (5, 100, 70)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_on_a_gpu_are_those_on_the_host(name, tables, rows, columns, dtype):
    covariance = Covariance(KERNELS[name]().double())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tables, rows, D, generator=generator).to(dtype)
    z = torch.randn(tables, columns, D, generator=generator).to(dtype)
    with torch.no_grad():
        expected = [covariance.batched_block(x.double(), t.double()) for t in (x, z)]
        covariance, x, z = covariance.cuda(), x.cuda(), z.cuda()
        found = [covariance.batched_block(x, t) for t in (x, z)]
    tolerance = {"rtol": 0, "atol": 1e-10 if dtype == torch.float64 else 5e-6}
    for ours, plain in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double().cpu(), plain, **tolerance)
    # Nothing is left of a distance between a point and itself.
    diagonal = found[0].diagonal(dim1=-2, dim2=-1)
    assert (diagonal == diagonal[0, 0]).all()


def test_points_of_another_width_are_refused():
    covariance = Covariance(default_sum(D, ard=True))
    with pytest.raises(DataError, match="lengthscales"):
        covariance.batched_block(torch.zeros(2, 3, D + 1), torch.zeros(2, 3, D + 1))


def test_relevance_is_by_lengthscales_where_there_are_any():
    kernels = gpytorch.kernels
    x = torch.zeros(1, D)
    both = default_sum(D, ard=True)
    expected = sum(
        part.outputscale * part.base_kernel.lengthscale[0] ** -2.0 for part in both.kernels
    ) / sum(part.outputscale for part in both.kernels)
    torch.testing.assert_close(Covariance(both).relevance(x), expected.double())
    periodic = kernels.PeriodicKernel(ard_num_dims=D)
    periodic.lengthscale = torch.tensor([1.0, 2.0, 4.0])
    torch.testing.assert_close(
        Covariance(periodic).relevance(x), torch.tensor([1.0, 0.25, 0.0625]).double()
    )
    assert Covariance(kernels.LinearKernel()).relevance(x).tolist() == [1.0] * D
    part = kernels.RBFKernel(active_dims=(1,))
    assert Covariance(part).relevance(x).tolist() == [1.0] * D
