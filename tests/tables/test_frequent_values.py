"""A value that much of a column of numbers has: where it has an input of its own, and which."""

import json

import numpy as np
import pyarrow as pa
import pytest

from orthogp.tables import (
    ColumnTable,
    Encoder,
    Learning,
    Plan,
    Tally,
    number_inputs,
    with_frequent_values,
)
from orthogp.tables.learning import frequent_value


def rain(rows: int = 200, share: float = 0.5, value: float = 0.0) -> np.ndarray:
    amounts = np.random.default_rng(0).exponential(size=rows)
    amounts[: round(share * rows)] = value
    return amounts


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("value", [0.0, -9.0])
def test_a_value_that_stands_out_is_found(share, value):
    assert frequent_value(np.append(rain(1000, share, value), np.nan)) == (value, share)


@pytest.mark.parametrize(
    "values",
    [
        rain(share=0.05),
        rain(1000, share=0.95),
        # Too few other values, and a second value that is nearly as frequent.
        np.append(np.zeros(30), np.arange(1.0, 20.0)),
        np.append(rain(), np.ones(60)),
        np.random.default_rng(0).poisson(3, size=2000).astype(float),
        np.array([]),
    ],
)
def test_shares_counts_and_codes_have_none(values):
    assert frequent_value(values) is None


def test_the_indicator_follows_those_of_gaps_and_belongs_to_its_column():
    amounts, heat = rain(), np.random.default_rng(1).normal(size=200)
    amounts[[0, 150]], heat[::10] = np.nan, np.nan
    table = pa.table({"rain": amounts, "heat": heat, "town": ["a", "b"] * 100})
    plan = with_frequent_values(Learning().plan(table), table)
    plan = Plan.from_json(json.loads(json.dumps(plan.as_json())))
    X = Encoder(plan).encode(table, Tally())
    assert plan.sources == ("rain", "heat", "rain", "heat", "rain", "town", "town")
    np.testing.assert_array_equal(X[:, 2], np.isnan(amounts))
    np.testing.assert_array_equal(X[:, 4], X[:, 0] == 0)
    assert plan.groups == (0, 1, 2, 3, 4, 5, 5)
    row = ColumnTable(plan)["rain"]
    assert row.inputs == 3
    gaps = "gaps from the other numbers; an indicator of them"
    assert row.treatment == f"as it is; {gaps}; an indicator of 0"
    assert row.reason == "double, 2 missing, 0 in 50%"


def test_arrays_have_the_same_inputs():
    table = pa.table({"rain": rain(), "heat": np.arange(200.0) ** 2})
    plan = with_frequent_values(Learning().plan(table), table)
    assert not plan.plain
    matrix = np.column_stack([table.column(0), table.column(1)])
    np.testing.assert_array_equal(number_inputs(plan, matrix), Encoder(plan).encode(table, Tally()))
