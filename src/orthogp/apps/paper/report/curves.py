"""Curves of a page, from the histories in the records."""

from collections.abc import Sequence
from typing import Literal

from orthogp.apps.paper.experiments import DASHED, colour_of
from orthogp.apps.paper.records import Record
from orthogp.apps.paper.report.jobs import by_dataset
from orthogp.plotting.pages import Chart, Level, Series

X_LABELS = {"step": "step", "seconds": "seconds of training"}
# What an experiment with curves shows, as far as its histories have it: name and unit.
METRICS = {
    "bound": ("bound", "nats a training row"),
    "log_likelihood": ("test log-likelihood", "nats a row"),
    "rmse": ("test RMSE", "of z-scored targets"),
    "accuracy": ("test accuracy", "percent"),
}
# Percent of a curve's points that may leave the picture: its first moments would squash the rest.
SKIP = 10.0

Against = Literal["step", "seconds"]


def metric_charts(records: Sequence[Record], against: Against) -> dict[str, list[Chart]]:
    """data set → one chart a metric of its histories, one curve a method, of its first split.

    A method without a history is a level, at the metric it ended with.
    """
    found = {}
    for dataset, its_records in by_dataset(records).items():
        firsts = _first_splits(its_records)
        charts = [
            _chart(key, firsts, against, title, unit) for key, (title, unit) in METRICS.items()
        ]
        drawn = [chart for chart in charts if chart.series]
        if drawn:
            found[dataset] = drawn
    return found


def bound_charts(records: Sequence[Record]) -> list[Chart]:
    """One chart a data set: the bound against the step, one curve a method, of its first split."""
    charts = []
    for dataset, its_records in by_dataset(records).items():
        trained = [record for record in _first_splits(its_records) if record.history]
        charts.append(_chart("bound", trained, "step", dataset, ", ".join(METRICS["bound"])))
    return [chart for chart in charts if chart.series]


def _chart(
    key: str, records: Sequence[Record], against: Against, title: str, y_label: str
) -> Chart:
    series, levels = [], []
    for record in records:
        method = record.job.method
        points = [(r[against], r[key]) for r in record.history if against in r and key in r]
        if points:
            points = [(float(x), float(y)) for x, y in points]
            series.append(Series(method, points, colour_of(method), method in DASHED))
        elif not record.history and key in record.metrics:
            levels.append(Level(method, float(record.metrics[key]), colour_of(method)))
    return Chart(title, X_LABELS[against], y_label, series, levels, skip=SKIP)


def _first_splits(records: Sequence[Record]) -> list[Record]:
    """Of each method that is done, the record of its first split."""
    firsts: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: record.job.split):
        if record.status == "done":
            firsts.setdefault(record.job.method, record)
    return [firsts[r.job.method] for r in records if firsts.get(r.job.method) is r]
