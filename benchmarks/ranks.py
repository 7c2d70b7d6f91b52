"""A step by one and by two processes on loopback, beside the model of docs/scaling-measured.md.

    OMP_NUM_THREADS=1 python benchmarks/ranks.py [--sizes 300:700,300:7000] [--repeats 40]
    BATCH=8192 OMP_NUM_THREADS=1 python benchmarks/ranks.py   # for a larger batch than 1024
    python benchmarks/ranks.py --model

The first measures here, with gloo: the all-reduce of a small and of a large message, the step with
its messages and without them, and the M³ work beside a broadcast of its result. Times are the
smallest of the repeats. The second prints the extrapolation to GPUs, which measures nothing.
"""

import argparse
import math
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from rank_model import BATCH, INPUTS, Network, Work, report
from torch import Tensor

from orthogp.execution.team import Team, current_team
from orthogp.likelihoods import Gaussian
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.training import TrainingConfig
from orthogp.training.sharing import deal, make_shards
from orthogp.training.step import Step

SMALL, LARGE = 1, 2**20
# Of the environment, so that the processes that are started have it too.
STEP_ROWS = int(os.environ.get("BATCH", BATCH))
HEADING = (
    "| work | γ | step, ms | without messages | modelled | messages | largest, ms | modelled |\n"
    "|---|---|---|---|---|---|---|---|"
)
ROWS, STEPS = 100_000, 2


def make_step(inducing: int, residual: int, sharded: bool, team: Team) -> Step:
    """A step whose batch is this process's share of `STEP_ROWS` rows of 8 inputs."""
    rng = torch.Generator().manual_seed(0)
    beta, gamma, x = (
        torch.randn(n, INPUTS, generator=rng) for n in (inducing, residual, STEP_ROWS)
    )
    kernel = default_kernel(INPUTS)
    basis = build_basis("orthogonal", kernel, beta, gamma, 1)
    model = VariationalGP(kernel, Gaussian(1), basis)
    config = TrainingConfig(shard_residual=sharded)
    columns, shards = config.columns(residual), make_shards(basis, config, team, STEP_ROWS, False)
    if shards is not None:
        deal(basis, shards)
        own = team.share(shards.num_columns)
        columns = own.stop - own.start
    own_rows = team.share(STEP_ROWS)
    batch = [x[own_rows], torch.sin(x.sum(1))[own_rows]]
    step = Step(model, config, ROWS, batch, columns, team, STEP_ROWS)
    step.rates.copy_(torch.tensor([1e-4, 1e-3, 1e-4]))
    step.refresh()
    return step


def quickest(*actions: Callable[[], object], repeats: int, times: int = STEPS) -> list[float]:
    """Seconds of each action, all processes at the same time; the smallest of the repeats.

    They take turns, so that what else runs here disturbs all of them alike.
    """
    found = [math.inf] * len(actions)
    for _ in range(repeats):
        for k, action in enumerate(actions):
            if dist.is_initialized():
                dist.barrier()
            start = time.perf_counter()
            for _ in range(times):
                action()
            found[k] = min(found[k], (time.perf_counter() - start) / times)
    return found


def messages_of(step: Step) -> list[int]:
    """Bytes of every all-reduce of one step."""
    found, real = [], dist.all_reduce

    def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        found.append(tensor.numel() * tensor.element_size())
        return real(tensor, *args, **kwargs)

    dist.all_reduce = counted
    try:
        step()
    finally:
        dist.all_reduce = real
    return found


def silent(step: Step) -> Callable[[], None]:
    """The step without messages: wrong sums, but the same work."""

    def run() -> None:
        real = dist.all_reduce
        dist.all_reduce = lambda *_, **__: None
        try:
            step()
        finally:
            dist.all_reduce = real

    return run


def cubic_work(step: Step) -> None:
    """The factorisation of K_β and the natural step, which do not depend on the rows."""
    model, natural = step.model, step.natural
    assert natural is not None
    factor = model.basis.factor(model.covariance, model.jitter, False)
    q = natural.whitened(factor)
    natural.step(factor, q, torch.zeros_like(q.v), torch.zeros_like(q.S), step.rates[1], False)


def measure(rank: int, port: int, sizes: list[tuple[int, int]], repeats: int, lines) -> None:
    """One of two processes; the first tells."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    network = loopback(repeats)
    speed = f"{1e6 * network.latency:.0f} µs and {network.bandwidth / 1e9:.2f} GB/s"
    found = [f"torch {torch.__version__}; all-reduce of two processes: {speed}", HEADING]
    for inducing, residual in sizes:
        for sharded in (False, True):
            found.append(measured_step(inducing, residual, sharded, network, repeats))
    found += [cubic(inducing, repeats) for inducing in sorted({m for m, _ in sizes})]
    if rank == 0:
        lines.put(found)
    dist.barrier()
    dist.destroy_process_group()


def loopback(repeats: int) -> Network:
    """Latency and bandwidth of an all-reduce, from a small and a large one."""
    small, large = (torch.zeros(n, dtype=torch.float64) for n in (SMALL, LARGE))
    latency, seconds = quickest(
        lambda: dist.all_reduce(small), lambda: dist.all_reduce(large), repeats=repeats, times=10
    )
    # With two processes each sends half of the bytes twice.
    return Network(8 * LARGE / (seconds - latency), latency)


def measured_step(
    inducing: int, residual: int, sharded: bool, network: Network, repeats: int
) -> str:
    team = current_team()
    step = make_step(inducing, residual, sharded, team)
    step()
    work = Work(inducing, residual, 2, sharded, batch=STEP_ROWS)
    expected, counted = work.messages, messages_of(step)
    assert sorted(expected) == sorted(counted), (expected, counted)
    flat = torch.zeros(max(counted) // 8, dtype=torch.float64)
    mute = silent(make_step(inducing, residual, sharded, team))
    together, compute, message = quickest(
        step, mute, lambda: dist.all_reduce(flat), repeats=repeats
    )
    modelled = sum(network.all_reduce(size, 2) for size in counted)
    cells = [
        f"{inducing} / {residual}",
        "in parts" if sharded else "whole",
        f"{1e3 * together:.1f}",
        f"{1e3 * compute:.1f}",
        f"{1e3 * (compute + modelled):.1f}",
        f"{len(counted)}, {sum(counted) / 1e6:.2f} MB",
        f"{1e3 * message:.2f}",
        f"{1e3 * network.all_reduce(max(counted), 2):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def cubic(inducing: int, repeats: int) -> str:
    """The M³ work by all, and by one who sends the result."""
    step, leads = make_step(inducing, 10, False, Team()), current_team().leads
    # The factor and its inverse, and the two roots of q.
    result = torch.zeros(4, inducing, inducing, dtype=torch.float64)

    def send() -> None:
        dist.broadcast(result, src=0)

    def by_one() -> None:
        if leads:
            cubic_work(step)
        send()

    by_all, once, message = quickest(lambda: cubic_work(step), by_one, send, repeats=repeats)
    return (
        f"M = {inducing}: M³ work by all {1e3 * by_all:.1f} ms, by one and sent "
        f"{1e3 * once:.1f}, of which the message {1e3 * message:.1f}"
    )


def alone(sizes: list[tuple[int, int]], repeats: int) -> None:
    for inducing, residual in sizes:
        step = make_step(inducing, residual, False, Team())
        step()
        (seconds,) = quickest(step, repeats=repeats)
        print(f"one process, {inducing} / {residual}: {1e3 * seconds:.1f} ms a step")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--sizes", default="300:700,300:7000")
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    if options.model:
        print(report())
        return
    pairs = [size.split(":") for size in options.sizes.split(",")]
    sizes = [(int(inducing), int(residual)) for inducing, residual in pairs]
    torch.set_num_threads(1)
    alone(sizes, options.repeats)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    lines = spawn.Queue()
    crew = [
        spawn.Process(target=measure, args=(rank, port, sizes, options.repeats, lines))
        for rank in range(2)
    ]
    for process in crew:
        process.start()
    print(*lines.get(), sep="\n")
    for process in crew:
        process.join()


if __name__ == "__main__":
    main()
