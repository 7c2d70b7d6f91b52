"""Products with K, stored in tiles and not."""

import gpytorch
import pytest
import torch

from orthogp.kernel.covariance import Covariance
from orthogp.posterior import kernel_matrix
from orthogp.posterior.kernel_matrix import KernelMatrix, fits_in_memory
from problems import default_sum

D = 2
KERNELS = {
    "radial": lambda: default_sum(D, ard=True),
    "generic": lambda: gpytorch.kernels.RQKernel(ard_num_dims=D),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("count", [1, 7, 14, 18])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("room", "compiled", "outputs"),
    [(10**9, True, 1), (10**9, True, 2), (10**9, False, 1), (0, True, 1)],
)
def test_a_product_is_that_with_the_dense_matrix(
    name, count, dtype, room, compiled, outputs, monkeypatch
):
    monkeypatch.setattr(kernel_matrix, "TILE_ROWS", {"cpu": 7})
    monkeypatch.setattr(kernel_matrix, "BLOCK_ROWS", 3)
    monkeypatch.setattr(kernel_matrix, "affordable_bytes", lambda device: room)
    if not compiled:
        monkeypatch.setattr(kernel_matrix, "compiled_backend", lambda x: None)
    covariance = Covariance(KERNELS[name]().double())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, D, generator=generator).double()
    a = torch.randn(outputs, count, generator=generator).double()
    matrix = KernelMatrix(covariance, x)
    matrix.store(dtype)
    assert bool(matrix.tiles) == (room > 0)
    with torch.no_grad():
        expected = a @ covariance.block(x, x)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(matrix.product(a, dtype), expected, rtol=0, atol=tolerance)


def test_what_is_stored_is_replaced_where_another_dtype_is_wanted():
    covariance = Covariance(default_sum(D).double())
    x = torch.randn(5, D, generator=torch.Generator().manual_seed(0)).double()
    matrix = KernelMatrix(covariance, x)
    matrix.store(torch.float32)
    ((*_, before),) = matrix.tiles
    matrix.store(torch.float32)
    ((*_, again),) = matrix.tiles
    matrix.store(torch.float64)
    ((*_, after),) = matrix.tiles
    assert again is before
    assert after.dtype == torch.float64


def test_tiles_take_half_of_the_memory(monkeypatch):
    x = torch.zeros(100 * 64, 1)
    monkeypatch.setattr(kernel_matrix, "TILE_ROWS", {"cpu": 64})
    tiles = 100 * 101 // 2
    for room, fits in ((tiles * 64**2 * 4, True), (tiles * 64**2 * 4 - 1, False)):
        monkeypatch.setattr(kernel_matrix, "affordable_bytes", lambda device, room=room: room)
        assert fits_in_memory(x) == fits
