# %% [markdown]
# # Noise that changes
#
# Where some rows are noisier than others one width does not fit all. With `noise="learned"` the
# logarithm of the noise is a second function of the inputs.

# %%
import matplotlib.pyplot as plt
import numpy as np

from orthogp import OrthogonalGPRegressor

rng = np.random.default_rng(0)


def spread(x):
    return 0.05 + 0.4 * x**2


x = rng.uniform(0, 1, 1500)
y = np.sin(9 * x) + spread(x) * rng.normal(size=len(x))
x_new = rng.uniform(0, 1, 3000)
y_new = np.sin(9 * x_new) + spread(x_new) * rng.normal(size=len(x_new))

# %% [markdown]
# Intervals of constant noise cover nine rows in ten on the whole, but far too many on the left and
# too few on the right.

# %%
grid = np.linspace(0, 1, 300)
drawn = {}
for noise in ("constant", "learned"):
    gp = OrthogonalGPRegressor(noise=noise, max_steps=200, random_state=0).fit(x[:, None], y)
    low, high = gp.predict_interval(x_new[:, None], coverage=0.9)
    covered = (low <= y_new) & (y_new <= high)
    thirds = [covered[(x_new >= k / 3) & (x_new < (k + 1) / 3)].mean() for k in range(3)]
    density = gp.log_density(x_new[:, None], y_new).mean()
    shown = ", ".join(f"{share:.0%}" for share in thirds)
    print(f"{noise:8} log density {density:.3f}; covered in each third: {shown}")
    drawn[noise] = gp.predict(grid[:, None]), *gp.predict_interval(grid[:, None], coverage=0.9)

# %%
figure, panels = plt.subplots(
    1, 2, num="90 % intervals with constant and with learned noise", sharey=True
)
for axes, (name, (mean, low, high)) in zip(panels, drawn.items(), strict=True):
    axes.plot(x, y, "k.", markersize=2, alpha=0.4)
    axes.fill_between(grid, low, high, alpha=0.3)
    axes.plot(grid, mean)
    axes.set(title=name, xlabel="x")

# %% [markdown]
# [Noise that changes](../noise.md) says when noise is learned and when not, and what to do where
# it is known for every row.
