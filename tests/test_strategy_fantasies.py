"""Fantasy models of the strategy beside the Gaussian that it is, and a layer of a deep GP."""

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import DeepApproximateMLL, VariationalELBO
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    NaturalVariationalDistribution,
    UnwhitenedVariationalStrategy,
    VariationalStrategy,
)

from orthogp.errors import ConfigurationError
from orthogp.strategy import OrthogonalVariationalStrategy
from problems import default_sum, problem
from strategies import NOISE, Model, gaussian, orthogonal, randomise, seeded

P = problem(n=12, b=4, g=5)
NEW = problem(seed=4, n=6).x


def fantasised(**options):
    model = seeded(lambda: Model(P.kernel, orthogonal(P.beta, P.gamma, **options)).double(), P.x)
    model.likelihood = gaussian()
    return randomise(model, size=0.2).eval()


def conditioned(model, x, y, new):
    """By the joint Gaussian of the model at x and new points."""
    n = len(x)
    q = model(torch.cat([x, new]))
    mean, K = q.mean, q.covariance_matrix
    gain = torch.linalg.solve(K[:n, :n] + NOISE * torch.eye(n), K[:n]).mT
    return (mean + gain @ (y - mean[:n]))[n:], (K - gain @ K[:n])[n:, n:]


@pytest.mark.parametrize("base", [VariationalStrategy, UnwhitenedVariationalStrategy])
@pytest.mark.parametrize("q", [CholeskyVariationalDistribution, NaturalVariationalDistribution])
@torch.no_grad()
def test_a_fantasy_is_the_posterior_conditioned(base, q):
    model = fantasised(base=base, q=q)
    x, y = P.x[:5], P.y[:5]
    mean, covariance = conditioned(model, x, y, NEW)
    found = model.get_fantasy_model(x, y)(NEW)
    torch.testing.assert_close(found.mean, mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.covariance_matrix, covariance, rtol=0, atol=1e-6)
    again = model.get_fantasy_model(x[:2], y[:2]).get_fantasy_model(x[2:], y[2:])(NEW)
    torch.testing.assert_close(again.mean, mean, rtol=0, atol=1e-6)
    assert (found.mean - model(NEW).mean).abs().max() > 0.01


@torch.no_grad()
def test_a_batch_of_fantasies_is_a_loop_over_its_members():
    model = fantasised()
    x = P.x[:6].reshape(2, 3, -1)
    y = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0)).double()
    found = model.get_fantasy_model(x, y)(NEW)
    assert found.mean.shape == (4, 2, len(NEW))
    for f in range(4):
        for t in range(2):
            mean, covariance = conditioned(model, x[t], y[f, t], NEW)
            torch.testing.assert_close(found.mean[f, t], mean, rtol=0, atol=1e-6)
            one = found.covariance_matrix[f, t]
            torch.testing.assert_close(one, covariance, rtol=0, atol=1e-6)


def test_a_fantasy_is_differentiable_in_its_inputs():
    model = fantasised()
    x = P.x[:3].clone().requires_grad_()
    model.get_fantasy_model(x, P.y[:3])(NEW).mean.sum().backward()
    assert x.grad.abs().min() > 0


def test_what_is_refused():
    model = fantasised()
    with pytest.raises(ConfigurationError, match="covar_module"):
        model.get_fantasy_model(P.x, P.y, covar_module=P.kernel)
    model.likelihood = gpytorch.likelihoods.BernoulliLikelihood()
    with pytest.raises(NotImplementedError, match="GaussianLikelihood"):
        model.get_fantasy_model(P.x, P.y)


class Layer(DeepGPLayer):
    """A layer of a deep GP, with the orthogonal strategy."""

    def __init__(self, inputs: int, outputs: int | None):
        batch = torch.Size([]) if outputs is None else torch.Size([outputs])
        generator = torch.Generator().manual_seed(0)
        beta, gamma = (
            torch.randn(*batch, size, inputs, generator=generator).double() for size in (8, 16)
        )
        q = CholeskyVariationalDistribution(8, batch_shape=batch)
        base = VariationalStrategy(self, beta, q)
        weights = DeltaVariationalDistribution(16, batch_shape=batch)
        super().__init__(OrthogonalVariationalStrategy(base, gamma, weights), inputs, outputs)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
        self.covar_module = gpytorch.kernels.RBFKernel(batch_shape=batch)

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Deep(DeepGP):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(2, 2), Layer(2, None)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

    def forward(self, x):
        return self.second(self.first(x))


def test_layers_of_a_deep_gp_learn():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Deep().double()
        p = problem(n=40)
        mll = DeepApproximateMLL(VariationalELBO(model.likelihood, model, len(p.x)))
        optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.03), []
        for _ in range(60):
            optimizer.zero_grad()
            loss = -mll(model(p.x), p.y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert min(losses[-10:]) < losses[0] - 0.1
        moved = model.first.variational_strategy._variational_distribution.variational_mean.grad
        assert moved.abs().max() > 0


def test_priors_on_the_kernel_count():
    kernel = default_sum(2).double()
    prior = gpytorch.priors.GammaPrior(2.0, 3.0)
    kernel.kernels[0].base_kernel.register_prior("prior", prior, "lengthscale")
    model = seeded(lambda: Model(kernel, orthogonal(P.beta, P.gamma)).double(), P.x)
    with_it = VariationalELBO(gaussian(), model, len(P.y))(model(P.x), P.y)
    density = prior.log_prob(kernel.kernels[0].base_kernel.lengthscale).sum() / len(P.y)
    plain = default_sum(2).double()
    other = seeded(lambda: Model(plain, orthogonal(P.beta, P.gamma)).double(), P.x)
    other.load_state_dict(model.state_dict(), strict=False)
    without = VariationalELBO(gaussian(), other, len(P.y))(other(P.x), P.y)
    torch.testing.assert_close(with_it - without, density)
