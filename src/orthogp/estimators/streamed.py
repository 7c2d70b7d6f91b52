"""Fits on tables that are not in memory: one pass to learn their units, then a stream of rows.

Where every process can read some of the blocks, each surveys its own, and all learn from what all
have found.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
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
from orthogp.estimators.targets import Learner
from orthogp.execution.team import Team
from orthogp.posterior.points import KMEANS_ROWS
from orthogp.sources import RowBlock, Shards, Source
from orthogp.tables import Described, Learning, Plan, number_plan
from orthogp.training import Rows, Stream
from orthogp.training.streams import Owners

# In float64. A table up to this size is read into memory.
LOADED_BYTES = 2**27
# Rows in memory of a table whose near rows are in a folder.
ON_DISK_SAMPLE = 2**16


class TableStream(Stream):
    """The rows of a source in the units of the model, without those that are left out."""

    def __init__(
        self,
        intake: Intake,
        units: Units,
        source: Source,
        left_out: NDArray[np.int64],
        sample: Rows,
    ):
        """`left_out` are rows of the source, and `sample` are rows as they are in the stream."""
        self.intake, self.units, self.source, self.left_out = intake, units, source, left_out
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
    units, sampled, total = _survey_and_plan(intake, source, np.sort(chosen))
    sample = units.rows(*sampled, intake.dtype)
    order = torch.from_numpy(rng.permutation(len(sample)))
    held_out = sample.map(lambda t: t[order[:num_held_out]]) if num_held_out else None
    left_out = np.sort(np.sort(chosen)[order[:num_held_out]])
    train = TableStream(intake, units, source, left_out, sample)
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
        team = _team(source)
        parts = team.collect(team.attempt(lambda: _sample_own(intake, source, chosen)))
        # Every shard that has rows has the same columns.
        columns, described, _ = next(part for part in parts if part[0] is not None)
        assert columns is not None
        sampled = [table for part in parts for table in part[2]]
        sample = (
            _one_table(sampled) if isinstance(sampled[0], pa.Table) else np.concatenate(sampled)
        )
        plan = learn_plan(intake.settings, sample, columns, None, described)
        return _survey(intake, source, chosen, plan)


def _sample_own(
    intake: Intake, source: Source, chosen: NDArray[np.int64]
) -> tuple[Columns | None, Learning | None, list[Any]]:
    """The columns, how they are to be learned if the source says so, and the chosen rows."""
    columns, described, parts = None, None, []
    for number, start in _own_blocks(source):
        table = source.read(number).X
        with _naming_block(source, number):
            X, columns = intake.check_inputs(table, columns)
        described = table.learning if isinstance(table, Described) else None
        rows = _rows_of_block(chosen, start, len(X))
        parts.append(X[rows] if isinstance(X, np.ndarray) else X.take(pa.array(rows)))
    return columns, described, parts


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


def _survey(intake: Intake, source: Source, chosen: NDArray[np.int64], plan: Plan | None) -> Survey:
    """Checks every row and learns the units; also the chosen rows and the weight of all.

    Without a plan every value must be a number.
    """
    team = _team(source)
    parts = team.collect(team.attempt(lambda: _survey_own(intake, source, chosen, plan)))
    found = reduce(lambda one, other: one.merged(other, intake.learner), parts)
    if not found.weight:
        raise DataError("every sample_weight is zero; expected a positive one for some row")
    X, y, weight = zip(*found.sampled, strict=True)
    units = intake.units
    if units is None:
        assert found.columns is not None
        assert found.moments is not None
        if plan is None:
            plan = number_plan(np.concatenate(X), found.columns.labels)
        units = intake.learn(
            found.columns, plan, found.moments, intake.learner.learn(found.targets)
        )
    weights = None if weight[0] is None else np.concatenate(weight)
    return units, (np.concatenate(X), np.concatenate(y), weights), found.weight


def _survey_own(
    intake: Intake, source: Source, chosen: NDArray[np.int64], plan: Plan | None
) -> _Found:
    """The survey of the blocks that this process can read."""
    found = _Found(intake.units and intake.units.columns, None, None, [])
    for number, start in _own_blocks(source):
        X, y, weight, found.columns = _checked(intake, source, number, found.columns, plan)
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
