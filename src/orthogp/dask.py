"""Fits on Dask's workers, which is an extra: `pip install 'orthogp[dask]'`."""

import os
import tempfile
import time
import uuid
from collections.abc import Sequence
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

try:
    import dask.array
    import dask.dataframe
    import distributed
    from dask.delayed import delayed
except ImportError as error:
    raise ImportError(
        "orthogp.dask needs Dask's dataframe and distributed: pip install 'orthogp[dask]'"
    ) from error

import numpy as np
import torch.distributed as dist

from orthogp.errors import ConfigurationError, DataError, OrthogpError, TeamError
from orthogp.estimators import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.estimators.setting_checks import torch_device
from orthogp.execution.team import PATIENCE, Team, joined_group

Estimator = OrthogonalGPRegressor | OrthogonalGPClassifier
POLLING = 0.2
# Stores that wait in this process for the fit that was announced to them.
_stores: dict[str, Any] = {}


def fit(
    X: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    estimator: Estimator | None = None,
    client: Any = None,
    timeout: float = PATIENCE.total_seconds(),
) -> Estimator:
    """Fits an estimator to a Dask table, each worker with some of its partitions as a shard.

    X is a Dask DataFrame, and y the name of its column to predict, a list of names, or a Series
    with as many partitions; or both are Dask arrays. `sample_weight` is given as y is. `estimator`
    is one that is not fitted, by default a regressor; the fitted one that is returned is another.
    `client` is by default the current one. A worker that waits longer than `timeout` seconds for
    another gives up. Where a worker is lost the fit ends with an error, and a second call goes on
    from the last checkpoint in the estimator's `checkpoint_dir`, a folder that all workers see.
    """
    client = distributed.get_client() if client is None else client
    estimator = OrthogonalGPRegressor() if estimator is None else estimator
    parts = [client.compute(part) for part in _partitions(X, y, sample_weight)]
    # A worker that waits for another must not have that one's partition to compute.
    distributed.wait(parts)
    workers = _workers(client)[: len(parts)]
    token, size = uuid.uuid4().hex, len(workers)
    address = client.submit(_open_store, token, workers=workers[:1], pure=False).result()
    jobs = [
        client.submit(
            _fit_shard, parts[Team(rank, size).share(len(parts))], estimator, token, address,
            rank, size, timeout, workers=[worker], pure=False, retries=0,
        )
        for rank, worker in enumerate(workers)
    ]  # fmt: skip
    try:
        _wait(client, jobs, workers)
        saved: Any = jobs[0].result()
    finally:
        client.cancel(jobs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.orthogp"
        path.write_bytes(saved)
        return type(estimator).load(path)


def _partitions(X: Any, y: Any, sample_weight: Any) -> list[Any]:
    """Delayed triples of inputs, targets and weights, in the order of the rows."""
    if isinstance(X, dask.array.Array):
        rows: tuple[int, ...] = X.chunks[0]
        given = [None if p is None else _rechunked(p, rows) for p in (X, y, sample_weight)]
        parts = [[None] * len(rows) if p is None else p.to_delayed().ravel() for p in given]
    elif isinstance(X, dask.dataframe.DataFrame):
        names = [_names(part) for part in (y, sample_weight)]
        inputs = X.drop(columns=[name for part in names for name in part])
        given = [inputs, *(X[p] if names[k] else p for k, p in enumerate((y, sample_weight)))]
        parts = [[None] * X.npartitions if part is None else part.to_delayed() for part in given]
    else:
        raise DataError(
            f"X is of type {type(X).__name__}; expected a Dask DataFrame or a Dask array"
        )
    counts = [len(part) for part in parts]
    if len(set(counts)) > 1:
        raise DataError(
            f"X, y and sample_weight have {counts} partitions; expected as many of each, with the "
            "same rows"
        )
    return [delayed(tuple)(part) for part in zip(*parts, strict=True)]


def _rechunked(part: Any, rows: tuple[int, ...]) -> Any:
    """In chunks of so many rows, each with all columns."""
    if not isinstance(part, dask.array.Array):
        raise DataError(f"X is a Dask array and y is {type(part).__name__}; expected one as well")
    chunks: Any = (rows, -1)[: part.ndim]
    return part.rechunk(chunks)


def _names(part: Any) -> list[str]:
    """The columns that y or sample_weight names; none where it has values."""
    if isinstance(part, str):
        return [part]
    return list(part) if isinstance(part, Sequence) else []


def _workers(client: Any) -> list[str]:
    """The addresses of workers, each of which must be a process of its own."""
    found = client.run(os.getpid)
    if not found:
        raise ConfigurationError("the Dask cluster has no workers; start some")
    if len({(urlsplit(address).hostname, pid) for address, pid in found.items()}) < len(found):
        raise ConfigurationError(
            "several Dask workers share a process, which can be in one process group alone; start "
            "the cluster with processes=True"
        )
    return sorted(found)


def _open_store(token: str) -> tuple[str, int]:
    """Opens what the workers of a fit meet at, in the worker where it is called."""
    host = urlsplit(distributed.get_worker().address).hostname or "localhost"
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # pyright: ignore
    _stores[token] = store
    return host, store.port


def _fit_shard(
    parts: list[Any],
    estimator: Estimator,
    token: str,
    address: tuple[str, int],
    rank: int,
    size: int,
    timeout: float,
) -> bytes | None:
    """What each worker does; the first one returns the file of the model."""
    patience = timedelta(seconds=timeout)
    if dist.is_initialized():
        raise ConfigurationError("this Dask worker has another fit under way; wait for its end")
    store = _stores.pop(token, None)
    if store is None:
        store = dist.TCPStore(*address, is_master=False, timeout=patience)  # pyright: ignore
    device = torch_device(estimator.device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    # A worker may run the same object for another client.
    estimator = deepcopy(estimator)
    with joined_group(store, rank, size, backend, patience) as team:
        estimator.fit(*_joined(parts), shards=True)
        if not team.leads:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.orthogp"
            estimator.save(path)
            return path.read_bytes()


def _joined(parts: list[Any]) -> tuple[Any, Any, Any]:
    """The partitions of a worker as one table, with its targets and weights."""
    found = []
    for pieces in zip(*parts, strict=True):
        if pieces[0] is None:
            found.append(None)
        elif isinstance(pieces[0], np.ndarray):
            found.append(np.concatenate(pieces))
        else:
            import pandas as pd

            found.append(pd.concat(pieces, ignore_index=True))
    return tuple(found)  # pyright: ignore


def _wait(client: Any, jobs: list[Any], workers: list[str]) -> None:
    """Returns when all jobs have ended; an error of one, or a worker that is gone, ends it."""
    while not all(job.done() for job in jobs) or any(job.status == "error" for job in jobs):
        failures = [job.exception() for job in jobs if job.status == "error"]
        if failures:
            raise min(failures, key=_priority)
        lost = set(workers) - set(client.nthreads())
        if lost:
            raise TeamError(
                f"the Dask worker {min(lost)} is gone; call fit again with the same checkpoint_dir "
                "to go on from the last checkpoint"
            )
        time.sleep(POLLING)


def _priority(failure: Exception) -> int:
    """Where several workers fail, those that lost contact follow from another."""
    return 2 if isinstance(failure, TeamError) else 1 if isinstance(failure, OrthogpError) else 0
