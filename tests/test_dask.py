"""Fits on a local Dask cluster of two processes."""

import os
import sys

import numpy as np
import pytest

pytest.importorskip("distributed", reason="needs the extra `dask`")
pytest.importorskip("dask.dataframe", reason="needs the extra `dask`")

import dask.array as da
import dask.dataframe as dd
from distributed import Client, LocalCluster

import orthogp.dask
from interrupted_engine import KillOnce
from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import ConfigurationError, DataError, TeamError
from shard_fits import STEPS, frame


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    path = os.pathsep.join(filter(None, sys.path))
    # Workers inherit the environment of their nanny.
    environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", env=environment,
        local_directory=str(tmp_path_factory.mktemp("dask")),
    )  # fmt: skip
    with cluster, Client(cluster) as found:
        yield found


@pytest.fixture(scope="module")
def table():
    return frame()


def test_arrays_and_labels(client, table):
    X, labels = table[["a", "b"]].to_numpy(copy=True), table.label.to_numpy(dtype=str, copy=True)
    alone = OrthogonalGPClassifier(**STEPS).fit(X, labels)
    found = orthogp.dask.fit(
        da.from_array(X, chunks=(150, 1)), da.from_array(labels, chunks=170),
        estimator=OrthogonalGPClassifier(**STEPS), client=client,
    )  # fmt: skip
    assert isinstance(found, OrthogonalGPClassifier)
    expected = alone.predict_proba(X)
    np.testing.assert_allclose(found.predict_proba(X), expected, rtol=1e-5, atol=2e-5)


def test_what_cannot_be_fitted_is_refused_in_one_sentence(client, table):
    X = table[["a", "b"]].to_numpy(copy=True)
    X[399, 1] = np.inf
    with pytest.raises(DataError, match="X has 1 values that are infinite"):
        orthogp.dask.fit(
            da.from_array(X, chunks=(200, 2)), da.from_array(table.y.to_numpy(copy=True), 200),
            estimator=OrthogonalGPRegressor(**STEPS), client=client,
        )  # fmt: skip
    frames = dd.from_pandas(table, npartitions=2)
    with pytest.raises(DataError, match=r"\[2, 3, 2\] partitions"):
        orthogp.dask.fit(frames, dd.from_pandas(table.y, npartitions=3), client=client)
    with pytest.raises(DataError, match="X is of type DataFrame; expected a Dask"):
        orthogp.dask.fit(table, "y", client=client)


def test_workers_in_one_process_are_refused(table):
    with (
        LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as threads,
        pytest.raises(ConfigurationError, match="share a process"),
    ):
        orthogp.dask.fit(dd.from_pandas(table, npartitions=2), "y", client=threads)


@pytest.mark.torture
def test_a_lost_worker_ends_the_fit_and_the_next_one_is_that_of_one_process(
    client, table, tmp_path
):
    settings = STEPS | {"max_steps": 150}
    interrupted = OrthogonalGPRegressor(
        **settings, callbacks=[KillOnce(tmp_path)], checkpoint_dir=str(tmp_path / "points")
    )
    # Of three partitions one worker has two.
    frames = dd.from_pandas(table.drop(columns="label"), npartitions=3)
    given = {"sample_weight": "weight", "estimator": interrupted, "client": client}
    with pytest.raises(TeamError, match=r"lost contact|is gone"):
        orthogp.dask.fit(frames, "y", **given)
    client.wait_for_workers(2, timeout=60)
    found = orthogp.dask.fit(frames, "y", **given)
    first, second = (tmp_path / "started").read_text().split()
    assert first == "0"
    assert int(second) >= 50
    X = table[["a", "b", "town"]]
    alone = OrthogonalGPRegressor(**settings).fit(X, table.y, table.weight)
    np.testing.assert_allclose(found.predict(X), alone.predict(X), rtol=1e-5, atol=2e-5)
    assert found.elbo_ == pytest.approx(alone.elbo_, rel=1e-6)
