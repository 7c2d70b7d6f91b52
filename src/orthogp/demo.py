"""The main job in miniature: a table, a fit, intervals, and what residual points add."""

import math
import time
import warnings

import numpy as np

from orthogp import OrthogonalGPRegressor

ROWS, TEST_ROWS, NOISE = 10_000, 2000, 0.1
STEPS = 600
# The paper's names, and the same for both: 100 inducing points.
METHODS = {
    "COUPLED": {"basis": "coupled", "optimizer": "adam"},
    "COUPLEDNAT": {"basis": "coupled"},
    "ORTHNAT, 1000 residual points": {"n_residual": 1000},
}


def surface(x: np.ndarray) -> np.ndarray:
    """Ripples whose wavelength shrinks from corner to corner."""
    return np.sin(3 * x[:, 0] ** 2) * np.cos(3 * x[:, 1] ** 2) + 0.3 * x[:, 0]


def main() -> None:
    rng = np.random.default_rng(0)
    X = 3 * rng.random((ROWS + TEST_ROWS, 2))
    y = surface(X) + NOISE * rng.standard_normal(len(X))
    train, test = slice(TEST_ROWS, None), slice(TEST_ROWS)
    best = -0.5 * math.log(2 * math.pi * math.e * NOISE**2)
    print(f"{ROWS} noisy points of a rough surface, {STEPS} steps each, {TEST_ROWS} test points")
    print(f"the noise alone: RMSE {NOISE:.3f}, log density {best:.3f}\n")
    print(f"{'method':32}{'RMSE':>8}{'log density':>13}{'90 % covers':>13}{'bound':>9}{'s':>7}")
    for name, options in METHODS.items():
        gp = OrthogonalGPRegressor(
            n_inducing=100, max_steps=STEPS, batch_size=512, random_state=0, **options
        )
        start = time.perf_counter()
        gp.fit(X[train], y[train])
        seconds = time.perf_counter() - start
        rmse = math.sqrt(np.mean((gp.predict(X[test]) - y[test]) ** 2))
        density = gp.log_density(X[test], y[test]).mean()
        low, high = gp.predict_interval(X[test], coverage=0.9)
        inside = np.mean((low <= y[test]) & (y[test] <= high))
        print(f"{name:32}{rmse:8.3f}{density:13.3f}{inside:13.1%}{gp.elbo_:9.0f}{seconds:7.1f}")
    print("\nThe last model at five places: mean, 90 % interval, the truth without noise")
    places = 0.3 + 0.6 * np.arange(5)[:, None] * np.ones(2)
    low, high = gp.predict_interval(places)
    for row in zip(places[:, 0], gp.predict(places), low, high, surface(places), strict=True):
        print("  x = ({0:.1f}, {0:.1f})   {1:6.2f}   [{2:6.2f}, {3:6.2f}]   {4:6.2f}".format(*row))


if __name__ == "__main__":
    warnings.simplefilter("default")
    main()
