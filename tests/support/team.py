"""Runs in several processes on loopback, and what each of them ends with."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

WORKER = """
import os, sys
from pathlib import Path
import torch, torch.distributed as dist
sys.path.insert(0, {support!r})
torch.set_num_threads(1)
import team_jobs
rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
# By a file: a port that is free now may be another's when it is needed.
dist.init_process_group("gloo", init_method={store!r}, rank=rank, world_size=size)
result = getattr(team_jobs, sys.argv[1])(*sys.argv[3:])
torch.save(result, Path(sys.argv[2]) / f"rank-{{dist.get_rank()}}.pt")
# One that leaves early would take the store that the others still talk to with it.
dist.barrier()
dist.destroy_process_group()
"""


def start(size: int, job: str, folder: Path, *arguments: str) -> list[subprocess.Popen]:
    """`team_jobs.job(*arguments)` in `size` processes of one gloo group."""
    store = Path(tempfile.mkdtemp()) / "store"
    code = WORKER.format(support=str(Path(__file__).parent), store=store.as_uri())
    shared = os.environ | {
        "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, job, str(folder), *arguments],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def together(size: int, job: str, folder: Path, *arguments: str) -> list[Any]:
    """What each process of `start` returned."""
    folder.mkdir(parents=True, exist_ok=True)
    for process in start(size, job, folder, *arguments):
        said = process.communicate(timeout=300)[1]
        assert process.returncode == 0, said
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(size)]
