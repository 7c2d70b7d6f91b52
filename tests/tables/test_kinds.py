"""What columns are taken for, of pandas, polars and pyarrow alike, and what is said of them."""

import datetime as dt
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from orthogp.errors import ConfigurationError, DataError, FileError
from orthogp.tables import (
    ColumnTable,
    Encoder,
    Learning,
    Plan,
    Tally,
    as_table,
    named_categories,
    number_plan,
    plan_notes,
)

pl = pytest.importorskip("polars")

ROWS = 120
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "width": RNG.normal(size=ROWS),
        "gaps": np.where(np.arange(ROWS) % 10 == 0, np.nan, RNG.normal(size=ROWS)),
        "flag": np.arange(ROWS) % 3 == 0,
        "colour": RNG.choice(["red", "green"], ROWS),
        "size": pd.Categorical(RNG.choice(["s", "m", "l"], ROWS)),
        "word": [f"word {i}" for i in RNG.integers(0, 40, ROWS)],
        "when": pd.date_range("2021-01-01", periods=ROWS, freq="5h"),
        "id": np.arange(ROWS) + 7,
        "name": [f"name {i}" for i in range(ROWS)],
        "same": 3.5,
        "empty": [None] * ROWS,
    }
)
TARGETS = RNG.normal(size=(ROWS, 1))
KINDS = {
    "width": "number", "gaps": "number", "flag": "boolean", "colour": "category",
    "size": "category", "word": "many levels", "when": "date", "id": "identifier",
    "name": "identifier", "same": "constant", "empty": "constant",
}  # fmt: skip


def plan_of(table, **options) -> Plan:
    return Learning(**options).plan(as_table(table))


@pytest.mark.parametrize("make", [lambda t: t, pl.from_pandas, pa.Table.from_pandas])
def test_kinds_are_the_same_in_every_library(make):
    table = as_table(make(FRAME))
    plan = Learning(targets=TARGETS).plan(table)
    columns = ColumnTable(plan)
    assert {row.column: row.kind for row in columns} == KINDS
    expected = Encoder(Learning(targets=TARGETS).plan(as_table(FRAME)))
    X = Encoder(plan).encode(table, Tally())
    np.testing.assert_array_equal(X, expected.encode(as_table(FRAME), Tally()))
    assert np.isfinite(X).all()
    assert columns["gaps"].reason.endswith("12 missing")


def test_the_table_of_columns_prints_and_becomes_a_frame():
    columns = ColumnTable(plan_of(FRAME, targets=TARGETS))
    lines = repr(columns).splitlines()
    assert lines[0].split() == ["column", "kind", "inputs", "treatment", "reason"]
    assert len(lines) == 1 + len(FRAME.columns) == 1 + len(columns)
    frame = columns.to_pandas()
    assert frame["inputs"].sum() == len(columns.plan.sources)
    assert frame.loc[frame["column"] == "id", "treatment"].item() == "left out"
    assert "&lt;b&gt;" in ColumnTable(plan_of(pa.table({"<b>": [1, 2]})))._repr_html_()
    notes = " ".join(plan_notes(columns.plan))
    assert all(f"'{name}'" in notes for name in ("gaps", "word", "when", "id", "name", "same"))


def test_a_plan_from_json_is_the_same():
    plan = plan_of(FRAME, targets=TARGETS)
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


DAMAGES = {
    "a form that is no text": lambda p: p["dates"][0].update(form=3),
    "a part of no date": lambda p: p["dates"][0].update(parts=["century"]),
    "too few counts": lambda p: p["statistics"][0]["counts"].pop(),
    "a negative count": lambda p: p["statistics"][0]["counts"].__setitem__(0, -1),
    "a value that is no number": lambda p: p["statistics"][0]["values"][0].__setitem__(0, "x"),
    "too many marks": lambda p: p["statistics"][0].update(marks=10**9),
    "another order": lambda p: p["order"].pop(),
    "a column twice": lambda p: p["dropped"].append(p["dropped"][0]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_plan_is_refused(name):
    value = json.loads(json.dumps(plan_of(FRAME, targets=TARGETS).as_json()))
    DAMAGES[name](value)
    with pytest.raises(FileError):
        Plan.from_json(value)


def test_numbers_are_categories_where_that_is_said():
    table = pd.DataFrame({"code": [1, 2, 3, 1], "a": [1.0, 2.0, 3.0, 4.0]})
    for given in (["code"], [0], [True, False], np.array([0])):
        chosen, by_type = named_categories(given, ["code", "a"])
        plan = plan_of(table, categorical=chosen, by_type=by_type)
        assert [c.name for c in plan.numbers] == ["a"]
        assert plan.levels[0].levels == ("1", "2", "3")
    # The same level whatever the type of its number.
    X = Encoder(plan).encode(pa.table({"code": [2.0, 9.0], "a": [0.0, 0.0]}), Tally())
    assert X[:, 1:].tolist() == [[0, 1, 0], [0, 0, 0]]


def test_none_takes_categories_of_numbers_for_numbers():
    table = pd.DataFrame({"code": pd.Categorical([1, 2, 3]), "text": ["a", "b", "a"]})
    assert [c.name for c in plan_of(table).levels] == ["code", "text"]
    chosen, by_type = named_categories(None, ["code", "text"])
    plan = plan_of(table, categorical=chosen, by_type=by_type)
    assert ([c.name for c in plan.numbers], [c.name for c in plan.levels]) == (["code"], ["text"])


@pytest.mark.parametrize("given", ["auto", ["c"], [5], [True]])
def test_categories_that_are_not_there_are_refused(given):
    with pytest.raises(ConfigurationError, match="categorical_features"):
        named_categories(given, ["a", "b"])


def test_keys_are_left_out_by_name_and_values_only():
    rows = np.arange(50)
    table = pd.DataFrame({"t": rows, "id": rows % 7, "Unnamed: 0": rows, "user_id": rows * 3})
    columns = ColumnTable(plan_of(table))
    assert [row.kind for row in columns] == ["number", "number", "identifier", "identifier"]
    assert "rename" in columns["user_id"].reason


def test_rare_gaps_have_no_input_of_their_own():
    values = np.arange(1000.0)
    values[3] = np.nan
    (column,) = number_plan(values[:, None], ["a"]).numbers
    assert not column.indicator
    values[:10] = np.nan
    (column,) = number_plan(values[:, None], ["a"]).numbers
    assert column.indicator
    assert column.median == np.nanmedian(values)


def test_objects_of_several_types_are_text_and_others_are_refused():
    plan = plan_of(pd.DataFrame({"a": np.array([1, "x", None, 2.5], dtype=object)}))
    assert plan.levels[0].levels == ("1", "2.5", "x")
    with pytest.raises(DataError, match="'a' has values of type dict"):
        plan_of(pd.DataFrame({"a": [{"k": 1}, 2]}))
    with pytest.raises(DataError, match="several columns called 'a'"):
        as_table(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_durations_are_seconds():
    plan = plan_of(pd.DataFrame({"took": pd.to_timedelta([1, 90], unit="s")}))
    X = Encoder(plan).encode(pa.table({"took": [dt.timedelta(minutes=1)]}), Tally())
    assert X.tolist() == [[60.0]]


def test_rows_can_be_taken_of_text_as_polars_has_it():
    views = pa.table({"word": pa.array(["a", "b", None], pa.string_view()), "x": [1, 2, 3]})
    table = as_table(views)
    assert table.take(pa.array([2, 0])).column("word").to_pylist() == [None, "a"]
    assert table.column_names == ["word", "x"]
