"""The report of a fit as an HTML page."""

import math
from collections.abc import Sequence
from pathlib import Path

from orthogp.apps.tabular.contributions import Contributions
from orthogp.apps.tabular.measures import Row
from orthogp.apps.tabular.report import FIGURES, FitReport
from orthogp.plotting.pages import Bars, Cell, Chart, Dots, Page, Series, Table
from orthogp.plotting.pages.tables import Content, number

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#808080"
# Columns in a picture, and in a table that is not folded.
MOST_DRAWN, MOST_SHOWN = 15, 30


def write_page(report: FitReport, path: Path) -> Path:
    return build_report_page(report).write(path)


def build_report_page(report: FitReport) -> Page:
    page = Page(f"{report.target}: {report.task}", report.about)
    page.facts(
        {
            "table": report.table,
            "target": report.target,
            "training rows": report.rows["training"],
            "test rows": report.rows["test"],
            "columns used": report.columns,
            "inputs of the model": report.inputs,
            "steps": report.steps,
            "seconds of training": round(report.seconds, 1),
        }
    )
    page.text(f"Task: {report.task}, because {report.reason}.")
    if report.interrupted:
        page.text("The training was interrupted; the model is the one it had reached.")
    if report.notes:
        page.section("What was done to the table")
        page.items(report.notes)
    _columns(page, report)
    page.section("On the test rows")
    figures = [
        [FIGURES[name][0], _cell(value), FIGURES[name][1]]
        for name, value in report.measures.figures.items()
    ]
    page.table(Table(["figure", "value", "meaning"], figures))
    if report.guarantee:
        page.text(f"Guaranteed: {report.guarantee}.")
    _calibration(page, report)
    _errors(page, report)
    _relevance(page, report)
    page.section("Settings")
    settings = [[name, str(value)] for name, value in report.settings.items()]
    with page.details("Every setting of the estimator"):
        page.table(Table(["setting", "value"], settings))
    return page


def _calibration(page: Page, report: FitReport) -> None:
    page.section("Calibration")
    rows = report.measures.calibration
    if report.task == "regression":
        page.text("The share of rows below each predicted quantile. On the diagonal is right.")
        labels = ("level of the quantile", "share of rows below it")
    else:
        page.text(
            "How often the most probable class is right, by how probable the model says it is. On "
            "the diagonal is right; a bin of few rows says little."
        )
        labels = ("stated probability", "share of rows that are right")
    points = [(row["stated"], row["observed"]) for row in rows]
    diagonal = Series("right", [(0.0, 0.0), (1.0, 1.0)], GREY, dashed=True)
    page.charts(Chart("Calibration", *labels, [Series("observed", points, BLUE), diagonal]))
    with page.details("The same as a table"):
        page.table(_table(rows))


def _errors(page: Page, report: FitReport) -> None:
    measures = report.measures
    if measures.residuals:
        page.section("Residuals")
        page.text(
            "Target minus prediction, in groups of rows from the smallest predictions to the "
            "largest: the median, and the 5 % and 95 % quantiles."
        )
        series = [
            Series(name, [(r["prediction"], r[key]) for r in measures.residuals], colour, dashed)
            for key, name, colour, dashed in (
                ("high", "95 %", ORANGE, False),
                ("median", "median", BLUE, False),
                ("low", "5 %", ORANGE, True),
            )
        ]  # fmt: skip
        page.charts(Chart("Residuals", "prediction", "residual", series))
        with page.details("The same as a table"):
            page.table(_table(measures.residuals))
    if measures.classes:
        page.section("Classes")
        page.table(_table(measures.classes, "Rows of each class"))
    if measures.confusions:
        page.table(_table(measures.confusions, "Most frequent confusions"))


def _columns(page: Page, report: FitReport) -> None:
    page.section("Columns")
    page.text("What each column of the table was taken for, what the model sees of it, and why.")
    if len(report.column_rows) <= MOST_SHOWN:
        page.table(_table(report.column_rows))
        return
    with page.details(f"All {len(report.column_rows)} columns"):
        page.table(_table(report.column_rows))


def _relevance(page: Page, report: FitReport) -> None:
    page.section("Which columns matter")
    charts = []
    if report.relevance:
        rows = report.relevance[:MOST_DRAWN]
        charts.append(Bars("Relevance", "1/lengthscale", rows, BLUE))
    else:
        page.text(
            "The kernel has one lengthscale for all inputs, so it ranks no columns (--ard does)."
        )
    found = report.contributions
    if found is not None:
        title = f"Contributions to {found.of}"
        charts.append(Dots(title, "contribution", found.columns[:MOST_DRAWN], ORANGE))
    page.charts(*charts)
    if found is not None:
        _contributions(page, found)
    if report.relevance:
        page.text(
            "Relevance is 1/lengthscale in units of the column's standard deviation, averaged over "
            "the parts of the kernel by their variances. A column of several lengthscales, as a "
            "date has, counts by the shortest. It ranks how fast the function varies, not what "
            "causes what."
        )
        largest = report.relevance[0][1]
        table = [[name, value, value / largest if largest else None]
                 for name, value in report.relevance]  # fmt: skip
        with page.details("The relevance of every column"):
            page.table(Table(["column", "1/lengthscale", "relative"], table))


def _contributions(page: Page, found: Contributions) -> None:
    count = len(found.columns[0][1])
    page.text(
        f"Every dot is one of {count} test rows: how far the value of the column moves "
        f"{found.of} away from {number(found.base, 4)}, that of an average row. These are sampled "
        "Shapley values. In every row they add up to the prediction; how it is split among the "
        "columns varies a little with the draws."
    )
    for example in found.examples:
        label = f"{example.label}, " if example.label else ""
        rows = [[name, value, _cell(part)] for name, value, part in example.parts]
        with page.details(f"A row in parts: {label}{number(example.prediction, 4)}"):
            page.table(Table(["column", "value", "contribution"], rows))


def _table(rows: Sequence[Row], caption: str = "") -> Table:
    names = [name.replace("_", " ") for name in rows[0]]
    return Table(names, [[_cell(value) for value in row.values()] for row in rows], caption)


def _cell(value: Content) -> Content:
    """Four digits: a few hundred rows determine no more."""
    if isinstance(value, float) and math.isfinite(value):
        return Cell(number(value, 4), value)
    return value
