"""Records to make tables and figures of, without a run."""

from dataclasses import replace

from orthogp.apps.paper import published
from orthogp.apps.paper.experiments import METHODS
from orthogp.apps.paper.records import Job, Record
from orthogp.apps.paper.tables.grid import PAPER_METHODS
from orthogp.apps.paper.tables.model import METRICS

HERE = ("pol", "kin40k", "protein", "elevators", "keggdirected", "bike", "houseelectric")


def record(dataset, method, task="regression", split=0, **metrics):
    """One that counts."""
    return Record(
        Job(task, dataset, method, split),
        "done",
        data={"task": task, "test_rows": 1000},
        metrics=metrics,
        steps=20_000 if method in METHODS else 0,
        machine={"device": "cuda"},
        commit="abc1234",
    )


def papers(task="regression", datasets=HERE, methods=None):
    """Records that hold exactly the paper's figures."""
    found = {m.key: published.figures(task, m.key) for m in METRICS[task]}
    return [
        record(d, m, task, 0, **{key: found[key][d][m] for key in found})
        for d in datasets
        for m in methods or PAPER_METHODS[task]
    ]


def changed(records, dataset, method, **metrics):
    """The same with other metrics in one cell."""
    return [
        replace(r, metrics=r.metrics | metrics)
        if (r.job.dataset, r.job.method) == (dataset, method)
        else r
        for r in records
    ]
