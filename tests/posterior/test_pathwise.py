"""Functions of the posterior: their moments beside it, and one function at every call.

Means are compared within 5 standard errors of the draws, covariances within 6: those of a product
of two Gaussian numbers, √((s_ii s_jj + s_ij²) / n), a little more for frequencies that are shared.
"""

import gpytorch
import pytest
import torch

from conditional_models import near_model, rows, small_models
from orthogp.errors import ConfigurationError
from orthogp.kernel.covariance import Covariance
from orthogp.model import VariationalGP
from orthogp.posterior.pathwise import PriorFunctions
from problems import default_sum, make_model, problem

N, DRAWS = 20, 4000
NEW = rows(5, seed=8)[0]


MODELS = small_models(N)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_moments(draws, mean, covariance):
    """Of `[n, c, m]` draws."""
    n, variance = len(draws), covariance.diagonal(dim1=-2, dim2=-1)
    errors = (draws.mean(0) - mean).abs() / (variance / n).sqrt()
    assert errors.max() < 5.0
    centred = draws - mean
    found = torch.einsum("nci,ncj->cij", centred, centred) / n
    spread = variance.unsqueeze(-1) * variance.unsqueeze(-2) + covariance.square()
    assert ((found - covariance).abs() / (1.2 * spread / n).sqrt()).max() < 6.0


@pytest.mark.parametrize("ard", [True, False])
def test_functions_of_the_prior_have_its_covariance(ard):
    covariance = Covariance(default_sum(3, ard).double())
    functions = PriorFunctions.draw(covariance, NEW, DRAWS, 1, generator(), frequencies=64)
    K = covariance.block(NEW, NEW).detach().unsqueeze(0)
    assert_moments(functions(NEW), torch.zeros(1, len(NEW)), K)


@pytest.mark.parametrize("nu", [0.5, 1.5])
def test_so_they_have_for_rougher_kernels(nu):
    covariance = Covariance(gpytorch.kernels.MaternKernel(nu).double())
    functions = PriorFunctions.draw(covariance, NEW, DRAWS, 1, generator(), frequencies=64)
    K = covariance.block(NEW, NEW).detach().unsqueeze(0)
    assert_moments(functions(NEW), torch.zeros(1, len(NEW)), K)


@pytest.mark.parametrize("name", MODELS)
def test_functions_have_the_moments_of_the_posterior(name):
    model = MODELS[name]
    functions = model.sample_functions(DRAWS, generator(), frequencies=64)
    assert len(functions) == DRAWS
    mean, covariance = model.moments(NEW)
    assert_moments(functions(NEW), mean.detach(), covariance.detach())


@pytest.mark.parametrize("kind", ["coupled", "orthogonal-natural", "hybrid", "decoupled"])
def test_so_they_have_for_every_basis(kind):
    p = problem(b=4, g=5)
    model = make_model(kind, p, latents=2, jitter=1e-9)
    functions = model.sample_functions(DRAWS, generator(), frequencies=64)
    mean, covariance = model.predict(p.x)[0], model.predictor().full_covariance(p.x)
    assert_moments(functions(p.x), mean, covariance)


def test_the_prior_mean_is_part_of_them():
    model = MODELS["exact"]
    mean = gpytorch.means.ConstantMean().double()
    mean.initialize(constant=3.0)
    moved = VariationalGP(model.covariance.kernel, model.likelihood, model.basis, mean, 1e-10)
    found, before = (m.sample_functions(2, generator())(NEW) for m in (moved, model))
    torch.testing.assert_close(found, before + 3.0)


@pytest.mark.parametrize("name", MODELS)
def test_a_function_is_the_same_at_every_call(name):
    functions = MODELS[name].sample_functions(3, generator(), frequencies=64)
    x = rows(30, seed=9)[0]
    whole = functions(x)
    assert whole.shape == (3, 2, 30)
    for part in (slice(0, 1), slice(4, 20), slice(29, 30)):
        torch.testing.assert_close(functions(x[part]), whole[..., part], rtol=0, atol=1e-9)
    each = torch.stack([x, x.flip(0), x + 1.0])
    expected = [functions(part)[i] for i, part in enumerate(each)]
    torch.testing.assert_close(functions(each), torch.stack(expected), rtol=0, atol=1e-9)


def test_two_seeds_give_two_functions():
    one, other = (MODELS["near"].sample_functions(1, generator(s))(NEW) for s in (0, 1))
    again = MODELS["near"].sample_functions(1, generator())(NEW)
    assert torch.equal(one, again)
    assert (one - other).abs().min() > 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_their_gradients_are_differences(name):
    functions = MODELS[name].sample_functions(2, generator(), frequencies=64)
    x = NEW[:2].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(functions(x).sum(), x)
    step = 1e-5
    for d in range(x.shape[1]):
        moved = torch.zeros(x.shape[1]).double()
        moved[d] = step
        difference = (functions(x + moved) - functions(x - moved)).sum((0, 1)) / (2 * step)
        torch.testing.assert_close(gradient[:, d], difference.detach(), rtol=1e-4, atol=1e-5)


def test_a_function_goes_through_rows_without_noise():
    model = near_model(N, 8)
    model.likelihood.likelihood.noise_covar.register_constraint(
        "raw_noise", gpytorch.constraints.GreaterThan(1e-12)
    )
    model.likelihood.likelihood.noise = torch.tensor(1e-9).double()
    functions = model.sample_functions(3, generator())
    found = functions(model.near.x)
    torch.testing.assert_close(found, model.near.y.expand(3, 1, -1), rtol=0, atol=1e-3)


def test_other_kernels_are_refused():
    p = problem()
    kernel = gpytorch.kernels.PeriodicKernel().double()
    model = make_model("coupled", p)
    other = VariationalGP(kernel, model.likelihood, model.basis)
    with pytest.raises(ConfigurationError, match="RBF and Matérn"):
        other.sample_functions(1, generator())
