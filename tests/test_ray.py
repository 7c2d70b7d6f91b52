"""Fits on a local Ray of two workers."""

import os
import secrets
import sys

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("ray.train", reason="needs the extra `ray`")

import ray
import ray.data
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.exceptions import WorkerGroupError

import orthogp.ray
from interrupted_engine import KillOnce
from orthogp import OrthogonalGPRegressor
from orthogp.errors import DataError, TeamError
from shard_fits import STEPS, frame


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    # Ray would make a token for its local cluster in the home folder.
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    # Where Ray misses that a worker was killed, it waits this long before it starts the workers
    # again, by default ten minutes.
    monkeypatch.setenv("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", "60")
    path = os.pathsep.join(filter(None, sys.path))
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.mark.torture
@pytest.mark.usefixtures("cluster")
def test_a_fit_on_ray_is_that_of_one_process_though_a_worker_is_killed(tmp_path):
    table = frame().drop(columns="label")
    # Of three blocks one worker has two.
    parts = [table[:150], table[150:300], table[300:]]
    dataset = ray.data.from_arrow([pa.Table.from_pandas(part) for part in parts])
    settings = STEPS | {"max_steps": 150}
    result = orthogp.ray.fit(
        dataset, "y", ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        estimator=OrthogonalGPRegressor(**settings, callbacks=[KillOnce(tmp_path)]),
        weight="weight",
        run_config=RunConfig(
            storage_path=str(tmp_path), name="run", failure_config=FailureConfig(max_failures=1)
        ),
    )  # fmt: skip
    first, second = (tmp_path / "started").read_text().split()
    assert first == "0"
    assert int(second) >= 50
    found, X = result.load(device="cpu"), table.drop(columns=["y", "weight"])
    alone = OrthogonalGPRegressor(**settings).fit(X, table.y, table.weight)
    np.testing.assert_allclose(found.predict(X), alone.predict(X), rtol=1e-5, atol=2e-5)
    assert result.metrics["rows"] == len(table)
    assert result.metrics["elbo"] == pytest.approx(alone.elbo_, rel=1e-6)


def test_an_error_of_a_worker_is_that_of_the_fit():
    lost, refused = TeamError("lost contact"), DataError("X has 1 values that are infinite")
    assert orthogp.ray._reason(WorkerGroupError("", {0: lost, 1: refused})) is refused
    assert orthogp.ray._reason(WorkerGroupError("", {0: lost})) is lost
    found = orthogp.ray._reason(WorkerGroupError("", {1: RuntimeError("first\nno disk is left")}))
    assert str(found) == "the fit on Ray failed: no disk is left"
