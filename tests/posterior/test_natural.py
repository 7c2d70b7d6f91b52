"""Parametrisations and the natural step: the Fisher matrix, Titsias' optimum, the guard."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd.functional import hessian

from orthogp.likelihoods import Bernoulli, RobustMax, StudentT
from orthogp.model import VariationalGP
from orthogp.posterior import natural
from orthogp.posterior.natural import ModelParameters, NaturalParameters, safe_step_size
from orthogp.posterior.optimum import coupled_optimum, exact_regression
from orthogp.posterior.residual import exact_rule, projected_covariance
from problems import make_model, problem


def blocks(p):
    """K_β and K_γ⊥β of a problem, without jitter."""
    with torch.no_grad():
        K_b, K_bg = p.covariance.block(p.beta, p.beta), p.covariance.block(p.beta, p.gamma)
        K_perp = p.covariance.block(p.gamma, p.gamma) - K_bg.mT @ K_b.inverse() @ K_bg
    return K_b, K_bg, K_perp


def random_model_parameters(p, latents=()):
    rng = torch.Generator().manual_seed(0)
    b, g = len(p.beta), len(p.gamma)

    def draw(*shape):
        return torch.randn(*latents, *shape, generator=rng).double()

    root = draw(b, b)
    return ModelParameters(draw(g), draw(b), root @ root.mT + torch.eye(b))


@pytest.mark.parametrize("latents", [(), (3,)])
@pytest.mark.parametrize("g", [0, 4])
def test_eq_13_eq_14_parametrisations_go_round(g, latents):
    """Model → natural → expectation and back, for the coupled (no γ) and the orthogonal basis."""
    p = problem(seed=1, b=3, g=g)
    K_b, _, K_perp = blocks(p)
    model = random_model_parameters(p, latents)
    eta = natural.natural_from_model(model, K_b)
    theta = natural.expectation_from_model(model, K_b, K_perp)
    for start, back in (
        (model, natural.model_from_natural(eta, K_b)),
        (model, natural.model_from_expectation(theta, K_b, K_perp)),
        (eta, natural.natural_from_expectation(theta, K_perp)),
        (theta, natural.expectation_from_natural(eta, K_perp)),
    ):
        for name, value in vars(start).items():
            torch.testing.assert_close(getattr(back, name), value, rtol=1e-7, atol=1e-9)


def dense(eta: NaturalParameters, K_b, K_bg, K_perp):
    """Mean and covariance of (f_β, f_γ) that natural parameters stand for."""
    S = (2 * eta.Theta).inverse()
    m = S @ eta.j_beta
    A = K_bg.mT @ K_b.inverse()
    mean = torch.cat([m, A @ m + K_perp @ eta.j_gamma])
    cross = S @ A.mT
    lower = K_perp + A @ S @ A.mT
    return mean, torch.cat([torch.cat([S, cross], 1), torch.cat([cross.mT, lower], 1)])


def kl(q, p):
    (m0, S0), (m1, S1) = q, p
    inverse, d = S1.inverse(), m1 - m0
    trace = torch.trace(inverse @ S0) + d @ inverse @ d - len(d)
    return 0.5 * (trace + torch.logdet(S1) - torch.logdet(S0))


class Flat:
    """Natural parameters as one vector, Θ by its lower triangle."""

    def __init__(self, p):
        self.b, self.g = len(p.beta), len(p.gamma)
        self.index = torch.tril_indices(self.b, self.b)

    def pack(self, eta: NaturalParameters):
        return torch.cat([eta.j_gamma, eta.j_beta, eta.Theta[self.index[0], self.index[1]]])

    def unpack(self, vector) -> NaturalParameters:
        j_gamma, j_beta, entries = vector.split([self.g, self.b, self.index.shape[1]])
        lower = torch.zeros(self.b, self.b).double().index_put((*self.index,), entries)
        Theta = lower + lower.tril(-1).mT
        return NaturalParameters(j_gamma, j_beta, Theta)


def natural_problem():
    p = problem(seed=2, n=6, b=3, g=2)
    K_b, K_bg, K_perp = blocks(p)
    eta = natural.natural_from_model(random_model_parameters(p), K_b)
    flat = Flat(p)
    points = torch.cat([p.beta, p.gamma])
    with torch.no_grad():
        k = p.covariance.block(p.x, points)
        prior = p.covariance.block(points, points)
        rest = p.covariance.diagonal(p.x) - (k @ prior.inverse() * k).sum(1)
    weights = k @ prior.inverse()

    def loss(vector):
        """ℒ of a Gaussian likelihood, from the dense q(f_β, f_γ)."""
        mean, covariance = dense(flat.unpack(vector), K_b, K_bg, K_perp)
        m, s = weights @ mean, (weights @ covariance * weights).sum(1) + rest
        fit = 0.5 * ((p.y - m).square() + s).sum() / 0.3
        return fit + kl((mean, covariance), (torch.zeros_like(mean), prior))

    def divergence(vector, at):
        return kl(
            dense(flat.unpack(at), K_b, K_bg, K_perp), dense(flat.unpack(vector), K_b, K_bg, K_perp)
        )

    return p, eta, flat, loss, divergence, (K_b, K_bg, K_perp)


def numerical_natural_gradient(loss, divergence, at):
    """F⁻¹ ∇ with F the Hessian of KL(q_at ‖ q_η) in η."""
    gradient = torch.autograd.functional.jacobian(loss, at)
    fisher = hessian(lambda vector: divergence(vector, at), at)
    return torch.linalg.solve(fisher, gradient)


def our_step(p, eta, K, tau):
    """The β step in whitened coordinates and the exact γ rule, as the library takes them."""
    K_b, _, _ = K
    model = make_model("orthogonal-natural", p, noise=0.3, jitter=0.0)
    factor = model.basis.factor(model.covariance, 0.0, robust=True)
    parameters = natural.model_from_natural(eta, K_b)
    with torch.no_grad():
        model.basis.a_gamma.copy_(parameters.a_gamma[None])
        v = factor.R @ (K_b @ parameters.a_beta)
        model.basis.q.set_whitened(factor, v[None], (factor.R @ parameters.S @ factor.R.mT)[None])
    bound = model.bound(p.x, p.y)
    grad_v, grad_S, grad_a = torch.autograd.grad(
        -bound.value, [bound.q.v, bound.q.S, model.basis.a_gamma]
    )
    model.basis.q.step(
        bound.factor, bound.q, grad_v, grad_S, torch.tensor(tau, dtype=torch.float64), guarded=False
    )
    K_perp = projected_covariance(model.covariance, p.beta, p.gamma, factor.R).detach()
    a_gamma = exact_rule(model.basis.a_gamma.detach(), grad_a, K_perp, tau, jitter=0.0)
    # Λ = Rᵀ Λ̃ R and j_β = Rᵀ η
    q = model.basis.q
    Theta = 0.5 * factor.R.mT @ q.precision[0] @ factor.R
    return NaturalParameters(a_gamma[0], factor.R.mT @ q.precision_mean[0], Theta)


@pytest.mark.parametrize("tau", [0.05, 0.5])
def test_eq_15_natural_step_is_fisher_preconditioned(tau):
    """The step is −τ F⁻¹ ∇ with the Fisher matrix formed numerically, for β and γ together."""
    p, eta, flat, loss, divergence, K = natural_problem()
    at = flat.pack(eta)
    expected = at - tau * numerical_natural_gradient(loss, divergence, at)
    got = flat.pack(our_step(p, eta, K, tau))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)


def test_eq_16b_eq_16c_leave_gamma_alone():
    """The Fisher matrix has no block between γ and β: the two updates are independent."""
    p, eta, flat, _, divergence, _ = natural_problem()
    at = flat.pack(eta)
    fisher = hessian(lambda vector: divergence(vector, at), at)
    g = len(p.gamma)
    assert fisher[:g, g:].abs().max() < 1e-8 * fisher.abs().max()


def test_natural_gradients_do_not_depend_on_affine_coordinates():
    """η = Hζ + b: the step taken in ζ and mapped back is the step in η [OD18, app. C.3]."""
    p, eta, flat, loss, divergence, K = natural_problem()
    at = flat.pack(eta)
    rng = torch.Generator().manual_seed(1)
    H = torch.eye(len(at)).double() + 0.3 * torch.randn(len(at), len(at), generator=rng).double()
    b = torch.randn(len(at), generator=rng).double()
    zeta = torch.linalg.solve(H, at - b)
    step = numerical_natural_gradient(
        lambda z: loss(H @ z + b), lambda z, c: divergence(H @ z + b, H @ c + b), zeta
    )
    expected = flat.pack(our_step(p, eta, K, 0.1))
    torch.testing.assert_close(H @ (zeta - 0.1 * step) + b, expected, rtol=1e-6, atol=1e-7)


def test_eq_19_natural_parameters_of_the_hybrid_basis():
    """j_β = S⁻¹(K_β a_β + K_βγ a_γ): the hybrid basis at those parameters is the same q, and the
    natural step, taken in coordinates affine in the hybrid's, moves it to the same place."""
    p, eta, flat, loss, divergence, K = natural_problem()
    K_b, K_bg, _ = K
    S = (2 * eta.Theta).inverse()
    # The hybrid a_β that stands for η, and back through the paper's formula.
    a_beta = torch.linalg.solve(K_b, S @ eta.j_beta - K_bg @ eta.j_gamma)
    j_beta = torch.linalg.solve(S, K_b @ a_beta + K_bg @ eta.j_gamma)
    torch.testing.assert_close(j_beta, eta.j_beta)
    hybrid = make_model("hybrid", p, jitter=0.0)
    orthogonal = make_model("orthogonal", p, jitter=0.0)
    factor = hybrid.basis.factor(hybrid.covariance, 0.0, robust=True)
    for model, m_beta in ((hybrid, K_b @ a_beta), (orthogonal, S @ eta.j_beta)):
        model.basis.a_gamma.data.copy_(eta.j_gamma[None])
        v = factor.R.detach() @ m_beta
        model.basis.q.set_whitened(factor, v[None], (factor.R @ S @ factor.R.mT).detach()[None])
    for one, other in zip(hybrid.predict(p.x), orthogonal.predict(p.x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
    # At fixed Θ the hybrid's (a_γ, a_β) is affine in (j_γ, j_β): the same step in its coordinates.
    g, b = len(p.gamma), len(p.beta)
    H = torch.eye(len(flat.pack(eta))).double()
    H[g : g + b, :g] = 2 * eta.Theta @ K_bg
    H[g : g + b, g : g + b] = 2 * eta.Theta @ K_b
    zeta = torch.linalg.solve(H, flat.pack(eta))
    torch.testing.assert_close(zeta[g : g + b], a_beta, rtol=1e-8, atol=1e-9)
    step = numerical_natural_gradient(
        lambda z: loss(H @ z), lambda z, c: divergence(H @ z, H @ c), zeta
    )
    torch.testing.assert_close(
        H @ (zeta - 0.1 * step), flat.pack(our_step(p, eta, K, 0.1)), rtol=1e-6, atol=1e-7
    )


def take_step(model, x, y, tau, guarded=False):
    bound = model.bound(x, y)
    grads = torch.autograd.grad(-bound.value, [bound.q.v, bound.q.S])
    model.basis.q.step(
        bound.factor, bound.q, *grads, torch.tensor(tau, dtype=torch.float64), guarded=guarded
    )
    return bound


@pytest.mark.parametrize("hold_fixed", ["whitened", "unwhitened", "dual"])
@pytest.mark.parametrize("latents", [1, 2])
def test_one_full_step_is_titsias_optimum_on_the_residual_targets(latents, hold_fixed):
    p = problem(seed=3, n=30, b=6, g=8)
    model = make_model("orthogonal-natural", p, latents, noise=0.15, hold_fixed=hold_fixed)
    with torch.no_grad():
        for parameter in model.covariance.parameters():
            parameter.add_(0.1)
    y = torch.stack([p.y, p.y.cos()], dim=1) if latents > 1 else p.y
    take_step(model, p.x, y, 1.0)
    factor = model.basis.factor(model.covariance, model.jitter, robust=True)
    projection = model.basis.project(model.covariance, factor, p.x)
    q = model.basis.q.whitened(factor)
    residual = (projection.at_x - projection.u @ projection.w).detach()
    for c in range(latents):
        target = y.reshape(len(p.x), -1)[:, c] - residual[c]
        wanted = coupled_optimum(projection.w.detach(), target, 0.15)
        torch.testing.assert_close(q.v[c].detach(), wanted.v, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(q.S[c].detach(), wanted.S, rtol=1e-8, atol=1e-9)


def test_one_full_step_with_beta_at_the_data_is_exact_regression():
    p = problem(seed=4, n=7, g=0)
    p = type(p)(p.kernel, p.x, p.y, p.x, p.gamma)
    model = make_model("orthogonal-natural", p, noise=0.15, jitter=1e-12)
    take_step(model, p.x, p.y, 1.0)
    x_new = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)).double()
    exact = exact_regression(model.covariance, p.x, p.y, 0.15, x_new)
    predictor = model.predictor()
    torch.testing.assert_close(predictor.marginals(x_new)[0][0], exact.mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(
        predictor.full_covariance(x_new)[0], exact.covariance, rtol=1e-6, atol=1e-7
    )
    torch.testing.assert_close(
        model.bound(p.x, p.y).value, exact.log_evidence, rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_log_concave_likelihoods_need_no_guard(tau):
    p = problem(seed=5, n=30, b=5, g=4)
    basis = make_model("orthogonal-natural", p).basis
    model = VariationalGP(p.kernel, Bernoulli(1), basis, jitter=1e-6)
    for _ in range(20):
        take_step(model, p.x, (p.y > 0).long(), tau)
        assert torch.linalg.eigvalsh(basis.q.precision).min() > 0


def torn_problem():
    """Student-t noise far from its targets: h_n < 0 pulls the precision out of the cone."""
    p = problem(seed=6, n=40, b=6, g=0)
    y = p.y + 4.0
    basis = make_model("orthogonal-natural", p).basis
    likelihood = StudentT(1).double()
    likelihood.likelihood.noise, likelihood.likelihood.deg_free = 0.05, 3.0
    return VariationalGP(p.kernel, likelihood, basis, jitter=1e-6), p.x, y


def test_without_the_guard_the_precision_leaves_the_cone():
    model, x, y = torn_problem()
    assert not model.bound(x, y).failed
    take_step(model, x, y, 1.0)
    assert torch.linalg.eigvalsh(model.basis.q.precision).min() < 0
    assert model.bound(x, y).failed


def test_the_guard_keeps_the_precision_positive_definite():
    model, x, y = torn_problem()
    for _ in range(20):
        take_step(model, x, y, 1.0, guarded=True)
        assert torch.linalg.eigvalsh(model.basis.q.precision).min() > 0
    assert model.bound(x, y).value.isfinite()


def test_the_guard_holds_for_robustmax():
    p = problem(seed=7, n=40, b=5, g=3)
    basis = make_model("orthogonal-natural", p, latents=4).basis
    model = VariationalGP(p.kernel, RobustMax(4), basis, jitter=1e-6)
    labels = torch.arange(40) % 4
    start = model.bound(p.x, labels).value.item()
    for _ in range(30):
        take_step(model, p.x, labels, 0.2, guarded=True)
        assert torch.linalg.eigvalsh(model.basis.q.precision).min() > 0
    assert model.bound(p.x, labels).value.item() > start


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), size=st.floats(0.01, 100.0), tau=st.floats(1e-3, 1.0))
def test_safe_step_size_keeps_a_share_of_the_precision(seed, size, tau):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(2, 4, 4))
    precision = torch.tensor(root @ root.transpose(0, 2, 1) + 0.1 * np.eye(4))
    pull = rng.normal(size=(2, 4, 4)) * size
    grad_S = torch.tensor(pull + pull.transpose(0, 2, 1))
    steps = safe_step_size(precision, grad_S, torch.tensor(tau, dtype=torch.float64))
    assert (steps <= tau).all()
    assert (steps >= 0).all()
    after = (1 - steps)[:, None, None] * precision + steps[:, None, None] * 2 * grad_S
    # In the coordinates where the precision was I, no eigenvalue falls below the share.
    root = torch.linalg.cholesky(precision).inverse()
    assert torch.linalg.eigvalsh(root @ after @ root.mT).min() > 0.099


def test_safe_step_size_is_the_step_where_there_is_no_danger():
    precision = torch.eye(3).double().repeat(2, 1, 1)
    grad_S = torch.stack([precision[0], -100 * precision[0]])
    steps = safe_step_size(precision, grad_S, torch.tensor(0.5).double())
    assert steps[0] == 0.5
    # ½·16⁻ᵏ: the first with (1 − τ) − 200 τ > 0.1
    assert steps[1] == 0.5 / 16**2
