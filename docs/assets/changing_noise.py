"""Draws changing-noise.png: intervals of 90 % with constant and with learned noise.

python docs/assets/changing_noise.py
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from orthogp import OrthogonalGPRegressor

ROWS = 800


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, ROWS)
    y = np.sin(2 * x) + (0.1 + 0.5 / (1 + np.exp(-2 * x))) * rng.standard_normal(ROWS)
    ticks = np.linspace(-3, 3, 300)
    figure = Figure(figsize=(9, 3.25), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, noise in zip(panels, ("constant", "learned"), strict=True):
        gp = OrthogonalGPRegressor(noise=noise, random_state=0).fit(x[:, None], y)
        low, high = gp.predict_interval(ticks[:, None], 0.9)
        axes.plot(x, y, ".", color="#999999", markersize=2)
        axes.fill_between(ticks, low, high, color="#0072B2", alpha=0.3, lw=0)
        axes.plot(ticks, gp.predict(ticks[:, None]), color="#0072B2", lw=1.2)
        axes.set_title(f'noise="{noise}"', fontsize=11)
        axes.set(xticks=[], yticks=[])
    figure.savefig(Path(__file__).with_name("changing-noise.png"), dpi=130)


if __name__ == "__main__":
    main()
