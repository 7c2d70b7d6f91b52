"""The grid of an experiment: which jobs there are, and many of them at a time."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from orthogp.apps import usable_cores
from orthogp.apps.paper.datasets import available
from orthogp.apps.paper.experiments import chosen_methods, find_experiment
from orthogp.apps.paper.job import Place, finished, perform
from orthogp.apps.paper.records import Job, Record, provenance, write_record
from orthogp.errors import ConfigurationError

ReportJob = Callable[[Job, Record | None], None]
# A job and the task of its data set.
Item = tuple[Job, str]


def grid(
    name: str,
    data_dir: Path,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    splits: int = 1,
) -> list[Item]:
    """The jobs of an experiment on the data sets that are there, split after split."""
    experiment = find_experiment(name)
    wanted = chosen_methods(experiment, methods)
    if splits < 1:
        raise ConfigurationError(f"splits is {splits}; expected at least one")
    sets_of_task = {task: available(data_dir, task) for task in experiment.methods}
    all_sets = [dataset for names in sets_of_task.values() for dataset in names]
    unknown = [dataset for dataset in datasets or () if dataset not in all_sets]
    if unknown or not all_sets:
        have = ", ".join(all_sets) or "none"
        missing = ", ".join(unknown) or "any data set"
        raise ConfigurationError(f"{data_dir} does not have {missing} for {name}; it has {have}")
    items = []
    for split in range(splits):
        for task, its_methods in experiment.methods.items():
            chosen = experiment.choose(task, sets_of_task[task])
            if datasets is not None:
                chosen = [d for d in datasets if d in sets_of_task[task]]
            for dataset in chosen:
                items += [
                    (Job(name, dataset, method, split), task)
                    for method in wanted
                    if method in its_methods
                ]
    return items


def run_jobs(items: Iterable[Item], place: Place, workers: int, report: ReportJob) -> None:
    """Runs what is not finished yet, `workers` jobs at a time, and reports each when it ends."""
    todo = []
    for job, task in items:
        record = finished(job, place)
        if record is None:
            todo.append((job, task))
        else:
            report(job, record)
    if workers == 1:
        for job, task in todo:
            report(job, perform(job, task, place))
        return
    with shared_gpu(place.device), contextlib.ExitStack() as stack:
        pool = WorkerPool(place, workers, stack)
        threads = stack.enter_context(ThreadPoolExecutor(workers))
        waiting = {threads.submit(pool.perform, job, task): job for job, task in todo}
        try:
            for future in as_completed(waiting):
                report(waiting[future], future.result())
        except BaseException:
            # Jobs that have not begun; those that run leave a checkpoint when interrupted.
            threads.shutdown(wait=False, cancel_futures=True)
            raise


class WorkerPool:
    """One process for each thread of the caller, replaced when it dies."""

    def __init__(self, place: Place, workers: int, stack: contextlib.ExitStack):
        self.place, self.stack = place, stack
        self.threads = max(1, usable_cores() // workers)
        self.local = threading.local()

    def perform(self, job: Job, task: str) -> Record | None:
        if getattr(self.local, "process", None) is None:
            self.local.process = self._start_process()
        try:
            return self.local.process.submit(_work, job, task, self.place).result()
        except BrokenProcessPool:
            self.local.process = None
            reason = "its process was killed, by the system or for want of memory"
            record = Record(job, "failed", reason, **provenance(self.place.device))
            write_record(record, self.place.out)
            return record

    def _start_process(self) -> ProcessPoolExecutor:
        spawn = multiprocessing.get_context("spawn")
        process = ProcessPoolExecutor(1, spawn, _start_worker, (self.threads,))
        self.stack.callback(process.shutdown, wait=False, cancel_futures=True)
        return process


# Whether this process is a worker that runs a job.
_running_job = False


def _start_worker(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: object) -> None:
    """A job that is interrupted leaves a checkpoint; an idle worker ends silently."""
    if _running_job:
        raise KeyboardInterrupt
    os._exit(130)


def _work(job: Job, task: str, place: Place) -> Record | None:
    global _running_job
    _running_job = True
    try:
        return perform(job, task, place)
    finally:
        _running_job = False


@contextlib.contextmanager
def shared_gpu(device: str) -> Iterator[None]:
    """Lets processes run on a CUDA device at the same time where NVIDIA's MPS is installed.

    Without it they take turns. A server that the user runs is left as it is.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if not device.startswith("cuda") or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="orthogp-mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(own)
        try:
            subprocess.run([control, "-d"], check=False, capture_output=True)
            yield
            subprocess.run([control], input=b"quit\n", check=False, capture_output=True)
        finally:
            for name in own:
                os.environ.pop(name, None)
