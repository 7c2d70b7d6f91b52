"""K a by Triton, with no entry of K in memory, beside torch."""

import pytest
import torch

from orthogp.kernel.radial import tiled

pytestmark = pytest.mark.cuda
GENERATOR = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=GENERATOR, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("families", [("rbf",), ("matern52", "rbf"), ("matern12", "matern32")])
@pytest.mark.parametrize("lengthscales", ["one", "own"])
@pytest.mark.parametrize("shape", [(1, 1), (37, 65), (300, 5000), (0, 5), (5, 0)])
def test_products_are_those_of_torch(shape, lengthscales, families, dtype):
    from orthogp.kernel.radial import fused

    (rows, columns), dims = shape, 3
    x, z, a = numbers(rows, dims), numbers(columns, dims), numbers(2, columns) - 0.5
    inverse = 0.5 + numbers(len(families), dims if lengthscales == "own" else 1)
    scale = numbers(len(families))
    expected = torch.zeros(2, rows, dtype=torch.float64)
    for k, name in enumerate(families):
        K = tiled.block(x * inverse[k], z * inverse[k], torch.ones(1), scale[k : k + 1], (name,))
        expected += a @ K.mT.double()
    found = fused.matvec(*(t.to("cuda", dtype) for t in (x, z, a, inverse, scale)), families)
    tolerance = 1e-10 if dtype == torch.float64 else 3e-7 * max(1, columns)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double().cpu(), expected, rtol=0, atol=tolerance)


def test_a_product_does_not_depend_on_the_other_rows():
    from orthogp.kernel.radial import fused

    x, z, a = (numbers(*s).float().cuda() for s in ((1000, 4), (3000, 4), (1, 3000)))
    kernel = torch.ones(1, 4, device="cuda"), torch.ones(1, device="cuda"), ("matern52",)
    whole = fused.matvec(x, z, a, *kernel)
    for part in (slice(0, 1), slice(3, 40), slice(900, 1000)):
        assert torch.equal(fused.matvec(x[part], z, a, *kernel), whole[:, part])
