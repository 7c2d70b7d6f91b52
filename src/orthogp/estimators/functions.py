"""Functions of the posterior and the gradient of its mean, in the units of the user."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orthogp.estimators.calibration import LatentScales
from orthogp.estimators.fitted import Fitted
from orthogp.estimators.inputs import encoded
from orthogp.estimators.predictive import parts_of
from orthogp.estimators.scaling import Array
from orthogp.estimators.setting_checks import cpu_by_default
from orthogp.estimators.targets import NumberTargets
from orthogp.model.gp import LatentFunctions

CHUNK_ROWS = 2**12


class SampledFunctions:
    """Functions of the posterior of a fitted estimator, drawn once."""

    def __init__(self, estimator: type, fitted: Fitted, functions: LatentFunctions):
        self._estimator, self._fitted, self._functions = estimator, fitted, functions

    def __len__(self) -> int:
        return len(self._functions)

    @cpu_by_default()
    @torch.no_grad()
    def __call__(self, X: Any) -> NDArray[np.float64]:
        """Every function at X: `(n, s)` for s functions, or `(n, t, s)`."""
        units = self._fitted.units
        X = encoded(self._estimator, X, units.columns, units.plan)
        found = self.latents(X)
        targets = self._fitted.units.targets
        if isinstance(targets, NumberTargets):
            return np.stack([targets.before_inverse(sample) for sample in found.numpy()], axis=-1)
        return found.permute(2, 1, 0).squeeze(1).numpy()

    def latents(self, X: Array) -> Tensor:
        """At encoded rows, in the units of the model: `[s, c, n]`."""
        x = self._fitted.standardised(X).to(self._fitted.predictor.device)
        return torch.cat([self._calibrated(part).cpu() for part in x.split(CHUNK_ROWS)], -1)

    def _calibrated(self, x: Tensor) -> Tensor:
        """With the variance of the calibration: that of `predict_latent`."""
        fitted, values = self._fitted, self._functions(x)
        mean, _ = fitted.model.predict(x, fitted.predictor)
        if isinstance(fitted.calibration, LatentScales):
            moved, scale = fitted.calibration(mean, torch.ones_like(mean))
        else:
            moved, scale = mean, fitted.calibration.latent_scale(mean)
        return moved + scale.sqrt() * (values - mean)


@cpu_by_default()
def gradient_of(fitted: Fitted, X: Array) -> NDArray[np.float64]:
    """∂m/∂X, `(n, d)` or `(n, t, d)`."""
    x = fitted.standardised(X).to(fitted.predictor.device)
    parts = []
    with torch.enable_grad():
        for part in x.split(CHUNK_ROWS):
            part = part.detach().requires_grad_()
            means = fitted.model.mean_at(part).sum(-1)
            found = [torch.autograd.grad(m, part, retain_graph=True)[0] for m in means]
            parts.append(torch.stack(found).cpu())
    return _in_units(fitted, torch.cat(parts, 1))


@cpu_by_default()
@torch.no_grad()
def gradient_std_of(fitted: Fitted, X: Array) -> NDArray[np.float64]:
    """The standard deviation of each derivative, with that of the calibration."""
    model, x = fitted.model, fitted.standardised(X)
    variance = model.gradient_variance(x).cpu()
    scale = parts_of(fitted).calibration.latent_scale(variance).unsqueeze(-1)
    return _in_units(fitted, (scale * variance).sqrt())


def _in_units(fitted: Fitted, values: Tensor) -> NDArray[np.float64]:
    """Derivatives `[c, n, d]` of the model as those of y with respect to X."""
    targets = parts_of(fitted).targets
    y = targets.scaling.scale
    found = fitted.units.inputs.derivatives(values.permute(1, 0, 2).numpy() * y[:, None])
    return found[:, 0] if targets.single else found
