"""The posterior as a function that torch differentiates, beside the one that it does not."""

import numpy as np
import pytest
import torch

from conditional_models import closed_form, near_model, rows, small_models
from orthogp.posterior import joint
from problems import make_model, problem

N = 20
NEW = rows(12, seed=8)[0]


MODELS = small_models(N)


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]


@pytest.mark.parametrize("apart", [1024, 0], ids=["apart", "union"])
@pytest.mark.parametrize("shape", [(12, 1), (4, 3), (2, 2, 3), (1, 12)])
def test_the_moments_are_those_of_predictions(model, shape, apart, monkeypatch):
    monkeypatch.setattr(joint, "MOST_APART", apart)
    x = NEW.reshape(*shape, -1)
    mean, covariance = model.moments(x)
    assert mean.shape == (2, *shape)
    assert covariance.shape == (2, *shape, shape[-1])
    expected, _ = model.predict(NEW)
    torch.testing.assert_close(mean.reshape(2, -1), expected, rtol=0, atol=1e-7)
    found = covariance.reshape(2, -1, shape[-1], shape[-1])
    for t, part in enumerate(NEW.split(shape[-1])):
        whole = model.predictor().full_covariance(part)
        torch.testing.assert_close(found[:, t], whole, rtol=0, atol=1e-7)


@pytest.mark.parametrize("apart", [1024, 0], ids=["apart", "union"])
def test_their_gradients_are_differences(model, apart, monkeypatch):
    """Where no row comes near or leaves."""
    monkeypatch.setattr(joint, "MOST_APART", apart)
    x = NEW[:4].reshape(2, 2, -1).clone().requires_grad_()
    weight = torch.randn(2, 2, 2, 2, generator=torch.Generator().manual_seed(0)).double()

    def value(x):
        mean, covariance = model.moments(x)
        return mean.square().sum() + (weight * covariance).sum()

    (gradient,) = torch.autograd.grad(value(x), x)
    step, moved = 1e-5, torch.zeros_like(x)
    for i in np.ndindex(*x.shape):
        moved[i] = step
        with torch.no_grad():
            difference = (value(x + moved) - value(x - moved)) / (2 * step)
        moved[i] = 0.0
        torch.testing.assert_close(gradient[i], difference, rtol=1e-4, atol=1e-5)


def test_with_all_rows_near_they_are_those_of_the_exact_process():
    model, (x, y) = near_model(N, 50), rows(N)
    mean, covariance = model.moments(NEW)
    expected, spread = closed_form(model, x, y, NEW)
    np.testing.assert_allclose(mean.detach(), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(covariance.detach(), spread, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["coupled", "orthogonal-natural", "hybrid", "decoupled"])
def test_every_basis_has_its_own_moments(kind):
    p = problem(b=4, g=5)
    model = make_model(kind, p, latents=2, jitter=1e-9)
    mean, covariance = model.moments(p.x)
    torch.testing.assert_close(mean, model.predict(p.x)[0], rtol=0, atol=1e-7)
    whole = model.predictor().full_covariance(p.x)
    torch.testing.assert_close(covariance, whole, rtol=0, atol=1e-7)
