"""Target statistics: shrunk means by their formula, and no row's own target among its inputs."""

import numpy as np
import pyarrow as pa
import pytest

from orthogp.tables import Encoder, Learning, OutOfFold, Tally, sketched
from orthogp.tables.statistics import FOLDS, MARKS, MOST_SMOOTHING, smoothing_of

RNG = np.random.default_rng(0)
LEVELS = [f"level {i}" for i in range(50)]


def made(rows: int = 600, seed: int = 0) -> tuple[pa.Table, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 50, size=rows)
    effects = np.random.default_rng(1).normal(size=50)
    y = effects[codes] + 0.5 * rng.normal(size=rows)
    return pa.table({"word": [LEVELS[c] for c in codes]}), y[:, None]


def test_the_mean_of_a_level_is_shrunk_by_the_smoothing():
    table, y = made()
    (column,) = Learning(targets=y).plan(table).statistics
    words = np.array(table.column("word").to_pylist())
    (m,), (prior,) = column.smoothing, column.prior
    assert prior == pytest.approx(y.mean())
    for level, (value,), count in zip(column.levels, column.values, column.counts, strict=True):
        of_level = y[words == level, 0]
        assert count == len(of_level)
        assert value == pytest.approx((of_level.sum() + m * prior) / (count + m))


def test_the_smoothing_is_the_ratio_of_variances():
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(2000), 5)
    y = 2.0 * rng.normal(size=2000)[codes] + 1.0 * rng.normal(size=len(codes))
    assert smoothing_of(codes, y) == pytest.approx(0.25, rel=0.1)
    # Where levels say nothing, or nothing can be told of them, they stay at the prior.
    assert smoothing_of(codes, rng.normal(size=len(codes))) > 20
    assert smoothing_of(np.arange(10), rng.normal(size=10)) == MOST_SMOOTHING


def test_a_row_of_training_has_nothing_of_its_own_target():
    table, y = made(300)
    plan = Learning(targets=y).plan(table)
    encoder = Encoder(plan)
    before = encoder.encode(table, Tally(), OutOfFold(y, 0))
    for row in (0, 17, 200):
        changed = y.copy()
        changed[row] += 100.0
        after = encoder.encode(table, Tally(), OutOfFold(changed, 0))
        assert after[row, 0] == before[row, 0]
        # Rows of the other folds do see it.
        assert (after[:, 0] != before[:, 0]).sum() > len(y) * (FOLDS - 2) / FOLDS / 50


def test_unseen_levels_are_at_the_prior_without_a_count_or_a_mark():
    table, y = made()
    plan, tally = Learning(targets=y).plan(table), Tally()
    X = Encoder(plan).encode(pa.table({"word": ["level 3", "other", None]}), tally)
    (column,) = plan.statistics
    assert X.shape == (3, 1 + 1 + MARKS)
    assert X[1:, 0].tolist() == [column.prior[0]] * 2
    assert not X[1:, 1:].any()
    assert X[0, 1] == pytest.approx(np.log1p(column.counts[column.levels.index("level 3")]))
    assert (tally.unseen, tally.missing) == ({"word": 1}, {"word": 1})


def test_marks_keep_levels_apart():
    table, y = made()
    plan = Learning(targets=y).plan(table)
    X = Encoder(plan).encode(pa.table({"word": LEVELS}), Tally())[:, 2:]
    squares = ((X[:, None] - X[None]) ** 2).sum(-1)
    apart = squares[~np.eye(50, dtype=bool)]
    np.testing.assert_allclose((X**2).sum(1), 1.0)
    assert apart.mean() == pytest.approx(2.0, abs=0.1)
    assert apart.min() > 0.5


def test_inputs_of_one_kind_share_a_lengthscale():
    table, y = made()
    plan = Learning(targets=np.hstack([y, -y])).plan(table.append_column("a", [y[:, 0]]))
    assert plan.groups == (0, 1, 1, 2, *[3] * MARKS)
    assert plan.sources == ("a", *["word"] * (2 + 1 + MARKS))


def test_without_targets_rare_levels_are_pooled():
    table, _ = made()
    (column,) = Learning().plan(table).levels
    assert (len(column.levels), len(column.pooled)) == (30, 20)


@pytest.mark.parametrize("count", [12, 100])
def test_many_classes_have_statistics_of_a_few_sums(count):
    """The first and last levels have classes of their own, the others all: distances show it."""
    rng = np.random.default_rng(0)
    codes, classes = rng.integers(0, 50, size=5000), rng.integers(0, count, size=5000)
    classes[codes == 0], classes[codes == 49] = 3, count - 1
    targets = np.eye(count)[classes]
    found = sketched(targets)
    assert found.shape == (5000, min(count, 32))
    table = pa.table({"word": [LEVELS[c] for c in codes]})
    (column,) = Learning(targets=found).plan(table).statistics
    X = Encoder(Learning(targets=found).plan(table)).encode(pa.table({"word": LEVELS}), Tally())
    means = X[:, : len(column.prior)]
    squares = ((means[:, None] - means[None]) ** 2).sum(-1)
    assert squares[0, 49] == pytest.approx(2.0, rel=0.4)
    others = squares[1:49, 1:49][~np.eye(48, dtype=bool)]
    assert others.max() < 0.2 * squares[0, 49]
    np.testing.assert_array_equal(sketched(targets), found)
