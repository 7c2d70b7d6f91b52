"""Rows in a folder: every row once, in cells of neighbours, and the search among them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from orthogp.errors import FileError
from orthogp.posterior import row_store
from orthogp.posterior.cells import PROBES, Cells, measure_recall
from orthogp.posterior.row_store import CELLS, ROWS, RowStore, write_store

COUNT, INPUTS = 5000, 3
SCALE = torch.tensor([1.0, 2.0, 0.5])


@pytest.fixture
def table(monkeypatch):
    """Rows with many duplicates; boxes and runs so small that there are several of each."""
    monkeypatch.setattr(row_store, "RUN_ROWS", 700)
    monkeypatch.setattr(row_store, "BOX_ROWS", 600)
    monkeypatch.setattr(row_store, "MOST_BOX_ROWS", 900)
    monkeypatch.setattr(row_store, "FEWEST_CELL_ROWS", 64)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(COUNT, INPUTS)).astype(np.float32)
    x[::3] = x[0]
    y = np.arange(2 * COUNT, dtype=np.float32).reshape(COUNT, 2)
    return x, y


def store_of(table, folder, weight=None) -> RowStore:
    x, y = table
    parts = np.array_split(np.arange(COUNT), 11)
    blocks = ((x[p], y[p], None if weight is None else weight[p]) for p in parts)
    return write_store(folder, blocks, COUNT, torch.from_numpy(x[:500]), SCALE)


def test_every_row_is_there_once_and_cells_are_small(table, tmp_path):
    x, y = table
    weight = np.linspace(1, 2, COUNT, dtype=np.float32)
    store = store_of(table, tmp_path / "rows", weight)
    found, targets, weights = store.parts(store.read(0, COUNT))
    order = np.argsort(targets[0].numpy())
    assert np.array_equal(found.numpy()[order], x)
    assert np.array_equal(targets.mT.numpy()[order], y)
    assert weights is not None
    assert np.array_equal(weights.numpy()[order], weight)
    assert int(store.starts.diff().max()) <= 64
    assert sorted(p.name for p in (tmp_path / "rows").iterdir()) == [CELLS, ROWS]
    places = torch.tensor([0, 1, 63, 64, 700, COUNT - 1])
    assert torch.equal(store.rows(places), store.read(0, COUNT)[places])


def test_cells_are_of_neighbours(table, tmp_path):
    store = store_of(table, tmp_path)
    x = store.parts(store.read(0, COUNT))[0] * SCALE
    cell = torch.repeat_interleave(torch.arange(store.num_cells), store.starts.diff())
    spread = (x - (store.centres * SCALE)[cell]).square().sum(1).mean()
    assert float(spread) < 0.25 * float((x - x.mean(0)).square().sum(1).mean())


@pytest.mark.parametrize("count", [1, 40, 200])
def test_all_cells_give_the_exact_search(table, tmp_path, count):
    store = store_of(table, tmp_path)
    # Other lengthscales than those of the cells.
    scale = torch.tensor([0.3, 1.0, 3.0])
    queries = torch.randn(60, INPUTS, generator=torch.Generator().manual_seed(1))
    found = Cells(store, scale, store.num_cells).nearest(queries, count)
    x = store.parts(store.read(0, COUNT))[0].double()
    squares = ((x * scale - (queries.double() * scale).unsqueeze(1)) ** 2).sum(2)
    expected = squares.sort(stable=True).values[:, :count]
    torch.testing.assert_close(squares.gather(1, found), expected, rtol=1e-4, atol=1e-5)
    # Distances of different rows, in which float32 cannot err, decide which rows these are.
    sure = expected.diff(dim=1).amin(1) > 1e-4 if count > 1 else torch.ones(60, dtype=torch.bool)
    exact = squares.argsort(dim=1, stable=True)[:, :count]
    assert torch.equal(found[sure], exact[sure])


def test_few_cells_find_what_the_recall_says(table, tmp_path):
    # Without duplicates, of which any may be found.
    x = np.random.default_rng(1).normal(size=(COUNT, INPUTS)).astype(np.float32)
    store = store_of((x, table[1]), tmp_path)
    queries = torch.randn(200, INPUTS, generator=torch.Generator().manual_seed(2))
    cells = Cells(store, SCALE, 4)
    recall = measure_recall(cells, queries, 30, wanted=0.97)
    assert recall.probes in PROBES
    assert recall.share >= 0.97
    exact = replace(cells, probes=store.num_cells).nearest(queries, 30)
    found = replace(cells, probes=recall.probes).nearest(queries, 30)
    shares = [
        len(set(a) & set(b)) / 30 for a, b in zip(found.tolist(), exact.tolist(), strict=True)
    ]
    assert np.mean(shares) == pytest.approx(recall.share, abs=1e-3)
    assert measure_recall(cells, queries, 30, wanted=0.0).share < recall.share


def test_more_rows_than_the_probed_cells_have(table, tmp_path):
    store = store_of(table, tmp_path)
    found = Cells(store, SCALE, 1).nearest(torch.zeros(3, INPUTS), 500)
    assert all(len(set(row)) == 500 for row in found.tolist())
    assert Cells(store, SCALE, 1).nearest(torch.zeros(3, INPUTS), COUNT + 9).shape == (3, COUNT)


def test_several_threads_find_the_same(table, tmp_path, monkeypatch):
    cells = Cells(store_of(table, tmp_path), SCALE, 5)
    queries = torch.randn(50, INPUTS, generator=torch.Generator().manual_seed(3))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    expected = cells.nearest(queries, 20)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(cells.nearest(queries, 20), expected)
    assert cells.nearest(queries[:0], 20).shape == (0, 20)


def test_rows_on_a_device_are_copied_once(table, tmp_path, monkeypatch):
    store, device = store_of(table, tmp_path), torch.device("cpu")
    found = store.on_device(device)
    assert found is not None
    assert torch.equal(found, store.read(0, COUNT))
    assert store.on_device(device) is found
    monkeypatch.setattr(row_store, "affordable_bytes", lambda _: store.nbytes - 1)
    assert RowStore.open(tmp_path).on_device(device) is None


@pytest.mark.cuda
def test_a_gpu_finds_the_same(table, tmp_path):
    store = store_of(table, tmp_path)
    queries = torch.randn(50, INPUTS, generator=torch.Generator().manual_seed(3))
    squares = []
    for device in ("cpu", "cuda"):
        scale = SCALE.to(device)
        near = Cells(store, scale, 5).nearest(queries.to(device), 20).cpu()
        x = store.read(0, COUNT)[:, :INPUTS]
        squares.append(((x[near] - queries.unsqueeze(1)) * SCALE).square().sum(2))
    torch.testing.assert_close(*squares)


def test_what_fails_leaves_nothing(table, tmp_path):
    def blocks():
        yield table[0][:1000], table[1][:1000], None
        raise RuntimeError("the table ends")

    with pytest.raises(RuntimeError, match="the table ends"):
        write_store(tmp_path / "rows", blocks(), COUNT, torch.from_numpy(table[0][:50]), SCALE)
    assert not (tmp_path / "rows").exists()


def test_rows_of_another_fit_are_not_overwritten(table, tmp_path):
    store_of(table, tmp_path)
    with pytest.raises(FileError, match="holds the rows of another fit"):
        store_of(table, tmp_path)
    assert len(RowStore.open(tmp_path)) == COUNT


def test_a_folder_that_is_not_whole_is_refused(table, tmp_path):
    store_of(table, tmp_path)
    whole = (tmp_path / ROWS).read_bytes()
    (tmp_path / ROWS).write_bytes(whole[:-4])
    with pytest.raises(FileError, match="not as long as its cells say"):
        RowStore.open(tmp_path)
    (tmp_path / ROWS).unlink()
    with pytest.raises(FileError, match="cannot be read"):
        RowStore.open(tmp_path)
    with pytest.raises(FileError, match="could not be read"):
        RowStore.open(tmp_path / "elsewhere")
