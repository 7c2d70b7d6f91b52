"""The appendix's tables, our figures with the paper's, and the coverage of our own columns."""

from collections.abc import Iterable

from orthogp.apps.paper import published
from orthogp.apps.paper.tables.grid import Grid
from orthogp.apps.paper.tables.model import (
    ACCURACY,
    COVERAGE,
    Metric,
    ResultCell,
    ResultTable,
    Row,
    table_name,
)

# What a reader must know of a data set before its figures.
REMARKS = {
    "bike": "the inputs of bike give its target away",
    "houseelectric": (
        "houseelectric: target is active power, the paper may have used its logarithm: "
        "not comparable"
    ),
}


def appendix(grid: Grid, metric: Metric) -> ResultTable:
    """Data set × method: the paper's methods, then our own, then what the paper quotes."""
    methods = (*grid.paper_methods, *grid.own_methods)
    quoted = published.OTHERS if metric == ACCURACY else ()
    originals = published.figures(grid.task, metric.key)
    rows, notes = [], []
    for dataset in grid.datasets:
        cells = [grid.with_paper_value(dataset, method, metric.key) for method in methods]
        cells += [ResultCell(original=originals.get(dataset, {}).get(name)) for name in quoted]
        rows.append(Row(dataset, tuple(cells), metric.digits, metric.higher_is_better))
    if quoted:
        notes.append(f"{', '.join(quoted)}: quoted by the paper, of other splits")
    return ResultTable(
        name=table_name(grid.task, "appendix", metric),
        kind="appendix",
        metric=metric.key,
        title=f"{grid.task.capitalize()}: {metric.title}, beside the paper's",
        heading="data set",
        columns=(*methods, *quoted),
        rows=tuple(rows),
        notes=(*notes, *_notes(grid, metric, methods, rows)),
    )


def coverage(grid: Grid) -> ResultTable | None:
    """Of our own columns; None where no record has it."""
    methods = grid.own_methods
    rows = [
        Row(name, tuple(grid.cell(name, m, COVERAGE.key) for m in methods), COVERAGE.digits, None)
        for name in grid.found
    ]
    rows = [row for row in rows if any(cell.value is not None for cell in row.cells)]
    if not rows:
        return None
    return ResultTable(
        name=table_name(grid.task, "coverage", COVERAGE),
        kind="coverage",
        metric=COVERAGE.key,
        title=f"{grid.task.capitalize()}: {COVERAGE.title}",
        heading="data set",
        columns=methods,
        rows=tuple(rows),
        notes=_notes(grid, COVERAGE, methods, rows),
    )


def remarks(datasets: Iterable[str]) -> list[str]:
    return [REMARKS[name] for name in datasets if name in REMARKS]


def _notes(
    grid: Grid, metric: Metric, methods: tuple[str, ...], rows: list[Row]
) -> tuple[str, ...]:
    shown = [row.name for row in rows if any(cell.value is not None for cell in row.cells)]
    notes = []
    if any(cell.error is not None for row in rows for cell in row.cells):
        notes.append("mean over splits, and its standard error")
    partial = [w for row in rows for m in methods for w in grid.excluded(row.name, m, metric.key)]
    notes += [f"left out: {why}" for why in partial]
    return (*notes, *remarks(shown), *_missing(methods, rows))


def _missing(methods: tuple[str, ...], rows: list[Row]) -> list[str]:
    """One line a reason: the data sets that lack every figure for it, or the methods of a set."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        lacking: dict[str, list[str]] = {}
        for method, cell in zip(methods, row.cells, strict=False):
            if cell.missing:
                lacking.setdefault(cell.missing, []).append(method)
        for reason, names in lacking.items():
            whole = len(names) == len(methods)
            item = row.name if whole else f"{row.name} ({', '.join(names)})"
            groups.setdefault(reason, []).append(item)
    return [f"{', '.join(items)}: {reason}" for reason, items in groups.items()]
