"""What near rows add where the noise is not Gaussian: numbers with outliers, and counts.

    python benchmarks/other_noise.py [--rows 4000] [--device cpu]

Functions of two inputs, one smooth and one rough, are observed with Student-t, Poisson and negative
binomial noise. Prints for each, without near rows and with them, the RMSE of the predicted mean
about the true one, the mean log density of new observations, the coverage of their 90 % intervals,
and the seconds of the fit.
"""

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np

from orthogp import OrthogonalGPRegressor

FREQUENCIES = {"smooth": 0.5, "rough": 6.0}
NEW_ROWS = 2000


def observe(
    rng: np.random.Generator, noise: str, latent: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Observations of a latent function, and their expectations."""
    rate = np.exp(1.0 + latent)
    kinds: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
        "student_t": lambda: (latent + 0.1 * rng.standard_t(2, size=len(latent)), latent),
        "poisson": lambda: (rng.poisson(rate), rate),
        "negative_binomial": lambda: (rng.negative_binomial(5, 5 / (5 + rate)), rate),
    }
    return kinds[noise]()


def measure(noise: str, shape: str, rows: int, settings: dict) -> list[float]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, size=(rows + NEW_ROWS, 2))
    w = FREQUENCIES[shape] * np.pi
    y, expected = observe(rng, noise, np.sin(w * x[:, 0]) * np.cos(w * x[:, 1]))
    start = time.monotonic()
    gp = OrthogonalGPRegressor(likelihood=noise, random_state=0, **settings).fit(x[:rows], y[:rows])
    seconds = time.monotonic() - start
    x, y, expected = x[rows:], y[rows:], expected[rows:]
    low, high = gp.predict_interval(x, 0.9)
    error = np.sqrt(np.mean((gp.predict(x) - expected) ** 2))
    covered = 100.0 * np.mean((low <= y) & (y <= high))
    return [error, gp.log_density(x, y).mean(), covered, seconds]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--device")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| noise, function | kind | RMSE | log density | coverage, % | fit, s |")
    print("|---|---|---|---|---|---|")
    for noise in ("student_t", "poisson", "negative_binomial"):
        for shape in FREQUENCIES:
            for kind, given in (("points", {"n_neighbors": 0}), ("near rows", {})):
                settings = {"device": options.device, **given}
                error, density, covered, seconds = measure(noise, shape, options.rows, settings)
                cells = f"{error:.4f} | {density:.4f} | {covered:.1f} | {seconds:.0f}"
                print(f"| {noise}, {shape} | {kind} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
