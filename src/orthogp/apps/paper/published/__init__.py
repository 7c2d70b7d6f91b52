"""The figures that the paper reports, and the sizes of its data sets."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

# In the order of the paper's appendix tables.
REGRESSION_COLUMNS = (
    "Coupled300", "CoupledNat300", "Coupled", "CoupledNat", "Orth", "OrthNat", "Hybrid",
    "Decoupled",
)  # fmt: skip
CLASSIFICATION_COLUMNS = ("Coupled", "CoupledNat", "Orth", "OrthNat", "Hybrid", "Decoupled")
# Reported by the paper for classification accuracy alone, from another paper, on another split.
OTHERS = ("Selu",)
# Which file holds a metric of a task.
FILES = {
    ("regression", "log_likelihood"): "regression_loglik.csv",
    ("regression", "rmse"): "regression_rmse.csv",
    ("classification", "log_likelihood"): "classification_loglik.csv",
    ("classification", "accuracy"): "classification_accuracy.csv",
}


@dataclass(frozen=True)
class DataSetSize:
    """Rows, inputs and classes (0 for regression) of a data set as the paper counts them."""

    rows: int
    inputs: int
    classes: int


def sizes(task: str) -> dict[str, DataSetSize]:
    """The paper's data sets of a task, in its order."""
    rows = _read(FILES[task, "log_likelihood"])
    return {
        row["dataset"]: DataSetSize(int(row["N"]), int(row["D"]), int(row.get("K", 0)))
        for row in rows
    }


def figures(task: str, metric: str) -> dict[str, dict[str, float]]:
    """data set → method → figure, one split each; accuracy is in percent.

    `metric` is log_likelihood (nats a row), and rmse or accuracy.
    """
    rows = _read(FILES[task, metric])
    other_columns = ("dataset", "N", "D", "K")
    return {
        row["dataset"]: {name: float(row[name]) for name in row if name not in other_columns}
        for row in rows
    }


@cache
def _read(name: str) -> list[dict[str, str]]:
    text = (files("orthogp.apps.paper.published") / name).read_text()
    return list(csv.DictReader(text.splitlines()))
