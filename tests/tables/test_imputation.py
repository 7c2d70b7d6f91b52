"""Missing numbers from the other numbers of their row: a Gaussian, how it is learned, its file."""

import json

import numpy as np
import pyarrow as pa
import pytest
from sklearn.covariance import ledoit_wolf

from orthogp.errors import FileError
from orthogp.tables import ColumnTable, Encoder, Learning, Plan, Tally, number_plan, plan_notes
from orthogp.tables.imputation import (
    MOST_COLUMNS,
    RIDGE,
    ROUNDS,
    SETTLED,
    GaussianColumn,
    Imputation,
    learn_imputation,
    maximise,
)


def gaussian_rows(rows: int, columns: int, share: float, seed: int = 0):
    """Rows that mostly follow one number, and the same with gaps at random."""
    rng = np.random.default_rng(seed)
    slopes = rng.uniform(1, 3, columns) * rng.choice([-1, 1], columns)
    whole = slopes * (rng.normal(size=(rows, 1)) + 0.3 * rng.normal(size=(rows, columns)))
    return whole, np.where(rng.random(whole.shape) < share, np.nan, whole)


def learned(numbers: np.ndarray) -> Imputation | None:
    return learn_imputation((f"x{i}", values) for i, values in enumerate(numbers.T))


def conditional(z, mean, covariance):
    """A row with its gaps as their conditional mean, and their covariance, zero elsewhere."""
    gaps, known = np.flatnonzero(np.isnan(z)), np.flatnonzero(~np.isnan(z))
    filled, unknown = z.copy(), np.zeros_like(covariance)
    weights = covariance[np.ix_(gaps, known)] @ np.linalg.inv(covariance[np.ix_(known, known)])
    filled[gaps] = mean[gaps] + weights @ (z[known] - mean[known])
    unknown[np.ix_(gaps, gaps)] = (
        covariance[np.ix_(gaps, gaps)] - weights @ covariance[np.ix_(known, gaps)]
    )
    return filled, unknown


def test_gaps_become_their_mean_given_the_other_numbers():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    covariance, mean = root @ root.T, rng.normal(size=5)
    scale = np.array([0.1, 1.0, 5.0, 2.0, 30.0])
    columns = [GaussianColumn(f"x{i}", mean[i], scale[i], -1e3, 1e3) for i in range(5)]
    found = Imputation(tuple(columns), tuple(map(tuple, (covariance + covariance.T) / 2)))
    numbers = rng.normal(size=(60, 5))
    numbers[rng.random((60, 5)) < 0.4] = np.nan
    numbers[7] = np.nan
    own = covariance * np.outer(scale, scale)
    expected = [conditional(row, mean, own)[0] for row in numbers]
    np.testing.assert_allclose(found.fill(numbers), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.fill(numbers)[7], mean)


def test_the_gaussian_is_that_of_loops_over_the_rows():
    z = gaussian_rows(60, 4, 0.25)[1]
    z = (z - np.nanmean(z, axis=0)) / np.nanstd(z, axis=0)
    mean, covariance = np.zeros(4), np.eye(4)
    for _ in range(ROUNDS):
        rows = [conditional(row, mean, covariance) for row in z]
        filled, before = np.array([row for row, _ in rows]), covariance
        mean = filled.mean(axis=0)
        unknown = sum(part for _, part in rows) / len(z)
        covariance = ledoit_wolf(filled)[0] + unknown + RIDGE * np.eye(4)
        if np.abs(covariance - before).max() < SETTLED:
            break
    found = maximise(z)
    np.testing.assert_allclose(found[0], mean, atol=1e-10)
    np.testing.assert_allclose(found[1], covariance, atol=1e-10)


def test_the_gaussian_of_complete_rows_is_their_own():
    z = gaussian_rows(80, 3, 0.0)[0]
    mean, covariance = maximise(z)
    np.testing.assert_allclose(mean, z.mean(axis=0))
    np.testing.assert_allclose(covariance, ledoit_wolf(z)[0] + RIDGE * np.eye(3))


def test_gaps_are_nearer_to_what_was_there_than_the_median_and_the_rest_stays():
    whole, numbers = gaussian_rows(300, 4, 0.1)
    # One that is skewed is predicted on the scale of its logarithm.
    whole[:, 0], numbers[:, 0] = np.exp(whole[:, 0]), np.exp(numbers[:, 0])
    found, gaps = learned(numbers), np.isnan(numbers)
    filled = found.fill(numbers)
    assert [c.transform is not None for c in found.columns] == [True, False, False, False]
    np.testing.assert_array_equal(filled[~gaps], numbers[~gaps])
    for i in range(4):
        median, there = np.nanmedian(numbers[:, i]), whole[gaps[:, i], i]
        error = np.abs(filled[gaps[:, i], i] - there).mean()
        assert error < 0.6 * np.abs(median - there).mean()
    np.testing.assert_array_equal(found.fill(whole), whole)


def test_a_row_is_filled_alone_as_among_others():
    numbers = gaussian_rows(200, 6, 0.3)[1]
    found = learned(numbers)
    together = found.fill(numbers)
    alone = [found.fill(row[None])[0] for row in numbers]
    np.testing.assert_allclose(alone, together, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("error")
def test_difficult_columns_are_filled_within_their_range():
    rng = np.random.default_rng(1)
    flag, base = np.tile([0.0, 1.0], 50), rng.normal(size=100)
    nearly_empty = np.full(100, np.nan)
    nearly_empty[[3, 50]] = [4.0, 5.0]
    numbers = np.column_stack(
        [
            # Copies, whose covariance Ledoit and Wolf do not shrink.
            flag, flag, base, base, base + flag, nearly_empty,
            np.full(100, 3.0), 1e300 * base, 1e-300 * base, np.exp(20 * base), 1e9 + base,
        ]
    )  # fmt: skip
    numbers[rng.random(numbers.shape) < 0.1] = np.nan
    numbers[9] = np.nan
    plan = number_plan(numbers, [f"x{i}" for i in range(numbers.shape[1])])
    # What is constant or nearly empty, or whose squares a float does not hold, has its median.
    assert plan.imputation.names == ("x0", "x1", "x2", "x3", "x4", "x9", "x10")
    filled = plan.filled(numbers)
    assert np.isfinite(filled).all()
    assert (filled >= np.nanmin(numbers, axis=0)).all()
    assert (filled <= np.nanmax(numbers, axis=0)).all()
    known = np.isnan(numbers[:, 1]) & ~np.isnan(numbers[:, 0])
    np.testing.assert_allclose(filled[known, 1], filled[known, 0], atol=0.05)
    # Fewer rows than columns.
    wide = gaussian_rows(15, 40, 0.1)[1]
    assert np.isfinite(learned(wide).fill(wide)).all()


def test_new_numbers_beyond_training_count_as_its_ends():
    numbers = gaussian_rows(100, 2, 0.2)[1]
    found = learned(numbers)
    beyond = np.array([[np.nan, 1e6], [np.nan, np.nanmax(numbers[:, 1])]])
    filled = found.fill(beyond)
    assert filled[0, 0] == filled[1, 0]
    assert filled[0, 1] == 1e6


def test_where_there_is_no_gaussian_gaps_are_the_median():
    whole, numbers = gaussian_rows(40, 2, 0.2)
    assert learned(whole) is None
    assert learned(numbers[:, :1]) is None
    assert learned(np.tile(numbers, MOST_COLUMNS // 2 + 1)) is None
    table = pa.table({"a": numbers[:, 0], "b": numbers[:, 1]})
    assert Learning(missing="refuse").plan(table).imputation is None
    complete = number_plan(whole, ["a", "b"])
    np.testing.assert_array_equal(
        complete.filled(np.full((1, 2), np.nan))[0], np.median(whole, axis=0)
    )


def test_truth_values_are_filled_between_0_and_1_and_columns_say_how():
    rng = np.random.default_rng(0)
    size = rng.normal(size=200)
    flag = pa.array((size > 0).tolist(), mask=rng.random(200) < 0.2)
    table = pa.table({"size": size, "flag": flag, "town": ["a", "b"] * 100})
    plan = Learning().plan(table)
    X = Encoder(plan).encode(table, Tally())
    gaps = X[:, 2] == 1
    assert gaps.sum() == flag.null_count
    assert ((X[:, 1] >= 0) & (X[:, 1] <= 1)).all()
    assert np.corrcoef(X[gaps, 1], size[gaps] > 0)[0, 1] > 0.7
    row = ColumnTable(plan)["flag"]
    assert row.treatment == "0 and 1; gaps from the other numbers; an indicator of them"
    assert any("predicted from a row's other numbers: 'flag'" in note for note in plan_notes(plan))


@pytest.fixture(scope="module")
def stored():
    numbers = gaussian_rows(100, 3, 0.1)[1]
    numbers[:, 2] = np.exp(3 * numbers[:, 2])
    plan = number_plan(numbers, ["a", "b", "c"])
    return plan, json.dumps(plan.as_json()), numbers


def test_a_plan_from_json_fills_the_same(stored):
    plan, text, numbers = stored
    again = Plan.from_json(json.loads(text))
    assert again == plan
    assert again.imputation.columns[2].transform is not None
    np.testing.assert_array_equal(again.filled(numbers), plan.filled(numbers))


def test_a_plan_of_before_fills_with_the_median(stored):
    _, text, numbers = stored
    old = json.loads(text)
    del old["imputation"]
    filled = Plan.from_json(old).filled(numbers)
    expected = np.where(np.isnan(numbers), np.nanmedian(numbers, axis=0), numbers)
    np.testing.assert_array_equal(filled, expected)


DAMAGES = {
    "no covariance": lambda found: found.pop("covariance"),
    "a covariance of fewer columns": lambda found: found["covariance"].pop(),
    "a row that is too long": lambda found: found["covariance"][0].append(0.0),
    "one that is not symmetric": lambda found: found["covariance"][0].__setitem__(1, 0.5),
    "one that is singular": lambda found: found.update(covariance=[[1.0] * 3] * 3),
    "one that is negative": lambda found: found["covariance"][0].__setitem__(0, -1.0),
    "infinity": lambda found: found["covariance"][0].__setitem__(0, float("inf")),
    "text for a row": lambda found: found.update(covariance=["abc"] * 3),
    "another column": lambda found: found["columns"][0].update(name="z"),
    "a column twice": lambda found: found["columns"][0].update(name="b"),
    "no scale": lambda found: found["columns"][0].update(scale=0.0),
    "no range": lambda found: found["columns"][0].update(lowest=9.0, highest=9.0),
    "another transform": lambda found: found["columns"][0].update(transform={"kind": "exp"}),
    "no columns": lambda found: found.update(columns=5),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_gaussian_is_refused(damage, stored):
    broken = json.loads(stored[1])
    damage(broken["imputation"])
    with pytest.raises(FileError, match="description of the table"):
        Plan.from_json(broken)
    broken["imputation"] = 5
    with pytest.raises(FileError):
        Plan.from_json(broken)
