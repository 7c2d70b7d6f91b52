# %% [markdown]
# # A table that stays on the disk
#
# Two million rows of eight inputs, written here as NumPy files and never read into memory as a
# whole. A hundred million take the same lines;
# [time and memory](../scaling.md#a-hundred-million-rows-on-one-machine) are measured up to there.

# %%
import resource
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from orthogp import OrthogonalGPRegressor

ROWS, INPUTS, NOISE = 2_200_000, 8, 0.05
frequencies = 2.0 * np.random.default_rng(7).normal(size=(INPUTS, 24))


def function(x):
    return np.sin(x @ frequencies).sum(1) / np.sqrt(12)


folder = Path(tempfile.mkdtemp())
X = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (ROWS, INPUTS))
y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (ROWS,))
rng = np.random.default_rng(0)
for rows in np.array_split(np.arange(ROWS), 20):
    X[rows] = rng.uniform(-1, 1, (len(rows), INPUTS))
    y[rows] = function(X[rows]) + NOISE * rng.normal(size=len(rows))

# %% [markdown]
# Inducing and residual points summarise the table. With `rows_dir` a fit also writes all rows into
# a folder, in cells of neighbours, and every prediction takes the rows near it from there. (Times
# of one thread on two cores that other work kept busy.)

# %%
new = rng.uniform(-1, 1, (2000, INPUTS))
models = {}
for name, settings in {
    "points": {"n_neighbors": 0, "max_steps": 1000},
    "near rows": {"rows_dir": folder / "rows"},
}.items():
    start = time.monotonic()
    models[name] = gp = OrthogonalGPRegressor(random_state=0, **settings)
    gp.fit(np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r"))
    seconds = time.monotonic() - start
    error = np.sqrt(np.mean((gp.predict(new) - function(new)) ** 2))
    print(f"{name:10} fitted in {seconds:.0f} s, error {error:.3f} (noise {NOISE})")
near = gp.model_.near
print(f"{near.count} near rows from {near.probes} of {near.store.num_cells} cells, ", end="")
print(f"{near.recall:.0%} of the nearest found")
print(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB in memory")

# %%
t = np.linspace(-1, 1, 200)
line = t[:, None] * np.linspace(1, 0.2, INPUTS)
figure, axes = plt.subplots(num="Along a line through the table: the function and 90 % intervals")
for name, gp in models.items():
    axes.fill_between(t, *gp.predict_interval(line, coverage=0.9), alpha=0.4, label=name)
axes.plot(t, function(line), "k", linewidth=1, label="the function")
axes.set(xlabel="position on the line")
axes.legend()
