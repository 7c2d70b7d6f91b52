"""Near rows in a folder: the prediction of near rows in memory, and where the rows are."""

import pickle
import shutil

import numpy as np
import pytest
import torch

from orthogp import OrthogonalGPRegressor
from orthogp.errors import ConfigurationError, FileError
from orthogp.estimators import streamed
from orthogp.posterior import NearRows, StoredRows, row_store
from orthogp.sources import ArrayTable

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, size=(6000, 2)).astype(np.float32)
NEW = RNG.uniform(-2, 2, size=(400, 2))


def function(x):
    return np.sin(7 * x[:, 0]) * np.cos(6 * x[:, 1])


Y = function(X) + 0.05 * RNG.normal(size=len(X))


@pytest.fixture(autouse=True)
def streamed_in_small_cells(monkeypatch):
    monkeypatch.setattr(streamed, "LOADED_BYTES", 0)
    monkeypatch.setattr(streamed, "ON_DISK_SAMPLE", 2500)
    monkeypatch.setattr(row_store, "FEWEST_CELL_ROWS", 128)


def regressor(folder, **settings) -> OrthogonalGPRegressor:
    defaults = {"n_inducing": 30, "max_steps": 60, "random_state": 0, "device": "cpu"}
    return OrthogonalGPRegressor(rows_dir=folder, **defaults | settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fit") / "rows"


@pytest.fixture(scope="module")
def fitted(folder):
    # Its own monkeypatch, as this fit is shared.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamed, "LOADED_BYTES", 0)
        patch.setattr(streamed, "ON_DISK_SAMPLE", 2500)
        patch.setattr(row_store, "FEWEST_CELL_ROWS", 128)
        return regressor(folder).fit(ArrayTable(X, Y))


def test_it_predicts_a_function_that_a_few_points_cannot(fitted):
    near = fitted.model_.near
    assert isinstance(near, StoredRows)
    assert near.recall >= 0.9
    mean, std = fitted.predict(NEW, return_std=True)
    error = np.sqrt(np.mean((mean - function(NEW)) ** 2))
    by_points, _ = fitted.model_.without_near_rows().predict(
        torch.from_numpy((NEW - X.mean(0)) / X.std(0))
    )
    by_points = by_points[0].numpy() * Y.std() + Y.mean()
    assert error < 0.05 < 0.3 * np.sqrt(np.mean((by_points - function(NEW)) ** 2))
    assert 0.03 < std.mean() < 0.1


@pytest.mark.parametrize("on_beta", [False, True])
def test_with_all_cells_it_is_the_prediction_of_near_rows_in_memory(fitted, on_beta):
    model, near = fitted.model_, fitted.model_.near
    store = near.store
    x, y, _ = store.parts(store.read(0, len(store)))
    in_memory = model.without_near_rows()
    in_memory.near = NearRows(x.contiguous(), y, None, near.count, on_beta=on_beta)
    expected = in_memory.conditional().computing_in(torch.float64)
    q = expected.induced
    rows = near.with_settings(
        probes=store.num_cells, narrow=False,
        S=None if q is None else q.S, b=None if q is None else q.b,
    )  # fmt: skip
    on_disk = model.without_near_rows()
    on_disk.near = rows
    new = torch.from_numpy(NEW).float()
    for found, wanted in zip(
        on_disk.predictor().marginals(new), expected.marginals(new), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_blocks_of_queries_change_nothing(fitted, monkeypatch):
    from orthogp.posterior import cells, stored_rows

    whole = fitted.predict(NEW, return_std=True)
    monkeypatch.setattr(cells, "QUERIES", {"cpu": 70})
    monkeypatch.setattr(cells, "CENTRE_ELEMENTS", {"cpu": 100})
    monkeypatch.setattr(stored_rows, "READ_QUERIES", {"cpu": 16})
    for found, expected in zip(fitted.predict(NEW, return_std=True), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_file_finds_its_rows_beside_it_where_they_were_and_where_it_is_told(
    fitted, folder, tmp_path
):
    expected = fitted.predict(NEW)
    path = tmp_path / "model.orthogp"
    fitted.save(path)
    assert path.stat().st_size < 2**17
    load = OrthogonalGPRegressor.load
    assert np.array_equal(load(path).predict(NEW), expected)
    assert load(path).rows_dir is None
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    shutil.copytree(folder, tmp_path / folder.name)
    assert load(path).model_.near.folder == tmp_path / folder.name
    assert load(path, rows_dir=moved).model_.near.folder == moved
    assert np.array_equal(load(path, rows_dir=moved).predict(NEW), expected)
    with pytest.raises(FileError, match="name it with load"):
        load(path, rows_dir=tmp_path / "nowhere")
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict(NEW), expected)


def test_rows_of_another_fit_are_refused(fitted, tmp_path):
    fitted.save(tmp_path / "model.orthogp")
    regressor(tmp_path / "rows", max_steps=3).fit(ArrayTable(X[:4000], Y[:4000]))
    with pytest.raises(FileError, match="has the rows of another fit"):
        OrthogonalGPRegressor.load(tmp_path / "model.orthogp", rows_dir=tmp_path / "rows")
    with pytest.raises(FileError, match="choose another folder"):
        regressor(tmp_path / "rows", max_steps=3).fit(ArrayTable(X[:4000], Y[:4000]))


def test_a_file_without_its_rows_predicts_by_the_points(fitted, tmp_path):
    fitted.save(tmp_path / "model.orthogp", near_rows=False)
    assert OrthogonalGPRegressor.load(tmp_path / "model.orthogp").model_.near is None


def test_what_needs_rows_in_memory_says_so(fitted):
    for ask in (
        lambda: fitted.predict(NEW[:3], return_cov=True),
        lambda: fitted.predict_gradient(NEW[:3]),
        lambda: fitted.condition_on(X[:3], Y[:3]),
        lambda: fitted.partial_fit(X[:3], Y[:3]),
    ):
        with pytest.raises(ConfigurationError, match="near rows"):
            ask()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"objective": "leave_one_out", "noise": "learned"}, "fits in memory"),
        ({"n_residual": "all"}, "n_residual is 'all'"),
        ({"n_neighbors": 32, "objective": "bound"}, "objective='auto'"),
        ({"n_neighbors": 32, "validation_fraction": 0.0}, "held out"),
        ({"n_neighbors": 32, "rows_dir": None}, "rows_dir"),
    ],
)
def test_what_it_cannot_do_is_refused(tmp_path, settings, reason):
    gp = regressor(tmp_path / "rows").set_params(**settings)
    with pytest.raises(ConfigurationError, match=reason):
        gp.fit(ArrayTable(X, Y))
    assert not (tmp_path / "rows").exists()


def test_several_targets_and_weights(tmp_path):
    y = np.stack([Y, 2 * X[:, 0] + Y], axis=1)
    weight = np.where(X[:, 0] > 0, 1.0, 1e-6)
    gp = regressor(tmp_path / "rows", max_steps=20, n_neighbors=32)
    gp.fit(ArrayTable(X, y, weight))
    store = gp.model_.near.store
    assert (store.outputs, store.weighted) == (2, True)
    mean, std = gp.predict(NEW, return_std=True)
    assert mean.shape == (400, 2)
    error = np.abs(mean[:, 0] - function(NEW))
    right = NEW[:, 0] > 0.2
    assert np.median(error[right]) < 0.05
    # Rows of no weight tell nothing.
    left = NEW[:, 0] < -1
    assert std[left, 0].mean() > 3 * std[right, 0].mean()
