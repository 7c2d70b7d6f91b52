"""The report: one page with what was run, what holds, where it falls short, and every figure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orthogp.apps.paper.experiments import EXPERIMENTS
from orthogp.apps.paper.records import Record
from orthogp.apps.paper.report.curves import Against, bound_charts, metric_charts
from orthogp.apps.paper.report.jobs import (
    ORDERED_METHODS,
    JobGroup,
    add_jobs,
    by_experiment,
    failures,
    job_groups,
    missing,
    ordered,
    short_machine,
)
from orthogp.apps.paper.report.tables import appendix_table, claims_table, summary_table
from orthogp.apps.paper.tables import Claim, ResultTable, claims, tables
from orthogp.apps.paper.tables.model import METRICS
from orthogp.plotting.pages import Cell, Page, Table
from orthogp.plotting.pages.tables import Content, Tone

TITLE = "The paper’s experiments"
LEAD = "Orthogonally decoupled variational Gaussian processes: our figures beside the paper’s."
CURVES_NOTE = "Curves are of the first split. Their first moments may leave the picture."
JOBS = (
    "Unfold a data set for what its jobs ran with, and on what machine. On paper they are left out."
)
STATUSES = ("pass", "fail", "cannot say")
TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "cannot say": ""}
# Experiments whose histories hold test metrics, and what they are drawn against.
CURVES: dict[str, Against] = {"illustration": "step", "wall-clock": "seconds"}


@dataclass(frozen=True)
class _Contents:
    """The content of the page: records by experiment, and what follows from them."""

    records: list[Record]
    experiments: dict[str, list[Record]]
    tables: list[tuple[str, ResultTable]]
    claims: list[Claim]
    groups: list[JobGroup]

    def tables_of(self, experiment: str, *kinds: str) -> list[ResultTable]:
        return [table for name, table in self.tables if name == experiment and table.kind in kinds]


def write_report(records: list[Record], path: Path) -> Path:
    """One self-contained HTML file, of whichever experiments the records are."""
    page = Page(TITLE, LEAD)
    if not records:
        page.text("There are no records yet: run an experiment with `orthogp paper run` first.")
        return page.write(path)
    experiments = by_experiment(records)
    tabulated = [name for name in METRICS if name in experiments]
    contents = _Contents(
        records,
        experiments,
        [(name, table) for name in tabulated for table in tables(records, name)],
        claims(records) if tabulated else [],
        job_groups(records),
    )
    _add_summary(page, contents)
    _add_claims(page, contents.claims)
    _add_tables(page, contents)
    _add_curves(page, contents.experiments)
    page.section("Jobs and settings")
    page.text(JOBS)
    add_jobs(page, contents.groups)
    _add_gaps(page, contents)
    return page.write(path)


def _add_summary(page: Page, contents: _Contents) -> None:
    page.section("Summary")
    records = contents.records
    statuses = Counter(record.status for record in records)
    finished = sorted(record.finished for record in records if record.finished)
    facts: dict[str, Content] = {
        "jobs done": statuses["done"],
        "jobs failed": statuses["failed"],
        "checks that hold": _score(contents.claims),
        "run on": _distinct([short_machine(record) for record in records]),
        "commit": _distinct([record.commit for record in records]),
        "hours of training": f"{sum(record.seconds for record in records) / 3600:.2f}",
        "last finished": finished[-1][:16].replace("T", " ") if finished else None,
    }
    page.facts(facts)
    rows = [_experiment_row(name, contents) for name in contents.experiments]
    columns = [
        "experiment",
        "what",
        "data sets",
        "methods",
        "splits",
        "cells that count",
        "missing",
    ]
    page.table(Table(columns, rows, "What was run"))


def _experiment_row(name: str, contents: _Contents) -> list[Content]:
    jobs = [record.job for record in contents.experiments[name]]
    names = [group.dataset for group in contents.groups if group.experiment == name]
    methods = ordered((job.method for job in jobs), ORDERED_METHODS)
    appendix = contents.tables_of(name, "appendix")[:1]
    figures = [figure for table in appendix for row in table.rows for figure in row.cells]
    counting = sum(figure.value is not None for figure in figures)
    lacking = sum(bool(figure.missing) for figure in figures)
    return [
        name,
        EXPERIMENTS[name].title if name in EXPERIMENTS else None,
        ", ".join(names),
        ", ".join(methods),
        len({job.split for job in jobs}),
        counting if appendix else None,
        lacking if appendix else None,
    ]


def _add_claims(page: Page, found: list[Claim]) -> None:
    if not found:
        return
    page.section("What the results must show")
    groups = {group: [c for c in found if c.group == group] for group in (c.group for c in found)}
    anchors = {group: f"claims-{i}" for i, group in enumerate(groups)}
    rows = [[Cell(group, anchor=anchors[group]), *_tally(groups[group])] for group in groups]
    page.table(Table(["claim", *STATUSES], rows, "How many checks of each claim"))
    for group, its_claims in groups.items():
        with page.details(group, anchors[group]):
            page.table(claims_table(its_claims))
    page.section("Where it falls short")
    failed = [claim for claim in found if claim.status == "fail"]
    if failed:
        page.table(claims_table(failed))
    elif any(claim.status == "pass" for claim in found):
        page.text("Every check that can be made holds.")
    else:
        page.text("No check can be made of these records.")


def _add_tables(page: Page, contents: _Contents) -> None:
    names = dict.fromkeys(name for name, _ in contents.tables)
    if not names:
        return
    page.section("Summary tables")
    for name in names:
        page.subsection(f"{name.capitalize()}, in short")
        for table in contents.tables_of(name, "summary", "summary-own"):
            page.table(summary_table(table))
    page.section("Tables of every data set")
    for name in names:
        page.subsection(f"{name.capitalize()}, in full")
        anchors = {g.dataset: g.anchor for g in contents.groups if g.experiment == name}
        for table in contents.tables_of(name, "appendix", "coverage"):
            page.table(appendix_table(table, anchors))


def _add_curves(page: Page, experiments: dict[str, list[Record]]) -> None:
    for name, against in CURVES.items():
        charts = metric_charts(experiments.get(name, []), against)
        if charts:
            page.section(f"{name.capitalize()} curves")
            page.text(CURVES_NOTE)
        for dataset, its_charts in charts.items():
            page.subsection(dataset)
            page.charts(*its_charts)
    drawn = {n: bound_charts(r) for n, r in experiments.items() if n not in CURVES}
    if any(drawn.values()):
        page.section("Training curves")
        page.text(CURVES_NOTE)
    for name, charts in drawn.items():
        if charts:
            page.subsection(f"{name.capitalize()} bounds")
            page.charts(*charts)


def _add_gaps(page: Page, contents: _Contents) -> None:
    page.section("Failed and missing")
    failed = failures(contents.records)
    if failed.rows:
        page.subsection("Failed jobs")
        page.table(failed)
    appendices = [(name, table) for name, table in contents.tables if table.kind == "appendix"]
    gaps = missing(appendices)
    if gaps.rows:
        page.subsection("Missing figures")
        page.table(gaps)
    if not failed.rows and not gaps.rows:
        page.text("No job failed and no figure is missing.")


def _tally(found: Sequence[Claim]) -> list[Cell]:
    return [
        Cell(str(n), float(n), tone=TONES[status] if n else "missing")
        for status, n in _counts(found).items()
    ]


def _counts(found: Sequence[Claim]) -> dict[str, int]:
    counts = Counter(claim.status for claim in found)
    return {status: counts[status] for status in STATUSES}


def _score(found: Sequence[Claim]) -> str | None:
    counts = _counts(found)
    checked = counts["pass"] + counts["fail"]
    return f"{counts['pass']} of {checked}" if found else None


def _distinct(values: Sequence[str]) -> str | None:
    return ", ".join(dict.fromkeys(value for value in values if value)) or None
