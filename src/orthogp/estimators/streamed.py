"""Fits on tables that are not in memory: one pass to learn their units, then a stream of rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from orthogp.errors import DataError
from orthogp.estimators.checks import Columns, checked_weight
from orthogp.estimators.defaults import count_held_out, point_counts
from orthogp.estimators.inputs import GapsError, encode_rows, learn_plan
from orthogp.estimators.intake import FitData, Intake, Units
from orthogp.estimators.scaling import Array, Moments
from orthogp.posterior.points import KMEANS_ROWS
from orthogp.sources import RowBlock, Source
from orthogp.tables import Described, Plan, number_plan
from orthogp.training import Rows, Stream

# In float64. A table up to this size is read into memory.
LOADED_BYTES = 2**27


class TableStream(Stream):
    """The rows of a source in the units of the model, without those that are left out."""

    def __init__(self, intake: Intake, units: Units, source: Source, left_out: NDArray[np.int64]):
        self.intake, self.units, self.source, self.left_out = intake, units, source, left_out
        starts = np.cumsum([0, *source.sizes])
        self.starts: list[int] = starts[:-1].tolist()
        absent = np.diff(np.searchsorted(left_out, starts))
        self.sizes = tuple((np.array(source.sizes) - absent).tolist())

    def block(self, number: int) -> Rows | None:
        if not self.sizes[number]:
            return None
        units = self.units
        X, y, weight, _ = _checked(self.intake, self.source, number, units.columns, units.plan)
        selected = np.ones(len(X), dtype=bool)
        selected[_rows_of_block(self.left_out, self.starts[number], len(X))] = False
        if not selected.all():
            X, y, weight = X[selected], y[selected], None if weight is None else weight[selected]
        return self.units.rows(X, y, weight, self.intake.dtype)

    def outline(self) -> Iterator[bytes]:
        yield self.left_out.tobytes()
        yield from self.source.outline()


def is_large(source: Source) -> bool:
    first = source.read(0)
    width = np.shape(first.X)[1] + int(np.prod(first.y.shape[1:]))
    return 8 * width * len(source) > LOADED_BYTES


def loaded(source: Source) -> tuple[Any, NDArray, NDArray | None]:
    """All of a source in memory, with the names of its columns."""
    blocks = [source.read(number) for number in range(len(source.sizes))]
    X = [block.X for block in blocks]
    # An array has no column names.
    table = np.concatenate(X) if isinstance(X[0], np.ndarray) else _one_table(X)
    y = np.concatenate([block.y for block in blocks])
    weights = [block.weight for block in blocks if block.weight is not None]
    return table, y, np.concatenate(weights) if weights else None


def _one_table(parts: list[Any]) -> Any:
    if isinstance(parts[0], Described):
        tables = [part.table for part in parts]
        return Described(pa.concat_tables(tables), parts[0].learning)
    return pa.concat_tables(parts)


def streamed_data(intake: Intake, source: Source, generator: torch.Generator) -> FitData:
    """Surveys a source in one pass: scales, targets, and a sample of its rows."""
    settings, num_rows = intake.settings, len(source)
    num_held_out = count_held_out(
        num_rows, settings["validation_fraction"], settings["early_stopping"]
    )
    num_inducing, num_residual = point_counts(settings, num_rows)
    wanted = num_held_out + max(KMEANS_ROWS, 10 * num_inducing, 2 * num_residual)
    seed = int(torch.randint(2**62, (), generator=generator))
    rng = np.random.default_rng(seed)
    chosen = rng.choice(num_rows, min(wanted, num_rows), replace=False)
    units, sampled, total = _survey_and_plan(intake, source, np.sort(chosen))
    sample = units.rows(*sampled, intake.dtype)
    order = torch.from_numpy(rng.permutation(len(sample)))
    held_out = sample.map(lambda t: t[order[:num_held_out]]) if num_held_out else None
    left_out = np.sort(np.sort(chosen)[order[:num_held_out]])
    train = TableStream(intake, units, source, left_out)
    rest = sample.map(lambda t: t[order[num_held_out:]])
    return FitData(units, train, held_out, rest, sample, num_rows, total)


Survey = tuple[Units, tuple[Array, NDArray, Array | None], float]


def _survey_and_plan(intake: Intake, source: Source, chosen: NDArray[np.int64]) -> Survey:
    """As `_survey`; another pass before it learns the plan of columns that are not plain numbers
    from the chosen rows. Streamed rows have no folds, so there are no target statistics."""
    if intake.units is not None:
        return _survey(intake, source, chosen, intake.units.plan)
    try:
        return _survey(intake, source, chosen, None)
    except GapsError:
        columns, parts, start = None, [], 0
        for number in range(len(source.sizes)):
            if not source.sizes[number]:
                continue
            with _naming_block(source, number):
                X, columns = intake.check_inputs(source.read(number).X, columns)
            rows = _rows_of_block(chosen, start, len(X))
            parts.append(X[rows] if isinstance(X, np.ndarray) else X.take(pa.array(rows)))
            start += len(X)
        assert columns is not None
        sample = _one_table(parts) if isinstance(parts[0], pa.Table) else np.concatenate(parts)
        first = source.read(int(np.argmax(source.sizes))).X
        described = first.learning if isinstance(first, Described) else None
        plan = learn_plan(intake.settings, sample, columns, None, described)
        return _survey(intake, source, chosen, plan)


def _survey(intake: Intake, source: Source, chosen: NDArray[np.int64], plan: Plan | None) -> Survey:
    """Checks every row and learns the units; also the chosen rows and the weight of all.

    Without a plan every value must be a number.
    """
    fresh, columns = intake.units is None, intake.units and intake.units.columns
    moments, survey, sampled, total, start = None, None, [], 0.0, 0
    for number in range(len(source.sizes)):
        if not source.sizes[number]:
            continue
        X, y, weight, columns = _checked(intake, source, number, columns, plan)
        total += len(X) if weight is None else float(weight.sum())
        rows = _rows_of_block(chosen, start, len(X))
        sampled.append([None if part is None else part[rows] for part in (X, y, weight)])
        start += len(X)
        # Rows of weight zero are ignored, and a block may have no others.
        weighted = slice(None) if weight is None else weight > 0
        if not fresh or (weight is not None and not weight.any()):
            continue
        positive_weight = None if weight is None else weight[weighted]
        with _naming_block(source, number):
            survey = intake.learner.survey(y[weighted], positive_weight, survey)
            found = Moments.of(X[weighted], positive_weight, "X")
        moments = found if moments is None else moments.merged(found)
    if not total:
        raise DataError("every sample_weight is zero; expected a positive one for some row")
    units = intake.units
    if units is None:
        assert columns is not None
        assert moments is not None
        if plan is None:
            plan = number_plan(np.concatenate([part[0] for part in sampled]), columns.labels)
        units = intake.learn(columns, plan, moments, intake.learner.learn(survey))
    X, y, weight = zip(*sampled, strict=True)
    weights = None if weight[0] is None else np.concatenate(weight)
    return units, (np.concatenate(X), np.concatenate(y), weights), total


def _checked(
    intake: Intake, source: Source, number: int, columns: Columns | None, plan: Plan | None
) -> tuple[Array, NDArray, Array | None, Columns]:
    block: RowBlock = source.read(number)
    with _naming_block(source, number):
        raw, columns = intake.check_inputs(block.X, columns)
        X = encode_rows(plan, raw)
        y = intake.learner.check(block.y, len(X))
        return X, y, checked_weight(block.weight, len(X), part=True), columns


@contextmanager
def _naming_block(source: Source, number: int) -> Iterator[None]:
    """Puts the place of a block before the messages of its data errors."""
    try:
        yield
    except GapsError:
        raise
    except DataError as error:
        raise DataError(f"{source.place(number)}: {error}") from error


def _rows_of_block(sorted_rows: NDArray[np.int64], start: int, count: int) -> NDArray[np.int64]:
    """Which of these rows lie in the block of `count` rows from `start`, counted from there."""
    first, last = np.searchsorted(sorted_rows, [start, start + count])
    return sorted_rows[first:last] - start
