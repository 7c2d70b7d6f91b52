"""Draws surface.png: a surface by 100 inducing points, with 1 000 residual ones, and by near rows.

python docs/assets/surface.py
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from orthogp import OrthogonalGPRegressor

ROWS, NOISE, STEPS, SIDE = 10_000, 0.1, 600, 120


def surface(x):
    """Ripples whose wavelength shrinks from corner to corner."""
    return np.sin(3 * x[:, 0] ** 2) * np.cos(3 * x[:, 1] ** 2) + 0.3 * x[:, 0]


def main() -> None:
    rng = np.random.default_rng(0)
    X = 3 * rng.random((ROWS, 2))
    y = surface(X) + NOISE * rng.standard_normal(ROWS)
    ticks = np.linspace(0, 3, SIDE)
    grid = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
    panels = {"the function": surface(grid)}
    points = {"n_neighbors": 0, "max_steps": STEPS, "batch_size": 512}
    for name, settings in {
        "100 inducing points": {"n_inducing": 100, "n_residual": 0, **points},
        "and 1 000 residual points": {"n_inducing": 100, "n_residual": 1000, **points},
        "every row (the default)": {},
    }.items():
        found = OrthogonalGPRegressor(random_state=0, **settings).fit(X, y).predict(grid)
        error = np.sqrt(np.mean((found - surface(grid)) ** 2))
        panels[f"{name}\nRMSE {error:.3f}"] = found
    figure = Figure(figsize=(11, 3.3), layout="constrained")
    for axes, (name, values) in zip(figure.subplots(1, 4), panels.items(), strict=True):
        axes.imshow(
            values.reshape(SIDE, SIDE), origin="lower", extent=(0, 3, 0, 3), cmap="cividis",
            vmin=-1.3, vmax=1.9, interpolation="bilinear",
        )  # fmt: skip
        axes.set_title(name, fontsize=11)
        axes.set(xticks=[], yticks=[])
    figure.savefig(Path(__file__).with_name("surface.png"), dpi=160)


if __name__ == "__main__":
    main()
