"""Tables are what their files hold, what is no table is refused, a seed gives the same split."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from orthogp.apps.paper.datasets import DataSet, available, default_data_dir, load, split_dataset
from orthogp.errors import ConfigurationError, DataError, FileError

ROWS = 40


def store(data_dir: Path, task: str, name: str, **arrays) -> Path:
    path = data_dir / task / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    return path


def inputs(rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(0).normal(3, 2, (rows, 3)).astype(np.float32)


def table(rows: int = ROWS, task: str = "regression") -> DataSet:
    X = inputs(rows).astype(np.float64)
    y = np.arange(rows) % 3 if task == "classification" else 5 * X[:, 0] + np.arange(rows)
    return DataSet("made", task, X, y, 3 if task == "classification" else 0, "")


def test_names_are_those_of_the_files_of_the_task(tmp_path):
    for name in ("zebra", "3droad"):
        store(tmp_path, "regression", name, X=inputs(), y=np.zeros(ROWS))
    store(tmp_path, "classification", "letter", X=inputs(), y=np.zeros(ROWS))
    (tmp_path / "regression" / "zebra.json").write_text("{}")
    assert available(tmp_path, "regression") == ["3droad", "zebra"]
    assert available(tmp_path, "classification") == ["letter"]
    assert available(tmp_path / "absent", "regression") == []
    with pytest.raises(ConfigurationError, match="ranking"):
        available(tmp_path, "ranking")


def test_the_environment_names_the_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("ORTHOGP_DATA", raising=False)
    assert default_data_dir() is None
    monkeypatch.setenv("ORTHOGP_DATA", "")
    assert default_data_dir() is None
    monkeypatch.setenv("ORTHOGP_DATA", str(tmp_path))
    assert default_data_dir() == tmp_path


def test_a_regression_table_is_loaded_as_float64(tmp_path):
    X, y = inputs(), np.arange(ROWS, dtype=np.float32)
    path = store(tmp_path, "regression", "some", X=X, y=y)
    found = load(tmp_path, "regression", "some")
    assert (found.name, found.task, found.num_classes) == ("some", "regression", 0)
    assert found.X.dtype == found.y.dtype == np.float64
    np.testing.assert_array_equal(found.X, X.astype(np.float64))
    np.testing.assert_array_equal(found.y, y)
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_classification_table_counts_its_classes(tmp_path):
    store(tmp_path, "classification", "some", X=inputs(), y=np.arange(ROWS, dtype=np.uint8) % 4)
    found = load(tmp_path, "classification", "some")
    assert found.num_classes == 4
    assert found.y.dtype == np.int64


def test_a_missing_table_is_answered_with_those_there_are(tmp_path):
    with pytest.raises(FileError, match="there is none"):
        load(tmp_path, "regression", "kin40k")
    store(tmp_path, "regression", "pol", X=inputs(), y=np.zeros(ROWS))
    with pytest.raises(FileError, match=r"kin40k.*pol"):
        load(tmp_path, "regression", "kin40k")
    with pytest.raises(FileError, match="no table"):
        load(tmp_path / "regression", "regression", "../regression/pol")


X, Y = inputs(), np.arange(ROWS) % 4
HOLED = X.copy()
HOLED[0, 0], HOLED[5, 1], HOLED[6, 2] = np.nan, np.nan, np.inf


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X}, "no array y"),
        ({"x": X, "targets": Y}, "no array X nor y"),
        ({"X": X[:, 0], "y": Y}, r"X has shape \(40,\)"),
        ({"X": X[:, :0], "y": Y}, r"X has shape \(40, 0\)"),
        ({"X": X, "y": Y[:, None]}, r"y has shape \(40, 1\)"),
        ({"X": X, "y": Y[:30]}, "y has 30"),
        ({"X": X[:9], "y": Y[:9]}, "9 rows"),
        ({"X": HOLED, "y": Y}, "2 missing"),
        ({"X": X.astype(str), "y": Y}, "expected numbers"),
        ({"X": X, "y": Y.astype(np.float64)}, "float64"),
        ({"X": X, "y": Y + 1}, "between 1 and 4"),
        ({"X": X, "y": Y - 1}, "between -1 and 2"),
        ({"X": X, "y": 2 * Y}, "between 0 and 6"),
        ({"X": X, "y": 0 * Y}, "K at least 2"),
    ],
)
def test_arrays_that_are_no_table_are_refused(tmp_path, arrays, message):
    store(tmp_path, "classification", "odd", **arrays)
    with pytest.raises(DataError, match=message):
        load(tmp_path, "classification", "odd")


def test_targets_must_be_finite(tmp_path):
    store(tmp_path, "regression", "odd", X=X, y=np.where(Y == 0, np.nan, Y))
    with pytest.raises(DataError, match="10 missing"):
        load(tmp_path, "regression", "odd")


def test_a_file_that_is_not_whole_is_refused(tmp_path):
    path = store(tmp_path, "regression", "cut", X=X, y=Y)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(FileError, match="as arrays"):
            load(tmp_path, "regression", "cut")


def test_no_pickle_is_opened(tmp_path):
    store(tmp_path, "regression", "pickled", X=np.array([{}] * ROWS, dtype=object), y=Y)
    with pytest.raises(FileError, match="allow_pickle=False"):
        load(tmp_path, "regression", "pickled")


def test_a_split_is_the_permutation_of_its_seed():
    made = table(rows=47)
    order = np.random.default_rng(5).permutation(47)
    parts = split_dataset(made, 5)
    y = made.y[order]
    np.testing.assert_allclose(parts.y_test * parts.y_scale + parts.y_mean, y[:4], rtol=1e-12)
    np.testing.assert_allclose(parts.y_train * parts.y_scale + parts.y_mean, y[4:], rtol=1e-12)
    train, test = made.X[order[4:]], made.X[order[:4]]
    expected = (test - train.mean(axis=0)) / train.std(axis=0)
    np.testing.assert_allclose(parts.x_test, expected, rtol=1e-12)


def test_the_training_part_is_standardised_and_the_table_left_alone():
    made = table()
    before = made.X.copy(), made.y.copy()
    parts = split_dataset(made, 0)
    for values in (parts.x_train, parts.y_train):
        np.testing.assert_allclose(values.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(values.std(axis=0), 1, rtol=1e-12)
    assert abs(parts.x_test.mean()) > 1e-6
    np.testing.assert_array_equal(made.X, before[0])
    np.testing.assert_array_equal(made.y, before[1])


def test_many_chunks_give_the_moments_of_one(monkeypatch):
    whole = split_dataset(table(), 0)
    monkeypatch.setattr("orthogp.apps.paper.datasets.CHUNK_ELEMENTS", 10)
    np.testing.assert_allclose(split_dataset(table(), 0).x_train, whole.x_train, rtol=1e-12)


def test_a_constant_column_becomes_zero_and_keeps_its_unit():
    made = table()
    made.X[:, 1] = 0.1
    parts = split_dataset(made, 0)
    np.testing.assert_allclose(parts.x_train[:, 1], 0, atol=1e-15)
    np.testing.assert_allclose(parts.x_test[:, 1], 0, atol=1e-15)


def test_labels_stay_labels_even_where_a_part_misses_a_class():
    made = table(task="classification")
    made.y[:] = 0
    made.y[[3, 7]] = 1, 2
    parts = split_dataset(made, 1)
    assert parts.y_train.dtype == parts.y_test.dtype == np.int64
    assert sorted([*parts.y_train, *parts.y_test]) == [0] * 38 + [1, 2]
    assert (parts.y_mean, parts.y_scale) == (0, 1)


@pytest.mark.parametrize(("limit", "tests"), [(30, 3), (25, 2), (5, 1), (2, 1), (1000, 4)])
def test_a_limit_takes_the_first_rows_of_the_permutation(limit, tests):
    parts = split_dataset(table(), 0, limit)
    assert len(parts.y_test) == len(parts.x_test) == tests
    assert len(parts.y_train) == len(parts.x_train) == min(limit, ROWS) - tests
    rows = np.random.default_rng(0).permutation(ROWS)[: min(limit, ROWS)]
    kept = np.concatenate([parts.y_test, parts.y_train]) * parts.y_scale + parts.y_mean
    np.testing.assert_allclose(kept, table().y[rows], rtol=1e-12)


def test_a_limit_without_a_row_for_each_part_is_refused():
    with pytest.raises(ConfigurationError, match="limit"):
        split_dataset(table(), 0, 1)


def test_values_too_large_to_square_are_refused():
    made = table()
    made.X[0, 0], made.X[1, 0] = 1e300, -1e300
    with pytest.raises(DataError, match="too large"):
        split_dataset(made, 0)
