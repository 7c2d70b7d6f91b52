"""Fits on Ray's workers, which is an extra: `pip install 'orthogp[ray]'`."""

import copy
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import ray
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer, get_device
except ImportError as error:
    raise ImportError(
        "orthogp.ray needs Ray Train and Ray Data: pip install 'orthogp[ray]'"
    ) from error

import numpy as np
import pyarrow as pa
import torch

from orthogp.errors import DataError, OrthogpError, TeamError
from orthogp.estimators import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.execution.team import PATIENCE, current_team
from orthogp.sources import RowBlock, Shards, Source
from orthogp.sources.blocks import OUTLINED_ROWS

Estimator = OrthogonalGPRegressor | OrthogonalGPClassifier
MODEL, TRAINING = "model.orthogp", "orthogp-training"
# Tensors on the host need not wait for the GPU.
GPU_BACKEND = "cpu:gloo,cuda:nccl"


@dataclass(frozen=True)
class RayResult:
    """What a fit on Ray left behind: a checkpoint that holds the model, and a few figures."""

    checkpoint: ray.train.Checkpoint
    metrics: dict[str, Any]
    path: str
    kind: type[Estimator]

    def load(self, device: str | None = None) -> Estimator:
        """The fitted estimator."""
        with self.checkpoint.as_directory() as folder:
            return self.kind.load(Path(folder) / MODEL, device=device)


def fit(
    dataset: "ray.data.Dataset",
    target: str | Sequence[str],
    scaling_config: ray.train.ScalingConfig,
    *,
    estimator: Estimator | None = None,
    weight: str | None = None,
    run_config: ray.train.RunConfig | None = None,
    timeout: float = PATIENCE.total_seconds(),
) -> RayResult:
    """Fits an estimator to a Ray dataset, each worker with some of its blocks as a shard.

    `target` is the column to predict, or several of them, and `weight` one of row weights; all
    others are inputs. `estimator` is one that is not fitted, by default a regressor. A worker that
    waits longer than `timeout` seconds for another gives up. Where workers fail and the
    `failure_config` of `run_config` allows it, Ray starts them again, and they go on from the last
    checkpoint in the estimator's `checkpoint_dir`: by default a folder of the run's storage path,
    if that is a path that all workers see.
    """
    estimator = OrthogonalGPRegressor() if estimator is None else estimator
    blocks = _blocks(dataset)
    job = {
        "estimator": _with_checkpoints(estimator, run_config),
        "blocks": blocks,
        "target": target,
        "weight": weight,
    }
    backend = GPU_BACKEND if scaling_config.use_gpu else "gloo"
    trainer = TorchTrainer(
        _train,
        train_loop_config=job,
        torch_config=TorchConfig(backend=backend, timeout_s=int(timeout)),
        scaling_config=scaling_config,
        run_config=run_config,
    )
    try:
        result = trainer.fit()
    except ray.train.TrainingFailedError as error:
        raise _reason(error) from error
    assert result.checkpoint is not None
    return RayResult(result.checkpoint, result.metrics or {}, result.path, type(estimator))


def _train(job: dict[str, Any]) -> None:
    """What every worker does; the first one reports the model."""
    team, estimator, device = current_team(), job["estimator"], get_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    own = job["blocks"][team.share(len(job["blocks"]))]
    shards = Shards(_BlockTable(own, job["target"], job["weight"]))
    estimator.fit(shards)
    metrics = {"elbo": estimator.elbo_, "steps": estimator.n_iter_, "rows": len(shards)}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if team.leads:
            estimator.save(Path(folder) / MODEL)
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)


class _BlockTable(Source):
    """Blocks of a dataset in Ray's object store, each read when it is needed."""

    def __init__(self, blocks: list[Any], target: str | Sequence[str], weight: str | None):
        self.blocks, self.target, self.weight = blocks, target, weight
        self.targets = [target] if isinstance(target, str) else list(target)
        self.sizes = tuple(_table(block).num_rows for block in blocks)

    def read(self, number: int) -> RowBlock:
        table, weight = _table(self.blocks[number]), self.weight
        others = [*self.targets, *([] if weight is None else [weight])]
        absent = [name for name in others if name not in table.column_names]
        if absent:
            have = ", ".join(table.column_names)
            raise DataError(f"the dataset has no column {', '.join(absent)}; it has {have}")
        y = [table[name].to_numpy() for name in self.targets]
        return RowBlock(
            table.drop_columns(others),
            y[0] if isinstance(self.target, str) else np.stack(y, axis=1),
            None if weight is None else table[weight].to_numpy(),
        )

    def place(self, number: int) -> str:
        return f"block {number} of its part of the dataset"

    def outline(self) -> Iterator[bytes]:
        for block in self.blocks:
            table = _table(block)
            some = np.arange(0, table.num_rows, max(1, table.num_rows // OUTLINED_ROWS))
            yield str((table.shape, table.take(some).to_pydict())).encode()


def _table(block: Any) -> pa.Table:
    found: Any = ray.get(block)
    return found


def _blocks(dataset: "ray.data.Dataset") -> list[Any]:
    """References to the blocks of a dataset as Arrow tables, in the order of its rows."""
    ordered = dataset.copy(dataset)
    options = copy.deepcopy(ordered.context.execution_options)
    # A job that is started again must find the same rows to go on from its checkpoint.
    options.preserve_order = True
    ordered.context.execution_options = options
    return ordered.to_arrow_refs()


def _with_checkpoints(estimator: Estimator, run_config: ray.train.RunConfig | None) -> Estimator:
    """A copy that writes checkpoints where the run keeps its files, if the workers see that."""
    found = copy.deepcopy(estimator)
    storage = None if run_config is None else run_config.storage_path
    if found.checkpoint_dir is None and storage is not None and "://" not in str(storage):
        assert run_config is not None
        found.checkpoint_dir = str(Path(storage) / (run_config.name or "") / TRAINING)
    return found


def _reason(error: Exception) -> OrthogpError:
    """The first error of orthogp among those of the workers; of several that of data first."""
    failures = [f for _, f in sorted(getattr(error, "worker_failures", {}).items())]
    found = [f for f in failures if isinstance(f, OrthogpError)]
    own = [f for f in found if not isinstance(f, TeamError)]
    if own or found:
        return (own or found)[0]
    lines = [str(failure).strip().split("\n")[-1] for failure in failures] or [str(error)]
    return TeamError(f"the fit on Ray failed: {lines[0]:.300}")
