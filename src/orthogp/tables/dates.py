"""Dates and times as inputs: a trend, and the cycles of the day, the week and the year.

A cycle is a point on a circle, so that 23:59 is next to 00:00: its two inputs are sine and cosine.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from orthogp.errors import DataError
from orthogp.tables.arrow import Column, Matrix, as_numbers, as_texts, decoded
from orthogp.tables.plan import DATE_PARTS, DateColumn

MICROSECONDS = 86_400_000_000
# Days of a cycle. 1970-01-01 was a Thursday; a week starts on Monday.
PERIODS = {"time of day": 1.0, "day of week": 7.0, "day of year": 365.2425}
THURSDAY = 3
# A cycle is an input where the dates span so many of its periods: below one it is the trend.
LEAST_PERIODS = {"day of week": 2.0, "day of year": 1.0}
# And where they vary by more than this, in radii of its circle: more than a day of the year.
LEAST_SPREAD = {"day of year": 0.03}
# The year first, then the day, then the month; %b also reads the full names of months.
FORMS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y",
    "%m-%d-%Y", "%d %b %Y", "%b %d, %Y", "%d-%b-%Y",
)  # fmt: skip
CLOCKS = ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S")


class Days(NamedTuple):
    """Days since 1970 by the clock of a place, NaN where missing; whether there is a date at all
    (a time of day alone has none), and the time zone, if one is known."""

    days: Matrix
    dated: bool
    zone: str | None


def days_of(column: Column, zone: str | None = None, form: str | None = None) -> Days:
    """The dates of a column in a time zone, by default its own; text is read by its form."""
    if form is not None:
        column = pc.strptime(as_texts(column), format=form, unit="s", error_is_null=True)  # pyright: ignore
    column = decoded(column)
    kind = column.type
    if types.is_time(kind):
        clock = column.cast(pa.time64("us")).cast(pa.int64())
        return Days(as_numbers(clock) / MICROSECONDS, False, None)
    if not types.is_date(kind) and not types.is_timestamp(kind):
        raise DataError(f"a column of type {kind} holds no dates or times that can be used")
    stamps = column.cast(pa.timestamp("us", tz=getattr(kind, "tz", None)), safe=False)
    found = getattr(kind, "tz", None)
    zone = found if zone is None else zone
    if found is not None:
        # The same moment by the clock of training, whatever zone it comes in.
        local = stamps.cast(pa.timestamp("us", tz=zone))
        stamps = pc.local_timestamp(local)  # pyright: ignore
    return Days(as_numbers(stamps.cast(pa.int64())) / MICROSECONDS, True, zone)


def learn_dates(name: str, column: Column, form: str | None, indicator_from: float) -> DateColumn:
    """Parts that vary in these rows; with an indicator from this share of missing dates on."""
    days, dated, zone = days_of(column, form=form)
    gaps = np.isnan(days)
    present = days[~gaps]
    span = float(np.ptp(present)) if len(present) else 0.0
    parts = [] if span == 0 or not dated else ["trend"]
    for part, period in PERIODS.items():
        needs_date = part in LEAST_PERIODS
        if needs_date and (not dated or span < LEAST_PERIODS[part] * period):
            continue
        phases = _phases(part, present)
        # The day of the week of dates a week apart does not vary, nor the day of the year of those
        # a year apart, but for leap days.
        if len(phases) and _spread(phases) > LEAST_SPREAD.get(part, 0.0):
            parts.append(part)
    kind = str(column.type) if form is None else f"text in the form {form}"
    return DateColumn(
        name,
        tuple(parts),
        float(present.min()) if len(present) else 0.0,
        float(np.median(present)) if len(present) else 0.0,
        zone,
        form,
        bool(parts) and float(gaps.mean()) >= indicator_from and bool(gaps.any()),
        f"{kind}, {_span(present, dated)}",
    )


def encode_dates(column: DateColumn, values: Column) -> tuple[Matrix, NDArray[np.bool_]]:
    """The inputs of a column, and which dates are missing."""
    days = days_of(values, column.zone, column.form).days
    missing = np.isnan(days)
    filled = np.where(missing, column.median, days)
    found = []
    for part in column.parts:
        if part == "trend":
            found.append(filled - column.origin)
            continue
        angle = 2 * np.pi * _phases(part, filled)
        # The centre of the circle is as near to every phase as to any other.
        found += [np.where(missing, 0.0, wave(angle)) for wave in (np.sin, np.cos)]
    if column.indicator:
        found.append(missing.astype(np.float64))
    width = sum(DATE_PARTS[part] for part in column.parts) + column.indicator
    return np.stack(found, axis=1) if found else np.zeros((len(days), width)), missing


def _phases(part: str, days: Matrix) -> Matrix:
    """Where in its cycle each day is, in [0, 1); those of week and year are whole days."""
    if part == "time of day":
        return days % 1.0
    whole = np.floor(days)
    shift = THURSDAY if part == "day of week" else 0
    return ((whole + shift) % PERIODS[part]) / PERIODS[part]


def _spread(phases: Matrix) -> float:
    """The larger side of the box around points on the circle of radius one."""
    angle = 2 * np.pi * phases
    return float(max(np.ptp(np.sin(angle)), np.ptp(np.cos(angle))))


def _span(days: Matrix, dated: bool) -> str:
    if not len(days):
        return "all missing"
    if not dated:
        return "times of day"
    first, last = (np.datetime64(int(np.floor(d)), "D") for d in (days.min(), days.max()))
    return f"{first} to {last}"


def text_form(column: Column) -> str | None:
    """The form of dates that every value of a column of text has, if there is one."""
    strings = as_texts(column).drop_null()
    # Most text fails at its first value.
    sample = strings[:: max(1, len(strings) // 100)]
    if not len(strings) or not _digits(sample):
        return None
    for form in (f"{day}{clock}" for day in FORMS for clock in CLOCKS):
        if _fits(sample, form) and _fits(strings, form):
            return form
    return None


def other_form(column: Column, form: str) -> str | None:
    """The form with day and month exchanged, if every value has that too."""
    if "%d" not in form or "%m" not in form or form.startswith("%Y"):
        return None
    other = form.replace("%d", "@").replace("%m", "%d").replace("@", "%m")
    return other if other != form and _fits(as_texts(column).drop_null(), other) else None


def _digits(strings: pa.Array) -> bool:
    return bool(pc.all(pc.match_substring_regex(strings, r"\d.*\d")).as_py())  # pyright: ignore


def _fits(strings: pa.Array, form: str) -> bool:
    parsed = pc.strptime(strings, format=form, unit="s", error_is_null=True)  # pyright: ignore
    return parsed.null_count == 0
