"""Checks of what users pass in: those of scikit-learn, with errors of this package."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.exceptions import NotFittedError
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from orthogp.errors import ConfigurationError, DataError, OrthogpError
from orthogp.estimators.scaling import Array

# scikit-learn sets a filter of warnings for a moment, and two at once would leave it set: threads
# that predict take turns.
_VALIDATION_LOCK = threading.Lock()
NO_NUMBER = re.compile(r"could not convert string to float: (?:np\.\w+\((.*)\)|(.*))")
# Names of types, so that pandas need not be imported: its own values for what is missing.
MISSING_TYPES = ("NoneType", "NAType", "NaTType")


@dataclass(frozen=True)
class Columns:
    """How many columns X has, and their names where they have some."""

    count: int
    names: NDArray | None = None

    @property
    def labels(self) -> list[str]:
        """Their names, or x0, x1, … where they have none."""
        return [f"x{i}" for i in range(self.count)] if self.names is None else list(self.names)


class DataTypeError(DataError, TypeError):
    """Data of a type that cannot be used: a TypeError too, as scikit-learn has it."""


class UnfittedError(ConfigurationError, NotFittedError):
    """A question to an estimator that has not been fitted."""


def require_fitted(estimator: Any) -> None:
    try:
        check_is_fitted(estimator)
    except NotFittedError as error:
        raise UnfittedError(f"this {type(estimator).__name__} is not fitted; call fit") from error


def checked_array(estimator: type, X: Any, columns: Columns | None) -> tuple[Array, Columns]:
    """X as numbers `(n, d)` with NaN for what is missing, and its columns, which must be those
    given, if any."""
    validator = _validator(estimator, columns)
    with _as_data_errors("X"):
        _require_suitable(X, "X")
        ndim = X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim
        if ndim < 2:
            raise DataError(
                f"X has {ndim} dimension(s), expected rows and columns; Reshape your data with "
                "X.reshape(-1, 1) if it is one column or X.reshape(1, -1) if it is one row"
            )
        with _VALIDATION_LOCK:
            found: Any = validate_data(
                validator, X, dtype=np.float64, reset=columns is None, ensure_all_finite=False
            )
    names = getattr(validator, "feature_names_in_", None)
    _require_finite(found, "X", names, missing=True)
    return found, Columns(validator.n_features_in_, names)


def checked_names(estimator: type, X: Any, columns: Columns | None) -> Columns:
    """The columns of a table, which must be those given, if any."""
    validator = _validator(estimator, columns)
    with _as_data_errors("X"), _VALIDATION_LOCK:
        validate_data(validator, X, reset=columns is None, skip_check_array=True)
    return Columns(validator.n_features_in_, getattr(validator, "feature_names_in_", None))


def _validator(estimator: type, columns: Columns | None) -> Any:
    """scikit-learn stores and compares columns on an estimator, whose class its errors name. A
    blank one serves: rows that are refused must not change the user's."""
    validator: Any = object.__new__(estimator)
    if columns is not None:
        validator.n_features_in_ = columns.count
        if columns.names is not None:
            validator.feature_names_in_ = columns.names
    return validator


def checked_numbers(values: Any, name: str) -> Array:
    """Finite numbers, in whatever shape they come."""
    with _as_data_errors(name):
        _require_suitable(values, name)
        found = np.asarray(values, dtype=np.float64)
    _require_finite(found, name)
    return found


def missing_targets(y: Any) -> NDArray[np.bool_]:
    """Which rows have no target: None, NaN or the missing value of pandas."""
    values = np.asarray(y)
    if values.dtype.kind == "O":
        values = values.reshape(len(values), -1)
        return np.array([any(map(_is_missing, row)) for row in values])
    if values.dtype.kind != "f":
        return np.zeros(len(values), dtype=bool)
    return np.asarray(np.isnan(values.reshape(len(values), -1)).any(axis=1))


def targets_where(y: Any, chosen: NDArray) -> NDArray:
    """These rows of y; what was of objects for its missing values alone is so no longer."""
    found = np.asarray(y)[chosen]
    return np.array(found.tolist()) if found.dtype.kind == "O" else found


def checked_targets(y: Any, num_rows: int) -> Array:
    """Numbers to learn from, `(n,)` or `(n, t)`."""
    values = None if y is None or issparse(y) else np.asarray(y)
    if values is not None and values.dtype.kind == "O" and values.ndim:
        # pandas' own missing value is no number.
        missing = np.reshape([_is_missing(value) for value in values.flat], values.shape)
        y = np.where(missing, np.nan, values)
    found = checked_numbers(y, "y")
    if found.ndim not in (1, 2) or 0 in found.shape[1:]:
        raise DataError(f"y has shape {found.shape}; expected (n,), or (n, t) for t targets")
    _require_rows(found, "y", num_rows)
    return found


def checked_labels(y: Any, num_rows: int | None = None, name: str = "y") -> NDArray:
    """Labels `(n,)`, none of them missing."""
    with _as_data_errors(name):
        _require_suitable(y, name)
        with _VALIDATION_LOCK:
            found = column_or_1d(y, warn=True)
    kind = found.dtype.kind
    missing = int((~np.isfinite(found)).sum()) if kind == "f" else 0
    missing += sum(map(_is_missing, found)) if kind == "O" else 0
    if missing:
        raise DataError(
            f"{name} has {missing} labels that are missing (None, NaN or infinite); drop those rows"
        )
    if num_rows is not None:
        _require_rows(found, name, num_rows)
    return found


def require_classes(y: NDArray) -> None:
    """Refuses labels that are measurements, or of several types."""
    try:
        check_classification_targets(y)
    except ValueError as error:
        raise DataError(
            f"Unknown label type: {type_of_target(y)}; expected text, truth values or whole "
            "numbers of one type (measurements are for OrthogonalGPRegressor)"
        ) from error


def checked_weight(weight: Any, num_rows: int, part: bool = False) -> Array | None:
    """One weight a row, none negative and not all of them zero; a single one is for all rows.

    Those of a part of the rows may all be zero.
    """
    if weight is None:
        return None
    found = checked_numbers(weight, "sample_weight")
    found = np.full(num_rows, found) if found.ndim == 0 else found
    if found.shape != (num_rows,):
        raise DataError(f"sample_weight has shape {found.shape}; expected ({num_rows},)")
    negative = int((found < 0).sum())
    if negative:
        raise DataError(f"sample_weight has {negative} negative values; expected zero or more")
    if not part and not found.any():
        raise DataError("every sample_weight is zero; expected a positive one for some row")
    return found


def _require_suitable(values: Any, name: str) -> None:
    """Refuses None, dates, and sparse, masked or complex arrays."""
    if values is None:
        # The words that scikit-learn's own checks of an estimator look for.
        reason = "fit requires y to be passed, but the target y is None"
        raise DataError(reason if name == "y" else f"{name} is None; expected numbers")
    if issparse(values):
        raise DataTypeError(f"{name} is sparse, expected a dense array; use {name}.toarray()")
    if np.ma.is_masked(values):
        raise DataError(f"{name} is an array with masked values; fill them in, or drop their rows")
    types: Any = getattr(values, "dtypes", getattr(values, "dtype", None))
    types = np.atleast_1d(types)
    kinds = {getattr(kind, "kind", None) for kind in types}
    if kinds & {"m", "M"}:
        raise DataTypeError(
            f"{name} has dates or times; derive numbers from them (year, weekday, days since a "
            "date) or leave them out"
        )
    if "c" in kinds:
        raise DataError(f"Complex data not supported: {name} is complex, expected real numbers")


def _require_finite(
    values: Array, name: str, columns: NDArray | None = None, missing: bool = False
) -> None:
    """Refuses infinite values, and NaN unless `missing` values are allowed."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return
    bad = np.isinf(values) if missing else ~np.isfinite(values)
    if not bad.any():
        return
    row, *column = np.unravel_index(bad.argmax(), bad.shape) if bad.ndim else (0,)
    place = f"row {row}"
    if column:
        place += f", column {column[0]}" if columns is None else f", column {columns[column[0]]!r}"
    what = "infinite" if missing else "NaN or infinite"
    hint = " (missing_targets='drop' leaves missing ones out)" if name == "y" else ""
    raise DataError(
        f"{name} has {bad.sum()} values that are {what}, the first in {place}; drop those "
        f"rows or impute them{hint}"
    )


def _require_rows(values: NDArray, name: str, num_rows: int) -> None:
    if len(values) != num_rows:
        raise DataError(f"X has {num_rows} rows and {name} has {len(values)}; expected as many")


def _is_missing(label: Any) -> bool:
    return type(label).__name__ in MISSING_TYPES or (
        isinstance(label, float) and not np.isfinite(label)
    )


@contextmanager
def _as_data_errors(name: str) -> Iterator[None]:
    """Turns errors of NumPy, pandas and scikit-learn into a `DataError`."""
    try:
        yield
    except OrthogpError:
        raise
    except TypeError as error:
        raise DataTypeError(_sentence(name, error)) from error
    except (ValueError, RuntimeError, OverflowError) as error:
        raise DataError(_sentence(name, error)) from error


def _sentence(name: str, error: Exception) -> str:
    message = str(error)
    text = NO_NUMBER.match(message)
    if text:
        return (
            f"{name} has text, {text[1] or text[2]:.60}, expected numbers; encode it (a column for "
            "every category, say) or leave it out"
        )
    if "inhomogeneous" in message:
        return f"{name} has rows of different lengths; expected as many values in every row"
    # scikit-learn's list of columns, which its own checks of an estimator ask for word by word.
    if message.startswith("The feature names"):
        return message
    line = message.strip().split("\n")[0].rstrip(".").replace(". ", "; ")
    return line if line.startswith(f"{name} ") else f"{name} cannot be used: {line:.300}"
