"""What a contestant is given and what it must do. Needs NumPy alone, as a peer's process may."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Setup:
    """The model and the data, the same for all: Matérn-5/2 + RBF, everything trained.

    Without residual points the model is an SVGP. `test_rows` are those of prediction.
    """

    n_inducing: int = 300
    n_residual: int = 700
    batch: int = 1024
    dims: int = 8
    rows: int = 100_000
    test_rows: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    ard: bool = False
    threads: int | None = None
    kl_columns: int = 64
    learning_rate: float = 0.01
    natural_step: float = 0.1
    noise: float = 0.1
    seed: int = 0

    @property
    def lengthscales(self) -> tuple[float, float]:
        """Where the Matérn's and the RBF's begin: those of the paper."""
        return 0.1 * self.dims**0.5, self.dims**0.5


@dataclass(frozen=True)
class Data:
    """Arrays in the dtype of the setup: x and test `[n, d]`, y `[n]`, the points `[·, d]`."""

    x: np.ndarray
    y: np.ndarray
    beta: np.ndarray
    gamma: np.ndarray
    test: np.ndarray


def make_data(setup: Setup) -> Data:
    rng = np.random.default_rng(setup.seed)

    def points(count: int) -> np.ndarray:
        return rng.standard_normal((count, setup.dims)).astype(setup.dtype)

    x = points(setup.rows)
    y = np.sin(x.sum(1)) + setup.noise**0.5 * rng.standard_normal(setup.rows)
    beta, gamma = points(setup.n_inducing), points(setup.n_residual)
    return Data(x, y.astype(setup.dtype), beta, gamma, points(setup.test_rows))


class Contestant(Protocol):
    """A library's model in its idiomatic fast form."""

    versions: dict[str, str]
    # Rows of one call of `predict`; None to have the fastest found.
    chunk_rows: int | None

    def __init__(self, setup: Setup, data: Data) -> None: ...

    def train(self, steps: int) -> float:
        """Runs full steps to their end; returns an estimate of the bound per row of the data."""
        ...

    def predict(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent function at these rows of `data.test`."""
        ...

    def peak_bytes(self) -> int | None:
        """The most device memory held at once; None to have the process's own looked at."""
        ...
