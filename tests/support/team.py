"""Runs in several processes on loopback, and what each of them ends with.

All are forked from one process that has imported orthogp, which takes seconds, before the first.
"""

import multiprocessing
import os
import sys
import tempfile
from functools import cache
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist


@cache
def fork_context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["team", "team_jobs"])
    path = os.pathsep.join(filter(None, sys.path))
    with mock.patch.dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    return context


def work(rank: int, size: int, store: str, job: str, folder: Path, arguments: tuple[str, ...]):
    """One process: joins the group, runs `team_jobs.job(*arguments)` and stores what it returns."""
    with open(folder / f"stderr-{rank}", "w") as file:
        os.dup2(file.fileno(), 2)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    torch.set_num_threads(1)
    import team_jobs

    # By a file: a port that is free now may be another's when it is needed.
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    torch.save(getattr(team_jobs, job)(*arguments), folder / f"rank-{rank}.pt")
    # One that leaves early would take the store that the others still talk to with it.
    dist.barrier()
    dist.destroy_process_group()


def start(size: int, job: str, folder: Path, *arguments: str) -> list[BaseProcess]:
    """`team_jobs.job(*arguments)` in `size` processes of one gloo group."""
    folder.mkdir(parents=True, exist_ok=True)
    store = (Path(tempfile.mkdtemp()) / "store").as_uri()
    given = (size, store, job, folder, arguments)
    processes = [fork_context().Process(target=work, args=(rank, *given)) for rank in range(size)]
    for process in processes:
        process.start()
    return processes


def together(size: int, job: str, folder: Path, *arguments: str) -> list[Any]:
    """What each process of `start` returned."""
    for rank, process in enumerate(start(size, job, folder, *arguments)):
        process.join(timeout=300)
        assert process.exitcode == 0, (folder / f"stderr-{rank}").read_text()
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(size)]
