"""Small training runs, and what a run leaves behind."""

from typing import TypeVar

import torch
from torch import Tensor

from orthogp.likelihoods import Gaussian, Likelihood
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.training import Report, Result, Rows, Stream, TrainingConfig
from orthogp.training.step import Step


def data(n=200, d=2, seed=0, dtype=torch.float32) -> Rows:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=rng, dtype=dtype)
    noise = torch.randn(n, generator=rng, dtype=dtype)
    return Rows(x, torch.sin(2.0 * x[:, 0]) + 0.5 * x.sum(1) + 0.1 * noise)


class Blocks(Stream):
    """Rows in memory that pretend not to be."""

    def __init__(self, rows: Rows, sizes: tuple[int, ...]):
        self.rows, self.sizes = rows, sizes
        self.read: list[int] = []

    def block(self, number):
        self.read.append(number)
        start = sum(self.sizes[:number])
        if not self.sizes[number]:
            return None
        return self.rows.map(lambda t: t[start : start + self.sizes[number]])

    def outline(self):
        return self.rows.outline()


def model(
    rows: Rows, basis="orthogonal", optimizer="natural", likelihood: Likelihood | None = None,
    b=10, g=16, **options,
) -> VariationalGP:  # fmt: skip
    """A model whose points are the first rows; always the same for the same rows."""
    likelihood = Gaussian(1) if likelihood is None else likelihood
    kernel, latents = default_kernel(rows.x.shape[1]), likelihood.num_latents
    points, residual = rows.x[:b], rows.x[b : b + g]
    q = build_basis(basis, kernel, points, residual, latents, optimizer, **options)
    return VariationalGP(kernel, likelihood, q).to(rows.x.dtype)


def settings(**changes) -> TrainingConfig:
    """Four reports of five steps, with everything that is drawn drawn, and D taken twice."""
    small = {
        "max_steps": 20, "batch_size": 32, "report_every": 5, "refresh_every": 10,
        "kl_columns": 6, "schedule": "constant",
    }  # fmt: skip
    return TrainingConfig(**small | changes)


def contents(m: VariationalGP) -> dict[str, Tensor]:
    """A copy of all that training moves: parameters and q(f_β)."""
    moved = [*m.named_parameters(), *m.basis.named_buffers()]
    return {name: value.detach().clone() for name, value in moved}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def finite(m: VariationalGP) -> bool:
    return all(bool(value.isfinite().all()) for value in contents(m).values())


def untimed(result: Result | tuple[Report, ...]) -> list[tuple]:
    """The history without the one column that two runs cannot share."""
    history = result.history if isinstance(result, Result) else result
    columns = [name for name in Report.__dataclass_fields__ if name != "seconds"]
    return [tuple(getattr(row, name) for name in columns) for row in history]


S = TypeVar("S", bound=Step)


def single_step(
    m: VariationalGP, rows: Rows, config: TrainingConfig, columns=None, kind: type[S] = Step
) -> S:
    """A step on all rows at the first rates, ready to be called."""
    step = kind(m, config, len(rows), rows.parts(), columns)
    rate, tau = config.learning_rate_at(0, 0.0), config.natural_step_at(0, 0.0, True)
    step.rates.copy_(torch.tensor([rate, tau, config.residual_step_at(0, 0.0, len(rows), 0)]))
    step.refresh()
    return step


def unchecked(kind: type, **values):
    """A dataclass before its own checks, past those of the test suite, which users do not have."""
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
