"""The models that are compared, each fitted to rows of the unit cube."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP, SingleTaskVariationalGP
from botorch.models.transforms import Standardize
from botorch.optim.fit import fit_gpytorch_mll_torch
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from torch import Tensor

from orthogp import OrthogonalGPRegressor
from orthogp.botorch import OrthogonalGPModel

# By L-BFGS-B, the default of BoTorch, the variational model takes minutes for 200 rows.
INDUCING, ADAM_STEPS = 300, 300


def _orthogp(x: Tensor, y: Tensor) -> Any:
    return OrthogonalGPModel(x, y, estimator=OrthogonalGPRegressor(random_state=0)).fit()


def _exact(x: Tensor, y: Tensor) -> Any:
    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def _variational(x: Tensor, y: Tensor) -> Any:
    model = SingleTaskVariationalGP(
        x, y, inducing_points=min(INDUCING, len(x)), outcome_transform=Standardize(1)
    )
    fit_gpytorch_mll(
        VariationalELBO(model.likelihood, model.model, num_data=len(x)),
        optimizer=fit_gpytorch_mll_torch,
        optimizer_kwargs={"step_limit": ADAM_STEPS},
    )
    return model


def _condition(model: Any, x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        # SingleTaskGP fills its caches by a prediction.
        model.posterior(x[:1])
        return model.condition_on_observations(x, y)


def lengthscales(model: Any, d: int) -> Tensor:
    """How far the model sees along each input of the unit cube, up to a factor."""
    if isinstance(model, OrthogonalGPModel):
        gp = model.estimator
        scale = torch.as_tensor(gp._fitted.units.inputs.scale)
        beta = gp.model_.basis.beta.detach()
        return scale.to(beta) / gp.model_.covariance.relevance(beta).detach().sqrt()
    kernel = model.covar_module if hasattr(model, "covar_module") else model.model.covar_module
    kernel = getattr(kernel, "base_kernel", kernel)
    return kernel.lengthscale.detach().reshape(-1).expand(d)


@dataclass(frozen=True)
class Kind:
    """How a model is fitted and told of new rows; None where it has to be fitted instead.

    `local` are those of a trust region alone, which begin anew where that one ends. `most_rows` is
    where the model stops, on a CPU and on a GPU.
    """

    fit: Callable[[Tensor, Tensor], Any]
    condition: Callable[[Any, Tensor, Tensor], Any] | None = None
    local: bool = False
    refit: float = 1.5
    most_rows: dict[str, int] | None = None


KINDS: dict[str, Kind | None] = {
    "orthogp": Kind(_orthogp, _condition),
    "exact": Kind(_exact, _condition, most_rows={"cpu": 1500, "cuda": 5000}),
    "variational": Kind(_variational),
    "local": Kind(_exact, _condition, local=True, refit=1.2),
    "random": None,
}
