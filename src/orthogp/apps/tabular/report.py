"""What `orthogp fit` reports: a record of plain data, its JSON, and its text for a terminal."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orthogp.apps.tabular.contributions import Contributions
from orthogp.apps.tabular.measures import Measures, Relevance, Row
from orthogp.execution.files import write_atomically

# Rows of a table on the terminal, at most.
MOST_ROWS = 10
# Name → title and what it means.
FIGURES = {
    "rmse": ("RMSE", "root of the mean squared error, in units of the target"),
    "mae": ("MAE", "mean absolute error, in units of the target"),
    "r2": ("R²", "share of the variance that is explained"),
    "log_density": ("log density", "mean of a row, in nats, per unit of the target"),
    "coverage_90": ("coverage of 90 % intervals", "share of the rows inside; 0.9 is right"),
    "width_90": ("width of 90 % intervals", "mean, in units of the target"),
    "guaranteed_coverage_90": (
        "coverage of guaranteed intervals", "share of the rows inside those of coverage 0.9"
    ),
    "guaranteed_width_90": ("width of guaranteed intervals", "mean, in units of the target"),
    "rmse_of_the_mean": ("RMSE of the training mean", "what predicting a constant gives"),
    "accuracy": ("accuracy", "share of the rows whose most probable class is right"),
    "log_likelihood": ("log-likelihood", "mean log probability of the right class, in nats"),
    "brier": ("Brier score", "mean squared error of the probabilities, summed over classes"),
    "set_coverage_90": (
        "coverage of guaranteed sets", "share of the rows whose class is in that of coverage 0.9"
    ),
    "set_size_90": ("size of guaranteed sets", "mean number of classes"),
    "accuracy_of_the_commonest_class": (
        "accuracy of the commonest class", "what always predicting it gives"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class FitReport:
    """One fit. `rows` counts those of the table, without a target, of training and of test.

    `column_rows` are those of `columns_`, `relevance` is (column, 1/lengthscale) of every column,
    the most relevant first; `contributions` are left out of a report for the terminal alone;
    `guarantee` is what is promised of new rows, in a sentence, empty where nothing is.
    """

    table: str
    model: str
    target: str
    task: str
    reason: str
    rows: dict[str, int]
    columns: int
    column_rows: tuple[Row, ...]
    inputs: int
    steps: int
    seconds: float
    interrupted: bool
    notes: tuple[str, ...]
    measures: Measures
    relevance: Relevance
    contributions: Contributions | None
    settings: dict[str, Any]
    guarantee: str = ""

    @property
    def about(self) -> str:
        """What the figures are about, in a sentence."""
        return (
            f"All figures are of {self.rows['test']} rows drawn at random and held out before "
            f"anything was fitted. The model saved is the one fitted to the other "
            f"{self.rows['training']} rows, the very one that is judged here."
        )

    def write_json(self, path: Path) -> None:
        text = json.dumps(_plain(asdict(self)), indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(path, [text.encode("utf-8", "replace"), b"\n"])


def _plain(value: Any) -> Any:
    """JSON has no NaN: null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_report(report: FitReport, console: Console) -> None:
    console.print(Text(report.about))
    figures = [
        {"figure": FIGURES[name][0], "value": value, "meaning": FIGURES[name][1]}
        for name, value in report.measures.figures.items()
    ]
    print_rows("On the test rows", figures, console)
    if report.guarantee:
        console.print(Text(f"Guaranteed: {report.guarantee}."))
    calibration = report.measures.calibration
    stride = math.ceil(len(calibration) / MOST_ROWS)
    print_rows("Calibration: stated and observed shares", calibration[::stride], console)
    print_rows("Residuals, from small predictions to large", report.measures.residuals, console)
    print_rows("Classes, in rows", report.measures.classes, console)
    print_rows("Most frequent confusions", report.measures.confusions, console)
    if report.relevance:
        rows = [
            {"column": name, "1/lengthscale": value} for name, value in report.relevance[:MOST_ROWS]
        ]
        print_rows("Most relevant columns", rows, console)


def print_rows(title: str, rows: Sequence[Row], console: Console) -> None:
    """A table with the keys of the first row as its head; nothing where there are no rows."""
    if not rows:
        return
    table = Table(title=Text(title), title_justify="left")
    for name, value in rows[0].items():
        justify = "left" if isinstance(value, str) else "right"
        table.add_column(name.replace("_", " "), justify=justify)
    for row in rows:
        table.add_row(*(Text(printable(value)) for value in row.values()))
    console.print(table)


def printable(value: str | int | float) -> str:
    """Text without control characters, which a terminal would execute."""
    if isinstance(value, str):
        return value if value.isprintable() else repr(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
