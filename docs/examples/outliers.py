# %% [markdown]
# # Outliers
#
# One reading in ten of this sensor, made here, is wrong, some of them by a lot. Gaussian noise has
# to believe every reading; a Student-t likelihood may take a few for accidents.

# %%
import matplotlib.pyplot as plt
import numpy as np

from orthogp import OrthogonalGPRegressor

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 10, 1200))
truth = np.sin(2 * x) + 0.3 * x
y = truth + 0.1 * rng.normal(size=len(x))
wrong = rng.random(len(x)) < 0.1
y[wrong] += rng.normal(scale=4.0, size=wrong.sum())

# %%
grid = np.linspace(0, 10, 500)
at_grid = np.sin(2 * grid) + 0.3 * grid
found = {}
for likelihood in ("gaussian", "student_t"):
    gp = OrthogonalGPRegressor(100, likelihood=likelihood, max_steps=400, random_state=0)
    gp.fit(x[:, None], y)
    mean = gp.predict(grid[:, None])
    found[likelihood] = mean, *gp.predict_interval(grid[:, None], coverage=0.9)
    low, high = gp.predict_interval(x[:, None], coverage=0.9)
    error = np.sqrt(np.mean((mean - at_grid) ** 2))
    width = np.median(high - low)
    print(f"{likelihood:10} error about the truth {error:.3f}, 90 % intervals are {width:.2f} wide")

# %% [markdown]
# Both intervals hold nine readings in ten, but only one of them says how good a good reading is:
# calibrated quantiles of Gaussian noise are those of all readings together.

# %%
figure, panels = plt.subplots(
    1, 2, num="Mean and 90 % interval with Gaussian and Student-t noise", sharey=True
)
for axes, (name, (mean, low, high)) in zip(panels, found.items(), strict=True):
    axes.plot(x, y, "k.", markersize=2, alpha=0.4)
    axes.fill_between(grid, low, high, alpha=0.3)
    axes.plot(grid, mean)
    axes.set(title=name, xlabel="x", ylim=(-2.5, 6))
