"""Both products of a tile by machine code, beside torch's."""

import pytest
import torch

tile_products = pytest.importorskip("orthogp.kernel.radial.tile_products")


@pytest.mark.parametrize("shape", [(1, 1), (5, 17), (64, 64), (70, 33)])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_both_products_are_those_of_the_matrix(shape, outputs, dtype):
    generator = torch.Generator().manual_seed(0)
    K = torch.randn(shape, generator=generator).to(dtype)
    a, b = (torch.randn(outputs, n, generator=generator).to(dtype) for n in reversed(shape))
    of_rows, of_columns = tile_products.CompiledTile(K).products(a, b)
    torch.testing.assert_close(of_rows, a @ K.mT, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(of_columns, b @ K, rtol=1e-5, atol=1e-5)


def test_threads_change_nothing():
    generator = torch.Generator().manual_seed(0)
    tile = tile_products.CompiledTile(torch.randn(100, 50, generator=generator))
    a, b = (torch.randn(1, n, generator=generator) for n in (50, 100))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(tile.products(a, b))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)
