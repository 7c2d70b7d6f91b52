"""What a step costs with R processes: counted work and bytes, measured rates, assumed networks.

Rates of compute are those of one H200 in docs/performance.md; those of the networks are assumptions
and stand here, in one place.
"""

import math
from dataclasses import dataclass

from orthogp.training import TrainingConfig

BATCH, INPUTS = 1024, 8
DOUBLE, SINGLE = 8, 4
# Kernel variances and lengthscales of two parts, and the noise.
HYPERPARAMETERS = 5


@dataclass(frozen=True)
class Work:
    """A step of all processes together; `sharded` is whether each holds its part of γ alone."""

    inducing: int
    residual: int
    ranks: int = 1
    sharded: bool = False
    batch: int = BATCH
    inputs: int = INPUTS
    latents: int = 1

    @property
    def columns(self) -> int:
        """γ that estimate the KL: at least one a process where γ is in parts."""
        wanted = TrainingConfig().columns(self.residual) or self.residual
        return max(wanted, self.ranks) if self.sharded else wanted

    @property
    def residual_entries(self) -> float:
        """Entries of k_xγ, K_βγ and the columns' k_γγ that one process computes."""
        if self.sharded:
            return (self.batch + self.inducing + self.columns) * self.residual / self.ranks
        return (self.batch / self.ranks + self.inducing + self.columns) * self.residual

    @property
    def messages(self) -> list[int]:
        """Bytes of every all-reduce of a step, in no order.

        One carries the share of the bound and the gradients: v and S of q(f_β), hyperparameters, β
        and, unless each process has its own, γ and a_γ; all as float64. With γ in parts the rows of
        the batch and the columns are collected first, the products with a_γ are summed, and of the
        latter two the gradients come back.
        """
        M, G, c, d = self.inducing, self.residual, self.latents, self.inputs
        numbers = 1 + c * M + c * M * M + HYPERPARAMETERS + M * d
        if not self.sharded:
            return [DOUBLE * (numbers + G * d + c * G)]
        columns, queries = self.columns * d, c * (self.batch + M + self.columns)
        small = [self.batch * d, columns, columns, queries, queries]
        return [DOUBLE * numbers, *(SINGLE * count for count in small)]


@dataclass(frozen=True)
class Network:
    """Bytes a second that a process sends in one direction, and seconds that a message takes."""

    bandwidth: float
    latency: float

    def all_reduce(self, size: float, ranks: int) -> float:
        """Reduce-scatter and all-gather: each process sends (R−1)/R of the bytes twice."""
        if ranks == 1:
            return 0.0
        return self.latency + 2 * (ranks - 1) / ranks * size / self.bandwidth


@dataclass(frozen=True)
class Cluster:
    """Machines of some GPUs: all-reduce inside, between the machines on each GPU's part, inside."""

    inside: Network
    between: Network
    gpus: int = 8

    def all_reduce(self, size: float, ranks: int) -> float:
        local = min(ranks, self.gpus)
        machines = ranks // local
        part = self.between.all_reduce(size / local, machines)
        # Between machines a tree: each doubling is one more message on the way.
        further = self.between.latency * max(0.0, math.log2(machines) - 1)
        return self.inside.all_reduce(size, local) + part + further


@dataclass(frozen=True)
class Device:
    """Seconds on one device: M³ work and what else does not depend on the rows, at one |β|."""

    fixed: float
    # Of a whole batch: the float32 products of M² and the block k_βx.
    rows: float
    entry: float
    # Operations a second of a matrix product, for the refresh of D.
    products: float
    refresh_every: int = 200

    def compute(self, work: Work) -> float:
        share = work.batch / work.ranks / BATCH
        seconds = self.fixed + self.rows * share + self.entry * work.residual_entries
        return seconds + self.refresh(work)

    def refresh(self, work: Work) -> float:
        """D taken afresh, a step's share of it."""
        points = work.residual / work.ranks if work.sharded else work.residual
        return 2 * work.inducing**2 * points / self.products / self.refresh_every


# |β| = 1500: 4.07 ms a step with 3500 γ and 64 columns, of which four float32 products of 0.1 ms
# and the block k_βx grow with the rows; 17.8 ps an entry, from 10⁵ and 10⁶ γ; 46 Tflop/s, from
# 0.145 ms for 2 · 1500³.
ENTRY = 17.8e-12
H200 = Device(
    fixed=4.07e-3 - 0.4e-3 - ENTRY * (BATCH * 1500 + (BATCH + 1500 + 64) * 3500),
    rows=0.4e-3 + ENTRY * BATCH * 1500,
    entry=ENTRY,
    products=46e12,
)
# Assumed, not measured: NVLink's 900 GB/s are both directions together.
CLUSTER = Cluster(Network(450e9, 25e-6), Network(50e9, 25e-6))
RANKS = (1, 8, 16, 64, 128, 512)
RESIDUALS = (10**5, 10**6, 10**7, 10**8)


def extrapolation() -> str:
    """The table in docs/scaling-measured.md: milliseconds a step, and the speed-up by R."""
    lines = ["| \\|γ\\| | " + " | ".join(f"{r} GPU{'s' if r > 1 else ''}" for r in RANKS) + " |"]
    lines.append("|---" * (len(RANKS) + 1) + "|")
    for residual in RESIDUALS:
        alone = _step(Work(1500, residual))
        cells = []
        for ranks in RANKS:
            seconds = _step(Work(1500, residual, ranks, sharded=ranks > 1))
            share = f" ({100 * alone / seconds / ranks:.0f} %)" if ranks > 1 else ""
            text = f"{1e3 * seconds:.1f}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"
            cells.append(f"{text.replace(',', ' ')}{share}")
        lines.append(f"| {residual:,} | ".replace(",", " ") + " | ".join(cells) + " |")
    return "\n".join(lines)


def parts(ranks: int, sharded: bool, residual: int = 10**6) -> str:
    """Where the time of one step goes, in milliseconds."""
    work = Work(1500, residual, ranks, sharded)
    first, *small = (CLUSTER.all_reduce(size, ranks) for size in work.messages)
    found = {
        "fixed": H200.fixed,
        "rows": H200.rows / ranks,
        "γ": H200.entry * work.residual_entries,
        "D": H200.refresh(work),
        "gradients": first,
        "other messages": sum(small),
    }
    cells = [f"{1e3 * seconds:.2f}" for seconds in found.values()]
    kind = "in parts" if sharded else "whole"
    size = sum(work.messages) / 1e6
    return f"| {ranks} | {kind} | {size:.1f} | {' | '.join(cells)} | {1e3 * _step(work):.1f} |"


def _step(work: Work) -> float:
    messages = sum(CLUSTER.all_reduce(size, work.ranks) for size in work.messages)
    return H200.compute(work) + messages


def report() -> str:
    heading = (
        "| GPUs | γ | MB | M³ and fixed | rows | γ | D | gradients | other messages | step |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    rows = [parts(r, sharded) for r in (8, 64, 512) for sharded in (False, True)]
    # A broadcast sends its bytes once, an all-reduce twice.
    result = DOUBLE * 4 * 1500**2
    sent = CLUSTER.all_reduce(result, 64) / 2
    shared = f"M³ work by one: its {result / 1e6:.0f} MB to 64 GPUs take {1e3 * sent:.2f} ms"
    return "\n".join([extrapolation(), "", heading, *rows, "", shared])
