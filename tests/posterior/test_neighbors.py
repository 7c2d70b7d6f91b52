"""The nearest points beside a search of all of them."""

import numpy as np
import pytest
import torch

from orthogp.kernel.radial import compiled_backend
from orthogp.posterior import neighbors
from orthogp.posterior.neighbors import Neighbors, canonical_order, leaf_order, smallest

POINTS = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).double()
NEW = torch.randn(30, 3, generator=torch.Generator().manual_seed(1)).double()


@pytest.fixture(params=["tree", "compiled", "blocks"])
def way(request, monkeypatch):
    """By machine code as for many columns, or by blocks as on a GPU, several of them."""
    if request.param != "tree":
        monkeypatch.setattr(neighbors, "FEW_COLUMNS", 0)
        monkeypatch.setattr(neighbors, "chunk_elements", lambda device: 1000)
    if request.param == "blocks":
        monkeypatch.setattr(neighbors, "compiled_backend", lambda *_, **__: None)


@pytest.mark.usefixtures("way")
def test_they_are_the_nearest_in_order():
    found = Neighbors(POINTS).nearest(NEW, 7)
    expected = torch.cdist(NEW, POINTS).argsort(1)[:, :7]
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("way")
def test_there_may_be_fewer_than_asked_for():
    few = Neighbors(POINTS[:4])
    assert few.nearest(NEW, 10).shape == (30, 4)
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
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 3, size=(50, 2)).astype(float))
    y = torch.from_numpy(rng.integers(0, 2, size=(1, 50)).astype(float))
    order = canonical_order(x, y)
    assert sorted(order.tolist()) == list(range(50))
    assert [*map(tuple, x[order].tolist())] == sorted(map(tuple, x.tolist()))
    again = torch.from_numpy(rng.permutation(50))
    other = canonical_order(x[again], y[:, again])
    assert torch.equal(y[:, again][:, other], y[:, order])


def test_the_first_of_many_copies_are_not_the_smallest():
    """They stand for all of them, also where most are the same in all numbers."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy(np.r_[np.zeros(1500), rng.exponential(size=500)]).unsqueeze(0)
    order = canonical_order(torch.ones(2000, 2), y)
    first = y[0, order[:200]]
    assert 0.15 < float((first > 0).double().mean()) < 0.35
    assert abs(float(first.mean() - y.mean())) < 0.1


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("number", [41, 640, 5000])
def test_the_smallest_of_many_numbers(number, count):
    values = torch.rand(6, number, generator=torch.Generator().manual_seed(4))
    found = smallest(values, count).sort(1).values
    assert torch.equal(found, values.argsort(1)[:, :count].sort(1).values)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("offset", [0.0, 1e4, 1e60])
def test_what_float32_cannot_tell_apart_is_found_in_float64(offset):
    """Points close together and far from the others: their distances drown in float32."""
    points = torch.cat([POINTS, 1e-3 * POINTS + 1e3 + offset])
    new = 1e-3 * NEW + 1e3 + offset
    found = Neighbors(points).nearest(new, 7)
    distances = (new.unsqueeze(1) - points).square().sum(2).sqrt()
    expected = distances.sort(1).values[:, :7]
    torch.testing.assert_close(distances.gather(1, found), expected, rtol=1e-6, atol=0)


needs_machine_code = pytest.mark.skipif(
    compiled_backend(POINTS) is None, reason="no machine code here"
)


@needs_machine_code
@pytest.mark.parametrize("count", [1, 20, 128])
@pytest.mark.parametrize("columns", [1, 8, 30])
def test_machine_code_finds_the_nearest_of_many_the_first_of_ties(monkeypatch, columns, count):
    """On a grid many points are at one distance, and some are there several times."""
    monkeypatch.setattr(neighbors, "FEW_COLUMNS", 0)
    rng = np.random.default_rng(columns)
    values = 3 if columns > 1 else 400
    points = torch.from_numpy(rng.integers(0, values, size=(3001, columns)).astype(float))
    points = points[canonical_order(points, points[:, :1].mT)]
    new = points[::60] + 0.5
    found = Neighbors(points)
    assert found.compiled is not None
    squares = (new.unsqueeze(1) - points).square().sum(2)
    expected = squares.argsort(dim=1, stable=True)[:, :count]
    assert torch.equal(found.nearest(new, count), expected)


@needs_machine_code
def test_machine_code_lists_every_point_that_may_be_near():
    """At least as many as are asked for, few more, in order and with their distances."""
    from orthogp.kernel.radial.candidates import PointTable

    points = torch.randn(5000, 6, generator=torch.Generator().manual_seed(5)).double()
    new = torch.randn(37, 6, generator=torch.Generator().manual_seed(6)).double()
    listed = PointTable(points, points.mean(0)).candidates(new, 50, room=120)
    assert bool(((listed.number >= 50) & (listed.number < 80)).all())
    squares = (new.unsqueeze(1) - points).square().sum(2)
    for row, number in enumerate(listed.number.tolist()):
        found = listed.found[row, :number]
        nearest = squares[row].argsort()[:number].sort().values
        assert torch.equal(found, nearest)
        torch.testing.assert_close(listed.squares[row, :number], squares[row, found])
        assert bool(listed.squares[row, number:].isinf().all())
