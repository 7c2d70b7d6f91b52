"""From a table on disk to checked matrices for training and test."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orthogp.apps.tabular.large import StreamedTable, Survey
from orthogp.apps.tabular.reading import ParquetSource, TableSource, open_table
from orthogp.apps.tabular.suspicions import giveaway_notes, sentinel_notes, without_values
from orthogp.apps.tabular.targets import Target, read_target, require_few
from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators.sharded import gather_table
from orthogp.execution.team import current_team
from orthogp.sources import Source
from orthogp.tables import (
    POLICIES,
    Described,
    Learning,
    Matrix,
    Tally,
    listed,
    named_categories,
    plan_notes,
    require_complete,
    sketched,
)

FEWEST_TRAINING_ROWS = 2
# Bytes of the values before compression: a table up to this size is read whole.
WHOLE_BYTES = 2**29
# The most test rows of a table that is not read whole: enough for every figure of the report.
MOST_TEST_ROWS = 50_000


@dataclass(frozen=True)
class FitRequest:
    """What a fit is asked to do; `settings` are the estimator's own.

    `shards` says that every process has a table of its own.
    """

    table: Path
    target: str
    out: Path
    task: str | None
    id_column: str | None
    drop: tuple[str, ...]
    test_size: float
    missing: str
    seed: int
    settings: dict[str, Any]
    drop_missing_target: bool = True
    shards: bool = False

    @property
    def policy(self) -> str:
        """Whether missing values are imputed or refused."""
        return self.missing if self.missing in POLICIES else "impute"

    @property
    def missing_values(self) -> tuple[float, ...]:
        """Numbers that stand for missing values."""
        if self.missing in POLICIES:
            return ()
        return tuple(float(value) for value in self.missing.split(","))

    def __post_init__(self) -> None:
        if not 0 <= self.test_size < 1:
            raise ConfigurationError(f"--test-size is {self.test_size}; expected a share in [0, 1)")
        if not 0 <= self.seed < 2**32:
            raise ConfigurationError(f"--seed is {self.seed}; expected a number in [0, 2³²)")
        try:
            valid = all(map(math.isfinite, self.missing_values))
        except ValueError:
            valid = False
        if not valid:
            raise ConfigurationError(
                f"--missing is {self.missing!r}; expected impute, refuse, or numbers that stand "
                "for missing values, comma-separated"
            )


@dataclass(frozen=True)
class Prepared:
    """Rows and targets of both parts; `classes` are all labels of the table, if it has any.

    Of a table that is not read whole `X` has the training rows with their targets, block by block,
    and `y` has the targets of a sample of them.
    """

    target: Target
    classes: NDArray[Any] | None
    X: Described | Source
    y: NDArray[Any]
    test: pa.Table
    y_test: NDArray[Any]
    rows: dict[str, int]
    notes: tuple[str, ...]


def prepare(request: FitRequest, say: Callable[[str], None]) -> Prepared:
    """Reads, checks and splits the table, and says what was done to it."""
    source, inputs = open_inputs(request)
    parquet = source if isinstance(source, ParquetSource) and not request.shards else None
    if parquet is not None and parquet.stored_bytes() > WHOLE_BYTES:
        return prepare_large(parquet, inputs, request, say)
    table = without_values(read_columns(source, inputs, request), request.missing_values)
    if table.num_rows == 0:
        raise DataError(f"{request.table} has no rows")
    target = read_target(table.column(request.target), request.target, request.task)
    say(f"task: {target.task}, because {target.reason}")
    notes = list(source.notes)
    dropped = table.num_rows - int(target.present.sum())
    require_targets(request, dropped, table.num_rows)
    if dropped:
        notes.append(f"{dropped} of {table.num_rows} rows dropped: their target is missing")
    labelled = table.select(inputs).filter(pa.array(target.present))
    train, test = draw_test_rows(labelled.num_rows, request)
    if request.policy == "refuse":
        require_complete(labelled)
    X = Described(labelled.take(train), Learning(missing=request.policy, text_dates=True))
    values = target.values[train]
    notes += column_notes(X, request, described_targets(values, target.task))
    notes += sentinel_notes(table)
    notes += giveaway_notes(X.table, values, target.task)
    for note in notes:
        say(note)
    rows = {"table": table.num_rows, "without_target": dropped,
            "training": len(train), "test": len(test)}  # fmt: skip
    return Prepared(
        target=target,
        classes=np.unique(target.values) if target.task == "classification" else None,
        X=X,
        y=values,
        test=labelled.take(test),
        y_test=target.values[test],
        rows=rows,
        notes=tuple(notes),
    )


def open_inputs(request: FitRequest) -> tuple[TableSource, list[str]]:
    """The table, and the columns to learn from."""

    def opened() -> tuple[TableSource, list[str]]:
        source = open_table(request.table)
        return source, input_columns(source, request)

    # A shard that cannot be opened ends the fit of all.
    return current_team().attempt(opened) if request.shards else opened()


def read_columns(source: TableSource, inputs: list[str], request: FitRequest) -> pa.Table:
    """The target and the inputs, of shards the rows of all processes."""
    columns = [request.target, *inputs]
    if not request.shards:
        return source.read(columns)
    return gather_table(current_team().attempt(lambda: source.read(columns)))


def prepare_large(
    source: ParquetSource, inputs: list[str], request: FitRequest, say: Callable[[str], None]
) -> Prepared:
    """As `prepare`, from one pass over the files; the training rows stay in them."""
    if request.settings.get("coverage_guarantee"):
        raise ConfigurationError(
            f"--coverage-guarantee needs a table that is read whole, and {request.table} is too "
            "large for that; fit without it, or to some of the rows"
        )
    survey = Survey.of(source, request.target, inputs, request.seed, request.missing_values)
    total, num_present = sum(survey.sizes), sum(survey.present)
    if not total:
        raise DataError(f"{request.table} has no rows")
    require_targets(request, total - num_present, total)
    target = read_target(survey.sample.column(0), request.target, request.task)
    survey.task = target.task
    say(f"task: {target.task}, because {target.reason}")
    notes = [
        f"{total} rows are too many to read at once: columns are judged by {len(survey.rows)} "
        "of them, drawn at random, and training streams the rest"
    ]
    if num_present < total:
        notes.append(f"{total - num_present} of {total} rows dropped: their target is missing")
    rows = survey.rows[target.present]
    labelled = survey.sample.select(inputs).filter(pa.array(target.present))
    rest, test = draw_test_rows(len(rows), request, MOST_TEST_ROWS)
    if request.policy == "refuse":
        require_complete(labelled)
    learning = Learning(missing=request.policy, text_dates=True)
    targets = described_targets(target.values[rest], target.task)
    notes += column_notes(Described(labelled.take(rest), learning), request, targets)
    for note in notes:
        say(note)
    classes = None
    if target.task == "classification":
        classes = np.array(sorted(survey.labels), dtype=target.values.dtype)
        require_few(classes, request.target)
    return Prepared(
        target=target,
        classes=classes,
        X=StreamedTable(survey, learning, rows[test]),
        y=target.values[rest],
        test=labelled.take(test),
        y_test=target.values[test],
        rows={"table": total, "without_target": total - num_present,
              "training": num_present - len(test), "test": len(test)},
        notes=tuple(notes),
    )  # fmt: skip


def require_targets(request: FitRequest, missing: int, total: int) -> None:
    """Refuses missing targets where they are not to be dropped."""
    if missing and not request.drop_missing_target:
        raise DataError(
            f"the target {request.target!r} is missing in {missing} of {total} rows; fill it in, "
            "or drop these rows with --drop-missing-target"
        )


def column_notes(rows: Described, request: FitRequest, targets: Matrix | None) -> list[str]:
    """What the fit will do to the columns, said before it begins."""
    names = rows.table.column_names
    categorical, by_type = named_categories(request.settings["categorical_features"], names)
    learning = replace(rows.learning, categorical=categorical, by_type=by_type, targets=targets)
    return plan_notes(learning.plan(rows.table))


def described_targets(values: NDArray[Any], task: str) -> Matrix:
    """Targets of as many columns as those of the fit, which decide what columns become."""
    if task == "regression":
        return values[:, None].astype(np.float64)
    classes, places = np.unique(values, return_inverse=True)
    found = np.eye(len(classes))[places]
    return found[:, 1:] if len(classes) == 2 else sketched(found)


def input_columns(source: TableSource, request: FitRequest) -> list[str]:
    """All columns but the target, the id and those to drop."""
    not_inputs = [request.target, *request.drop]
    not_inputs += [] if request.id_column is None else [request.id_column]
    require_known_columns(source, not_inputs)
    if request.target in (request.id_column, *request.drop):
        raise ConfigurationError(f"{request.target!r} is the target: it can be no id and not drop")
    found = [name for name in source.names if name not in not_inputs]
    if not found:
        raise DataError(f"{source.path} has no columns beside {listed(not_inputs)} to learn from")
    return found


def require_known_columns(source: TableSource, names: Sequence[str]) -> None:
    absent = [name for name in dict.fromkeys(names) if name not in source.names]
    if absent:
        raise DataError(
            f"{source.path} has no columns called {listed(absent)}; it has {listed(source.names)}"
        )


def draw_test_rows(
    num_rows: int, request: FitRequest, most: int | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Training and test rows, `most` at most, drawn at random, each in the order of the table."""
    count = round(request.test_size * num_rows)
    count = count if most is None else min(count, most)
    if request.test_size > 0:
        count = max(1, count)
    if num_rows - count < FEWEST_TRAINING_ROWS:
        raise DataError(
            f"{request.table} has {num_rows} rows with a target, {count} of them for the test; at "
            f"least {FEWEST_TRAINING_ROWS} must be left to learn from"
        )
    order = np.random.default_rng(request.seed).permutation(num_rows)
    return np.sort(order[count:]), np.sort(order[:count])


def unseen_notes(tally: Tally) -> list[str]:
    return [
        f"{count} values of {name!r:.60} are levels that training has not seen"
        for name, count in tally.unseen.items()
    ]
