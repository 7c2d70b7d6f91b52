"""Target statistics of the levels of a column: for columns with too many levels for an input each.

A level with n rows of mean ȳ has (n ȳ + m μ) / (n + m): its mean, shrunk towards the mean μ of all
rows, which counts for m of them. m = σ² / τ² is the ratio of the variance within levels to that
between them, by the method of moments, so that levels of few rows stay at the prior where a level
says little. A row of training gets the statistics of folds that it is not in: its own target must
not be among its inputs.

Of many targets, as of many classes, the statistics are of a few sums of them with random signs: the
kernel sees distances between the means of levels, which such sums keep.

The statistics know nothing of the other columns. What is left of a level once these are accounted
for the model learns by the level's marks.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sklearn.model_selection import KFold
from sklearn.preprocessing import TargetEncoder

from orthogp.tables.arrow import Column, Matrix, as_levels
from orthogp.tables.plan import Plan, StatisticsColumn

FOLDS = 5
# Distances of marks vary by √(2/32) = 1/4 about that of two levels.
MARKS = 32
# Inputs of a level's mean targets, at most; their distances vary as those of marks do.
MOST_TARGETS = 32
# A level that says nothing: its mean is that of all rows.
MOST_SMOOTHING = 1e6
UNSEEN = -1


def sketched(targets: Matrix) -> Matrix:
    """Targets `(n, t)` as they are or, where they are more, `MOST_TARGETS` sums of them.

    With independent signs s, E[Σ_j (Σ_i s_ij d_i)²] / J = Σ_i d_i². The signs are digests of the
    numbers of the targets, so that every fit has the same.
    """
    count = targets.shape[1]
    if count <= MOST_TARGETS:
        return targets
    signs = np.stack([_signs(f"target {i}", MOST_TARGETS) for i in range(count)])
    return targets @ signs / MOST_TARGETS**0.5


def learn_statistics(
    name: str, kind: str, column: Column, targets: Matrix, reason: str
) -> StatisticsColumn:
    """The statistics of a column's levels, from all rows."""
    strings = as_levels(column, kind)
    levels = tuple(sorted(strings.unique().drop_null().to_pylist()))
    missing = strings.null_count > 0
    codes = _codes(strings, levels, missing)
    count = len(levels) + missing
    counts = np.bincount(codes, minlength=count)
    smoothing = [smoothing_of(codes, y) for y in targets.T]
    prior = targets.mean(axis=0)
    values = [
        _encoder(m).fit(codes[:, None], y).encodings_[0]
        for m, y in zip(smoothing, targets.T, strict=True)
    ]
    return StatisticsColumn(
        name,
        kind,
        levels,
        missing,
        tuple(counts.tolist()),
        tuple(tuple(row) for row in np.stack(values, axis=1).tolist()),
        tuple(prior.tolist()),
        tuple(smoothing),
        MARKS,
        reason,
    )


def smoothing_of(codes: NDArray[np.int64], y: Matrix) -> float:
    """m = σ² / τ², by the moments of a one-way analysis of variance."""
    counts = np.bincount(codes)
    counts, places = counts[counts > 0], np.unique(codes, return_inverse=True)[1]
    means = np.bincount(places, weights=y) / counts
    within = float(((y - means[places]) ** 2).sum())
    freedom = len(y) - len(counts)
    if freedom <= 0 or len(counts) < 2:
        return MOST_SMOOTHING
    noise = within / freedom
    # E[Σ n_l (ȳ_l − ȳ)²] = (L − 1) σ² + (n − Σ n_l²/n) τ²
    between = float((counts * (means - y.mean()) ** 2).sum()) - (len(counts) - 1) * noise
    variance = between / (len(y) - float((counts.astype(float) ** 2).sum()) / len(y))
    if variance <= noise / MOST_SMOOTHING:
        return MOST_SMOOTHING
    return noise / variance


def encode_statistics(column: StatisticsColumn, strings: pa.Array) -> Matrix:
    """The statistics of new rows; a level that training has not seen is at the prior."""
    codes = _codes(strings, column.levels, column.missing)
    values = np.vstack([np.reshape(column.values, (-1, len(column.prior))), column.prior])
    counts = np.append(np.array(column.counts, dtype=np.float64), 0.0)
    return np.column_stack([values[codes], np.log1p(counts[codes]), _marks(column)[codes]])


def encode_out_of_fold(
    column: StatisticsColumn, strings: pa.Array, targets: Matrix, seed: int
) -> Matrix:
    """The statistics of the rows of training, each from the folds that it is not in."""
    numbers = fold_numbers(len(strings), seed)
    found: Matrix = np.empty((len(strings), column.codes))
    for number in np.unique(numbers):
        own = numbers == number
        others = without_rows(column, strings, targets, own)
        found[own] = encode_statistics(others, strings.filter(pa.array(own)))
    return found


def fold_numbers(count: int, seed: int) -> NDArray[np.int64]:
    """The fold of each of so many rows."""
    found = np.zeros(count, dtype=np.int64)
    folds = KFold(min(FOLDS, count), shuffle=True, random_state=seed)
    for number, (_, rows) in enumerate(folds.split(found)):
        found[rows] = number
    return found


def without_rows(
    column: StatisticsColumn, strings: pa.Array, targets: Matrix, rows: NDArray[np.bool_]
) -> StatisticsColumn:
    """The column with the means of the other rows of training; counts stay those of all."""
    codes = _codes(strings, column.levels, column.missing)[~rows]
    prior = targets[~rows].mean(axis=0)
    values = np.tile(prior, (len(column.counts), 1))
    for i, m in enumerate(column.smoothing):
        encoder = _encoder(m).fit(codes[:, None], targets[~rows, i])
        values[encoder.categories_[0], i] = encoder.encodings_[0]
    means = tuple(tuple(row) for row in values.tolist())
    return replace(column, values=means, prior=tuple(prior.tolist()))


def plans_without_folds(
    plan: Plan, table: pa.Table, targets: Matrix, numbers: NDArray[np.int64]
) -> tuple[Plan, ...]:
    """For each fold of these rows of training the plan whose statistics are those of the others."""
    found = []
    for number in range(int(numbers.max()) + 1):
        statistics = tuple(
            without_rows(c, as_levels(table.column(c.name), c.kind), targets, numbers == number)
            for c in plan.statistics
        )
        found.append(replace(plan, statistics=statistics))
    return tuple(found)


def _marks(column: StatisticsColumn) -> Matrix:
    """The marks of the levels, then of missing values and of any other level, which has none."""
    found = np.zeros((len(column.levels) + column.missing + 1, column.marks))
    for i, level in enumerate((*column.levels, *[""] * column.missing)):
        found[i] = _signs(level, column.marks)
    return found / max(1, column.marks) ** 0.5


def _signs(text: str, count: int) -> Matrix:
    """So many of −1 and 1 from a digest of the text."""
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    return 2.0 * np.unpackbits(digest)[:count].astype(np.float64) - 1.0


def count_unseen(column: StatisticsColumn, strings: pa.Array) -> int:
    codes = _codes(strings, column.levels, column.missing)
    missing = np.asarray(strings.is_null().to_numpy(zero_copy_only=False))
    return int(((codes == UNSEEN) & ~missing).sum())


def _encoder(smoothing: float) -> TargetEncoder:
    return TargetEncoder(target_type="continuous", smooth=smoothing)  # pyright: ignore


def _codes(strings: pa.Array, levels: tuple[str, ...], missing: bool) -> NDArray[np.int64]:
    """The place of every value among the levels, then missing ones where they are a level."""
    known = pa.array(levels, type=strings.type)
    places = pc.index_in(strings, value_set=known).fill_null(UNSEEN)  # pyright: ignore
    codes = places.to_numpy(zero_copy_only=False).astype(np.int64)
    if missing:
        codes[np.asarray(strings.is_null().to_numpy(zero_copy_only=False))] = len(levels)
    return codes
