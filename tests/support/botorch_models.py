"""Small models for BoTorch, and `SingleTaskGP` with the hyperparameters of one of them."""

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean

from orthogp import OrthogonalGPRegressor
from orthogp.botorch import OrthogonalGPModel
from orthogp.estimators import near_rows
from orthogp.training import objectives

N, D = 25, 3
SMALL = {"random_state": 0, "n_inducing": 5}


def data(n=N, outcomes=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, D, generator=generator).double() * torch.tensor([1.0, 10.0, 1.0]).double()
    f = (4.0 * X[:, :1] + torch.arange(outcomes)).sin() + 0.1 * X[:, 1:2]
    return X, 5.0 + 3.0 * f + 0.3 * torch.randn(n, outcomes, generator=generator).double()


X, Y = data()
NEW = data(12, seed=1)[0]
BOUNDS = torch.tensor([[0.0, 0.0, 0.0], [1.0, 10.0, 1.0]]).double()


def near_model(count: int, outcomes: int = 1, **settings) -> OrthogonalGPModel:
    """A model whose rows are near and not β."""
    with pytest.MonkeyPatch.context() as patch:
        for part in (near_rows, objectives):
            patch.setattr(part, "MOST_EXACT", {"cpu": 0})
        estimator = OrthogonalGPRegressor(n_neighbors=count, **SMALL, **settings)
        return OrthogonalGPModel(*data(outcomes=outcomes), estimator=estimator).fit()


def peer(model: OrthogonalGPModel, outcome: int = 0, X=X, Y=None, Yvar=None) -> SingleTaskGP:
    """`SingleTaskGP` with the hyperparameters of a model, in the units of the user.

    It learns noise, or has the variances Yvar.
    """
    Y = data(outcomes=model.train_targets.shape[1])[1] if Y is None else Y
    units = model.estimator._fitted.units
    ours, parts = model.covar_module, []
    scale = torch.as_tensor(units.targets.scaling.scale)[outcome]
    widths = torch.as_tensor(units.inputs.scale)
    for part, kind in zip(ours.kernels, (MaternKernel, RBFKernel), strict=True):
        kernel = ScaleKernel(kind(ard_num_dims=D)).double()
        kernel.base_kernel.lengthscale = part.base_kernel.lengthscale.detach() * widths
        kernel.outputscale = part.outputscale.detach() * scale.square()
        parts.append(kernel)
    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-10)).double()
    noise = model.likelihood.noise.detach().reshape(-1)
    likelihood.noise = noise[outcome if len(noise) > 1 else 0] * scale.square()
    mean = ConstantMean().double()
    mean.initialize(constant=torch.as_tensor(units.targets.scaling.shift)[outcome])
    part = slice(outcome, outcome + 1)
    noise = {"likelihood": likelihood} if Yvar is None else {"train_Yvar": Yvar[:, part]}
    found = SingleTaskGP(
        X, Y[:, part], **noise, outcome_transform=None,
        covar_module=parts[0] + parts[1], mean_module=mean,
    )  # fmt: skip
    return found.eval()


def assert_same(ours, theirs, atol=1e-4):
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=0, atol=atol)
    one, other = (p.distribution.covariance_matrix for p in (ours, theirs))
    torch.testing.assert_close(one, other, rtol=0, atol=atol)
