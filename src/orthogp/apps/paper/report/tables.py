"""The paper's tables for a page: our figures with the paper's, and where each comes from."""

from collections.abc import Mapping

from orthogp.apps.paper.tables import Claim, ResultCell, ResultTable, Row
from orthogp.plotting.pages import Cell, Table

MARKS = {
    "pass": Cell("✓ pass", tone="good"),
    "fail": Cell("✗ fail", tone="bad"),
    "cannot say": Cell("? cannot say", tone="missing"),
}
SECOND_LINE = (
    "First our figure, with ± its standard error where there are splits; then the paper's."
)


def summary_table(table: ResultTable) -> Table:
    """One row a method, one column a statistic, the paper's column beside ours."""
    rows: list[list[Cell]] = [[Cell(method)] for method in table.columns]
    columns = ["method"]
    for statistic in table.rows:
        columns.append(statistic.name)
        best = statistic.best()
        for i, figure in enumerate(statistic.cells):
            text = rounded(figure.value, statistic.digits, figure.error)
            tone = "missing" if figure.value is None else "best" if i in best else ""
            hint = explained(table.columns[i], statistic, figure)
            rows[i].append(Cell(text, figure.value, hint=hint, tone=tone))
        if any(figure.original is not None for figure in statistic.cells):
            columns.append(f"paper’s {statistic.name}")
            for row, figure in zip(rows, statistic.cells, strict=True):
                text = rounded(figure.original, statistic.digits, figure.original_error)
                tone = "missing" if figure.original is None else ""
                row.append(Cell(text, figure.original, tone=tone))
    return Table(columns, rows, table.title, table.notes)


def appendix_table(table: ResultTable, anchors: Mapping[str, str]) -> Table:
    """One row a data set, one column a method, the paper's figure under ours.

    `anchors`: data set → where the page has its jobs.
    """
    rows = [
        [
            Cell(row.name, anchor=anchors.get(row.name, "")),
            *(_appendix_cell(table.columns[i], row, i) for i in range(len(row.cells))),
        ]
        for row in table.rows
    ]
    has_originals = any(figure.original is not None for row in table.rows for figure in row.cells)
    notes = (SECOND_LINE, *table.notes) if has_originals else table.notes
    return Table([table.heading, *table.columns], rows, table.title, notes)


def claims_table(claims: list[Claim]) -> Table:
    rows = [[claim.statement, MARKS[claim.status], claim.figures] for claim in claims]
    return Table(["claim", "result", "figures"], rows)


def _appendix_cell(method: str, row: Row, place: int) -> Cell:
    figure, digits = row.cells[place], row.digits
    below = []
    if figure.error is not None:
        below.append(f"± {rounded(figure.error, digits)}")
    if figure.original is not None:
        below.append(rounded(figure.original, digits))
    tone = "missing" if figure.value is None else "best" if place in row.best() else ""
    return Cell(
        rounded(figure.value, digits),
        figure.value,
        below="\n".join(below),
        hint=explained(method, row, figure),
        tone=tone,
    )


def explained(method: str, row: Row, figure: ResultCell) -> str:
    """Ours, the paper's and the difference, a line each; or why there is none of ours.

    Empty where the cell shows all of that.
    """
    if figure.original is None and figure.error is None and not figure.missing:
        return ""
    lines = [f"{method}, {row.name}"]
    if figure.value is not None:
        splits = len(figure.records)
        mean = f", mean of {splits} splits" if splits > 1 else ""
        lines.append(f"ours {rounded(figure.value, row.digits, figure.error)}{mean}")
    elif figure.missing:
        lines.append(f"ours missing: {figure.missing}")
    if figure.original is not None:
        lines.append(f"paper {rounded(figure.original, row.digits, figure.original_error)}")
    if figure.difference is not None:
        sign = "+" if round(figure.difference, row.digits) > 0 else ""
        lines.append(f"difference {sign}{rounded(figure.difference, row.digits)}")
    return "\n".join(lines)


def rounded(value: float | None, digits: int, error: float | None = None) -> str:
    if value is None:
        return "–"
    text = f"{value:z.{digits}f}".replace("-", "−")
    return text if error is None else f"{text} ± {error:.{digits}f}"
