"""The three rules for a_γ."""

import pytest
import torch

from orthogp.errors import ConfigurationError
from orthogp.posterior.residual import (
    ScaledAdam,
    diagonal_rule,
    exact_rule,
    projected_covariance,
    projected_diagonal,
)
from problems import initial_factor, make_model, problem


def gradient(model, p):
    (grad,) = torch.autograd.grad(-model.bound(p.x, p.y).value, model.basis.a_gamma)
    return grad


def test_projected_blocks():
    p = problem(seed=1, b=4, g=6)
    factor = initial_factor(p, jitter=0.0)
    with torch.no_grad():
        K_bg, K_g = p.covariance.block(p.beta, p.gamma), p.covariance.block(p.gamma, p.gamma)
        wanted = K_g - K_bg.mT @ factor.K.inverse() @ K_bg
        got = projected_covariance(p.covariance, p.beta, p.gamma, factor.R)
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
        D = projected_diagonal(p.covariance, p.beta, p.gamma, factor.R)
        torch.testing.assert_close(D, wanted.diagonal(), rtol=1e-9, atol=1e-9)


def test_projected_diagonal_is_chunked(monkeypatch):
    p = problem(seed=1, b=4, g=7)
    factor = initial_factor(p)
    whole = projected_diagonal(p.covariance, p.beta, p.gamma, factor.R)
    monkeypatch.setattr("orthogp.posterior.residual.DIAGONAL_CHUNK", 8)
    torch.testing.assert_close(projected_diagonal(p.covariance, p.beta, p.gamma, factor.R), whole)


def test_projected_diagonal_is_never_negative():
    """γ on top of β: rounding must not turn a zero into a negative scale."""
    p = problem(seed=2, b=5, dtype=torch.float32)
    factor = initial_factor(p, jitter=1e-7)
    D = projected_diagonal(p.covariance, p.beta, p.beta, factor.R)
    assert (D >= 0).all()
    assert D.max() < 1e-4


def test_eq_16a_exact_rule():
    """The exact rule inverts K_γ⊥β: for the KL alone, one full step lands on a_γ = 0."""
    p = problem(seed=3, n=1, b=4, g=5)
    model = make_model("orthogonal", p, noise=1e12, jitter=0.0)
    factor = initial_factor(p, jitter=0.0)
    K_perp = projected_covariance(p.covariance, p.beta, p.gamma, factor.R).detach()
    after = exact_rule(model.basis.a_gamma.detach(), gradient(model, p), K_perp, 1.0, 0.0)
    torch.testing.assert_close(after, torch.zeros_like(after), atol=1e-7, rtol=0)


def test_eq_17_diagonal_rule():
    a, grad = torch.ones(2, 3), torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.5, -1.0]])
    D = torch.tensor([0.5, 1.0, 0.0])
    after = diagonal_rule(a, grad, D + 0.5, step_size=0.1)
    torch.testing.assert_close(after, a - 0.1 * grad / torch.tensor([1.0, 1.5, 0.5]))


@pytest.mark.parametrize("rule", ["exact", "diagonal", "adam"])
def test_every_rule_raises_the_bound(rule):
    p = problem(seed=4, n=60, b=5, g=20)
    model = make_model("orthogonal-natural", p, noise=0.1, random=False)
    factor = initial_factor(p)
    K_perp = projected_covariance(p.covariance, p.beta, p.gamma, factor.R).detach()
    D = projected_diagonal(p.covariance, p.beta, p.gamma, factor.R)
    a = model.basis.a_gamma
    optimizer = ScaledAdam(a, D + 1e-6, 1e-2)
    start = model.bound(p.x, p.y).value.item()
    for _ in range(100):
        a.grad = gradient(model, p)
        if rule == "adam":
            optimizer.step()
        elif rule == "exact":
            a.data = exact_rule(a.detach(), a.grad, K_perp, 2e-3, 1e-9)
        else:
            a.data = diagonal_rule(a.detach(), a.grad, D + 1e-6, 2e-4)
    assert model.bound(p.x, p.y).value.item() > start + 10.0


@pytest.mark.parametrize("beta2", [0.999, 0.95])
def test_scaled_adam_is_adam_on_the_scaled_coefficients(beta2):
    """On ã = D a with D fixed, torch's own Adam takes the same steps."""
    torch.manual_seed(0)
    D = torch.tensor([0.5, 2.0, 1e-3]).double()
    target = torch.randn(2, 3).double()
    a = torch.nn.Parameter(torch.randn(2, 3).double())
    scaled = torch.nn.Parameter((a.detach() * D).clone())
    ours = ScaledAdam(a, D, 0.01, (0.9, beta2))
    theirs = torch.optim.Adam([scaled], lr=0.01, betas=(0.9, beta2))
    for _ in range(50):
        a.grad = scaled.grad = None
        (a - target).square().sum().backward()
        (scaled / D - target).square().sum().backward()
        ours.step()
        theirs.step()
    torch.testing.assert_close(a * D, scaled, rtol=1e-9, atol=1e-12)


def test_refreshing_the_scale_moves_nothing_by_itself():
    a = torch.nn.Parameter(torch.ones(1, 3))
    optimizer = ScaledAdam(a, torch.ones(3))
    a.grad = torch.ones(1, 3)
    optimizer.step()
    held = a.detach().clone()
    moments = optimizer.state[a]["exp_avg"].clone()
    optimizer.set_scale(torch.tensor([0.1, 1.0, 10.0]))
    assert torch.equal(a, held)
    assert torch.equal(optimizer.state[a]["exp_avg"], moments)
    a.grad = torch.ones(1, 3)
    optimizer.step()
    steps = (held - a.detach())[0]
    torch.testing.assert_close(steps / steps[1], torch.tensor([10.0, 1.0, 0.1]), rtol=1e-3, atol=0)


def test_a_scale_of_the_wrong_length_is_refused():
    with pytest.raises(ConfigurationError, match="2 entries"):
        ScaledAdam(torch.nn.Parameter(torch.ones(1, 3)), torch.ones(2))
