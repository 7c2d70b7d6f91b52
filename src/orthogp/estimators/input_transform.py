"""Whether the numbers of a table are better with other inputs: judged by a few of its rows.

Two exact processes, with the columns as they are and changed, learn their hyperparameters from the
evidence of the same rows. The change is made where the leave-one-out density of these rows gains
more than the standard error of the gain: first indicators of gaps, then those of values that much
of a column has, then transforms of skewed columns. Classes are judged as numbers, one-hot.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from orthogp.estimators.inputs import RawRows
from orthogp.estimators.scaling import Array, Moments
from orthogp.execution.team import current_team
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian
from orthogp.model import default_kernel
from orthogp.posterior.optimum import leave_one_out
from orthogp.tables import (
    Encoder,
    OutOfFold,
    Plan,
    Tally,
    array_table,
    with_frequent_values,
    with_transforms,
    without_gap_indicators,
)
from orthogp.training.evidence import log_evidence
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.left_out import log_normal
from orthogp.training.predictive import SPREAD

# Of a larger table a larger part, since its fit takes longer.
SHARE, FEWEST_ROWS, MOST_ROWS = 0.25, 40, 250
# Of the evidence: with all lengthscales alike, then with each free.
TIED_EVALUATIONS, EVALUATIONS = 10, 20
# Of the mean squared error, by indicators of gaps that raise the density.
GROWTH = 1.1


def may_choose_inputs(settings: Mapping[str, Any]) -> bool:
    """Whether columns may get other inputs: what the user gives in their units must stay right."""
    given = ("kernel", "inducing_points", "residual_points")
    learns = settings["standardize"] and settings["train_hyperparameters"] and settings["ard"]
    wanted = settings["input_transform"] == "auto"
    return bool(wanted and learns and all(settings[name] is None for name in given))


def choose_inputs(plan: Plan, X: RawRows, targets: Array) -> Plan:
    """The plan with indicators of gaps, with those of frequent values, and with transforms of
    skewed numbers, each where left-out rows gain by it; `targets` are `(n, t)`.

    The indicators in question are those of gaps that other numbers fill. Of an array nothing else
    is in question.
    """
    if len(X) < FEWEST_ROWS:
        return plan
    plan = choose_gap_indicators(plan, X, targets)
    if not isinstance(X, pa.Table):
        return plan
    found = judge(X, targets, plan, round(max(SHARE * len(X), FEWEST_ROWS)))
    for changed in (with_frequent_values, with_transforms):
        candidate = changed(plan, X)
        if candidate != plan and current_team().agree(found(candidate).gains(found(plan))):
            plan = candidate
    return plan


def choose_gap_indicators(plan: Plan, X: RawRows, targets: Array) -> Plan:
    """The plan without the indicators of gaps that other numbers fill, if rows do not gain by them.

    The squared error must not grow by more than `GROWTH` either. The density alone also gains where
    indicators only tell that a few odd rows are uncertain, whose predictions then lose what the
    filled numbers say. More rows are judged than for other changes, since few of them have gaps.
    """
    without = without_gap_indicators(plan)
    if without == plan:
        return plan
    found = judge(X, targets, plan, len(X))
    marked, filled = found(plan), found(without)
    grows = bool(marked.error.mean() > GROWTH * filled.error.mean())
    return plan if current_team().agree(marked.gains(filled) and not grows) else without


class LeftOut(NamedTuple):
    """Of each row given all others: log p(y_i), and the squared error of the mean."""

    density: NDArray[np.float64]
    error: NDArray[np.float64]

    def gains(self, other: "LeftOut") -> bool:
        """Whether the density gains more than the standard error of the gain."""
        gain = self.density - other.density
        return bool(gain.mean() > gain.std() / len(gain) ** 0.5)


def judge(X: RawRows, targets: Array, plan: Plan, count: int) -> Callable[[Plan], LeftOut]:
    """What plans for the columns of this one predict of so many of the rows, or `MOST_ROWS`."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(X))[: min(count, MOST_ROWS)])
    if isinstance(X, pa.Table):
        rows = X.take(pa.array(chosen))
    else:
        rows = array_table(X[chosen], plan.order)
    y = targets[chosen]

    @cache
    def found(plan: Plan) -> LeftOut:
        x = Encoder(plan).encode(rows, Tally(), OutOfFold(y, 0))
        return left_out(_standardised(x, plan.groups), _standardised(y), plan.groups)

    return found


def left_out(x: Array, y: Array, groups: Sequence[int] | None) -> LeftOut:
    """Leave-one-out predictions of the exact process with the default kernel."""
    inputs, outputs = torch.from_numpy(x), torch.from_numpy(y).mT.contiguous()
    kernel = default_kernel(x.shape[1], ard=True, groups=groups).double()
    found = Hyperparameters(Covariance(kernel), Gaussian(1).double())

    def evidence() -> torch.Tensor:
        return log_evidence(found.covariance, found.noise, inputs, outputs) / outputs.numel()

    found.ascend(evidence, TIED_EVALUATIONS, tied=True)
    found.ascend(evidence, EVALUATIONS, pull=1 / (SPREAD**2 * outputs.numel()))
    with torch.no_grad():
        noise = found.noise.expand(1, len(x))
        mean, variance = leave_one_out(found.covariance, inputs, outputs, noise)
        error = outputs - mean
        density = log_normal(error, variance + noise)
        return LeftOut(density.sum(0).numpy(), error.square().sum(0).numpy())


def _standardised(values: Array, groups: Sequence[int] | None = None) -> Array:
    return Moments.of(values, None, "X").scaling(groups).standardise(values).numpy()
