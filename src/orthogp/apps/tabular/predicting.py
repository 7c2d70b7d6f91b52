"""A table through a model, batch after batch: memory does not grow with its rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa

from orthogp.apps.tabular.guarantees import (
    DEFAULT_COVERAGE,
    guaranteed_columns,
    guaranteed_names,
    is_guaranteed,
    promise,
)
from orthogp.apps.tabular.model import TableModel, class_names
from orthogp.apps.tabular.preparing import require_known_columns, unseen_notes
from orthogp.apps.tabular.reading import (
    PARQUET,
    SEPARATORS,
    TableSource,
    open_table,
)
from orthogp.apps.tabular.targets import as_column
from orthogp.apps.tabular.writing import harmless, require_format, require_writable, table_writer
from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators import OrthogonalGPClassifier
from orthogp.tables import Tally, kind_of, listed

DEFAULT_LEVELS = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class PredictRequest:
    """What a prediction is asked to do; `levels` None means the default ones.

    `coverage` is that of guaranteed intervals or sets, None for the default where there are any.
    """

    model: Path
    table: Path
    out: Path
    id_column: str | None
    levels: tuple[float, ...] | None
    batch_rows: int
    safe_csv: bool
    coverage: float | None = None

    def __post_init__(self) -> None:
        if self.batch_rows < 1:
            raise ConfigurationError(f"--batch-rows is {self.batch_rows}; expected at least one")
        if self.out.absolute() in (self.table.absolute(), self.model.absolute()):
            raise ConfigurationError(f"--out is {self.out}, which is to be read; name another file")
        if self.coverage is not None and not 0 < self.coverage < 1:
            raise ConfigurationError(
                f"--coverage is {self.coverage:g}; expected a number between 0 and 1"
            )
        levels = self.levels or ()
        if not all(0 < q < 1 for q in levels) or len(set(levels)) != len(levels):
            raise ConfigurationError(
                f"--coverage-levels is {','.join(map(str, levels))}; expected distinct numbers "
                "between 0 and 1"
            )

    @property
    def to_folder(self) -> bool:
        """Whether every file of a folder has one of its own in the folder `out`."""
        named = self.out.name.lower().endswith((*SEPARATORS, *PARQUET))
        return self.table.is_dir() and (self.out.is_dir() or not named)


def predict_table(request: PredictRequest, say: Callable[[str], None]) -> int:
    """Writes a row of predictions for every row, in their order; how many there were."""
    require_format(request.out, request.safe_csv)
    require_writable(request.out)
    model = load_table_model(request)
    source = open_table(request.table)
    id_column = choose_id(model, source, request)
    require_kinds(model, source)
    say_unused_columns(model, source, id_column, say)
    tally, count = Tally(), 0
    batches = predicted(model, source, request, id_column, tally)
    batches = map(harmless, batches) if request.safe_csv else batches
    # The first batch has the schema.
    first = next(batches, None)
    if first is None:
        raise DataError(f"{request.table} has no rows")
    with table_writer(request.out, first.schema) as write:
        for batch in chain([first], batches):
            write(batch)
            count += batch.num_rows
    for note in (*missing_notes(tally), *unseen_notes(tally)):
        say(note)
    say(f"{count} rows in {request.out}: {', '.join(first.schema.names)}")
    say_promise(model, request, say)
    return count


def load_table_model(request: PredictRequest) -> TableModel:
    model = TableModel.load(request.model)
    if model.task == "classification" and request.levels is not None:
        raise ConfigurationError(
            f"--coverage-levels are quantiles of numbers, and {request.model} predicts classes"
        )
    coverage = guaranteed_coverage(model, request)
    if coverage is not None:
        # Refused here where the fit had too few rows for it.
        promise(model, coverage)
    return model


def guaranteed_coverage(model: TableModel, request: PredictRequest) -> float | None:
    """The coverage of guaranteed intervals or sets; None for a model without them."""
    if is_guaranteed(model):
        return DEFAULT_COVERAGE if request.coverage is None else request.coverage
    if request.coverage is not None:
        raise ConfigurationError(
            f"--coverage is of guaranteed intervals or sets, and {request.model} was fitted "
            "without --coverage-guarantee; fit with it, or ask for quantiles by --coverage-levels"
        )
    return None


def say_promise(model: TableModel, request: PredictRequest, say: Callable[[str], None]) -> None:
    coverage = guaranteed_coverage(model, request)
    if coverage is not None:
        say(promise(model, coverage))


def predicted(
    model: TableModel,
    source: TableSource,
    request: PredictRequest,
    id_column: str | None,
    tally: Tally,
) -> Iterator[pa.RecordBatch]:
    """Predictions for every batch; none for a table without rows."""
    kinds = model.kinds
    if id_column is not None:
        # Text in a CSV file, whatever it looks like: 007 stays 007.
        kinds.setdefault(id_column, "text")
    levels, coverage = quantile_levels(request), guaranteed_coverage(model, request)
    for batch in source.batches(kinds, request.batch_rows):
        found = model.predictions(model.encode(batch, tally), levels)
        if coverage is not None:
            found |= guaranteed_columns(model, batch, coverage)
        if id_column in found:
            raise DataError(f"the id {id_column!r} is also a column of predictions; rename it")
        ids = {} if id_column is None else {id_column: text_as_strings(batch.column(id_column))}
        yield pa.RecordBatch.from_pydict(ids | found)


def empty_predictions(
    model: TableModel, source: TableSource, request: PredictRequest, id_column: str | None
) -> pa.RecordBatch:
    """No rows, with the columns that `predicted` would give; only where `source` has types."""
    names, label = ["mean", "std", *(f"q{q:g}" for q in quantile_levels(request))], {}
    if isinstance(model.estimator, OrthogonalGPClassifier):
        names = [f"p_{name}" for name in class_names(model.estimator.classes_)]
        label = {"label": as_column(model.estimator.classes_)[:0]}
    found = label | {name: pa.array([], pa.float64()) for name in names}
    coverage = guaranteed_coverage(model, request)
    if coverage is not None:
        kind = pa.string() if label else pa.float64()
        found |= {name: pa.array([], kind) for name in guaranteed_names(model, coverage)}
    ids = {}
    if id_column is not None:
        ids = {id_column: text_as_strings(pa.array([], source.types[id_column]))}
    return pa.RecordBatch.from_pydict(ids | found)


def quantile_levels(request: PredictRequest) -> tuple[float, ...]:
    return DEFAULT_LEVELS if request.levels is None else request.levels


def text_as_strings(column: pa.Array) -> pa.Array:
    """Text as strings, however it is stored."""
    return column.cast(pa.string()) if kind_of(column.type) == "text" else column


def choose_id(model: TableModel, source: TableSource, request: PredictRequest) -> str | None:
    """The one asked for, else that of the fit if the table has it."""
    if request.id_column is not None:
        require_known_columns(source, [request.id_column])
    found = request.id_column or model.id_column
    return found if found in source.names else None


def require_kinds(model: TableModel, source: TableSource) -> None:
    """Refuses a table that lacks a column or, where its types are known, has one of another."""
    kinds = model.kinds
    absent = [name for name in kinds if name not in source.names]
    if absent:
        raise DataError(f"{source.path} lacks the columns {listed(absent)}, which the model needs")
    wrong = {
        name: f"{source.types[name]}, not {kind}"
        for name, kind in kinds.items()
        if name in source.types and kind_of(source.types[name]) not in (kind, "empty")
    }
    if wrong:
        named = listed(list(wrong), wrong)
        raise DataError(f"{source.path} has columns of another type than training: {named}")


def say_unused_columns(
    model: TableModel, source: TableSource, id_column: str | None, say: Callable[[str], None]
) -> None:
    used = (*model.kinds, id_column)
    extra = [name for name in source.names if name not in used]
    if extra:
        say(f"columns that the model does not use, ignored: {listed(extra)}")


def missing_notes(tally: Tally) -> Sequence[str]:
    return [
        f"{count} values of {name!r:.60} are missing and were taken as in training"
        for name, count in tally.missing.items()
    ]
