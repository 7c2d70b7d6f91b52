"""Draws surface.png: a rough surface, with 100 inducing points, and with 1 000 residual ones too.

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
    for name, num_residual in (("100 inducing points", 0), ("and 1 000 residual points", 1000)):
        gp = OrthogonalGPRegressor(
            100, num_residual, n_neighbors=0, max_steps=STEPS, batch_size=512, random_state=0
        )
        panels[name] = gp.fit(X, y).predict(grid)
    figure = Figure(figsize=(9, 3.25), layout="constrained")
    for axes, (name, values) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        axes.imshow(
            values.reshape(SIDE, SIDE), origin="lower", extent=(0, 3, 0, 3), cmap="cividis",
            vmin=-1.3, vmax=1.9, interpolation="bilinear",
        )  # fmt: skip
        axes.set_title(name, fontsize=11)
        axes.set(xticks=[], yticks=[])
    figure.savefig(Path(__file__).with_name("surface.png"), dpi=160)


if __name__ == "__main__":
    main()
