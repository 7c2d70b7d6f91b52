"""Fits on tables that are not in memory: one pass to learn their units, then a stream of rows.

Where every process can read some of the blocks, each surveys its own, and all learn from what all
have found.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from orthogp.errors import DataError
from orthogp.estimators.checks import Columns, checked_weight
from orthogp.estimators.defaults import count_held_out, point_counts
from orthogp.estimators.inputs import FOLD_SEED, GapsError, RawRows, encode_rows, learn_plan
from orthogp.estimators.intake import FitData, Intake, Units
from orthogp.estimators.scaling import Array, Moments
from orthogp.estimators.targets import Learner
from orthogp.execution.team import Team
from orthogp.posterior.points import KMEANS_ROWS
from orthogp.sources import RowBlock, Shards, Source
from orthogp.tables import (
    Described,
    Learning,
    Plan,
    array_table,
    fold_numbers,
    number_plan,
    plans_without_folds,
)
from orthogp.training import Rows, Stream
from orthogp.training.streams import Owners

# In float64. A table up to this size is read into memory.
LOADED_BYTES = 2**27
# Rows in memory of a table whose near rows are in a folder.
ON_DISK_SAMPLE = 2**16


def _no_rows() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Encoding:
    """How the rows of a source become inputs.

    By a plan, of a block that is all numbers by None; of target statistics a row that they were
    learned from has those of the folds that it is not in. `rows` of the source, in order, are such
    rows, of the fold `folds`, and `without` has a plan for each fold.
    """

    plan: Plan | None
    rows: NDArray[np.int64] = field(default_factory=_no_rows)
    folds: NDArray[np.int64] = field(default_factory=_no_rows)
    without: tuple[Plan, ...] = ()

    def inputs(self, X: RawRows, start: int) -> Array:
        """Those of a block whose first row is this one of the source."""
        found = encode_rows(self.plan, X)
        first, last = np.searchsorted(self.rows, [start, start + len(X)])
        places, folds = self.rows[first:last] - start, self.folds[first:last]
        for number, plan in enumerate(self.without):
            own = places[folds == number]
            if len(own):
                found[own] = encode_rows(plan, _taken(X, own))
        return found


class TableStream(Stream):
    """The rows of a source in the units of the model, without those that are left out."""

    def __init__(
        self,
        intake: Intake,
        units: Units,
        encoding: Encoding,
        source: Source,
        left_out: NDArray[np.int64],
        sample: Rows,
    ):
        """`left_out` are rows of the source, and `sample` are rows as they are in the stream."""
        self.intake, self.units, self.encoding = intake, units, encoding
        self.source, self.left_out = source, left_out
        if isinstance(source, Shards):
            no_rows = tuple(part[:0] for part in sample.parts())
            self.owners = Owners(source.team, source.ranks, no_rows)
        self.concurrent = source.concurrent
        starts = np.cumsum([0, *source.sizes])
        self.starts: list[int] = starts[:-1].tolist()
        absent = np.diff(np.searchsorted(left_out, starts))
        self.sizes = tuple((np.array(source.sizes) - absent).tolist())

    def block(self, number: int) -> Rows | None:
        if not self.sizes[number]:
            return None
        units = self.units
        start = self.starts[number]
        X, y, weight, _ = _checked(
            self.intake, self.source, number, start, units.columns, self.encoding
        )
        selected = np.ones(len(X), dtype=bool)
        selected[_rows_of_block(self.left_out, start, len(X))] = False
        if not selected.all():
            X, y, weight = X[selected], y[selected], None if weight is None else weight[selected]
        return self.units.rows(X, y, weight, self.intake.dtype)

    def outline(self) -> Iterator[bytes]:
        yield self.left_out.tobytes()
        yield from self.source.outline()


def is_large(source: Source) -> bool:
    if isinstance(source, Shards):
        return source.num_bytes > source.memory
    first = source.read(0)
    width = np.shape(first.X)[1] + int(np.prod(first.y.shape[1:]))
    return 8 * width * len(source) > LOADED_BYTES


def loaded(source: Source) -> tuple[Any, NDArray, NDArray | None]:
    """All of a source in memory, with the names of its columns."""
    blocks = _all_blocks(source)
    X = [block.X for block in blocks]
    # An array has no column names.
    table = np.concatenate(X) if isinstance(X[0], np.ndarray) else _one_table(X)
    y = np.concatenate([block.y for block in blocks])
    weights = [block.weight for block in blocks if block.weight is not None]
    return table, y, np.concatenate(weights) if weights else None


def _all_blocks(source: Source) -> list[RowBlock]:
    if not isinstance(source, Shards):
        return [source.read(number) for number in range(len(source.sizes))]
    team, own = source.team, [number for number, _ in _own_blocks(source)]
    read = team.attempt(lambda: {number: source.read(number) for number in own})
    found = [team.agree(read.get(k), rank) for k, rank in enumerate(source.ranks)]
    return [block for block in found if block is not None]


def _own_blocks(source: Source) -> Iterator[tuple[int, int]]:
    """The blocks with rows that this process can read, and the number of rows before each."""
    start = 0
    for number, size in enumerate(source.sizes):
        if size and (not isinstance(source, Shards) or source.is_here(number)):
            yield number, start
        start += size


def _team(source: Source) -> Team:
    """The processes that read different blocks of a source."""
    return source.team if isinstance(source, Shards) else Team()


def _one_table(parts: list[Any]) -> Any:
    if isinstance(parts[0], Described):
        return Described(_one_table([part.table for part in parts]), parts[0].learning)
    # A column of a shard may have whole numbers alone, or no value.
    return pa.concat_tables(parts, promote_options="permissive")


def streamed_data(intake: Intake, source: Source, generator: torch.Generator) -> FitData:
    """Surveys a source in one pass: scales, targets, and a sample of its rows."""
    settings, num_rows = intake.settings, len(source)
    num_held_out = count_held_out(
        num_rows, settings["validation_fraction"], settings["early_stopping"]
    )
    num_inducing, num_residual = point_counts(settings, num_rows)
    sampled = KMEANS_ROWS if settings["rows_dir"] is None else ON_DISK_SAMPLE
    wanted = num_held_out + max(sampled, 10 * num_inducing, 2 * num_residual)
    seed = int(torch.randint(2**62, (), generator=generator))
    rng = np.random.default_rng(seed)
    chosen = rng.choice(num_rows, min(wanted, num_rows), replace=False)
    encoding, (units, sampled, total) = _survey_and_plan(intake, source, np.sort(chosen))
    sample = units.rows(*sampled, intake.dtype)
    order = torch.from_numpy(rng.permutation(len(sample)))
    held_out = sample.map(lambda t: t[order[:num_held_out]]) if num_held_out else None
    left_out = np.sort(np.sort(chosen)[order[:num_held_out]])
    train = TableStream(intake, units, encoding, source, left_out, sample)
    rest = sample.map(lambda t: t[order[num_held_out:]])
    return FitData(units, train, held_out, rest, sample, num_rows, total)


Survey = tuple[Units, tuple[Array, NDArray, Array | None], float]


def _survey_and_plan(
    intake: Intake, source: Source, chosen: NDArray[np.int64]
) -> tuple[Encoding, Survey]:
    """As `_survey`; another pass before it learns the plan of columns that are not plain numbers
    from the chosen rows, and target statistics from their targets."""
    if intake.units is not None:
        encoding = Encoding(intake.units.plan)
        return encoding, _survey(intake, source, chosen, encoding)
    try:
        found = _survey(intake, source, chosen, Encoding(None))
        return Encoding(found[0].plan), found
    except GapsError:
        encoding = _learn_encoding(intake, source, chosen)
        return encoding, _survey(intake, source, chosen, encoding)


def _learn_encoding(intake: Intake, source: Source, chosen: NDArray[np.int64]) -> Encoding:
    """The plan of the chosen rows, and those without the statistics of each of their folds."""
    team = _team(source)
    parts = team.collect(team.attempt(lambda: _sample_own(intake, source, chosen)))
    found = reduce(lambda one, other: one.merged(other, intake.learner), parts)
    assert found.columns is not None
    if not found.rows:
        raise DataError("every sample_weight is zero; expected a positive one for some row")
    # The blocks of a process need not follow each other.
    rows, y = np.concatenate(found.rows), np.concatenate(found.y)
    order = np.argsort(rows)
    X = np.concatenate(found.X) if isinstance(found.X[0], np.ndarray) else _one_table(found.X)
    rows, y, X = rows[order], y[order], _taken(X, order)
    targets = intake.learner.learn(found.targets).statistics(y)
    plan = learn_plan(intake.settings, X, found.columns, targets, found.described)
    if not plan.statistics:
        return Encoding(plan)
    table = X if isinstance(X, pa.Table) else array_table(X, plan.order)
    folds = fold_numbers(len(rows), FOLD_SEED)
    return Encoding(plan, rows, folds, plans_without_folds(plan, table, targets, folds))


def _taken(X: RawRows, rows: NDArray[np.int64]) -> RawRows:
    return X[rows] if isinstance(X, np.ndarray) else X.take(pa.array(rows))


@dataclass
class _Sample:
    """Of some blocks: the columns, how they are to be learned if the source says so, what is to be
    learned of the targets, and the chosen rows that have a weight."""

    columns: Columns | None
    described: Learning | None
    targets: Any
    rows: list[NDArray[np.int64]]
    X: list[Any]
    y: list[NDArray]

    def merged(self, other: "_Sample", learner: Learner) -> "_Sample":
        first = other if self.columns is None else self
        targets = self.targets
        if targets is None:
            targets = other.targets
        elif other.targets is not None:
            targets = learner.merged(targets, other.targets)
        lists = self.rows + other.rows, self.X + other.X, self.y + other.y
        return _Sample(first.columns, first.described, targets, *lists)


def _sample_own(intake: Intake, source: Source, chosen: NDArray[np.int64]) -> _Sample:
    """The sample of the blocks that this process can read."""
    found = _Sample(None, None, None, [], [], [])
    for number, start in _own_blocks(source):
        block = source.read(number)
        with _naming_block(source, number):
            X, found.columns = intake.check_inputs(block.X, found.columns)
            y = intake.learner.check(block.y, len(X))
            weight = checked_weight(block.weight, len(X), part=True)
            weighted = np.ones(len(X), bool) if weight is None else weight > 0
            if weighted.any():
                positive = None if weight is None else weight[weighted]
                found.targets = intake.learner.survey(y[weighted], positive, found.targets)
        found.described = block.X.learning if isinstance(block.X, Described) else None
        rows = _rows_of_block(chosen, start, len(X))
        rows = rows[weighted[rows]]
        if len(rows):
            found.rows.append(start + rows)
            found.X.append(_taken(X, rows))
            found.y.append(y[rows])
    return found


@dataclass
class _Found:
    """What a survey has found in some blocks: the moments of the inputs, what is to be learned of
    the targets, chosen rows of each block, and the sum of the weights."""

    columns: Columns | None
    moments: Moments | None
    targets: Any
    sampled: list[tuple[Array, NDArray, Array | None]]
    weight: float = 0.0

    def merged(self, other: "_Found", learner: Learner) -> "_Found":
        moments, targets = self.moments, self.targets
        # Both are None where no row had a weight.
        if moments is None:
            moments, targets = other.moments, other.targets
        elif other.moments is not None:
            moments = moments.merged(other.moments)
            targets = learner.merged(targets, other.targets)
        columns = other.columns if self.columns is None else self.columns
        sampled, weight = self.sampled + other.sampled, self.weight + other.weight
        return _Found(columns, moments, targets, sampled, weight)


def _survey(
    intake: Intake, source: Source, chosen: NDArray[np.int64], encoding: Encoding
) -> Survey:
    """Checks every row and learns the units; also the chosen rows and the weight of all.

    Without a plan every value must be a number.
    """
    team = _team(source)
    parts = team.collect(team.attempt(lambda: _survey_own(intake, source, chosen, encoding)))
    found = reduce(lambda one, other: one.merged(other, intake.learner), parts)
    if not found.weight:
        raise DataError("every sample_weight is zero; expected a positive one for some row")
    X, y, weight = zip(*found.sampled, strict=True)
    units = intake.units
    if units is None:
        assert found.columns is not None
        assert found.moments is not None
        plan = encoding.plan
        if plan is None:
            plan = number_plan(np.concatenate(X), found.columns.labels)
        units = intake.learn(
            found.columns, plan, found.moments, intake.learner.learn(found.targets)
        )
    weights = None if weight[0] is None else np.concatenate(weight)
    return units, (np.concatenate(X), np.concatenate(y), weights), found.weight


def _survey_own(
    intake: Intake, source: Source, chosen: NDArray[np.int64], encoding: Encoding
) -> _Found:
    """The survey of the blocks that this process can read."""
    found = _Found(intake.units and intake.units.columns, None, None, [])
    for number, start in _own_blocks(source):
        X, y, weight, found.columns = _checked(
            intake, source, number, start, found.columns, encoding
        )
        found.weight += len(X) if weight is None else float(weight.sum())
        rows = _rows_of_block(chosen, start, len(X))
        found.sampled.append((X[rows], y[rows], None if weight is None else weight[rows]))
        # Rows of weight zero are ignored, and a block may have no others.
        weighted = slice(None) if weight is None else weight > 0
        if intake.units is not None or (weight is not None and not weight.any()):
            continue
        positive_weight = None if weight is None else weight[weighted]
        with _naming_block(source, number):
            found.targets = intake.learner.survey(y[weighted], positive_weight, found.targets)
            moments = Moments.of(X[weighted], positive_weight, "X")
        found.moments = moments if found.moments is None else found.moments.merged(moments)
    return found


def _checked(
    intake: Intake,
    source: Source,
    number: int,
    start: int,
    columns: Columns | None,
    encoding: Encoding,
) -> tuple[Array, NDArray, Array | None, Columns]:
    block: RowBlock = source.read(number)
    with _naming_block(source, number):
        raw, columns = intake.check_inputs(block.X, columns)
        X = encoding.inputs(raw, start)
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
