"""Mean, median and average rank over data sets, as in the paper's main tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orthogp.apps.paper import published
from orthogp.apps.paper.tables.appendix import remarks
from orthogp.apps.paper.tables.grid import Grid
from orthogp.apps.paper.tables.model import Kind, Metric, ResultCell, ResultTable, Row, table_name

# Data sets whose targets may not be the paper's: in no mean that is compared with the paper's.
NOT_COMPARABLE = ("houseelectric",)
NO_SETS = "no data set has a figure of every method of the paper"
NOT_EVERYWHERE = "not on every one of these data sets"


@dataclass(frozen=True)
class Statistics:
    """Of one method over data sets; `rank_error` is None of a single one."""

    mean: float
    median: float
    rank: float
    rank_error: float | None


def summary(grid: Grid, metric: Metric) -> ResultTable:
    """The paper's methods, on the paper's data sets where each of them has a figure that counts.

    With the same statistics of the paper's own figures on the same data sets.
    """
    methods, datasets = grid.paper_methods, complete_sets(grid, metric)
    figures = published.figures(grid.task, metric.key)
    ours = statistics(_ours(grid, metric, methods, datasets), metric)
    papers = statistics({m: [figures[d][m] for d in datasets] for m in methods}, metric)
    cells = {m: _cells(ours.get(m), papers.get(m), NO_SETS) for m in methods}
    title = f"{grid.task.capitalize()} summary: {metric.title}, beside the paper's on the same sets"
    return _table("summary", grid, metric, title, cells, datasets)


def summary_with_own(grid: Grid, metric: Metric) -> ResultTable | None:
    """The same with our own columns ranked among the paper's; None where there are none."""
    if not grid.own_methods:
        return None
    methods, datasets = (*grid.paper_methods, *grid.own_methods), complete_sets(grid, metric)
    complete = [
        m for m in methods
        if all(grid.cell(d, m, metric.key).value is not None for d in datasets)
    ]  # fmt: skip
    ours = statistics(_ours(grid, metric, complete, datasets), metric)
    missing = NOT_EVERYWHERE if datasets else NO_SETS
    cells = {m: _cells(ours.get(m), None, missing) for m in methods}
    title = f"{grid.task.capitalize()} summary with columns of our own: {metric.title}"
    return _table("summary-own", grid, metric, title, cells, datasets)


def complete_sets(grid: Grid, metric: Metric) -> list[str]:
    """The paper's data sets on which each of its methods has a figure that counts."""
    return [
        dataset
        for dataset in published.sizes(grid.task)
        if dataset not in NOT_COMPARABLE
        and all(grid.cell(dataset, m, metric.key).value is not None for m in grid.paper_methods)
    ]


def statistics(figures: Mapping[str, Sequence[float]], metric: Metric) -> dict[str, Statistics]:
    """method → its statistics, from method → one figure a data set; {} where there are none.

    Rank 1 is the best; ties share the mean of their ranks.
    """
    from scipy.stats import rankdata

    values = np.array(list(figures.values()), dtype=float)
    if values.size == 0:
        return {}
    ranks = rankdata(-values if metric.higher_is_better else values, axis=0)
    count = values.shape[1]
    found = {}
    for method, row, places in zip(figures, values, ranks, strict=True):
        error = float(places.std(ddof=1)) / math.sqrt(count) if count > 1 else None
        mean, median = float(row.mean()), float(np.median(row))
        found[method] = Statistics(mean, median, float(places.mean()), error)
    return found


def _ours(
    grid: Grid, metric: Metric, methods: Sequence[str], datasets: Sequence[str]
) -> dict[str, list[float]]:
    cells = [grid.paired(dataset, methods, metric.key) for dataset in datasets]
    values = {m: [of_one[m].value for of_one in cells] for m in methods}
    return {m: [value for value in found if value is not None] for m, found in values.items()}


def _cells(ours: Statistics | None, paper: Statistics | None, missing: str) -> list[ResultCell]:
    """Mean, median and average rank."""
    if ours is None:
        return [ResultCell(missing=missing)] * 3
    if paper is None:
        return [
            ResultCell(ours.mean),
            ResultCell(ours.median),
            ResultCell(ours.rank, ours.rank_error),
        ]
    return [
        ResultCell(ours.mean, original=paper.mean),
        ResultCell(ours.median, original=paper.median),
        ResultCell(ours.rank, ours.rank_error, paper.rank, paper.rank_error),
    ]


def _table(
    kind: Kind,
    grid: Grid,
    metric: Metric,
    title: str,
    cells: dict[str, list[ResultCell]],
    datasets: list[str],
) -> ResultTable:
    mean, median, rank = zip(*cells.values(), strict=True)
    notes = [f"over {len(datasets)} data sets: {', '.join(datasets)}"] if datasets else [NO_SETS]
    missing = [m for m, column in cells.items() if column[0].missing == NOT_EVERYWHERE]
    if missing:
        notes.append(f"{', '.join(missing)}: {NOT_EVERYWHERE}")
    left_out = [name for name in NOT_COMPARABLE if name in grid.found]
    return ResultTable(
        name=table_name(grid.task, kind, metric),
        kind=kind,
        metric=metric.key,
        title=title,
        heading="over data sets",
        columns=tuple(cells),
        rows=(
            Row("mean", mean, metric.digits, metric.higher_is_better),
            Row("median", median, metric.digits, metric.higher_is_better),
            Row("average rank", rank, 2, False),
        ),
        notes=(*notes, *remarks(datasets), *(f"left out, {w}" for w in remarks(left_out))),
    )
