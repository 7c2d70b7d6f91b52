"""The best q for Gaussian noise by conjugate gradients, beside its closed form."""

import time
from copy import deepcopy

import pytest
import torch

from orthogp.kernel.covariance import Covariance
from orthogp.posterior.optimum import decoupled_optimum, exact_regression
from orthogp.posterior.solve import solve_gaussian
from problems import make_model, problem

NOISE = 0.2


def solved(model, p, y=None, weight=None, **options):
    y = p.y[None] if y is None else y
    noise = model.likelihood.likelihood.noise.detach().reshape(-1, 1).expand_as(y)
    precision = (1.0 if weight is None else weight) / noise
    factor = model.basis.factor(model.covariance, model.jitter, robust=True)
    return solve_gaussian(model.basis, model.covariance, factor, p.x, y, precision, **options)


@pytest.mark.parametrize("kind", ["orthogonal", "orthogonal-natural", "coupled-natural"])
def test_it_ends_at_the_closed_form(kind):
    p = problem(seed=1, n=40, b=6, g=9)
    model = make_model(kind, p, noise=NOISE)
    factor = model.basis.factor(model.covariance, model.jitter, robust=True)
    best = decoupled_optimum(
        model.covariance, factor, model.basis.beta, model.basis.gamma, p.x, p.y, NOISE
    )
    before = model.bound(p.x, p.y).value
    solved(model, p)
    assert model.bound(p.x, p.y).value > before
    found = model.bound(p.x, p.y).value, model.predict(p.x)
    model.basis.q.set_whitened(factor, best.v[None], best.S[None])
    with torch.no_grad():
        model.basis.a_gamma.copy_(best.a_gamma[None])
    assert found[0].item() == pytest.approx(model.bound(p.x, p.y).value.item(), abs=1e-5)
    for ours, expected in zip(found[1], model.predict(p.x), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)


def test_with_every_row_a_residual_point_the_mean_is_that_of_the_exact_gp():
    p = problem(seed=2, n=30, b=6, g=9)
    p = type(p)(**vars(p) | {"gamma": p.x})
    model = make_model("orthogonal-natural", p, noise=NOISE)
    solved(model, p, max_products=400)
    exact = exact_regression(model.covariance, p.x, p.y, NOISE, p.beta)
    torch.testing.assert_close(model.predict(p.beta)[0][0], exact.mean, rtol=0, atol=2e-3)
    assert model.bound(p.x, p.y).value <= exact.log_evidence


def test_outputs_with_noise_and_weights_of_their_own():
    p = problem(seed=3, n=40, b=6, g=9)
    y = torch.stack([p.y, p.y.cos()])
    weight = torch.linspace(0.2, 2.0, len(p.x), dtype=p.x.dtype)
    model = make_model("orthogonal-natural", p, latents=2, noise=NOISE)
    with torch.no_grad():
        model.likelihood.likelihood.noise = torch.tensor([[0.1], [0.4]])

    def bound():
        return model.bound(p.x, y.mT, weight=weight).value

    solved(model, p, y, weight)
    best = bound().item()
    torch.manual_seed(0)
    for parameter in [model.basis.a_gamma, model.basis.q.precision_mean]:
        for sign in (1.0, -1.0):
            before, change = parameter.detach().clone(), 1e-3 * torch.randn_like(parameter)
            with torch.no_grad():
                parameter += sign * change
            assert bound().item() < best + 1e-7
            with torch.no_grad():
                parameter.copy_(before)


def test_a_float32_model_never_loses():
    p = problem(seed=4, n=60, b=6, g=30)
    for noise in (1e-1, 1.1e-4):
        model = make_model("orthogonal-natural", p, noise=noise).float()
        rows = p.x.float(), p.y.float()
        before = model.bound(*rows).value
        narrow = type(p)(**vars(p) | {"x": rows[0], "y": rows[1]})
        solved(model, narrow)
        assert model.bound(*rows).value > before - 1e-3 * before.abs()


def test_products_and_time_are_limited():
    p = problem(seed=5, n=40, b=6, g=9)
    assert solved(make_model("orthogonal-natural", p), p, max_products=2) == 2
    assert solved(make_model("orthogonal-natural", p), p, deadline=time.monotonic()) == 0


def test_coarse_products_do_not_mislead(monkeypatch):
    """As if float32 lost what separates neighbouring γ: K_γγ is no longer positive definite."""
    p = problem(seed=6, n=200, b=6, g=60)
    model = make_model("orthogonal-natural", p, noise=0.1).float()
    rows = p.x.float(), p.y.float()
    exact = deepcopy(model)
    solved(exact, p, max_products=200)
    matvec = Covariance.matvec

    def coarse(self, x, z, a):
        if x.dtype == torch.float64:
            return matvec(self, x, z, a)
        K = self.block(x, z)
        return a @ ((K * 200.0).round() / 200.0).mT

    with monkeypatch.context() as patch:
        patch.setattr(Covariance, "matvec", coarse)
        solved(model, p, max_products=200)
    expected = exact.bound(*rows).value.item()
    assert model.bound(*rows).value.item() == pytest.approx(expected, rel=1e-2)
