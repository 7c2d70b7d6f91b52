"""Missing numbers from the other numbers of their row.

The columns are taken for jointly Gaussian, skewed ones after their monotone transform, and a gap is
filled with its mean given the numbers that the row has.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf

from orthogp.tables.arrow import Matrix
from orthogp.tables.monotone import Monotone, suitable_transform

# Rows that the Gaussian is learned from, and columns that it has at most: a row costs the cube of
# its gaps.
MOST_ROWS, MOST_COLUMNS = 2000, 128
# Numbers that a column has at least: from fewer nothing is learned of what it depends on.
FEWEST_NUMBERS = 10
# Rounds of expectation and maximisation, and the change of the covariance that ends them.
ROUNDS, SETTLED = 20, 1e-3
# Added to the variances, which are about 1: of columns that are copies the covariance is singular.
RIDGE = 1e-6
# Of a covariance, as a share of the largest: a file may hold any.
LEAST_EIGENVALUE = 1e-12
# Numbers in the covariances of the gaps that are in memory together.
BLOCK = 2**20


@dataclass(frozen=True)
class GaussianColumn:
    """A column of the Gaussian: how its numbers are standardised, and the least and the largest of
    training. A number beyond them counts as the nearer one, and no gap is filled with one."""

    name: str
    center: float
    scale: float
    lowest: float
    highest: float
    transform: Monotone | None = None

    def standardised(self, values: Matrix) -> Matrix:
        within = values.clip(self.lowest, self.highest)
        moved = within if self.transform is None else self.transform(within)
        return (moved - self.center) / self.scale

    def numbers(self, standardised: Matrix) -> Matrix:
        """The reverse of `standardised`."""
        # The exponential of what is far above all numbers overflows; it becomes the highest.
        with np.errstate(over="ignore"):
            moved = self.center + self.scale * standardised
            found = moved if self.transform is None else self.transform.inverse(moved)
        return found.clip(self.lowest, self.highest)


@dataclass(frozen=True)
class Imputation:
    """The Gaussian of these columns of numbers, standardised: the rows of its covariance."""

    columns: tuple[GaussianColumn, ...]
    covariance: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        covariance = np.array(self.covariance)
        if covariance.shape != (len(self.columns), len(self.columns)):
            raise ValueError("the covariance is not that of the columns")
        if not np.array_equal(covariance, covariance.T):
            raise ValueError("the covariance is not symmetric")
        eigenvalues = np.linalg.eigvalsh(covariance)
        if not eigenvalues[0] > LEAST_EIGENVALUE * eigenvalues[-1]:
            raise ValueError("the covariance is not positive definite")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @cached_property
    def precision(self) -> Matrix:
        return _inverse(np.array(self.covariance))

    def fill(self, numbers: Matrix) -> Matrix:
        """The numbers of these columns with their gaps, which are NaN, filled."""
        gaps = np.isnan(numbers)
        rows = np.flatnonzero(gaps.any(axis=1))
        z = _standardised(self.columns, numbers[rows])
        found, _ = expected(z, np.zeros(z.shape[1]), self.precision)
        filled = [c.numbers(v) for c, v in zip(self.columns, found.T, strict=True)]
        whole = numbers.copy()
        whole[rows] = np.where(gaps[rows], np.stack(filled, axis=1), numbers[rows])
        return whole


def learn_imputation(columns: Iterable[tuple[str, Matrix]]) -> Imputation | None:
    """The Gaussian of the columns that vary, from their names and numbers with NaN for gaps.

    None where no number is missing, and where fewer than two columns vary or too many.
    """
    gaps, learned, sampled = False, [], []
    for name, values in columns:
        gaps = gaps or bool(np.isnan(values).any())
        sample = values[np.random.default_rng(0).permutation(len(values))[:MOST_ROWS]]
        column = _column(name, sample)
        if column is not None:
            learned.append(column)
            sampled.append(sample)
    if not gaps or not 2 <= len(learned) <= MOST_COLUMNS:
        return None
    mean, covariance = maximise(_standardised(learned, np.stack(sampled, axis=1)))
    centred = tuple(
        replace(column, center=column.center + column.scale * shift)
        for column, shift in zip(learned, mean.tolist(), strict=True)
    )
    return Imputation(centred, tuple(map(tuple, covariance.tolist())))


def _column(name: str, values: Matrix) -> GaussianColumn | None:
    """How a column is standardised; None where it has few numbers, or the same in every row, or
    their squares are beyond what a float holds."""
    present = values[~np.isnan(values)]
    if len(present) < FEWEST_NUMBERS or present.min() == present.max():
        return None
    transform = suitable_transform(present)
    moved = present if transform is None else transform(present)
    with np.errstate(over="ignore", invalid="ignore"):
        center, scale = float(moved.mean()), float(moved.std())
    if not 0 < scale < np.inf:
        return None
    return GaussianColumn(
        name, center, scale, float(present.min()), float(present.max()), transform
    )


def _standardised(columns: Iterable[GaussianColumn], numbers: Matrix) -> Matrix:
    return np.stack([c.standardised(v) for c, v in zip(columns, numbers.T, strict=True)], axis=1)


def maximise(z: Matrix) -> tuple[Matrix, Matrix]:
    """Mean and covariance of standardised rows with gaps, by expectation and maximisation.

    The covariance of the filled rows is shrunk as Ledoit and Wolf do: there may be fewer rows than
    columns.
    """
    identity = np.eye(z.shape[1])
    mean, covariance = np.zeros(z.shape[1]), identity
    for _ in range(ROUNDS):
        filled, unknown = expected(z, mean, _inverse(covariance))
        mean, before = filled.mean(axis=0), covariance
        covariance = ledoit_wolf(filled)[0] + unknown / len(z) + RIDGE * identity
        covariance = (covariance + covariance.T) / 2
        if np.abs(covariance - before).max() < SETTLED:
            break
    return mean, covariance


def expected(z: Matrix, mean: Matrix, precision: Matrix) -> tuple[Matrix, Matrix]:
    """Rows with gaps as their mean given what they have, and the sum of their covariances.

    With P = Σ⁻¹, gaps g and the other columns k the mean is μ_g − P_gg⁻¹ P_gk (z_k − μ_k) and the
    covariance P_gg⁻¹, which costs the cube of the gaps rather than that of the columns.
    """
    width, gaps = z.shape[1], np.isnan(z)
    centred = np.where(gaps, 0.0, z - mean)
    pulled = centred @ precision
    unknown = np.zeros(width * width)
    for rows, columns in gap_blocks(gaps):
        sets, which, counts = np.unique(columns, axis=0, return_inverse=True, return_counts=True)
        left, right = sets[:, :, None], sets[:, None, :]
        covariances = np.linalg.inv(precision[left, right])
        solved = covariances[which.reshape(-1)] @ pulled[rows, columns][..., None]
        centred[rows, columns] = -solved[..., 0]
        places, sums = width * left + right, counts[:, None, None] * covariances
        unknown += np.bincount(places.ravel(), sums.ravel(), len(unknown))
    return mean + centred, unknown.reshape(width, width)


def _inverse(covariance: Matrix) -> Matrix:
    return np.linalg.inv(covariance).astype(np.float64)


def gap_blocks(
    gaps: NDArray[np.bool_],
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """All rows with gaps, in blocks of rows that have as many: the rows `(r, 1)`, and the columns
    `(r, count)` where they have them."""
    counts = gaps.sum(axis=1)
    for count in np.unique(counts[counts > 0]):
        chosen = np.flatnonzero(counts == count)
        size = max(1, BLOCK // count**2)
        for start in range(0, len(chosen), size):
            rows = chosen[start : start + size]
            yield rows[:, None], np.nonzero(gaps[rows])[1].reshape(-1, count)
