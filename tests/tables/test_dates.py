"""Dates as a trend and cycles: what varies, whose clock, and text in common forms."""

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from orthogp.tables import Encoder, Learning, Tally, as_table
from orthogp.tables.dates import text_form


def plan_of(values, **options):
    return Learning(**options).plan(as_table(pd.DataFrame({"when": values})))


def encoded(plan, values):
    return Encoder(plan).encode(pa.table({"when": values}), Tally())


@pytest.mark.parametrize(
    ("freq", "count", "parts"),
    [
        ("D", 10, ("trend",)),
        ("D", 30, ("trend", "day of week")),
        ("h", 30, ("trend", "time of day")),
        ("7D", 30, ("trend",)),
        ("YS", 12, ("trend", "day of week")),
        ("D", 800, ("trend", "day of week", "day of year")),
        ("7h", 1500, ("trend", "time of day", "day of week", "day of year")),
    ],
)
def test_parts_are_those_that_vary(freq, count, parts):
    (column,) = plan_of(pd.date_range("2021-01-01", periods=count, freq=freq)).dates
    assert column.parts == parts


def test_cycles_close():
    plan = plan_of(pd.date_range("2021-01-01", periods=3000, freq="7h"))
    moments = ["2022-01-01 00:00", "2022-01-01 23:59:59", "2022-01-01 12:00", "2022-01-08 00:00"]
    trend, *day = encoded(plan, pa.array([dt.datetime.fromisoformat(m) for m in moments])).T
    np.testing.assert_allclose(day[0][:2], 0.0, atol=1e-3)
    np.testing.assert_allclose(day[1][:3], [1.0, 1.0, -1.0], atol=1e-3)
    # A week later it is the same day of the week.
    np.testing.assert_allclose([w[3] for w in day[2:4]], [w[0] for w in day[2:4]])
    assert trend[3] - trend[0] == pytest.approx(7.0)


def test_monday_is_the_start_of_the_week():
    plan = plan_of(pd.date_range("2021-01-01", periods=60, freq="D"))
    monday = encoded(plan, pa.array([dt.date(2021, 3, 1)]))[0]
    np.testing.assert_allclose(monday[1:3], [0.0, 1.0], atol=1e-9)


def test_the_clock_is_that_of_the_zone_of_training():
    berlin = pd.date_range("2021-01-01", periods=100, freq="h", tz="Europe/Berlin")
    plan = plan_of(berlin)
    (column,) = plan.dates
    assert column.zone == "Europe/Berlin"
    expected = encoded(plan, pa.array(berlin))
    np.testing.assert_array_equal(encoded(plan, pa.array(berlin.tz_convert("UTC"))), expected)
    clock = (np.arange(100) % 24) / 24
    np.testing.assert_allclose(expected[:, 1], np.sin(2 * np.pi * clock), atol=1e-9)


def test_missing_dates_are_in_the_middle_and_marked():
    values = [None, *pd.date_range("2021-01-01", periods=49, freq="D")]
    plan = plan_of(values)
    (column,) = plan.dates
    assert column.indicator
    row = encoded(plan, pa.array([None], pa.timestamp("us")))[0]
    assert row.tolist() == [24.0, 0.0, 0.0, 1.0]


def test_times_of_day_have_no_trend():
    plan = plan_of([dt.time(6), dt.time(12), dt.time(18)])
    (column,) = plan.dates
    assert column.parts == ("time of day",)
    np.testing.assert_allclose(encoded(plan, pa.array([dt.time(6)])), [[1.0, 0.0]], atol=1e-9)


def test_one_date_in_every_row_is_a_constant():
    plan = Learning().plan(pa.table({"when": [dt.date(2020, 1, 1)] * 3, "a": [1, 2, 3]}))
    assert [c.name for c in plan.dropped] == ["when"]


@pytest.mark.parametrize(
    "form",
    ["%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d %b %Y", "%b %d, %Y", "%Y-%m-%d %H:%M"],
)
def test_text_is_read_in_common_forms(form):
    days = [dt.datetime(2021, 1, 1, 5) + dt.timedelta(days=i) for i in range(60)]
    column = pa.array([day.strftime(form) for day in days])
    assert text_form(column) == form
    plan = plan_of(column.to_pandas(), text_dates=True)
    assert plan.dates[0].form == form
    found = encoded(plan, pa.array([days[9].strftime(form), "no date"]))
    assert found[0, 0] == pytest.approx(9.0)
    assert Learning().plan(pa.table({"when": column, "a": list(range(60))})).dates == ()


@pytest.mark.parametrize("values", [["red", "blue"], ["12", "13"], ["2021-13-01", "2021-01-01"]])
def test_other_text_is_no_date(values):
    assert text_form(pa.array(values)) is None
