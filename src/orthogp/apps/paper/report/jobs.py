"""Jobs on a page, in the paper's order: what each ran with, on what, and how it ended."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orthogp.apps.paper import published
from orthogp.apps.paper.datasets import TASKS
from orthogp.apps.paper.experiments import EXPERIMENTS, OPTIMUM, OWN_METHODS
from orthogp.apps.paper.records import Record
from orthogp.apps.paper.tables import ResultTable
from orthogp.plotting.pages import Cell, Page, Table
from orthogp.plotting.pages.tables import number

COLUMNS = ["method", "split", "status", "steps", "seconds", "recoveries", "commit", "machine"]
# The paper's own methods and data sets come first.
ORDERED_METHODS = (
    *published.REGRESSION_COLUMNS,
    *(method for task in TASKS for method in OWN_METHODS[task]),
    OPTIMUM,
)
ORDERED_DATASETS = tuple(name for task in TASKS for name in published.sizes(task))


@dataclass(frozen=True)
class JobGroup:
    """The jobs of one experiment on one data set, and where the page has them."""

    experiment: str
    dataset: str
    anchor: str
    records: list[Record]


def ordered(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """Each name once: first those in `order`, in that order, then the others in their own."""
    found = dict.fromkeys(names)
    return [*(n for n in dict.fromkeys(order) if n in found), *(n for n in found if n not in order)]


def by_experiment(records: Sequence[Record]) -> dict[str, list[Record]]:
    names = ordered((r.job.experiment for r in records), tuple(EXPERIMENTS))
    return {name: [r for r in records if r.job.experiment == name] for name in names}


def by_dataset(records: Sequence[Record]) -> dict[str, list[Record]]:
    """data set → its records, by method and split."""
    names = ordered((r.job.dataset for r in records), ORDERED_DATASETS)
    methods = ordered((r.job.method for r in records), ORDERED_METHODS)
    place = {method: i for i, method in enumerate(methods)}
    in_order = sorted(records, key=lambda r: (place[r.job.method], r.job.split))
    return {name: [r for r in in_order if r.job.dataset == name] for name in names}


def job_groups(records: Sequence[Record]) -> list[JobGroup]:
    pairs = [
        (experiment, dataset, jobs)
        for experiment, its_records in by_experiment(records).items()
        for dataset, jobs in by_dataset(its_records).items()
    ]
    return [JobGroup(e, d, f"jobs-{i}", jobs) for i, (e, d, jobs) in enumerate(pairs)]


def add_jobs(page: Page, groups: Sequence[JobGroup]) -> None:
    """One folded part a data set; what all its jobs share is written once."""
    for group in groups:
        count = len(group.records)
        jobs = "1 job" if count == 1 else f"{count} jobs"
        with page.details(f"{group.experiment}: {group.dataset}, {jobs}", group.anchor, False):
            _add_group(page, group.records)


def failures(records: Sequence[Record]) -> Table:
    failed = [record for record in records if record.status == "failed"]
    rows = [
        [r.job.dataset, r.job.experiment, r.job.method, r.job.split, r.reason or "no reason given"]
        for r in failed
    ]
    return Table(["data set", "experiment", "method", "split", "reason"], rows)


def missing(tables: Sequence[tuple[str, ResultTable]]) -> Table:
    """What the appendix tables of (experiment, table) pairs lack: a row a data set and reason."""
    methods: dict[tuple[str, str, str], list[str]] = {}
    everything: dict[str, int] = {}
    for experiment, table in tables:
        everything[experiment] = len([c for c in table.rows[0].cells if _is_ours(c)])
        for row in table.rows:
            for method, figure in zip(table.columns, row.cells, strict=True):
                if figure.missing:
                    names = methods.setdefault((experiment, row.name, figure.missing), [])
                    names += [method] if method not in names else []
    rows = [
        [dataset, experiment, _listed(names, everything[experiment]), reason]
        for (experiment, dataset, reason), names in methods.items()
    ]
    return Table(["data set", "experiment", "methods", "why"], rows)


def short_machine(record: Record) -> str:
    machine = record.machine
    return str(machine.get("gpu") or machine.get("processor") or machine.get("device") or "")


def _is_ours(figure: Any) -> bool:
    return figure.value is not None or bool(figure.missing)


def _listed(names: list[str], of: int) -> str:
    return "all" if len(names) == of else ", ".join(names)


def _add_group(page: Page, records: Sequence[Record]) -> None:
    described = {
        "Data": [r.data for r in records],
        "Settings": [_flat(r.settings) for r in records],
        "Versions": [dict(r.versions) for r in records],
        "Machine": [dict(r.machine) for r in records],
    }
    columns, extra = list(COLUMNS), []
    for name, dicts in described.items():
        shared, own = _shared_and_own(dicts)
        if shared:
            page.text(f"{name}, the same in every job that has them: {_formatted(shared)}.")
        if any(own):
            columns.append(f"own {name.lower()}")
            extra.append([_formatted(each) for each in own])
    rows = [
        [*_job_cells(record), *(column[i] for column in extra)] for i, record in enumerate(records)
    ]
    page.table(Table(columns, rows))


def _job_cells(record: Record) -> list[Any]:
    done = record.status == "done"
    status = Cell(record.status, tone="good" if done else "bad", hint=record.reason)
    finished = f"finished {record.finished}" if record.finished else ""
    return [
        record.job.method,
        record.job.split,
        status,
        record.steps,
        Cell(f"{record.seconds:.1f}", record.seconds, hint=finished),
        record.recoveries,
        record.commit,
        short_machine(record),
    ]


def _shared_and_own(
    dicts: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The items that never differ among those that have them, and the rest of each."""
    found: dict[str, list[Any]] = {}
    for each in dicts:
        for name, value in each.items():
            found.setdefault(name, []).append(value)
    shared = {n: v[0] for n, v in found.items() if len(v) > 1 and all(u == v[0] for u in v)}
    return shared, [{k: v for k, v in each.items() if k not in shared} for each in dicts]


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings on one level."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return flat


def _formatted(items: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in items.items())


def _value(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(float(value))
    return str(value)
