"""Draws near-rows.png: mean and standard deviation between inducing points, without near rows and
with them, at the same hyperparameters.

python docs/assets/near_rows.py
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from orthogp import OrthogonalGPRegressor

ROWS, NOISE, INDUCING, NEAR = 2500, 0.2, 12, 32


def main() -> None:
    rng = np.random.default_rng(0)
    x = np.sort(6 * rng.random(ROWS))
    # A gap, to show that the variance stays where there are no rows.
    x = x[(x < 3.9) | (x > 4.5)]
    y = np.sin(4 * x) * np.exp(0.1 * x) + NOISE * rng.standard_normal(len(x))
    gp = OrthogonalGPRegressor(INDUCING, 0, n_neighbors=NEAR, max_steps=100, random_state=0).fit(
        x[:, None], y
    )
    fitted = gp._fitted
    ticks = np.linspace(0, 6, 400)
    new, scaling = fitted.standardised(ticks[:, None]), fitted.units.targets.scaling
    posteriors = {
        f"{INDUCING} inducing points": gp.model_.without_near_rows(),
        f"and {NEAR} near rows": gp.model_,
    }
    points = fitted.units.inputs.scale * gp.model_.basis.beta.detach().cpu().numpy()
    points = points + fitted.units.inputs.shift
    figure = Figure(figsize=(9, 3.25), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (name, model) in zip(panels, posteriors.items(), strict=True):
        mean, variance = (
            part[0].cpu().numpy() for part in model.predict(new.to(gp.model_.basis.beta.device))
        )
        mean = scaling.shift + scaling.scale * mean
        std = scaling.scale * np.sqrt(variance)
        axes.plot(x[::5], y[::5], ".", color="#999999", markersize=2)
        axes.fill_between(ticks, mean - 2 * std, mean + 2 * std, color="#0072B2", alpha=0.3, lw=0)
        axes.plot(ticks, mean, color="#0072B2", lw=1.2)
        axes.plot(points[:, 0], np.full(len(points), -2.6), "|", color="#D55E00", markersize=8)
        axes.set_title(name, fontsize=11)
        axes.set(xticks=[], yticks=[])
    figure.savefig(Path(__file__).with_name("near-rows.png"), dpi=130)


if __name__ == "__main__":
    main()
