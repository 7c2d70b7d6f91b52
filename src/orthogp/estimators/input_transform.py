"""Whether the numbers of a table are better with other inputs: judged by a few of its rows.

Two exact processes, with the columns as they are and changed, learn their hyperparameters from the
evidence of the same rows. The change is made where the leave-one-out density of these rows gains
more than the standard error of the gain: first indicators of values that much of a column has, then
transforms of skewed columns. Classes are judged as numbers, one-hot.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from orthogp.estimators.scaling import Array, Moments
from orthogp.execution.team import current_team
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian
from orthogp.model import default_kernel
from orthogp.posterior.optimum import leave_one_out
from orthogp.tables import Encoder, OutOfFold, Plan, Tally, with_frequent_values, with_transforms
from orthogp.training.evidence import log_evidence
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.left_out import log_normal
from orthogp.training.predictive import SPREAD

# Of a larger table a larger part, since its fit takes longer.
SHARE, FEWEST_ROWS, MOST_ROWS = 0.25, 40, 250
# Of the evidence: with all lengthscales alike, then with each free.
TIED_EVALUATIONS, EVALUATIONS = 10, 20


def suits_transforms(settings: Mapping[str, Any], X: Any) -> bool:
    """Whether columns may be transformed: what the user gives in their units must stay right."""
    given = ("kernel", "inducing_points", "residual_points")
    learns = settings["standardize"] and settings["train_hyperparameters"] and settings["ard"]
    wanted = settings["input_transform"] == "auto" and isinstance(X, pa.Table)
    return bool(wanted and learns and all(settings[name] is None for name in given))


def choose_transforms(plan: Plan, table: pa.Table, targets: Array) -> Plan:
    """The plan with indicators of frequent values, then with transforms of its skewed numbers, each
    if these rows gain by it; `targets` are `(n, t)`."""
    count = round(min(MOST_ROWS, max(SHARE * table.num_rows, FEWEST_ROWS)))
    if table.num_rows < FEWEST_ROWS:
        return plan
    chosen = np.sort(np.random.default_rng(0).permutation(table.num_rows)[:count])

    @cache
    def densities(plan: Plan) -> NDArray[np.float64]:
        rows, y = table.take(pa.array(chosen)), targets[chosen]
        x = Encoder(plan).encode(rows, Tally(), OutOfFold(y, 0))
        return left_out_densities(_standardised(x, plan.groups), _standardised(y), plan.groups)

    for changed in (with_frequent_values, with_transforms):
        candidate = changed(plan, table)
        if candidate == plan:
            continue
        gain = densities(candidate) - densities(plan)
        gains = bool(gain.mean() > gain.std() / len(gain) ** 0.5)
        plan = candidate if current_team().agree(gains) else plan
    return plan


def left_out_densities(x: Array, y: Array, groups: Sequence[int] | None) -> NDArray[np.float64]:
    """log p(y_i | all other rows) of the exact process with the default kernel, by row."""
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
        return log_normal(outputs - mean, variance + noise).sum(0).numpy()


def _standardised(values: Array, groups: Sequence[int] | None = None) -> Array:
    return Moments.of(values, None, "X").scaling(groups).standardise(values).numpy()
