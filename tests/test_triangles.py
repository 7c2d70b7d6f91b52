"""Products with triangles by panels, and the trapezoids of a predictor, against plain products."""

import pytest
import torch

from orthogp.linalg import congruent, lower_product, symmetric_product, upper_product
from orthogp.posterior.predictor import _trapezoid


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# Below the panels, one more than a panel, panels that do not come out even.
@pytest.mark.parametrize("size", [1, 5, 65, 150, 301])
@pytest.mark.parametrize("batches", [((), ()), ((2,), (2,)), ((), (3,)), ((3,), ())])
def test_panels_leave_out_nothing_but_zeros(size, batches):
    A, X = normal(*batches[0], size, size).tril(), normal(*batches[1], size, 7)
    torch.testing.assert_close(lower_product(A, X), A @ X)
    torch.testing.assert_close(upper_product(A, X), A.mT @ X)


@pytest.mark.parametrize("size", [1, 5, 65, 150, 301])
@pytest.mark.parametrize("batch", [(), (1,), (3,)])
@pytest.mark.parametrize("below", [0, 2])
def test_a_symmetric_product_by_panels_is_whole(size, batch, below):
    B, h = normal(size, 7), normal(*batch, 1, 7)
    A = torch.cat([h * B, normal(*batch, below, 7)], -2)
    out = torch.full((*batch, size + below, size), torch.nan, dtype=A.dtype)
    symmetric_product(A, B, out=out)
    torch.testing.assert_close(out, A @ B.mT)


@pytest.mark.parametrize("size", [1, 5, 65, 150, 301])
@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_what_a_triangle_takes_a_symmetric_matrix_to_is_whole_and_symmetric(size, batch):
    A, B = normal(size, size).tril(), normal(*batch, size, size)
    P = B @ B.mT
    found = congruent(A, P)
    torch.testing.assert_close(found, A.mT @ P @ A)
    torch.testing.assert_close(found, found.mT)


def test_panels_take_any_layout():
    A, X = normal(130, 130).tril(), normal(40, 130).mT
    flipped = A.mT.contiguous().mT
    torch.testing.assert_close(lower_product(flipped, X), A @ X)
    torch.testing.assert_close(upper_product(flipped, X), A.mT @ X)


@pytest.mark.parametrize("rows", [0, 1, 4, 9])
def test_a_trapezoid_keeps_sums_of_squares(rows):
    squares, Z = normal(2, rows).square(), normal(2, rows, 9)
    T = _trapezoid(squares, Z)
    assert T.shape == (2, rows, 9)
    assert torch.equal(T, T.triu())
    torch.testing.assert_close(T.mT @ T, Z.mT @ (squares.unsqueeze(-1) * Z))
