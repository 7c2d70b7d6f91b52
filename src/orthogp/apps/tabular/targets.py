"""What the target of a table is: numbers or classes, and why."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orthogp.errors import ConfigurationError, DataError
from orthogp.tables import Column, as_numbers, as_texts, kind_of

TASKS = ("regression", "classification")
# Whole numbers with no more distinct values are taken for classes.
FEW_VALUES = 10
MOST_CLASSES = 200


@dataclass(frozen=True)
class Target:
    """`values` are those of the rows in `present`: float64, or labels of any plain type."""

    task: str
    reason: str
    values: NDArray[Any]
    present: NDArray[np.bool_]


def read_target(column: Column, name: str, task: str | None) -> Target:
    """The target as the task takes it, or as it looks if no task is given."""
    if task not in (None, *TASKS):
        raise ConfigurationError(f"--task is {task!r}; expected {' or '.join(TASKS)}")
    kind = kind_of(column.type)
    if kind in ("time", "other"):
        raise DataError(
            f"the target {name!r} is of type {column.type}; expected numbers, text or truth values"
        )
    values, present = target_values(column, name, "")
    if not present.any():
        raise DataError(f"the target {name!r} is missing in every row")
    found, reason = _inferred(values, kind, name) if task is None else (task, "as asked by --task")
    if found == "classification":
        return Target(found, reason, _classes(values, name), present)
    if kind != "number":
        raise DataError(f"the target {name!r} is of type {column.type}; regression needs numbers")
    if (values == values[0]).all():
        raise DataError(f"the target {name!r} is {values[0]:g} in every row: nothing to learn")
    return Target(found, reason, values, present)


def target_values(column: Column, name: str, task: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The values that are not missing, and which those are; classes are no fractions."""
    kind = kind_of(column.type)
    values, present = _numbers(column, name) if kind == "number" else _labels(column, kind)
    as_integers = task == "classification" and kind == "number"
    return (values.astype(np.int64) if as_integers else values), present


def _numbers(column: Column, name: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    values = as_numbers(column)
    present = ~np.isnan(values)
    infinite = int(np.isinf(values).sum())
    if infinite:
        raise DataError(f"the target {name!r} has {infinite} infinite values; drop those rows")
    return values[present], present


def _labels(column: Column, kind: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    strings = as_texts(column)
    present = ~np.asarray(strings.is_null().to_numpy(zero_copy_only=False))
    labels = np.array(strings.drop_null().to_pylist(), dtype=object)
    return (labels == "true" if kind == "bool" else labels), present


def _inferred(values: NDArray[Any], kind: str, name: str) -> tuple[str, str]:
    if kind != "number":
        what = "truth values" if kind == "bool" else "text"
        return "classification", f"{name!r} holds {what}"
    count = len(np.unique(values))
    if (values % 1 != 0).any():
        return "regression", f"{name!r} holds numbers that are not whole"
    few = count <= FEW_VALUES
    reason = (
        f"{name!r} holds whole numbers with {count} distinct values, and "
        f"{'no more' if few else 'more'} than {FEW_VALUES}"
    )
    return ("classification" if few else "regression"), reason


def _classes(values: NDArray[Any], name: str) -> NDArray[Any]:
    if values.dtype == np.float64:
        if (values % 1 != 0).any() or (np.abs(values) >= 2**53).any():
            raise DataError(
                f"the target {name!r} holds numbers that are not whole; classes are text, truth "
                "values or whole numbers"
            )
        values = values.astype(np.int64)
    require_few(np.unique(values), name)
    return values


def require_few(distinct: NDArray[Any], name: str) -> None:
    """Refuses one class, and too many."""
    if len(distinct) < 2:
        raise DataError(
            f"the target {name!r} has one class only, {distinct.tolist()[0]!r:.60}; at least two "
            "are needed"
        )
    if len(distinct) > MOST_CLASSES:
        raise DataError(
            f"the target {name!r} has {len(distinct)} classes; at most {MOST_CLASSES} are taken: "
            "merge some, or use --task regression if they are quantities"
        )


def as_column(labels: NDArray[Any]) -> pa.Array:
    """Labels for a table."""
    return pa.array(labels.tolist())
