"""The nearest points beside a search of all of them."""

import numpy as np
import pytest
import torch

from orthogp.posterior import neighbors
from orthogp.posterior.neighbors import Neighbors, canonical_order, leaf_order, smallest

POINTS = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).double()
NEW = torch.randn(30, 3, generator=torch.Generator().manual_seed(1)).double()


@pytest.fixture(params=["tree", "blocks"])
def way(request, monkeypatch):
    """By blocks as on a GPU or for many columns, several of them."""
    if request.param == "blocks":
        monkeypatch.setattr(neighbors, "FEW_COLUMNS", 0)
        monkeypatch.setattr(neighbors, "BLOCK_ELEMENTS", {"cpu": 1000})


@pytest.mark.usefixtures("way")
def test_they_are_the_nearest_in_order():
    found = Neighbors(POINTS).nearest(NEW, 7)
    expected = torch.cdist(NEW, POINTS).argsort(1)[:, :7]
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("way")
def test_a_point_may_be_left_out():
    rows = torch.arange(0, 200, 7)
    found = Neighbors(POINTS).nearest(POINTS[rows], 5, rows)
    assert torch.equal(found, torch.cdist(POINTS[rows], POINTS).argsort(1)[:, 1:6])


@pytest.mark.usefixtures("way")
def test_one_among_more_duplicates_than_are_asked_for():
    found = Neighbors(torch.zeros(10, 3).double()).nearest(
        torch.zeros(10, 3).double(), 3, torch.arange(10)
    )
    assert found.shape == (10, 3)
    assert not (found == torch.arange(10)[:, None]).any()


@pytest.mark.usefixtures("way")
def test_there_may_be_fewer_than_asked_for():
    few = Neighbors(POINTS[:4])
    assert few.nearest(NEW, 10).shape == (30, 4)
    assert few.nearest(POINTS[:4], 10, torch.arange(4)).shape == (4, 3)
    assert few.nearest(NEW, 1).shape == (30, 1)
    assert few.nearest(NEW[:0], 2).shape == (0, 2)


@pytest.mark.parametrize("leaf", [1, 7, 64, 200, 500])
def test_leaves_are_of_neighbours_and_hold_every_point_once(leaf):
    order = leaf_order(POINTS, leaf)
    assert sorted(order.tolist()) == list(range(200))

    def spread(rows):
        parts = [POINTS[part].var(0, correction=0).sum() for part in rows.split(leaf)]
        return torch.stack(parts).mean()

    if 1 < leaf < 200:
        assert spread(order) < 0.8 * spread(torch.arange(200))


def test_the_order_of_rows_is_by_their_values():
    x = np.random.default_rng(0).integers(0, 3, size=(50, 2)).astype(float)
    y = np.random.default_rng(1).integers(0, 2, size=(1, 50)).astype(float)
    order = canonical_order(torch.from_numpy(x), torch.from_numpy(y))
    table = np.column_stack([x, y[0]])[order.numpy()]
    np.testing.assert_array_equal(table, sorted(map(tuple, table)))


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("number", [41, 640, 5000])
def test_the_smallest_of_many_numbers(number, count):
    values = torch.rand(6, number, generator=torch.Generator().manual_seed(4))
    found = smallest(values, count).sort(1).values
    assert torch.equal(found, values.argsort(1)[:, :count].sort(1).values)


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e60])
def test_what_float32_cannot_tell_apart_is_found_in_float64(monkeypatch, offset):
    """Points close together and far from the others: their distances drown in float32."""
    monkeypatch.setattr(neighbors, "FEW_COLUMNS", 0)
    points = torch.cat([POINTS, 1e-3 * POINTS + 1e3 + offset])
    new = 1e-3 * NEW + 1e3 + offset
    found = Neighbors(points).nearest(new, 7)
    distances = (new.unsqueeze(1) - points).square().sum(2).sqrt()
    expected = distances.sort(1).values[:, :7]
    torch.testing.assert_close(distances.gather(1, found), expected, rtol=1e-6, atol=0)
