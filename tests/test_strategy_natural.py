"""Natural steps on q(f_β) inside a GPyTorch model: GPyTorch's optimizer and ours."""

import numpy as np
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood, StudentTLikelihood
from gpytorch.means import ZeroMean
from gpytorch.optim import NGD
from gpytorch.variational import NaturalVariationalDistribution, TrilNaturalVariationalDistribution
from linear_operator.utils.errors import NotPSDError

from orthogp.errors import ConfigurationError
from orthogp.linalg import factorise
from orthogp.posterior.optimum import coupled_optimum
from orthogp.strategy import NaturalSteps
from problems import default_sum, problem
from strategies import (
    JITTER,
    NOISE,
    Model,
    bound,
    gaussian,
    gpytorchs,
    orthogonal,
    randomise,
    seeded,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:A not p.d."),
]

NATURAL = [NaturalVariationalDistribution, TrilNaturalVariationalDistribution]


@pytest.mark.parametrize("rule", ["ngd", "ours"])
def test_one_full_natural_step_is_the_closed_form(rule):
    p = problem()
    strategy = orthogonal(p.beta, p.gamma, q=NaturalVariationalDistribution)
    model = randomise(Model(p.kernel, strategy, ZeroMean()).double())
    base = model.variational_strategy.base_variational_strategy
    model(p.x)
    distribution = base._variational_distribution
    if rule == "ngd":
        step = NGD(distribution.parameters(), num_data=len(p.y), lr=1.0)
    else:
        step = NaturalSteps(model, num_data=len(p.y), lr=1.0)
    (-bound(model, gaussian(), p.x, p.y) / len(p.y)).backward()
    step.step()
    with torch.no_grad():
        residual = model.eval()(p.x).mean - base(p.x).mean
        epsilon = JITTER / p.covariance.diagonal(p.beta).mean().item()
        factor = factorise(p.covariance.block(p.beta, p.beta), epsilon)
        w = factor.R @ p.covariance.block(p.beta, p.x)
        want = coupled_optimum(w, p.y - residual, NOISE)
        q = base.variational_distribution
    torch.testing.assert_close(q.mean, want.v, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(q.covariance_matrix, want.S, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("q", NATURAL)
def test_hundreds_of_natural_steps_of_gpytorch(q):
    """In float32, everything but q(f_β) moved by Adam."""
    p = problem(n=60, b=8, g=20, dtype=torch.float32)
    values = trained_by_ngd(p, orthogonal(p.beta, p.gamma, q=q), lr=0.1, steps=200)
    assert np.isfinite(values).all()
    assert values[-1] > values[0] + 10


def test_gpytorchs_strategy_stops_with_natural_steps():
    p = problem(n=300, b=30, g=100, dtype=torch.float32)
    q = NaturalVariationalDistribution
    assert np.isfinite(trained_by_ngd(p, orthogonal(p.beta, p.gamma, q=q), 0.9, 10)).all()
    with pytest.raises(NotPSDError):
        trained_by_ngd(p, gpytorchs(p.beta, p.gamma, q=q), 0.9, 10)


def trained_by_ngd(p, strategy, lr, steps):
    """The bounds on the way."""
    model = seeded(lambda: Model(default_sum(2), strategy), p.x)
    likelihood = GaussianLikelihood()
    distribution = model.variational_strategy.base_variational_strategy._variational_distribution
    natural = set(distribution.parameters())
    rest = [t for t in (*model.parameters(), *likelihood.parameters()) if t not in natural]
    optimizers = [NGD(list(natural), num_data=len(p.y), lr=lr), torch.optim.Adam(rest, lr=lr / 9)]
    values = []
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        value = bound(model, likelihood, p.x, p.y)
        (-value / len(p.y)).backward()
        for optimizer in optimizers:
            optimizer.step()
        values.append(value.item())
    return values


def test_natural_steps_are_ngd_where_ngd_is_safe():
    p = problem()
    models = [
        Model(p.kernel, orthogonal(p.beta, p.gamma, q=NaturalVariationalDistribution)).double()
        for _ in range(2)
    ]
    models[0](p.x)
    models[1].load_state_dict(models[0].state_dict())
    states = []
    for model, make in zip(models, (NGD, NaturalSteps), strict=True):
        q = model.variational_strategy.base_variational_strategy._variational_distribution
        step = make(q.parameters() if make is NGD else q, num_data=9, lr=0.3)
        for _ in range(3):
            model.zero_grad()
            (-bound(model, gaussian(), p.x, p.y) / len(p.y)).backward()
            step.step()
        states.append((q.natural_vec.detach(), q.natural_mat.detach()))
    for one, other in zip(*states, strict=True):
        torch.testing.assert_close(one, other)


def test_natural_steps_hold_where_the_likelihood_is_not_log_concave():
    """Targets of ±1 under a narrow Student-t: NGD leaves the cone, ours stays and gains."""
    p = problem(n=40)
    y = p.y.sign()
    likelihood = StudentTLikelihood().double()
    likelihood.deg_free, likelihood.noise = 3.0, 0.01

    def run(make):
        strategy = orthogonal(p.beta, p.gamma, q=NaturalVariationalDistribution, batch=(2,))
        model = seeded(lambda: Model(default_sum(2), strategy).double(), p.x)
        q = model.variational_strategy.base_variational_strategy._variational_distribution
        step = make(q.parameters() if make is NGD else q, num_data=40, lr=1.0)
        values = []
        for _ in range(10):
            step.zero_grad()
            value = bound(model, likelihood, p.x, y)
            (-value.sum() / len(y)).backward()
            step.step()
            values.append(value.detach())
        return values

    with pytest.raises(NotPSDError):
        run(NGD)
    values = run(NaturalSteps)
    assert (values[-1] > values[0] + 10).all()


def test_a_model_without_natural_parameters_is_refused():
    p = problem()
    with pytest.raises(ConfigurationError, match="no NaturalVariationalDistribution"):
        NaturalSteps(Model(p.kernel, orthogonal(p.beta, p.gamma)), num_data=9)
