"""Records to tables: a figure a data set and model, mean ranks, and whether these differ."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from orthogp.apps.accuracy.job import EXPERIMENTS, ON_CUDA
from orthogp.apps.accuracy.models import MODELS
from orthogp.apps.paper.records import Record
from orthogp.apps.paper.tables.grid import mean_and_error
from orthogp.apps.paper.tables.model import Metric, ResultCell, ResultTable, Row
from orthogp.apps.paper.tables.summary import statistics
from orthogp.errors import ConfigurationError

LOG_DENSITY = Metric("log_likelihood", "log density, nats a row", 3, True)
RMSE = Metric("rmse", "RMSE of z-scored targets", 3, False)
ACCURACY = Metric("accuracy", "accuracy, percent", 2, True)
FIT_SECONDS = Metric("fit_seconds", "seconds of fit", 1, False)
METRICS = {
    "regression": (
        LOG_DENSITY,
        RMSE,
        Metric("crps", "CRPS of z-scored targets", 4, False),
        Metric("coverage", "targets inside 90 % intervals, percent", 1, None),
        Metric("width", "mean width of 90 % intervals", 3, None),
        FIT_SECONDS,
        Metric("predict_seconds", "seconds of mean and interval", 2, False),
    ),
    "classification": (
        LOG_DENSITY,
        ACCURACY,
        FIT_SECONDS,
        Metric("predict_seconds", "seconds of probabilities", 2, False),
    ),
}
# The two by which models are ranked.
RANKED = {"regression": (LOG_DENSITY, RMSE), "classification": (LOG_DENSITY, ACCURACY)}
SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Standings:
    """The records of one task: data set → model → those of the splits that all its models have."""

    task: str
    records: Mapping[str, Mapping[str, tuple[Record, ...]]]
    failures: tuple[Record, ...] = ()

    @property
    def models(self) -> list[str]:
        """Those with a record, in the order of the list of models."""
        found = {model for of_set in self.records.values() for model in of_set}
        order = list(MODELS)
        return sorted(found, key=lambda m: (order.index(m.removesuffix(ON_CUDA)), m))

    def cell(self, dataset: str, model: str, metric: str) -> ResultCell:
        """The mean over the splits, with its standard error."""
        records = self.records[dataset].get(model, ())
        values = [(r.metrics | r.costs).get(metric) for r in records]
        if not values or any(value is None for value in values):
            return ResultCell(missing="no record")
        mean, error = mean_and_error([float(value) for value in values if value is not None])
        return ResultCell(mean, error, records=records)

    def values(self, model: str, metric: str) -> list[float | None]:
        return [self.cell(dataset, model, metric).value for dataset in self.records]


def build_standings(records: Iterable[Record], task: str) -> Standings:
    """Of each data set the splits that every model has which ended well on it."""
    done: dict[str, dict[str, dict[int, Record]]] = {}
    failures = []
    for record in records:
        job = record.job
        if job.experiment != EXPERIMENTS[task] or job.method.removesuffix(ON_CUDA) not in MODELS:
            continue
        if record.status != "done":
            failures.append(record)
            continue
        done.setdefault(job.dataset, {}).setdefault(job.method, {})[job.split] = record
    shared = {}
    for dataset in sorted(done):
        common = set.intersection(*(set(of_model) for of_model in done[dataset].values()))
        shared[dataset] = {
            model: tuple(of_model[split] for split in sorted(common))
            for model, of_model in done[dataset].items()
        }
    return Standings(task, shared, tuple(failures))


def result_table(standings: Standings, metric: Metric) -> ResultTable:
    """One row a data set, one column a model, and below them the mean rank where there is one."""
    models = standings.models
    rows = [
        Row(
            dataset,
            tuple(standings.cell(dataset, model, metric.key) for model in models),
            metric.digits,
            metric.higher_is_better,
        )
        for dataset in standings.records
    ]
    notes = []
    if metric.higher_is_better is not None:
        ranks, missing = mean_ranks(standings, metric)
        cells = tuple(ResultCell(ranks.get(model)) for model in models)
        rows.append(Row("mean rank", cells, 2, False))
        if missing:
            notes.append(f"not on every data set, so without a rank: {', '.join(missing)}")
    splits = {len(r) for of_set in standings.records.values() for r in of_set.values()}
    counts = "–".join(str(n) for n in sorted({min(splits), max(splits)})) if splits else "0"
    return ResultTable(
        name=f"{standings.task}-{metric.key}".replace("_", "-"),
        kind="appendix",
        metric=metric.key,
        title=f"{standings.task.capitalize()}: {metric.title}",
        heading="data set",
        columns=tuple(models),
        rows=tuple(rows),
        notes=(f"means over {counts} split(s), the same for all models of a data set", *notes),
    )


def mean_ranks(standings: Standings, metric: Metric) -> tuple[dict[str, float], list[str]]:
    """Mean ranks of the models with a figure on every data set, best first; and the others."""
    figures = {m: standings.values(m, metric.key) for m in standings.models}
    complete = {m: [v for v in values if v is not None] for m, values in figures.items()}
    complete = {m: values for m, values in complete.items() if len(values) == len(figures[m])}
    found = {m: s.rank for m, s in statistics(complete, metric).items()}
    ordered = dict(sorted(found.items(), key=lambda item: item[1]))
    return ordered, [m for m in figures if m not in complete]


def critical_difference(models: int, datasets: int) -> float:
    """Of mean ranks, by Nemenyi's test at 5 %: q √(k (k + 1) / 6 N).

    q is a quantile of the studentised range over √2.
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - SIGNIFICANCE, models, np.inf)) / math.sqrt(2)
    return q * math.sqrt(models * (models + 1) / (6 * datasets))


def indistinguishable(ranks: Mapping[str, float], difference: float) -> list[tuple[str, ...]]:
    """The largest groups of two or more models whose ranks, best first, differ by no more."""
    names, groups, last = list(ranks), [], 0
    for start, name in enumerate(names):
        end = max(i for i, n in enumerate(names) if ranks[n] - ranks[name] <= difference)
        if end > start and end > last:
            groups.append(tuple(names[start : end + 1]))
            last = end
    return groups


def missing_results(standings: Standings) -> list[str]:
    """Why models have no figure, a line a model and reason."""
    sets: dict[tuple[str, str], list[str]] = {}
    for record in standings.failures:
        reason = record.reason.removeprefix(f"{ConfigurationError.__name__}: ")
        sets.setdefault((record.job.method, reason), []).append(record.job.dataset)
    return [
        f"{model} on {', '.join(dict.fromkeys(names))}: {reason}"
        for (model, reason), names in sets.items()
    ]


def to_markdown(table: ResultTable) -> str:
    """A line a model and a column a data set, the best figure of each bold; the notes below."""
    best = [row.best() for row in table.rows]
    lines = [
        f"| model | {' | '.join(row.name for row in table.rows)} |",
        "|---" * (len(table.rows) + 1) + "|",
    ]
    for i, model in enumerate(table.columns):
        texts = [_text(row.cells[i], row.digits) for row in table.rows]
        shown = [f"**{t}**" if i in b else t for t, b in zip(texts, best, strict=True)]
        lines.append(f"| {model} | {' | '.join(shown)} |")
    notes = [f"- {note}" for note in table.notes]
    return "\n".join([f"### {table.title}", "", *lines, "", *notes, ""])


def _text(cell: ResultCell, digits: int) -> str:
    return "–" if cell.value is None else f"{cell.value:z.{digits}f}"
