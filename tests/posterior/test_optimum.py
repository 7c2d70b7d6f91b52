"""The closed forms, and that every decoupled basis has the same optimum there."""

import numpy as np
import pytest
import torch

import reference
from orthogp.model import default_kernel
from orthogp.posterior.optimum import (
    coupled_optimum,
    decoupled_optimum,
    exact_regression,
    set_optimum,
)
from orthogp.posterior.points import choose_beta, choose_gamma
from orthogp.posterior.residual import exact_rule, projected_covariance
from problems import Problem, initial_factor, make_model, problem, reference_terms, to_numpy

NOISE = 0.1


def setting(seed=1, n=25, b=5, g=6):
    p = problem(seed=seed, n=n, b=b, g=g)
    factor = initial_factor(p)
    best = decoupled_optimum(p.covariance, factor, p.beta, p.gamma, p.x, p.y, NOISE)
    return p, factor, best


def test_eq_2_exact_regression():
    p = problem(seed=2, n=8)
    x_new = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)).double()
    got = exact_regression(p.covariance, p.x, p.y, NOISE, x_new)
    terms, x, z = reference_terms(p.kernel), to_numpy(p.x), to_numpy(x_new)
    C = np.linalg.inv(reference.kernel_block(terms, x, x) + NOISE * np.eye(8))
    k = reference.kernel_block(terms, z, x)
    np.testing.assert_allclose(got.mean, k @ C @ to_numpy(p.y), atol=1e-9)
    np.testing.assert_allclose(
        got.covariance, reference.kernel_block(terms, z, z) - k @ C @ k.T, atol=1e-9
    )
    evidence = reference.log_evidence(reference.kernel_block(terms, x, x), to_numpy(p.y), NOISE)
    np.testing.assert_allclose(got.log_evidence, evidence, rtol=1e-10)


def test_appendix_e_analytic_optimum():
    """a = (K_αX K_Xα/σ² + K_α)⁻¹ K_αX y/σ² and S as in the coupled case [OD18, app. E]."""
    p, factor, best = setting()
    terms, x = reference_terms(p.kernel), to_numpy(p.x)
    alpha = np.concatenate([to_numpy(p.beta), to_numpy(p.gamma)])
    K_ax = reference.kernel_block(terms, alpha, x)
    K_a = reference.kernel_block(terms, alpha, alpha)
    b = len(p.beta)
    K_a[:b, :b] = to_numpy(factor.K)
    a = np.linalg.solve(K_ax @ K_ax.T / NOISE + K_a, K_ax @ to_numpy(p.y) / NOISE)
    np.testing.assert_allclose(best.a_beta, a[:b], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(best.a_gamma, a[b:], rtol=1e-5, atol=1e-6)
    K_b, K_bx = K_a[:b, :b], K_ax[:b]
    S = K_b @ np.linalg.inv(K_bx @ K_bx.T / NOISE + K_b) @ K_b
    np.testing.assert_allclose(to_numpy(factor.L @ best.S @ factor.L.mT), S, rtol=1e-6, atol=1e-8)


def at_optimum(kind, p, factor, best):
    """A basis put at the closed-form optimum through its own parameters."""
    model = make_model(kind, p, noise=NOISE, random=False)
    basis = model.basis
    with torch.no_grad():
        if kind.startswith("orthogonal"):
            set_optimum(basis, factor, best)
            return model
        basis.a_gamma.copy_(best.a_gamma[None])
        if kind == "hybrid":
            # m_β = K_β a_β, so v = R K_β a_β = Lᵀ a_β
            basis.q.set_whitened(factor, (factor.L.mT @ best.a_beta)[None], best.S[None])
            return model
        basis.a_beta.copy_(best.a_beta[None])
        # B = S⁻¹ − K_β⁻¹ = Rᵀ (S̃⁻¹ − I) R
        B = factor.R.mT @ (best.S.inverse() - torch.eye(len(best.S))) @ factor.R
        if kind == "decoupled":
            basis.F.copy_(torch.linalg.cholesky(B + 1e-13 * torch.eye(len(B))))
        else:
            basis.S.F.copy_(torch.linalg.cholesky(best.S))
        return model


DECOUPLED = ["orthogonal", "orthogonal-natural", "hybrid", "decoupled", "decoupled-S"]


@pytest.mark.parametrize("kind", DECOUPLED)
def test_every_decoupled_basis_is_stationary_at_the_closed_form(kind):
    p, factor, best = setting()
    model = at_optimum(kind, p, factor, best)
    variational = [t for n, t in model.basis.named_parameters() if n not in ("beta", "gamma")]
    bound = model.bound(p.x, p.y)
    for gradient in torch.autograd.grad(bound.value, variational):
        assert gradient.abs().max() < 1e-4


def test_the_decoupled_bases_share_one_optimum_not_below_the_coupled_one():
    for seed in range(5):
        p, factor, best = setting(seed=seed)
        values = [at_optimum(k, p, factor, best).bound(p.x, p.y).value.item() for k in DECOUPLED]
        np.testing.assert_allclose(values, values[0], rtol=1e-7)
        coupled = make_model("coupled", p, noise=NOISE)
        projection = coupled.basis.project(coupled.covariance, factor, p.x)
        titsias = coupled_optimum(projection.w.detach(), p.y, NOISE)
        coupled.basis.q.set_whitened(factor, titsias.v[None], titsias.S[None])
        lower = coupled.bound(p.x, p.y).value.item()
        assert values[0] > lower + 1e-3
        # Random steps away from it only lose.
        model = at_optimum("orthogonal", p, factor, best)
        for scale in (1e-3, 1e-1):
            moved = at_optimum("orthogonal", p, factor, best)
            with torch.no_grad():
                moved.basis.a_gamma.add_(scale)
                moved.basis.q.mean.add_(scale)
            assert moved.bound(p.x, p.y).value < model.bound(p.x, p.y).value


def test_natural_steps_and_exact_rule_reach_the_closed_form():
    """Alternating τ = 1 on β with small exact steps on γ ends where the algebra says."""
    p, factor, best = setting(n=30, b=5, g=4)
    model = make_model("orthogonal-natural", p, noise=NOISE, random=False)
    K_perp = projected_covariance(p.covariance, p.beta, p.gamma, factor.R).detach()
    for _ in range(300):
        bound = model.bound(p.x, p.y)
        grads = torch.autograd.grad(-bound.value, [bound.q.v, bound.q.S, model.basis.a_gamma])
        model.basis.q.step(
            bound.factor, bound.q, *grads[:2], torch.tensor(1.0).double(), guarded=False
        )
        a = exact_rule(model.basis.a_gamma.detach(), grads[2], K_perp, 2e-2, 0.0)
        model.basis.a_gamma.data.copy_(a)
    wanted = at_optimum("orthogonal", p, factor, best).bound(p.x, p.y).value.item()
    assert model.bound(p.x, p.y).value.item() == pytest.approx(wanted, abs=1e-3)


def rough_surface():
    """An orthogonal basis at its optimum on a rough surface: 60 points in β, 240 in γ."""
    rng = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(2000, 2, generator=rng).double()
    y = torch.sin(3 * x[:, 0]) * torch.cos(4 * x[:, 1]) + 0.1 * torch.randn(2000, generator=rng)
    kernel = default_kernel(2).double()
    # Near the lengthscales that the exact evidence prefers, as training finds them.
    for part in kernel.kernels:
        part.base_kernel.lengthscale = 1.0
    beta = choose_beta(x, 60, rng)
    p = Problem(kernel, x, y, beta, choose_gamma(x, 240, beta, rng))
    factor = initial_factor(p, jitter=1e-6)
    best = decoupled_optimum(p.covariance, factor, p.beta, p.gamma, x, y, 0.01)
    model = make_model("orthogonal", p, noise=0.01, jitter=1e-6)
    set_optimum(model.basis, factor, best)
    return p, factor, best, model


def kl_terms(p, factor, best):
    """The raw a_j (K_γ a)_j and the projected a_j r(γ_j)."""
    with torch.no_grad():
        raw = best.a_gamma * (p.covariance.block(p.gamma, p.gamma) @ best.a_gamma)
        w = factor.R @ p.covariance.block(p.beta, p.gamma)
    return raw, raw - best.a_gamma * (w.mT @ (w @ best.a_gamma))


def test_projected_columns_have_the_smaller_variance(record_property):
    """At a realistic optimum, sampling a_j r(γ_j) against sampling the raw a_j (K_γ a)_j."""
    p, factor, best, _ = rough_surface()
    raw, projected = kl_terms(p, factor, best)
    # A mean of C draws has the variance of one over C: the ratio is that of single terms.
    ratio = (raw.var() / projected.var()).item()
    record_property(
        "figure",
        f"KL terms at the optimum: variance {raw.var():.3g} raw, {projected.var():.3g} projected, "
        f"ratio {ratio:.3g}",
    )
    assert ratio > 10


def test_sampled_kl_varies_as_the_projected_terms_do():
    """The library's own estimate, one column at a time, has the projected terms' variance."""
    p, factor, best, model = rough_surface()
    raw, projected = kl_terms(p, factor, best)
    with torch.no_grad():
        draws = [model.bound(p.x[:1], p.y[:1], columns=torch.tensor([j])).kl for j in range(240)]
    wanted = (240 / 2) ** 2 * projected.var()
    assert torch.stack(draws).var().item() == pytest.approx(wanted.item(), rel=1e-3)
    assert torch.stack(draws).var() < 0.1 * (240 / 2) ** 2 * raw.var()
