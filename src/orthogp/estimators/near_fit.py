"""A fit in which every row counts, and the calibration that its left-out rows give it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from orthogp.estimators.calibration import Calibration, LatentScales
from orthogp.estimators.scaling import Ramps, mapped
from orthogp.likelihoods import Likelihood, RegressionLikelihood
from orthogp.model import VariationalGP
from orthogp.posterior import AnyPredictor
from orthogp.training import Report, Rows
from orthogp.training.every_row import LeftOut

Calibrate = Callable[[Likelihood, Tensor, Tensor, Tensor], Calibration | LatentScales]


@dataclass(frozen=True)
class NearFit:
    """A fitted model, predictions of left-out rows with the calibration that is learned from them,
    what its hyperparameters took to find, and the seconds that conditioning on the rows took.

    With a `linear_map` L the model is one of L x.
    """

    model: VariationalGP
    predictor: AnyPredictor
    left_out: LeftOut
    calibration: Calibration | LatentScales
    history: tuple[Report, ...]
    steps: int
    seconds: float = 0.0
    linear_map: NDArray[np.floating] | None = None


def with_mapped_inputs(
    rows: Rows, linear_map: NDArray[np.floating] | None, ramps: Ramps | None = None
) -> Rows:
    """The rows with L x in the place of x, or L of x and of the values of ramps."""
    if linear_map is None:
        return rows
    x = torch.from_numpy(mapped(rows.x.double().numpy(), linear_map, ramps))
    return replace(rows, x=x.to(rows.x))


def densities_of(found: NearFit) -> Float[Tensor, " n"]:
    """The calibrated log density of every row that was left out."""
    return log_densities(found.model, found.left_out, found.calibration)


@torch.no_grad()
def log_densities(
    model: VariationalGP, left_out: LeftOut, calibration: Calibration | LatentScales
) -> Float[Tensor, " n"]:
    likelihood, unit = model.likelihood, left_out.with_unit_scale()
    assert isinstance(calibration, Calibration)
    assert isinstance(likelihood, RegressionLikelihood)
    density = calibration.log_density(likelihood, unit.y, unit.mean, unit.variance)
    return density + left_out.log_jacobian()


def calibration_of(
    model: VariationalGP, left_out: LeftOut, calibrate: Calibrate
) -> Calibration | LatentScales:
    unit = left_out.with_unit_scale()
    return calibrate(model.likelihood, unit.y, unit.mean, unit.variance)
