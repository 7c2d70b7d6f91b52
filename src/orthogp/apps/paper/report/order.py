"""The order in which a report tells of records: the paper's own, then others as they come."""

from collections.abc import Iterable, Sequence

from orthogp.apps.paper import published
from orthogp.apps.paper.datasets import TASKS
from orthogp.apps.paper.experiments import EXPERIMENTS, OPTIMUM, OWN_METHODS
from orthogp.apps.paper.records import Record

ORDERED_METHODS = (
    *published.REGRESSION_COLUMNS,
    *(method for task in TASKS for method in OWN_METHODS[task]),
    OPTIMUM,
)
ORDERED_DATASETS = tuple(name for task in TASKS for name in published.sizes(task))


def ordered(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Each name once: the known ones in their order, then the rest in theirs."""
    found = dict.fromkeys(names)
    return [*(n for n in dict.fromkeys(known) if n in found), *(n for n in found if n not in known)]


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
