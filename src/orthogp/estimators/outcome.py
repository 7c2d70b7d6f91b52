"""What a fit has come to: its fitted state, and a warning if it has learned nothing."""

import warnings
from dataclasses import asdict, replace

from torch import Tensor

from orthogp.estimators.fitted import Fitted
from orthogp.estimators.intake import FitData
from orthogp.estimators.near_fit import NearFit, with_mapped_inputs
from orthogp.execution.team import current_team
from orthogp.likelihoods import Likelihood
from orthogp.training import full_bound, gain_over_constant
from orthogp.training.log_noise import bound_with_log_noise

# Rows on which a fit is compared with a constant, and how much better it should be, in nats a row.
COMPARED_ROWS, LEAST_GAIN = 2000, 5e-4


def fitted_with_rows(data: FitData, found: NearFit) -> Fitted:
    """A fit with near rows; every process computes all of it, and the first decides."""
    team, model, left_out = current_team(), found.model, found.left_out
    if team.leads:
        warn_if_nothing_learned(model.likelihood, left_out.y, left_out.mean, left_out.variance)
    team.align([*model.parameters(), *model.buffers()])
    whole_bound = full_bound if model.log_noise is None else bound_with_log_noise
    rows = with_mapped_inputs(data.bound_rows, found.linear_map)
    bound = team.agree(whole_bound(model, rows, data.num_rows))
    units = data.units
    if found.linear_map is not None:
        units = replace(units, inputs=units.inputs.followed_by(found.linear_map))
    return Fitted(
        units=units,
        model=model,
        predictor=found.predictor if team.size == 1 else model.predictor(),
        calibration=team.agree(found.calibration),
        elbo=bound + data.weight * data.units.targets.log_jacobian,
        history=tuple(map(asdict, team.agree(found.history))),
        steps=found.steps,
    )


def warn_if_nothing_learned(
    likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor
) -> None:
    """Warns of a fit that predicts rows, at best held-out ones, no better than a constant does."""
    varies = bool((y != y[:1]).any())
    # Written so that NaN counts as nothing learned.
    if varies and not gain_over_constant(likelihood, y, mean, variance) > LEAST_GAIN:
        warnings.warn(
            "the fit predicts y no better than a constant would: either X says nothing about y, or "
            "training did not find what it says; try more steps (max_steps), a smaller "
            "learning_rate, fewer points (n_inducing, n_residual), or a kernel that suits the data",
            stacklevel=7,
        )
