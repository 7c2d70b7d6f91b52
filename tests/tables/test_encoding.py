"""A table to a matrix: learned from training rows, kept as JSON, the same from there."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from orthogp.errors import DataError, FileError
from orthogp.tables import Encoder, Learning, Plan, Tally, plan_notes, require_complete
from orthogp.tables.plan import LevelColumn, NumberColumn
from tabular_cases import NASTY, sample


def inputs(table: pa.Table) -> pa.Table:
    return table.drop_columns(["key", "y", "label"])


def encode(plan: Plan, table: pa.Table) -> np.ndarray:
    return Encoder(plan).encode(table, Tally())


def plan_of(**columns) -> Plan:
    return Learning().plan(pa.table(columns))


def test_the_matrix_has_numbers_then_gaps_then_levels():
    table = inputs(sample())
    plan = Learning().plan(table)
    notes = plan_notes(plan)
    X = encode(plan, table)
    b = table.column("b").to_numpy(zero_copy_only=False)
    gaps = np.isnan(b)
    colour, flag = (np.array(table.column(n).to_pylist()) for n in ("colour", "flag"))
    expected = [
        table.column("a").to_numpy(),
        plan.filled(np.column_stack([table.column(c.name) for c in plan.numbers]))[:, 1],
        table.column("count").to_numpy(),
        flag,
        table.column(NASTY).to_numpy(),
        gaps,
        *(colour == level for level in ("blue", "green", "red")),
    ]
    assert np.array_equal(X, np.stack(expected, axis=1).astype(float))
    assert plan.sources == ("a", "b", "count", "flag", NASTY, "b", *["colour"] * 3)
    assert any("constant" in note and "'same'" in note for note in notes)
    assert any("predicted" in n and f"'b' (double, {gaps.sum()} missing)" in n for n in notes)


@pytest.mark.parametrize("rows", [239, 240])
def test_the_matrix_is_that_of_a_scikit_learn_pipeline_fitted_to_the_same_rows(rows):
    numbers, levels = ["a", "b", "count", "flag", NASTY], ["colour"]
    train, other = inputs(sample(rows)), inputs(sample(60, seed=1))
    pipeline = ColumnTransformer(
        [
            (
                "numbers",
                make_pipeline(
                    FunctionTransformer(lambda frame: frame.astype(float)),
                    SimpleImputer(strategy="median", add_indicator=True),
                ),
                numbers,
            ),
            ("levels", OneHotEncoder(handle_unknown="ignore", sparse_output=False), levels),
        ],
    ).fit(train.to_pandas())
    plan = replace(Learning().plan(train), imputation=None)
    unseen = pa.array(["pink", *other.column("colour").to_pylist()[1:]])
    other = other.set_column(other.column_names.index("colour"), "colour", unseen)
    for table in (train, other):
        assert np.array_equal(encode(plan, table), pipeline.transform(table.to_pandas()))


def test_a_table_without_rows_has_a_matrix_without_rows():
    plan = plan_of(a=[1.0, None, 2.0], colour=["red", "blue", "red"])
    assert encode(plan, pa.table({"a": [], "colour": []})).shape == (0, 4)


def test_a_plan_from_json_encodes_the_same():
    table = inputs(sample())
    plan = Learning().plan(table)
    again = Plan.from_json(json.loads(json.dumps(plan.as_json())))
    assert again == plan
    other = inputs(sample(seed=1))
    assert np.array_equal(encode(again, other), encode(plan, other))


def test_unseen_levels_are_zeros_and_counted():
    plan, tally = plan_of(colour=["red", "blue", "red"]), Tally()
    X = Encoder(plan).encode(pa.table({"colour": ["blue", "pink", None, "pink"]}), tally)
    assert X.tolist() == [[1, 0], [0, 0], [0, 0], [0, 0]]
    assert (tally.unseen, tally.missing) == ({"colour": 2}, {"colour": 1})


def test_missing_text_is_a_level_where_training_had_some():
    plan = plan_of(colour=["red", "blue", None, ""])
    assert encode(plan, pa.table({"colour": ["red", ""]})).tolist() == [[0, 1, 0], [0, 0, 1]]


def test_rare_levels_are_pooled_and_told_from_unseen_ones():
    frequent = [f"level {i:02}" for i in range(30)]
    plan = plan_of(word=[*frequent * 3, "rare", "rare", "rarer"])
    (column,) = plan.levels
    assert column.levels == tuple(frequent)
    assert column.pooled == ("rare", "rarer")
    X = encode(plan, pa.table({"word": ["rare", "rarer", "level 03", "unseen"]}))
    assert X.argmax(axis=1).tolist()[:3] == [30, 30, 3]
    assert X.sum(axis=1).tolist() == [1, 1, 1, 0]


def test_a_gap_that_training_had_not_is_the_median():
    plan = plan_of(a=[1.0, 5.0, 2.0])
    assert plan.numbers == (NumberColumn("a", 2.0, False, "double"),)
    assert encode(plan, pa.table({"a": pa.array([None, 7.0])})).tolist() == [[2.0], [7.0]]
    assert encode(plan, pa.table({"a": pa.nulls(2)})).tolist() == [[2.0], [2.0]]


def test_a_constant_with_gaps_still_tells_something():
    plan = plan_of(a=[1.0, None, 1.0], b=[None, None, None], c=["x"] * 3)
    assert plan.sources == ("a", "a")


def test_nothing_to_learn_from_is_refused():
    with pytest.raises(DataError, match="no column"):
        plan_of(a=[1, 1], b=["x", "x"])


def test_refusing_missing_values_names_columns_and_counts():
    table = pa.table({"a": [1.0, None, float("nan")], "b": ["x", "", "y"], "c": [1, 2, 3]})
    with pytest.raises(DataError, match=r"'a' \(2\), 'b' \(1\);"):
        require_complete(table)
    plan = Plan(plan_of(c=[1, 2]).numbers, (), "refuse")
    with pytest.raises(DataError, match=r"'c' \(1\)"):
        encode(plan, pa.table({"c": [1, None]}))


def test_infinite_numbers_are_refused():
    with pytest.raises(DataError, match="infinite"):
        plan_of(a=[1.0, float("inf")])


def test_lists_are_refused_by_name():
    with pytest.raises(DataError, match=r"'raw' is of type binary"):
        plan_of(raw=pa.array([b"x", b"y"]))


NUMBER = {"name": "a", "median": 1.0, "indicator": False}
LEVEL = {"name": "c", "kind": "text", "levels": ["x"], "pooled": [], "missing": True}
GOOD = {"numbers": [NUMBER], "levels": [LEVEL], "missing": "impute"}


def test_a_good_description_is_read():
    expected = Plan(
        (NumberColumn("a", 1.0, False),), (LevelColumn("c", "text", ("x",), (), True),), "impute"
    )
    assert Plan.from_json(GOOD) == expected


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        [],
        {},
        GOOD | {"numbers": [NUMBER | {"median": float("nan")}]},
        GOOD | {"numbers": [NUMBER | {"median": "1"}]},
        GOOD | {"numbers": [NUMBER | {"name": 3}]},
        GOOD | {"numbers": [NUMBER | {"indicator": 1}]},
        GOOD | {"numbers": [NUMBER, NUMBER]},
        GOOD | {"numbers": 5},
        GOOD | {"levels": [LEVEL | {"levels": "xy"}]},
        GOOD | {"levels": [LEVEL | {"levels": ["x", "x"]}]},
        GOOD | {"levels": [LEVEL | {"levels": [None]}]},
        GOOD | {"levels": [LEVEL | {"kind": "code"}]},
        GOOD | {"levels": [LEVEL | {"levels": [], "missing": False}]},
        GOOD | {"levels": [LEVEL | {"name": "a"}]},
        GOOD | {"missing": "ignore"},
        GOOD | {"missing": ["impute"]},
    ],
)
def test_a_damaged_description_is_refused(damaged):
    with pytest.raises(FileError):
        Plan.from_json(damaged)
