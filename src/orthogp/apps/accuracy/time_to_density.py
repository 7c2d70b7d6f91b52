"""How long until a model predicts as well as asked for.

A fit to some of the rows takes less time, and may be good enough. Each model is fitted to more and
more of them, and the quickest of its fits that reaches a log density counts.
"""

from collections.abc import Iterable, Mapping, Sequence

from orthogp.apps.accuracy.job import EXPERIMENTS, ROWS_MARK, base_name
from orthogp.apps.accuracy.models import MODELS
from orthogp.apps.accuracy.standings import LOG_DENSITY
from orthogp.apps.paper.records import Job, Record
from orthogp.apps.paper.tables.model import ResultCell, ResultTable, Row
from orthogp.errors import ConfigurationError

# Below the best density of any model, in nats a row, where none are given.
BELOW_BEST = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)


def jobs_by_rows(
    items: Iterable[tuple[Job, str]], sizes: Sequence[int], most: Mapping[str, int]
) -> list[tuple[Job, str]]:
    """Each job with so many of its rows, the fewest first, and then with all of them.

    `most` has the number of training rows of every data set; sizes that are no fewer are left out.
    """
    if any(size < 1 for size in sizes):
        raise ConfigurationError(f"--rows is {list(sizes)}; expected whole numbers from 1")
    found = []
    for job, task in items:
        marks = [f"{ROWS_MARK}{size}" for size in sorted(sizes) if size < most[job.dataset]]
        found += [
            (Job(job.experiment, job.dataset, f"{job.method}{mark}", job.split), task)
            for mark in (*marks, "")
        ]
    return found


def density_tables(records: Iterable[Record], densities: Sequence[float] = ()) -> list[ResultTable]:
    """A table a data set: a line a log density, with the seconds of each model that reaches it."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        known = base_name(record.job.method) in MODELS
        if record.status == "done" and known and record.job.experiment in EXPERIMENTS.values():
            found.setdefault((record.job.experiment, record.job.dataset), []).append(record)
    return [_table(dataset, of_set, densities) for (_, dataset), of_set in sorted(found.items())]


def _table(dataset: str, records: list[Record], densities: Sequence[float]) -> ResultTable:
    best = max(_density(record) for record in records)
    levels = sorted(densities) or [best - below for below in BELOW_BEST]
    fits: dict[str, list[Record]] = {}
    for record in records:
        fits.setdefault(record.job.method.partition(ROWS_MARK)[0], []).append(record)
    rows = [
        Row(
            f"{level:.3f}",
            tuple(_quickest(of_model, level) for of_model in fits.values()),
            digits=1,
            higher_is_better=False,
        )
        for level in levels
    ]
    return ResultTable(
        name=f"time-to-density-{dataset}",
        kind="appendix",
        metric="fit_seconds",
        title=f"{dataset}: seconds of the quickest fit that reaches a log density",
        heading=LOG_DENSITY.title,
        columns=tuple(fits),
        rows=tuple(rows),
        notes=("of fits to some of the training rows, and to all of them",),
    )


def _quickest(records: list[Record], level: float) -> ResultCell:
    seconds = [r.costs["fit_seconds"] for r in records if _density(r) >= level]
    return ResultCell(min(seconds)) if seconds else ResultCell(missing="not reached")


def _density(record: Record) -> float:
    return record.metrics[LOG_DENSITY.key]
