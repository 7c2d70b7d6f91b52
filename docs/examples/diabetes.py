# %% [markdown]
# # Regression with uncertainty
#
# The diabetes table that ships with scikit-learn: 442 patients, ten measurements, and how far the
# disease had progressed a year later. Ten numbers say little about the year to come, and a useful
# model knows that.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from orthogp import OrthogonalGPRegressor

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
print(X.describe().loc[["min", "mean", "max"]].round(1).to_string())

# %% [markdown]
# Columns are standardised inside the estimator and predictions come back in the units of `y`. Three
# folds, each predicted by a model that has not seen it, beside ridge regression.

# %%
gp = OrthogonalGPRegressor(max_steps=200, random_state=0)
ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 3, 20)))

found = pd.DataFrame(index=y.index, columns=["mean", "std", "low", "high", "ridge"], dtype=float)
density = pd.Series(index=y.index, dtype=float)
for train, test in KFold(3, shuffle=True, random_state=0).split(X):
    model = clone(gp).fit(X.iloc[train], y.iloc[train])
    mean, std = model.predict(X.iloc[test], return_std=True)
    low, high = model.predict_interval(X.iloc[test], coverage=0.9)
    linear = clone(ridge).fit(X.iloc[train], y.iloc[train]).predict(X.iloc[test])
    found.iloc[test] = np.column_stack([mean, std, low, high, linear])
    density.iloc[test] = model.log_density(X.iloc[test], y.iloc[test])


def rmse(prediction):
    return np.sqrt(np.mean((prediction - y) ** 2))


print(f"RMSE: {rmse(found['mean']):.1f}; ridge {rmse(found['ridge']):.1f}; the mean {y.std():.1f}")
print(f"90 % intervals cover {np.mean((found['low'] <= y) & (y <= found['high'])):.1%}")
print(f"log density {density.mean():.3f} a patient")

# %% [markdown]
# All patients in the order of their prediction. So small a table gets the exact process, and its
# intervals are calibrated by predictions of patients who were left out of their own.

# %%
order = np.argsort(found["mean"].to_numpy())
ranks = np.arange(len(y))
figure, axes = plt.subplots(
    num="Prediction, 90 % interval and outcome of every patient, in the order of the prediction"
)
axes.fill_between(
    ranks, found["low"].iloc[order], found["high"].iloc[order], alpha=0.25, label="90 % interval"
)
axes.plot(ranks, found["mean"].iloc[order], label="mean")
axes.plot(ranks, y.iloc[order], "o", markersize=3, alpha=0.6, color="tab:orange", label="outcome")
axes.set(xlabel="patients", ylabel="progression after a year")
axes.legend(loc="upper left")

# %% [markdown]
# The same model seen along one column: body mass index, everything else at its median.
# `predict_latent` is about the function, `predict_interval` about a new patient.

# %%
model = clone(gp).fit(X, y)
line = pd.DataFrame([X.median()] * 80).assign(bmi=np.linspace(X["bmi"].min(), X["bmi"].max(), 80))
mean, std = model.predict_latent(line)
low, high = model.predict_interval(line, coverage=0.9)

figure, axes = plt.subplots(
    num="Predicted progression against body mass index, the rest at its median"
)
axes.fill_between(line["bmi"], low, high, alpha=0.15, label="90 % of new patients")
axes.fill_between(
    line["bmi"], mean - 2 * std, mean + 2 * std, alpha=0.35, label="the function ± 2 std"
)
axes.plot(line["bmi"], mean)
axes.set(xlabel="body mass index", ylabel="progression after a year")
axes.legend(loc="upper left")
