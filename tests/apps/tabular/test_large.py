"""Tables that are not read whole: the same model rows would give, and nothing of them lost."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from orthogp.apps.tabular import large, preparing
from orthogp.apps.tabular.large import StreamedTable
from orthogp.apps.tabular.model import TableModel
from orthogp.apps.tabular.preparing import FitRequest, prepare
from orthogp.apps.tabular.reading import open_table
from orthogp.estimators import streamed
from orthogp.tables import Described
from tabular_cases import fit, predict, sample

ROWS = 400


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    monkeypatch.setattr(preparing, "WHOLE_BYTES", 0)
    monkeypatch.setattr(streamed, "LOADED_BYTES", 0)


@pytest.fixture(scope="module")
def table():
    found = sample(ROWS)
    # Some rows have no target, a whole row group of them among them.
    gaps = np.zeros(ROWS, dtype=bool)
    gaps[[3, 77, *range(100, 150)]] = True
    y = pa.array(found.column("y").to_numpy(), mask=gaps)
    return found.set_column(found.column_names.index("y"), "y", y)


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("large")
    for k, (start, stop) in enumerate([(0, 150), (150, ROWS)]):
        part = table.slice(start, stop - start)
        pyarrow.parquet.write_table(part, path / f"part-{k}.parquet", row_group_size=50)
    return path


def request(folder, target="y", **changes):
    asked = {
        "table": folder, "target": target, "out": folder / "model", "task": None,
        "id_column": "key", "drop": (), "test_size": 0.1, "missing": "impute", "seed": 0,
        "settings": {"categorical_features": "from_dtype"},
    }  # fmt: skip
    return FitRequest(**asked | changes)


def everything(source):
    blocks = [source.read(k) for k in range(len(source.sizes))]
    assert [len(block.y) for block in blocks] == list(source.sizes)
    X = pa.concat_tables([block.X.table for block in blocks])
    return X, np.concatenate([block.y for block in blocks])


def test_every_row_with_a_target_is_in_one_part(table, folder):
    found = prepare(request(folder, drop=("label",)), lambda _: None)
    assert isinstance(found.X, StreamedTable)
    _, y = everything(found.X)
    both = np.sort(np.concatenate([y, found.y_test]))
    np.testing.assert_array_equal(both, np.sort(table.column("y").drop_null().to_numpy()))
    assert found.rows == {"table": 400, "without_target": 52, "training": 313, "test": 35}


def test_rows_are_those_of_a_table_read_whole(folder, monkeypatch):
    streams = prepare(request(folder, drop=("label",), test_size=0.0), lambda _: None)
    monkeypatch.setattr(preparing, "WHOLE_BYTES", 2**40)
    whole = prepare(request(folder, drop=("label",), test_size=0.0), lambda _: None)
    assert streams.X.learning == whole.X.learning
    X, y = everything(streams.X)
    assert X.equals(whole.X.table)
    np.testing.assert_array_equal(y, whole.y)


def test_a_plan_is_made_from_a_sample(folder, monkeypatch):
    monkeypatch.setattr(large, "SAMPLE_ROWS", 120)
    printed = []
    found = prepare(request(folder, drop=("label",)), printed.append)
    assert len(found.y) + len(found.y_test) < 120
    assert any("judged by 120 of them" in line for line in printed)
    assert everything(found.X)[0].num_rows == found.rows["training"]


def test_classes_are_those_of_every_row(folder, monkeypatch):
    monkeypatch.setattr(large, "SAMPLE_ROWS", 20)
    found = prepare(request(folder, "label", drop=("y",)), lambda _: None)
    assert found.classes is not None
    assert found.classes.tolist() == ["high", "low", "mid"]


def test_whole_numbers_are_classes(table, tmp_path):
    values = np.arange(ROWS) % 3
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(table.select(["a"]).append_column("k", pa.array(values)), path)
    found = prepare(request(path, "k", id_column=None), lambda _: None)
    assert found.classes is not None
    assert found.classes.tolist() == [0, 1, 2]
    assert everything(found.X)[1].dtype == np.int64


@pytest.mark.parametrize("target", ["y", "label"])
def test_a_model_is_fitted_and_predicts(folder, tmp_path, target):
    printed = fit(folder, tmp_path / "model", target=target)
    assert "training streams the rest" in " ".join(printed.split())
    assert TableModel.load(tmp_path / "model").target == target
    predict(tmp_path / "model", folder, tmp_path / "out.parquet")
    assert pyarrow.parquet.read_metadata(tmp_path / "out.parquet").num_rows == ROWS


def test_a_table_of_a_normal_size_is_read_whole(folder, monkeypatch):
    monkeypatch.setattr(preparing, "WHOLE_BYTES", 2**29)
    assert isinstance(prepare(request(folder, drop=("label",)), lambda _: None).X, Described)


def test_what_no_model_can_use_is_refused(folder, table, tmp_path):
    path = tmp_path / "t.parquet"
    raw = pa.array([b"x"] * ROWS)
    pyarrow.parquet.write_table(table.append_column("raw", raw), path)
    with pytest.raises(preparing.DataError, match="'raw' is of type binary"):
        prepare(request(path), lambda _: None)
    with pytest.raises(preparing.DataError, match="missing values"):
        prepare(request(folder, missing="refuse"), lambda _: None)


def test_numbers_for_missing_values_are_those_of_a_table_read_whole(tmp_path, monkeypatch):
    found = sample(ROWS)
    for name, rows in (("b", range(0, ROWS, 9)), ("y", range(0, ROWS, 40))):
        values = found.column(name).to_numpy().copy()
        values[list(rows)] = -200.0
        found = found.set_column(found.column_names.index(name), name, pa.array(values))
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(found, path, row_group_size=50)
    large_one = prepare(request(path, missing="-200"), lambda _: None)
    assert large_one.rows["without_target"] == len(range(0, ROWS, 40))
    blocks = [large_one.X.read(k).X.table for k in range(len(large_one.X.sizes))]
    streamed_rows = pa.concat_tables([*blocks, large_one.test])
    monkeypatch.setattr(preparing, "WHOLE_BYTES", 2**40)
    whole = prepare(request(path, missing="-200"), lambda _: None)
    assert streamed_rows.column("b").null_count == pa.concat_tables(
        [whole.X.table, whole.test]
    ).column("b").null_count  # fmt: skip
    assert -200.0 not in streamed_rows.column("b").to_pylist()


def test_missing_targets_are_refused_where_that_is_asked_for(folder):
    with pytest.raises(preparing.DataError, match="missing in 52 of 400 rows"):
        prepare(request(folder, drop_missing_target=False), lambda _: None)


def test_the_size_is_that_before_compression(folder):
    assert open_table(folder).stored_bytes() > 8 * 4 * ROWS
