"""From a table on disk to checked matrices for training and test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orthogp.apps.tabular.encoding import Encoder, Matrix, Tally
from orthogp.apps.tabular.large import EncodedTable, Survey
from orthogp.apps.tabular.learning import learn, require_complete, require_usable
from orthogp.apps.tabular.plan import POLICIES
from orthogp.apps.tabular.reading import ParquetSource, TableSource, listed, open_table
from orthogp.apps.tabular.targets import Target, read_target, require_few
from orthogp.errors import ConfigurationError, DataError
from orthogp.sources import Source

FEWEST_TRAINING_ROWS = 2
# Bytes of the values before compression: a table up to this size is read whole.
WHOLE_BYTES = 2**29
# The most test rows of a table that is not read whole: enough for every figure of the report.
MOST_TEST_ROWS = 50_000


@dataclass(frozen=True)
class FitRequest:
    """What a fit is asked to do; `settings` are the estimator's own."""

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

    def __post_init__(self) -> None:
        if not 0 <= self.test_size < 1:
            raise ConfigurationError(f"--test-size is {self.test_size}; expected a share in [0, 1)")
        if not 0 <= self.seed < 2**32:
            raise ConfigurationError(f"--seed is {self.seed}; expected a number in [0, 2³²)")
        if self.missing not in POLICIES:
            raise ConfigurationError(f"--missing is {self.missing!r}; expected impute or refuse")


@dataclass(frozen=True)
class Prepared:
    """Matrices and targets of both parts; `classes` are all labels of the table, if it has any.

    Of a table that is not read whole `X` has the training rows with their targets, block by block,
    and `y` has the targets of a sample of them.
    """

    encoder: Encoder
    target: Target
    classes: NDArray[Any] | None
    X: Matrix | Source
    y: NDArray[Any]
    X_test: Matrix
    y_test: NDArray[Any]
    rows: dict[str, int]
    columns: int
    notes: tuple[str, ...]


def prepare(request: FitRequest, say: Callable[[str], None]) -> Prepared:
    """Reads, checks and splits the table, and says what was done to it."""
    source = open_table(request.table)
    inputs = input_columns(source, request)
    if isinstance(source, ParquetSource) and source.stored_bytes() > WHOLE_BYTES:
        return prepare_large(source, inputs, request, say)
    table = source.read([request.target, *inputs])
    if table.num_rows == 0:
        raise DataError(f"{request.table} has no rows")
    require_usable({name: table.schema.field(name).type for name in inputs})
    target = read_target(table.column(request.target), request.target, request.task)
    say(f"task: {target.task}, because {target.reason}")
    notes = []
    dropped = table.num_rows - int(target.present.sum())
    if dropped:
        notes.append(f"{dropped} of {table.num_rows} rows dropped: their target is missing")
    labelled = table.select(inputs).filter(pa.array(target.present))
    train, test = draw_test_rows(labelled.num_rows, request)
    if request.missing == "refuse":
        require_complete(labelled)
    plan, found = learn(labelled.take(pa.array(train)), request.missing)
    encoder, tally = Encoder(plan), Tally()
    X = encoder.encode(labelled.take(train), Tally())
    X_test = encoder.encode(labelled.take(test), tally)
    notes += [*found, *(f"in the test rows, {note}" for note in unseen_notes(tally))]
    for note in notes:
        say(note)
    rows = {"table": table.num_rows, "without_target": dropped,
            "training": len(train), "test": len(test)}  # fmt: skip
    return Prepared(
        encoder=encoder,
        target=target,
        classes=np.unique(target.values) if target.task == "classification" else None,
        X=X,
        y=target.values[train],
        X_test=X_test,
        y_test=target.values[test],
        rows=rows,
        columns=len(plan.kinds),
        notes=tuple(notes),
    )


def prepare_large(
    source: ParquetSource, inputs: list[str], request: FitRequest, say: Callable[[str], None]
) -> Prepared:
    """As `prepare`, from one pass over the files; the training rows stay in them."""
    require_usable({name: source.types[name] for name in inputs})
    survey = Survey.of(source, request.target, inputs, request.seed)
    total, num_present = sum(survey.sizes), sum(survey.present)
    if not total:
        raise DataError(f"{request.table} has no rows")
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
    if request.missing == "refuse":
        require_complete(labelled)
    plan, found = learn(labelled.take(pa.array(rest)), request.missing)
    encoder, tally = Encoder(plan), Tally()
    X_test = encoder.encode(labelled.take(test), tally)
    notes += [*found, *(f"in the test rows, {note}" for note in unseen_notes(tally))]
    for note in notes:
        say(note)
    classes = None
    if target.task == "classification":
        classes = np.array(sorted(survey.labels), dtype=target.values.dtype)
        require_few(classes, request.target)
    return Prepared(
        encoder=encoder,
        target=target,
        classes=classes,
        X=EncodedTable(survey, encoder, rows[test]),
        y=target.values[rest],
        X_test=X_test,
        y_test=target.values[test],
        rows={"table": total, "without_target": total - num_present,
              "training": num_present - len(test), "test": len(test)},
        columns=len(plan.kinds),
        notes=tuple(notes),
    )  # fmt: skip


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
