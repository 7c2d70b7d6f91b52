"""Joining the process group that torchrun, or the same variables from elsewhere, describes.

Only the first process prints; where one fails, one message says why and the job ends.
"""

import contextlib
import hashlib
import os
import secrets
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from orthogp.errors import ConfigurationError, OrthogpError
from orthogp.estimators.setting_checks import torch_device
from orthogp.execution.team import PATIENCE, Team, current_team

GROUP_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
POLLING = 0.01
REFUSED, INTERRUPTED = 2, 130


@contextlib.contextmanager
def process_group(device: str | None, patience: timedelta = PATIENCE) -> Iterator[Team]:
    """The team of the block; a team of one where nothing describes a group.

    A group that this process is in already is taken as it is. The block ends for everyone when it
    has ended for all. Those that do not lead print nothing. `device` is the estimators' setting.
    """
    if dist.is_initialized() or not is_described(os.environ):
        yield current_team()
        return
    store, rank, size = _rendezvous(patience)
    try:
        _join(torch_device(device), store, rank, size, patience)
        team = current_team()
        with _exit_on_interrupt(team), _silent_unless(team.leads), warning_once(team, store):
            yield team
            # One that leaves early would take the store that the others still talk to with it.
            team.wait()
    except OrthogpError as error:
        if not first_to_fail(store):
            raise SystemExit(REFUSED) from error
        raise
    dist.destroy_process_group()


def is_described(environment: Mapping[str, str]) -> bool:
    return all(name in environment for name in GROUP_VARIABLES)


def take_gpu_in_turn() -> None:
    """Makes the current GPU that of the local rank, counted round the GPUs of the machine."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def own_gpu(device: torch.device, environment: Mapping[str, str], num_gpus: int) -> torch.device:
    """The GPU of this process, one of the `num_gpus` of its machine: that of its local rank."""
    rank = int(environment.get("LOCAL_RANK", environment["RANK"]))
    if device.index is not None and int(environment["WORLD_SIZE"]) > 1:
        raise ConfigurationError(
            f"the device is {device}, and every process takes a GPU of its own; pass cuda"
        )
    if rank >= num_gpus:
        raise ConfigurationError(
            f"process {rank} of this machine has no GPU of its own: torch finds {num_gpus}; start "
            "at most so many processes on it, or use the device cpu"
        )
    return torch.device("cuda", rank)


def _rendezvous(patience: timedelta) -> tuple[Any, int, int]:
    """A store of this attempt's own, this process's number in it, and how many there are."""
    with _joining():
        store, rank, size = next(rendezvous("env://", timeout=patience))
        return PrefixStore(fresh_name(store, rank, size, patience), store), rank, size


def fresh_name(store: Any, rank: int, size: int, patience: timedelta) -> str:
    """A name that the processes of this attempt alone know, the same in all of them.

    torchrun keeps the store when it restarts a job, with the addresses of the dead still in it, and
    its count of restarts is not the same on every machine. So each process writes a random token
    and takes the name that the first process wrote in answer to that token.
    """
    token, deadline = secrets.token_hex(8), time.monotonic() + patience.total_seconds()
    hello, answer, heard = "orthogp/hello/{}", "orthogp/answer/{}", "orthogp/heard/{}"
    missing = set(range(1, size)) if rank == 0 else {rank}
    if rank:
        store.set(hello.format(rank), token)
    while missing:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(missing)} of {size} processes did not answer")
        for other in sorted(missing):
            if rank:
                answered, _, name = _read_key(store, answer.format(rank)).partition(" ")
                if answered == token:
                    store.set(heard.format(rank), name)
                    return name
            elif _read_key(store, heard.format(other)) == token:
                missing.discard(other)
            elif new := _read_key(store, hello.format(other)):
                store.set(answer.format(other), f"{new} {token}")
        time.sleep(POLLING)
    return token


def _read_key(store: Any, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def _join(device: torch.device, store: Any, rank: int, size: int, patience: timedelta) -> None:
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(own_gpu(device, os.environ, torch.cuda.device_count()))
        # Tensors on the host need not wait for the GPU.
        backend = "cpu:gloo,cuda:nccl"
    with _joining():
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)


@contextlib.contextmanager
def _joining() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise ConfigurationError(
            f"the process group that {', '.join(GROUP_VARIABLES)} describe could not be joined "
            f"({first_line:.200}); start with torchrun, or clear these variables to run alone"
        ) from error


def first_to_fail(store: Any) -> bool:
    """Whether no other process has failed before: later failures follow from the first."""
    return _first(store, "orthogp/failed")


def _first(store: Any, key: str) -> bool:
    """Whether this process is the first to ask for the key."""
    try:
        return store.add(key, 1) == 1
    except RuntimeError:
        # The process that held the store is gone: a message given twice is better than none.
        return True


@contextlib.contextmanager
def _silent_unless(prints: bool) -> Iterator[None]:
    if prints:
        yield
        return
    with open(os.devnull, "w") as devnull, contextlib.redirect_stdout(devnull):
        yield


@contextlib.contextmanager
def warning_once(team: Team, store: Any) -> Iterator[None]:
    """Of a warning that several processes give, the first alone is shown, and by whom."""
    show = warnings.showwarning

    def show_first(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        digest = hashlib.sha256(f"{category.__name__} {message}".encode()).hexdigest()
        if not _first(store, f"orthogp/warned/{digest}"):
            return
        if not team.leads:
            message = f"process {team.rank} of {team.size}: {message}"
        show(message, category, *rest)

    with warnings.catch_warnings():
        warnings.showwarning = show_first
        yield


@contextlib.contextmanager
def _exit_on_interrupt(team: Team) -> Iterator[None]:
    """An interrupt ends a process among several at once: none may go on without the others."""
    if team.size == 1:
        yield
        return

    def leave(*_: object) -> None:
        if team.leads:
            print(
                "orthogp: interrupted; checkpoints and finished files stay, and the same command "
                "goes on from them",
                file=sys.stderr,
                flush=True,
            )
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
