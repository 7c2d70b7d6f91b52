"""Tables in a directory, DIR/TASK/NAME.npz, and their random splits."""

import hashlib
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthogp.errors import ConfigurationError, DataError, FileError

TASKS = ("regression", "classification")
DATA_VARIABLE = "ORTHOGP_DATA"
MIN_ROWS = 10
# A column whose spread is within the rounding of its values is constant.
ROUNDING = 10 * np.finfo(np.float64).eps
CHUNK_ELEMENTS = 2**22
# What numpy raises for an archive that is not whole, or an array that would need pickle.
UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, NotImplementedError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class DataSet:
    """X [n, d], and y [n]: targets, or labels 0..num_classes − 1 (num_classes is 0 for targets).

    `sha256` is that of the file.
    """

    name: str
    task: str
    X: Array
    y: Array | Labels
    num_classes: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """Standardised on the training rows: a target was y_mean + y_scale · y; labels stay."""

    x_train: Array
    y_train: Array | Labels
    x_test: Array
    y_test: Array | Labels
    y_mean: float
    y_scale: float


def default_data_dir() -> Path | None:
    """The directory that the environment names, or None."""
    named = os.environ.get(DATA_VARIABLE)
    return Path(named) if named else None


def available(data_dir: Path, task: str) -> list[str]:
    """The names of the tables of a task, sorted."""
    require_task(task)
    return sorted(path.stem for path in (data_dir / task).glob("*.npz") if path.is_file())


def require_task(task: str) -> None:
    if task not in TASKS:
        raise ConfigurationError(f"task is {task!r}; expected {' or '.join(TASKS)}")


def load(data_dir: Path, task: str, name: str) -> DataSet:
    """The table in DIR/TASK/NAME.npz, whose arrays are X [n, d] and y [n]."""
    names = available(data_dir, task)
    if name not in names:
        found = f"there are {', '.join(names)}" if names else "there is none of that task"
        raise FileError(
            f"{data_dir / task} has no table {name!r}: {found}; "
            "name another, or fetch it into that directory"
        )
    path = data_dir / task / f"{name}.npz"
    X, y, digest = _read(path)
    return checked(name, task, X, y, str(path), digest)


def checked(
    name: str, task: str, X: NDArray[Any], y: NDArray[Any], origin: str, sha256: str
) -> DataSet:
    """The table of these arrays; what is no table is refused, with its origin named."""
    require_task(task)
    X = _inputs(X, origin)
    y = _targets(y, origin) if task == "regression" else _labels(y, origin)
    if len(y) != len(X):
        raise DataError(f"{origin}: X has {len(X)} rows and y has {len(y)}; expected as many")
    classes = int(y.max()) + 1 if task == "classification" else 0
    return DataSet(name, task, X, y, classes, sha256)


def split_dataset(table: DataSet, seed: int, limit: int | None = None) -> Split:
    """A tenth of the rows, drawn by `seed`, to test on and the rest to train on; of `limit` rows
    where that is given. Costs a copy of those rows."""
    if limit is not None and limit < 2:
        raise ConfigurationError(f"limit is {limit}; expected at least 2, a row for each part")
    order = np.random.default_rng(seed).permutation(len(table.y))[:limit]
    test, train = np.split(order, [len(order) - training_count(len(order))])
    x_train, x_test = table.X[train], table.X[test]
    y_train, y_test = table.y[train], table.y[test]
    _standardise(x_train, x_test, f"X of {table.name}")
    mean, scale = 0.0, 1.0
    if table.task == "regression":
        mean, scale = _standardise(y_train[:, None], y_test[:, None], f"y of {table.name}")
    return Split(x_train, y_train, x_test, y_test, float(mean), float(scale))


def training_count(rows: int) -> int:
    """How many of so many rows a split trains on."""
    return rows - max(1, rows // 10)


def _standardise(train: NDArray[Any], test: NDArray[Any], name: str) -> tuple[Any, Any]:
    """Standardises both in place; returns the mean and scale of the training columns."""
    mean, scale = _moments(train, name)
    for part in (train, test):
        part -= mean
        part /= scale
    return mean.squeeze(), scale.squeeze()


def _moments(values: NDArray[Any], name: str) -> tuple[Array, Array]:
    """Mean and standard deviation of every column, 1 for a constant one; holds a chunk."""
    step = max(1, CHUNK_ELEMENTS // values.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.mean(axis=0)
        squares = np.zeros(values.shape[1])
        for start in range(0, len(values), step):
            squares += ((values[start : start + step] - mean) ** 2).sum(axis=0)
        deviation = np.sqrt(squares / len(values))
    if not np.isfinite(deviation).all():
        raise DataError(f"{name} has values too large to standardise; rescale them")
    largest = np.maximum(np.abs(values.max(axis=0)), np.abs(values.min(axis=0)))
    return mean, np.where(deviation <= ROUNDING * largest, 1.0, deviation)


def _read(path: Path) -> tuple[NDArray[Any], NDArray[Any], str]:
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
            arrays = archive.files if isinstance(archive, np.lib.npyio.NpzFile) else []
            missing = [array for array in ("X", "y") if array not in arrays]
            if missing:
                found = ", ".join(arrays) or "none"
                raise DataError(
                    f"{path} has no array {' nor '.join(missing)} (it has: {found}); "
                    "expected an .npz of X and y"
                )
            return archive["X"], archive["y"], digest
    except DataError:
        raise
    except UNREADABLE as error:
        raise FileError(f"{path} could not be read as arrays: {error}") from error


def _inputs(X: NDArray[Any], origin: str) -> Array:
    if X.ndim != 2 or X.shape[1] == 0:
        raise DataError(f"{origin}: X has shape {X.shape}; expected [rows, inputs]")
    if len(X) < MIN_ROWS:
        raise DataError(f"{origin} has {len(X)} rows; expected at least {MIN_ROWS}")
    return _finite(X, "X", origin)


def _targets(y: NDArray[Any], origin: str) -> Array:
    _require_vector(y, origin)
    return _finite(y, "y", origin)


def _labels(y: NDArray[Any], origin: str) -> Labels:
    _require_vector(y, origin)
    if y.dtype.kind not in "iu":
        raise DataError(f"{origin}: labels are {y.dtype}; expected integers 0..K-1")
    values = np.unique(y)
    if len(values) < 2 or values[0] != 0 or values[-1] != len(values) - 1:
        raise DataError(
            f"{origin}: {len(values)} labels lie between {values[0]} and {values[-1]}; "
            "expected 0..K-1 without a gap, K at least 2: number the classes that occur"
        )
    return y.astype(np.int64, copy=False)


def _require_vector(y: NDArray[Any], origin: str) -> None:
    if y.ndim != 1 or len(y) == 0:
        raise DataError(f"{origin}: y has shape {y.shape}; expected [rows]")


def _finite(values: NDArray[Any], name: str, origin: str) -> Array:
    if values.dtype.kind not in "fiub":
        raise DataError(f"{origin}: {name} is {values.dtype}; expected numbers")
    values = values.astype(np.float64, copy=False)
    missing, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    if missing or infinite:
        raise DataError(
            f"{origin}: {name} has {missing} missing and {infinite} infinite values; "
            "drop those rows or impute them"
        )
    return values
