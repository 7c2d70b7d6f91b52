# %% [markdown]
# # Counts
#
# How many people come into a shop in an hour? The table, made here, has half a year of opening
# hours: a weekly pattern with a sharp peak at noon, a slow rise, and crowds that vary more than
# chance alone would let them.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from orthogp import OrthogonalGPRegressor

rng = np.random.default_rng(0)
table = pd.DataFrame(
    [(w, d, h) for w in range(9) for d in range(6) for h in range(8, 20)],
    columns=["week", "day", "hour"],
)
noon = np.exp(-0.5 * (table["hour"] - 12) ** 2)
rate = (2 + 0.2 * table["week"]) * (1 + 3 * noon) * (1 + 0.5 * (table["day"] == 5))
visitors = rng.poisson(rng.gamma(4.0, rate / 4.0))
X, X_test, y, y_test = train_test_split(table, visitors, test_size=0.3, random_state=0)

# %% [markdown]
# A Poisson likelihood knows that counts are whole and that their variance is their mean; the
# negative binomial one lets them vary more, and learns by how much. Gaussian noise is the same
# everywhere and allows half a visitor.

# %%
models = {}
for likelihood in ("negative_binomial", "poisson", "gaussian"):
    gp = OrthogonalGPRegressor(100, likelihood=likelihood, max_steps=300, random_state=0)
    models[likelihood] = gp.fit(X, y)
    low, high = gp.predict_interval(X_test, coverage=0.9)
    covered = np.mean((low <= y_test) & (y_test <= high))
    # A density of a number that is rounded to whole ones is about the probability of the count.
    density = gp.log_density(X_test, y_test).mean()
    print(f"{likelihood:18} log density {density:.3f}, 90 % intervals cover {covered:.1%}")

# %% [markdown]
# One Saturday, hour by hour. The intervals of the negative binomial are narrow in the morning and
# wide at noon.

# %%
day = pd.DataFrame({"week": 8, "day": 5, "hour": np.arange(8, 20)})
figure, axes = plt.subplots(num="A Saturday: expected visitors and 90 % intervals")
for shift, name in ((-0.12, "negative_binomial"), (0.12, "gaussian")):
    low, high = models[name].predict_interval(day, coverage=0.9)
    mean = models[name].predict(day)
    axes.errorbar(
        day["hour"] + shift, mean, (mean - low, high - mean), fmt="o", capsize=3, label=name
    )
seen = (table["week"] >= 6) & (table["day"] == 5)
axes.plot(table["hour"][seen], visitors[seen], "k.", alpha=0.5, label="the last three Saturdays")
axes.set(xlabel="hour", ylabel="visitors")
axes.legend()
