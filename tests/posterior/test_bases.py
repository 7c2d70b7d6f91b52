"""Every basis against NumPy, and the truths about the KL that they share."""

import numpy as np
import pytest
import torch

import reference
from orthogp.posterior import kl_divergence, marginals
from problems import (
    KINDS,
    make_model,
    problem,
    reference_posteriors,
    to_numpy,
)


def covariance_of(model, x, projection, q):
    """The covariance of q(f) between all rows of x, from the coefficients themselves."""
    w = projection.w
    return model.covariance.block(x, x) - w.mT @ w + w.mT @ q.S @ w


@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize("latents", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_marginals_covariance_and_kl_match_the_reference(kind, latents, ard):
    p = problem(seed=3, ard=ard)
    model = make_model(kind, p, latents)
    factor = model.basis.factor(model.covariance, model.jitter, robust=True)
    projection = model.basis.project(model.covariance, factor, p.x)
    q = model.basis.coefficients(projection)
    mean, variance = marginals(projection, q)
    covariance = covariance_of(model, p.x, projection, q)
    posteriors = reference_posteriors(model, p)
    x = to_numpy(p.x)
    for c, posterior in enumerate(posteriors):
        np.testing.assert_allclose(to_numpy(mean[c]), posterior.mean(x), atol=1e-9)
        np.testing.assert_allclose(to_numpy(covariance[c]), posterior.covariance(x), atol=1e-9)
        np.testing.assert_allclose(
            to_numpy(variance[c]), np.diag(posterior.covariance(x)), atol=1e-9
        )
    kl = kl_divergence(projection, q)
    np.testing.assert_allclose(kl.item(), sum(r.kl() for r in posteriors), rtol=1e-9)


@pytest.mark.parametrize("latents", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_eq_4_bound(kind, latents):
    """The bound is the expected log-likelihood less the KL, for every basis."""
    p = problem(seed=4)
    model = make_model(kind, p, latents, noise=0.2)
    y = torch.stack([p.y + c for c in range(latents)], dim=1) if latents > 1 else p.y
    expected = sum(
        r.expected_gaussian(to_numpy(p.x), to_numpy(p.y) + c, 0.2) - r.kl()
        for c, r in enumerate(reference_posteriors(model, p))
    )
    np.testing.assert_allclose(model.bound(p.x, y).value.item(), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_kl_is_that_of_the_predicted_gaussian(kind):
    """The reported KL against that of the model's own predictions at β ∪ γ from the prior there."""
    p = problem(seed=5, b=4, g=3)
    model = make_model(kind, p, jitter=0.0)
    points = torch.cat([p.beta, p.gamma])
    factor = model.basis.factor(model.covariance, model.jitter, robust=True)
    projection = model.basis.project(model.covariance, factor, points)
    q = model.basis.coefficients(projection)
    mean, _ = marginals(projection, q)
    covariance = covariance_of(model, points, projection, q)[0]
    prior = to_numpy(model.covariance.block(points, points))
    expected = reference.gaussian_kl(
        to_numpy(mean[0]), to_numpy(covariance), np.zeros(len(prior)), prior
    )
    kl = kl_divergence(projection, q)
    assert abs(kl.item() - expected) < 1e-8 * max(1.0, abs(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_kl_with_jitter_is_that_of_a_prior_with_noise_on_beta(kind):
    """The predicted Gaussian of (f_β + √ε ξ, f_γ) against the prior with εI on its β block."""
    p = problem(seed=6, b=4, g=3)
    model = make_model(kind, p, jitter=0.05)
    factor = model.basis.factor(model.covariance, model.jitter, robust=True)
    projection = model.basis.project(model.covariance, factor, p.gamma)
    q = model.basis.coefficients(projection)
    L = to_numpy(factor.L)
    W = np.concatenate([L, to_numpy(projection.w).T])
    mean = np.concatenate([L @ to_numpy(q.v[0]), to_numpy(marginals(projection, q)[0][0])])
    points = torch.cat([p.beta, p.gamma])
    prior = to_numpy(model.covariance.block(points, points))
    epsilon = model.jitter * np.mean(np.diag(prior)[:4])
    prior[:4, :4] += epsilon * np.eye(4)
    covariance = prior - W @ (np.eye(4) - to_numpy(q.S[0])) @ W.T
    expected = reference.gaussian_kl(mean, covariance, np.zeros(len(prior)), prior)
    kl = kl_divergence(projection, q)
    assert abs(kl.item() - expected) < 1e-8 * max(1.0, abs(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_starts_at_the_prior(kind):
    p = problem(seed=7)
    model = make_model(kind, p, random=False)
    mean, variance = model.predict(p.x)
    assert torch.equal(mean, torch.zeros_like(mean))
    tolerance = 1e-5 if kind == "decoupled" else 1e-12
    np.testing.assert_allclose(
        to_numpy(variance[0]), to_numpy(model.covariance.diagonal(p.x)), rtol=tolerance
    )
    assert abs(model.bound(p.x, p.y).kl.item()) < 1e-8


def test_residual_vanishes_on_beta():
    """r(β) = 0: at β the mean of the orthogonal basis is m_β, whatever a_γ is."""
    p = problem(seed=8)
    model = make_model("orthogonal", p, jitter=0.0)
    at_beta, _ = model.predict(p.beta)
    with torch.no_grad():
        model.basis.a_gamma.mul_(-3.0)
    moved, _ = model.predict(p.beta)
    away, _ = model.predict(p.x)
    torch.testing.assert_close(at_beta, moved, atol=1e-9, rtol=0)
    with torch.no_grad():
        model.basis.a_gamma.zero_()
    assert (away - model.predict(p.x)[0]).abs().max() > 0.05


def test_kl_does_not_couple_a_gamma_with_a_beta():
    """∂²KL/∂a_γ∂m_β = 0 for the orthogonal basis, and not for the hybrid one."""
    coupling = {}
    for kind in ("orthogonal", "hybrid"):
        p = problem(seed=9)
        model = make_model(kind, p, hold_fixed="unwhitened")
        basis = model.basis

        def gradient(shift, basis=basis, model=model, p=p):
            with torch.no_grad():
                basis.q.mean.add_(shift)
            kl = model.bound(p.x, p.y).kl
            (grad,) = torch.autograd.grad(kl, basis.a_gamma)
            with torch.no_grad():
                basis.q.mean.sub_(shift)
            return grad

        # The KL is quadratic in (a_γ, m_β): a difference of gradients is a row of the Hessian.
        coupling[kind] = (gradient(1.0) - gradient(0.0)).abs().max().item()
    assert coupling["orthogonal"] < 1e-10
    assert coupling["hybrid"] > 1e-2


def test_no_residual_points_is_the_coupled_basis():
    p = problem(seed=10, g=0)
    orthogonal = make_model("orthogonal-natural", p)
    coupled = make_model("coupled-natural", p)
    with torch.no_grad():
        coupled.basis.q.load_state_dict(orthogonal.basis.q.state_dict())
    torch.testing.assert_close(
        orthogonal.bound(p.x, p.y).value, coupled.bound(p.x, p.y).value, rtol=1e-12, atol=0
    )
    torch.testing.assert_close(orthogonal.predict(p.x), coupled.predict(p.x), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["orthogonal", "hybrid", "decoupled"])
def test_sampled_kl_is_unbiased(kind):
    """The mean over all single columns, which is the expectation, is the exact KL."""
    p = problem(seed=11)
    model = make_model(kind, p, latents=2)
    y = torch.stack([p.y, -p.y], dim=1)
    exact = model.bound(p.x, y).kl
    singles = [model.bound(p.x, y, columns=torch.tensor([j])).kl for j in range(len(p.gamma))]
    torch.testing.assert_close(torch.stack(singles).mean(), exact, rtol=1e-9, atol=0)
    assert torch.stack(singles).std() > 1e-3
    everything = model.bound(p.x, y, columns=torch.arange(len(p.gamma))).kl
    torch.testing.assert_close(everything, exact, rtol=1e-9, atol=0)


@pytest.mark.parametrize("latents", [1, 2])
@pytest.mark.parametrize(
    ("kind", "columns"),
    [(kind, None) for kind in KINDS]
    + [(kind, [0, 3]) for kind in KINDS if not kind.startswith("coupled")],
)
def test_gradients_of_the_bound_match_finite_differences(kind, columns, latents):
    """Points, kernel and variational parameters, through the projection and the factor."""
    columns = None if columns is None else torch.tensor(columns)
    p = problem(seed=12, n=5, b=3, g=4)
    options = {"hold_fixed": "unwhitened"} if kind == "orthogonal-natural" else {}
    model = make_model(kind, p, latents, **options)
    y = torch.stack([p.y, -p.y], dim=1) if latents > 1 else p.y
    parameters = [t for t in model.parameters() if t.numel()]

    def value() -> torch.Tensor:
        return model.bound(p.x, y, num_rows=20, columns=columns).value

    gradients = torch.autograd.grad(value(), parameters)
    rng = torch.Generator().manual_seed(0)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        direction = torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype)
        if parameter.dim() >= 2 and parameter.shape[-1] == parameter.shape[-2] == 3:
            direction = direction.tril()
        step = 1e-5
        with torch.no_grad():
            parameter.add_(step * direction)
            above = value()
            parameter.sub_(2 * step * direction)
            below = value()
            parameter.add_(step * direction)
        numeric = (above - below) / (2 * step)
        torch.testing.assert_close((gradient * direction).sum(), numeric, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("hold_fixed", ["whitened", "unwhitened", "dual"])
def test_what_is_held_fixed_stands_still_when_the_kernel_moves(hold_fixed):
    """m_β and S, or v and S̃, or the sites K_β(S⁻¹ − K_β⁻¹)K_β, keep their values."""
    p = problem(seed=13)
    model = make_model("orthogonal-natural", p, hold_fixed=hold_fixed)

    def held() -> torch.Tensor:
        factor = model.basis.factor(model.covariance, model.jitter, robust=True)
        q = model.basis.q.whitened(factor)
        if hold_fixed == "whitened":
            return torch.cat([q.v[0], q.S[0].flatten()])
        m, S, K = factor.L @ q.v[0], factor.L @ q.S[0] @ factor.L.mT, factor.K
        if hold_fixed == "unwhitened":
            return torch.cat([m, S.flatten()])
        sites = K @ (S.inverse() - K.inverse()) @ K
        return torch.cat([K @ S.inverse() @ m, sites.flatten()])

    before = held().detach()
    with torch.no_grad():
        for parameter in model.covariance.parameters():
            parameter.add_(0.3)
        model.basis.beta.mul_(1.1)
    torch.testing.assert_close(held().detach(), before, rtol=1e-8, atol=1e-9)
    after = model.basis.q.whitened(model.basis.factor(model.covariance, model.jitter, robust=True))
    if hold_fixed != "whitened":
        still = model.basis.q.precision.inverse()
        assert (after.S - still).abs().max() > 1e-3


@pytest.mark.parametrize("hold_fixed", ["whitened", "unwhitened", "dual"])
def test_precision_and_covariance_agree_after_the_kernel_moved(hold_fixed):
    p = problem(seed=14)
    model = make_model("orthogonal-natural", p, hold_fixed=hold_fixed)
    with torch.no_grad():
        for parameter in model.covariance.parameters():
            parameter.add_(0.2)
        factor = model.basis.factor(model.covariance, model.jitter, robust=True)
        q = model.basis.q.whitened(factor)
        assert q.natural is not None
        precision, precision_mean = q.natural.precision, q.natural.precision_mean
        torch.testing.assert_close(precision, q.S.inverse(), rtol=1e-8, atol=1e-9)
        mean = (precision @ q.v.unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(precision_mean, mean, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(q.log_det, torch.logdet(q.S), rtol=1e-8, atol=1e-8)
        model.basis.q.set_whitened(factor, q.v, q.S)
        again = model.basis.q.whitened(factor)
        torch.testing.assert_close(again.v, q.v, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(again.S, q.S, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("hold_fixed", ["whitened", "unwhitened"])
def test_the_factor_of_the_old_precision_gives_the_same_posterior_and_gradients(hold_fixed, dtype):
    """From the factor of Λ̃₀, as on a GPU, and from Λ̃₀ itself, as on a CPU."""
    model = make_model("orthogonal-natural", problem(seed=16), latents=2, hold_fixed=hold_fixed)
    with torch.no_grad():
        for parameter in model.covariance.parameters():
            parameter.add_(0.2)
    q, found = model.basis.q, []
    before = {name: buffer.clone() for name, buffer in q.named_buffers()}
    for own in (None, q.factorise_precision()):
        q.load_state_dict(before)
        factor = model.basis.factor(model.covariance, model.jitter, robust=True)
        with q.using(own):
            at = q.whitened(factor, dtype)
        assert at.S.dtype == dtype
        value = at.trace.square().sum() + at.v.square().sum() + at.log_det.sum()
        grads = torch.autograd.grad(value, [at.v, at.S, *model.covariance.parameters()],
                                    allow_unused=hold_fixed == "whitened")  # fmt: skip
        grads = [g for g in grads if g is not None]
        q.move_to(factor, q.factorise_precision())
        again = q.whitened(factor, dtype=dtype)
        for one, other in ((again.v, at.v), (again.S, at.S), (again.log_det, at.log_det)):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
        found.append([at.v, at.S, at.log_det, *q.buffers(), *grads])
    rtol = 1e-8 if dtype == torch.float64 else 1e-4
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("kind", KINDS)
def test_condensed_prediction_equals_the_projection(kind):
    p = problem(seed=15)
    model = make_model(kind, p, latents=2)
    factor = model.basis.factor(model.covariance, model.jitter, robust=True)
    projection = model.basis.project(model.covariance, factor, p.x)
    q = model.basis.coefficients(projection)
    predictor = model.predictor()
    for got, expected in zip(predictor.marginals(p.x), marginals(projection, q), strict=True):
        torch.testing.assert_close(got, expected.detach(), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(
        predictor.full_covariance(p.x),
        covariance_of(model, p.x, projection, q).detach(),
        rtol=1e-8, atol=1e-9,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_close_to_float64(kind):
    p = problem(seed=16)
    wanted = make_model(kind, p).bound(p.x, p.y).value.item()
    model = make_model(kind, p).float()
    got = model.bound(p.x.float(), p.y.float()).value
    assert abs(got.item() - wanted) < 1e-4 * abs(wanted)
    natural = [buffer for name, buffer in model.named_buffers() if "precision" in name]
    assert all(buffer.dtype == torch.float64 for buffer in natural)


def test_more_residual_points_of_weight_zero_change_nothing():
    p = problem(seed=17)
    model = make_model("orthogonal-natural", p, latents=2)
    y = torch.stack([p.y, p.y.cos()], dim=1)
    before = model.bound(p.x, y).value
    model.basis = model.basis.with_more(p.x[:3])
    assert len(model.basis.gamma) == len(p.gamma) + 3
    torch.testing.assert_close(model.bound(p.x, y).value, before, rtol=1e-10, atol=0)
