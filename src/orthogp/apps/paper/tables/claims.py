"""What the results must show, checked against the records."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from orthogp.apps.paper import published
from orthogp.apps.paper.records import Record
from orthogp.apps.paper.tables.grid import FULL_STEPS, Grid, build_grid
from orthogp.apps.paper.tables.model import ACCURACY, LOG_LIKELIHOOD, RMSE, Metric, ResultCell

# Data sets that are the paper's row for row.
REPRODUCED = ("pol", "kin40k", "protein", "elevators", "keggdirected")
LOG_LIKELIHOOD_WITHIN = 0.03
# Of the paper's RMSE.
RMSE_WITHIN = 0.03
# OrthNat and CoupledNat300 tie there in the paper.
TIES = {"elevators": 0.005}
# Percent.
ACCURACY_WITHIN = 1.0
STANDARD_ERRORS = 2.0
# A lengthscale for every input, which the paper does not mention, and the column that it explains.
WITH_LENGTHSCALES = (("OrthARDUnit", "Orth"), ("OrthNatARD", "OrthNat"))

Status = Literal["pass", "fail", "cannot say"]


@dataclass(frozen=True)
class Claim:
    """`group` is what claims of one kind share; `figures` are what the status rests on."""

    group: str
    statement: str
    status: Status
    figures: str


def claims(records: Iterable[Record], full_steps: int = FULL_STEPS) -> list[Claim]:
    """Of regression and classification both, whichever of them the records hold."""
    records = list(records)
    regression = build_grid(records, "regression", full_steps)
    classification = build_grid(records, "classification", full_steps)
    return [
        *(_close(regression, dataset, LOG_LIKELIHOOD) for dataset in REPRODUCED),
        *(_close(regression, dataset, RMSE) for dataset in REPRODUCED),
        *_ahead_of_coupled(regression),
        *_on_every_set(regression, "Decoupled", "Decoupled is last in log-likelihood", _last),
        *_accuracies(classification, "Orth"),
        *_accuracies(classification, "OrthNat"),
        *(claim for pair in WITH_LENGTHSCALES for claim in _accuracies(classification, *pair)),
        *_defaults(regression),
        *_defaults(classification),
    ]


def _close(grid: Grid, dataset: str, metric: Metric) -> Claim:
    cell = grid.with_paper_value(dataset, "OrthNat", metric.key)
    within, name = f"{LOG_LIKELIHOOD_WITHIN}", "log-likelihood"
    if metric == RMSE:
        within, name = f"{100 * RMSE_WITHIN:.0f} %", "RMSE"
    claim = partial(
        Claim,
        "OrthNat reproduces the paper",
        f"OrthNat is within {within} of the paper's {name} on {dataset}",
    )
    if cell.original is None or cell.difference is None:
        return claim("cannot say", f"OrthNat {cell.missing}")
    allowed = RMSE_WITHIN * cell.original if metric == RMSE else LOG_LIKELIHOOD_WITHIN
    return claim(_status(abs(cell.difference) <= allowed), _compared(cell, metric))


def _ahead_of_coupled(grid: Grid) -> list[Claim]:
    group = "OrthNat is ahead of the coupled basis of the same covariance"
    pair = ("OrthNat", "CoupledNat300")
    return [_ahead(grid, group, dataset, *pair, TIES.get(dataset, 0.0)) for dataset in REPRODUCED]


def _ahead(
    grid: Grid, group: str, dataset: str, one: str, other: str, allowed: float = 0.0
) -> Claim:
    """`one` has the higher log-likelihood, or is behind by no more than is allowed."""
    but = f", or behind by {allowed} at most" if allowed else ""
    cells = grid.paired(dataset, (one, other), LOG_LIKELIHOOD.key)
    claim = partial(
        Claim, group, f"{one} is ahead of {other} in log-likelihood on {dataset}{but}"
    )  # fmt: skip
    ours, theirs = cells[one].value, cells[other].value
    if ours is None or theirs is None:
        return claim("cannot say", _missing(cells))
    figures = f"{one} {ours:.4f}, {other} {theirs:.4f}, lead {ours - theirs:+.4f}"
    passed = ours - theirs >= -allowed if allowed else ours > theirs
    return claim(_status(passed), figures)


def _last(grid: Grid, group: str, dataset: str) -> Claim:
    claim = partial(Claim, group, f"Decoupled is last in log-likelihood on {dataset}")
    cells = grid.paired(dataset, grid.paper_methods, LOG_LIKELIHOOD.key)
    values = {m: cell.value for m, cell in cells.items() if cell.value is not None}
    if "Decoupled" not in values or len(values) == 1:
        return claim("cannot say", _missing(cells))
    last = values.pop("Decoupled")
    worst = min(values, key=values.__getitem__)
    figures = f"Decoupled {last:.4f}, worst of the others {worst} {values[worst]:.4f}"
    if values[worst] <= last:
        return claim("fail", figures)
    if len(values) < len(cells) - 1:
        return claim("cannot say", f"{figures}; {_missing(cells)}")
    return claim("pass", figures)


def _accuracies(grid: Grid, method: str, column: str | None = None) -> list[Claim]:
    papers = "the paper's" if column is None else f"that of the paper's {column}"
    group = f"{method}'s accuracy is {papers}"
    return _on_every_set(grid, method, group, partial(_accuracy, method=method, column=column))


def _accuracy(grid: Grid, group: str, dataset: str, method: str, column: str | None) -> Claim:
    cell = grid.with_paper_value(dataset, method, ACCURACY.key, column)
    claim = partial(
        Claim,
        group,
        f"{method} is within {ACCURACY_WITHIN:.0f} point or {STANDARD_ERRORS:.0f} standard errors "
        f"of the paper's {f'{column} in ' if column else ''}accuracy on {dataset}",
    )
    if cell.difference is None:
        return claim("cannot say", cell.missing or f"the paper has no {dataset}")
    error = accuracy_error(cell)
    passed = abs(cell.difference) <= max(ACCURACY_WITHIN, STANDARD_ERRORS * error)
    return claim(_status(passed), f"{_compared(cell, ACCURACY)}, standard error {error:.2f}")


def accuracy_error(cell: ResultCell) -> float:
    """Of the difference of ours and the paper's: binomial, in percent; 0 where the records do not
    say how many rows were tested. The paper's is of one split of the same size."""
    rows = [int(record.data.get("test_rows", 0)) for record in cell.records]
    if cell.value is None or cell.original is None or not all(rows):
        return 0.0
    ours, theirs = cell.value / 100, cell.original / 100
    variance = ours * (1 - ours) / sum(rows) + theirs * (1 - theirs) * len(rows) / sum(rows)
    return 100 * math.sqrt(variance)


def _defaults(grid: Grid) -> list[Claim]:
    group = f"Default is ahead of OrthNat in log-likelihood, {grid.task}"
    check = partial(_ahead, one="Default", other="OrthNat")
    return [*_on_every_set(grid, "Default", group, check), _mostly_ahead_of_boosting(grid)]


def _mostly_ahead_of_boosting(grid: Grid) -> Claim:
    """Of the data sets that either has a record of, more than half must be known to be won."""
    statement = f"Default is ahead of Boosting in log-likelihood on most {grid.task} sets"
    claim = partial(Claim, "Default is ahead of Boosting", statement)
    pair = ("Default", "Boosting")
    names = [d for d in grid.found if any((d, method) in grid.records for method in pair)]
    if not names:
        return claim("cannot say", "no record of Default or Boosting")
    checks = {d: _ahead(grid, "", d, *pair).status for d in names}
    won = [d for d, status in checks.items() if status == "pass"]
    lost = [d for d, status in checks.items() if status == "fail"]
    unknown = len(names) - len(won) - len(lost)
    figures = f"ahead on {len(won)} of {len(names)}: {_names(won)}; behind on {_names(lost)}"
    if unknown:
        figures += f"; {unknown} without a figure of both"
    if 2 * len(won) > len(names):
        return claim("pass", figures)
    return claim("cannot say" if 2 * (len(won) + unknown) > len(names) else "fail", figures)


def _on_every_set(
    grid: Grid, method: str, group: str, check: Callable[[Grid, str, str], Claim]
) -> list[Claim]:
    """One claim for each data set that the method has a record of, one for the paper's others."""
    run = [name for name in grid.found if (name, method) in grid.records]
    rest = [name for name in published.sizes(grid.task) if name not in run]
    found = [check(grid, group, dataset) for dataset in run]
    if rest:
        statement = f"{group}: {', '.join(rest)}"
        found.append(Claim(group, statement, "cannot say", f"no record of {method} there"))
    return found


def _compared(cell: ResultCell, metric: Metric) -> str:
    digits = metric.digits
    return (
        f"{cell.value:.{digits}f}, paper {cell.original:.{digits}f}, "
        f"difference {cell.difference:+.{digits}f}"
    )


def _missing(cells: Mapping[str, ResultCell]) -> str:
    return "; ".join(f"{method} {cell.missing}" for method, cell in cells.items() if cell.missing)


def _names(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _status(passed: bool) -> Status:
    return "pass" if passed else "fail"
