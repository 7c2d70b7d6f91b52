"""Small GPyTorch models with the orthogonal strategy, for the tests of it."""

import gpytorch
import torch
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    OrthogonallyDecoupledVariationalStrategy,
    VariationalStrategy,
)

from orthogp.strategy import OrthogonalVariationalStrategy

JITTER = 1e-4
NOISE = 0.2
TOY_NOISE = 0.3


class Model(gpytorch.models.ApproximateGP):
    """A prior with a strategy: `strategy(self)` makes it."""

    def __init__(self, kernel, strategy, mean=None):
        super().__init__(strategy(self))
        self.mean_module = ConstantMean() if mean is None else mean
        self.covar_module = kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def orthogonal(
    beta, gamma, q=CholeskyVariationalDistribution, base=VariationalStrategy, batch=(), **options
):
    batch = torch.Size(batch)

    def strategy(model):
        held = base(model, beta, q(beta.shape[-2], batch_shape=batch), jitter_val=JITTER)
        weights = DeltaVariationalDistribution(gamma.shape[-2], batch_shape=batch)
        return OrthogonalVariationalStrategy(held, gamma, weights, **options)

    return strategy


def gpytorchs(beta, gamma, q=CholeskyVariationalDistribution):
    """GPyTorch's own strategy."""

    def strategy(model):
        held = VariationalStrategy(model, beta, q(len(beta)))
        return OrthogonallyDecoupledVariationalStrategy(
            held, gamma, DeltaVariationalDistribution(len(gamma))
        )

    return strategy


def seeded(make, x):
    """A model whose first call, which draws its start, has been made."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
        model(x)
    return model


@torch.no_grad()
def randomise(model, seed=1, size=0.4):
    """Random variational parameters of moderate size, in place of the first call's."""
    rng = torch.Generator().manual_seed(seed)
    for part in model.modules():
        if hasattr(part, "variational_params_initialized"):
            part.variational_params_initialized.fill_(1)
    for name, t in model.named_parameters():
        if name.endswith("variational_mean"):
            t.copy_(size * torch.randn(t.shape, generator=rng, dtype=t.dtype))
        elif name.endswith("chol_variational_covar"):
            t.add_(size * torch.randn(t.shape, generator=rng, dtype=t.dtype).tril())
    return model


def gaussian(noise=NOISE):
    likelihood = GaussianLikelihood().double()
    likelihood.noise = torch.tensor(noise, dtype=torch.float64)
    return likelihood


def bound(model, likelihood, x, y):
    """The bound on all rows, in nats."""
    return VariationalELBO(likelihood, model, len(y))(model(x), y) * len(y)


def toy():
    """Kernel, rows, targets, β and γ of a regression on which GPyTorch's bound is none."""
    rng = torch.Generator().manual_seed(0)
    x = torch.linspace(-3, 3, 40)[:, None]
    y = torch.sin(2 * x[:, 0]) + TOY_NOISE**0.5 * torch.randn(40, generator=rng)
    kernel = gpytorch.kernels.RBFKernel()
    kernel.lengthscale = 1.0
    return kernel, x, y, x[::4].clone(), x[1::2].clone()
