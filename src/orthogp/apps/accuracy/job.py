"""One fit of one model on one split of a data set, timed and measured."""

import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from orthogp.apps.accuracy.metrics import INTERVAL_LEVELS, predictive_metrics
from orthogp.apps.accuracy.models import MODELS, Model
from orthogp.apps.accuracy.models.contract import Problem
from orthogp.apps.accuracy.predictive import ClassProbabilities
from orthogp.apps.bench.worker import MIB, memory, reset_peak
from orthogp.apps.paper.datasets import TASKS, DataSet, Split, available
from orthogp.apps.paper.job import Place
from orthogp.apps.paper.metrics import classification_metrics
from orthogp.apps.paper.own import FitResult
from orthogp.apps.paper.records import Job
from orthogp.errors import ConfigurationError

EXPERIMENTS = {task: f"accuracy-{task}" for task in TASKS}
# After the name of a model, where it ran there: the times of two devices are two results.
ON_CUDA = "-cuda"
# Between the name of a model and the number of rows, where it was fitted to some of them only.
ROWS_MARK = "@"


def accuracy_jobs(
    data_dir: Path,
    models: dict[str, Model],
    datasets: Sequence[str] | None = None,
    splits: int = 1,
    device: str = "cpu",
) -> list[tuple[Job, str]]:
    """The jobs of these models on the data sets that are there, with the tasks of these."""
    if splits < 1:
        raise ConfigurationError(f"splits is {splits}; expected at least one")
    there = [(task, name) for task in TASKS for name in available(data_dir, task)]
    names = [name for _, name in there]
    unknown = [name for name in datasets or () if name not in names]
    if unknown or not there:
        raise ConfigurationError(
            f"{data_dir} does not have {', '.join(unknown) or 'any data set'}; "
            f"it has {', '.join(names) or 'none'}"
        )
    return [
        (Job(EXPERIMENTS[task], dataset, method_name(name, model, device), split), task)
        for split in range(splits)
        for task, dataset in there
        if datasets is None or dataset in datasets
        for name, model in models.items()
        if task in model.tasks
    ]


def method_name(name: str, model: Model, device: str) -> str:
    """A model's name in its records."""
    return name + ON_CUDA if model.uses_device and device.startswith("cuda") else name


def base_name(method: str) -> str:
    """The model of a record, whatever it ran on and how many rows it had."""
    return method.partition(ROWS_MARK)[0].removesuffix(ON_CUDA)


def training_rows(job: Job, parts: Split) -> tuple[np.ndarray, np.ndarray]:
    """All of the split's, or as many as the method's name says."""
    _, _, count = job.method.partition(ROWS_MARK)
    if not count:
        return parts.x_train, parts.y_train
    chosen = np.random.default_rng(job.split).permutation(len(parts.y_train))[: int(count)]
    return parts.x_train[chosen], parts.y_train[chosen]


def run_model(job: Job, table: DataSet, parts: Split, place: Place, folder: Path) -> FitResult:
    """Fits a model and measures it; what `Place.run` asks for.

    No checkpoint is left in the folder: the seconds of a fit are those of one that was not
    interrupted. Prediction is timed for mean and 90 % interval, or for probabilities, of all test
    rows.
    """
    model = MODELS[base_name(job.method)]
    device = place.device if model.uses_device else "cpu"
    threads = torch.get_num_threads()
    x, y = training_rows(job, parts)
    problem = Problem(x, y, table.num_classes, job.split, device, threads)
    cuda = device.startswith("cuda")
    reset_peak()
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    with warnings.catch_warnings():
        # Peers warn about their own and each other's versions.
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        fitted = model.fit(problem)
        fitted_at = time.perf_counter()
        found = fitted.predict(parts.x_test)
        if not isinstance(found, ClassProbabilities):
            found.quantiles(INTERVAL_LEVELS)
        end = time.perf_counter()
        if isinstance(found, ClassProbabilities):
            metrics = classification_metrics(parts.y_test, found.classes, found.probabilities)
        else:
            metrics = predictive_metrics(found, parts.y_test.astype(np.float64))
    costs = {"fit_seconds": fitted_at - start, "predict_seconds": end - fitted_at}
    peak = memory("VmHWM")
    if peak is not None:
        costs["peak_mib"] = peak / MIB
    if cuda:
        costs["cuda_peak_mib"] = torch.cuda.max_memory_allocated(device) / MIB
    settings = {"model": model.title, "device": device, "seed": job.split, "threads": threads}
    return FitResult(
        settings | fitted.settings, metrics, costs, seconds=fitted_at - start
    )  # fmt: skip
