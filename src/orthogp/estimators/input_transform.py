"""Whether the skewed columns of a table are better transformed: judged by a few of its rows.

Two exact processes, with the columns as they are and transformed, learn their hyperparameters from
the evidence of the same rows. The transforms are taken where the leave-one-out density of these
rows gains more than the standard error of the gain. Classes are judged as numbers, one-hot.
"""

from collections.abc import Mapping, Sequence
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
from orthogp.tables import Encoder, OutOfFold, Plan, Tally, with_transforms
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
    """The plan with transforms of its skewed numbers, or as it is; `targets` are `(n, t)`."""
    candidate = with_transforms(plan, table)
    count = round(min(MOST_ROWS, max(SHARE * table.num_rows, FEWEST_ROWS)))
    if candidate == plan or table.num_rows < FEWEST_ROWS:
        return plan
    chosen = np.sort(np.random.default_rng(0).permutation(table.num_rows)[:count])
    rows, y = table.take(pa.array(chosen)), _standardised(targets[chosen])
    training = OutOfFold(targets[chosen], 0)
    found = [
        left_out_densities(
            _standardised(Encoder(p).encode(rows, Tally(), training), p.groups), y, p.groups
        )
        for p in (plan, candidate)
    ]
    gain = found[1] - found[0]
    gains = bool(gain.mean() > gain.std() / len(gain) ** 0.5)
    return candidate if current_team().agree(gains) else plan


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
