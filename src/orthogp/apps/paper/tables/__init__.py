"""The paper's tables from records: our figures with the paper's own."""

from collections.abc import Iterable
from pathlib import Path

from orthogp.apps.paper.records import Record
from orthogp.apps.paper.tables.appendix import appendix, coverage
from orthogp.apps.paper.tables.claims import Claim, claims
from orthogp.apps.paper.tables.grid import FULL_STEPS, build_grid
from orthogp.apps.paper.tables.latex import to_latex
from orthogp.apps.paper.tables.model import METRICS, ResultCell, ResultTable, Row
from orthogp.apps.paper.tables.summary import summary, summary_with_own
from orthogp.apps.paper.tables.text import print_claims, print_table, to_csv
from orthogp.execution.files import write_atomically

__all__ = [
    "FULL_STEPS",
    "Claim",
    "ResultCell",
    "ResultTable",
    "Row",
    "claims",
    "print_claims",
    "print_table",
    "tables",
    "to_csv",
    "to_latex",
    "write_tables",
]  # fmt: skip


def tables(
    records: Iterable[Record], experiment: str, full_steps: int = FULL_STEPS
) -> list[ResultTable]:
    """Those of "regression" or "classification": the summaries of each metric, then the appendix,
    then the coverage of our own columns where records have it.

    Records of other experiments are passed over. A record counts when it is done, says on what
    commit and machine it ran, and for the paper's methods has `full_steps` steps or more.
    """
    grid = build_grid(records, experiment, full_steps)
    metrics = METRICS[experiment]
    found = [table for m in metrics for table in (summary(grid, m), summary_with_own(grid, m))]
    found += [appendix(grid, metric) for metric in metrics]
    found.append(coverage(grid))
    return [table for table in found if table is not None]


def write_tables(
    records: Iterable[Record], experiment: str, out: Path, full_steps: int = FULL_STEPS
) -> list[Path]:
    """Every table as NAME.csv and NAME.tex under `out`; the paths in that order."""
    paths = []
    for table in tables(records, experiment, full_steps):
        for suffix, text in ((".csv", to_csv(table)), (".tex", to_latex(table))):
            path = out / f"{table.name}{suffix}"
            write_atomically(path, [text.encode()])
            paths.append(path)
    return paths
