"""Contributions of columns where the kernel is a sum of kernels on one column each: exact ones.

With k(x, x′) = Σ_p k_p(x_p, x′_p) the process is a sum of independent f_p, and the posterior mean
of f_p at x is that of f with k_p(x, ·) in the place of k(x, ·), since a mean is linear in k(x, ·).
RBF and Matérn kernels vanish far away: it is the mean at x with all inputs but those of p moved far
off, given the rows that are near x. These means add up to that of f. The Shapley values of a sum
are its summands, each less its mean over the background.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, ZeroMean
from numpy.typing import NDArray
from torch import Tensor

from orthogp.estimators.fitted import Fitted
from orthogp.estimators.scaling import Array
from orthogp.estimators.targets import NumberTargets
from orthogp.likelihoods import RegressionLikelihood
from orthogp.posterior.near_rows import NearPredictor
from orthogp.posterior.predictor import Predictor

# In units of an input's spread: so many lengthscales away that RBF and Matérn kernels are zero.
FAR = 1e8


def additive_columns(fitted: Fitted, sources: Sequence[str]) -> tuple[str, ...]:
    """The columns whose functions add up to the prediction; empty where it is no such sum.

    `sources` are the columns of the inputs. The target must be that of the model but for its units.
    """
    targets, likelihood, mean = fitted.units.targets, fitted.model.likelihood, fitted.model.mean
    plain = isinstance(targets, NumberTargets) and targets.transform is None
    plain = plain and isinstance(likelihood, RegressionLikelihood) and likelihood.location
    linear = isinstance(fitted.predictor, Predictor | NearPredictor)
    if not plain or not linear or not isinstance(mean, ConstantMean | ZeroMean):
        return ()
    found = []
    for part, inputs in _summands(fitted.model.covariance.kernel, tuple(range(len(sources)))):
        columns = {sources[i] for i in inputs}
        if len(columns) != 1 or type(part) not in (RBFKernel, MaternKernel):
            return ()
        found += columns
    return tuple(dict.fromkeys(found))


def _summands(
    kernel: Kernel, inputs: tuple[int, ...], selects: bool = True
) -> Iterator[tuple[Kernel, tuple[int, ...]]]:
    """The parts of a sum, each with the inputs that it sees."""
    selected = kernel.active_dims
    if selects and isinstance(selected, Tensor):
        inputs = tuple(inputs[i] for i in selected.tolist())
    if isinstance(kernel, AdditiveKernel):
        for part in kernel.kernels:
            assert isinstance(part, Kernel)
            yield from _summands(part, inputs)
    elif isinstance(kernel, ScaleKernel):
        # It takes over the selection of the kernel that it scales.
        yield from _summands(kernel.base_kernel, inputs, selects=False)
    else:
        yield kernel, inputs


@torch.no_grad()
def component_means(
    fitted: Fitted, X: Array, columns: Sequence[str], sources: Sequence[str]
) -> NDArray[np.float64]:
    """The mean of every column's function at X, `(n, columns, targets)`, in the units of y."""
    x, predictor, found = fitted.standardised(X).to(fitted.predictor.device), fitted.predictor, []
    assert isinstance(predictor, Predictor | NearPredictor)
    near = predictor.nearest(x) if isinstance(predictor, NearPredictor) else None
    for column in columns:
        moved = torch.full_like(x, FAR)
        own = [i for i, name in enumerate(sources) if name == column]
        moved[:, own] = x[:, own]
        found.append(_mean_given(predictor, moved, near).cpu().mT)
    targets = fitted.units.targets
    assert isinstance(targets, NumberTargets)
    return torch.stack(found, dim=1).numpy() * targets.scaling.scale


def _mean_given(predictor: Predictor | NearPredictor, x: Tensor, near: Tensor | None) -> Tensor:
    if isinstance(predictor, Predictor):
        return predictor.mean(x)
    assert near is not None
    mean, _ = predictor.marginals_given(x, near)
    return mean if predictor.base is None else mean + predictor.base.mean(x)


def additive_values(
    at_rows: NDArray[np.float64], at_background: NDArray[np.float64], sums: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Shapley values of the columns, `(n, columns, targets)`, from the means of their functions.

    They add up to `sums`; what rounding has left over is spread over the columns.
    """
    values = at_rows - at_background.mean(axis=0)
    return values + ((sums - values.sum(axis=1)) / values.shape[1])[:, None]
