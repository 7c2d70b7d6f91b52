"""Predictions of rows left out: given the rows near each, or without their own sites."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from orthogp.kernel.covariance import Covariance
from orthogp.linalg import Factor
from orthogp.model import VariationalGP
from orthogp.posterior.induced import dot, factor_with_noise
from orthogp.training.batches import Rows
from orthogp.training.evaluate import latents_at

# The least of 1 − λ p: at the optimum it is positive, before that it need not be.
LEAST_SHARE = 0.1
# Rows whose own sites are taken out at a time.
CHUNK = 4096


def log_normal(error: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * (error.square() / variance + variance.log() + math.log(2.0 * math.pi))


def left_out_moments(
    covariance: Covariance,
    x: Float[Tensor, "m d"],
    noise: Float[Tensor, "s #m"],
    x_near: Float[Tensor, "m k d"],
    y_near: Float[Tensor, "c m k"],
    noise_near: Float[Tensor, "s m k"],
) -> tuple[Float[Tensor, "c m"], Float[Tensor, "s m"]]:
    """Mean and variance of y given y_N at every row, differentiable in the hyperparameters.

    With A = K_NN + D, c = A⁻¹ k and e = A⁻¹ y_N as constants, m = kᵀe + cᵀy_N − cᵀA e and
    s = k_xx − 2 cᵀk + cᵀA c have the values and the gradients of kᵀA⁻¹y_N and k_xx − kᵀA⁻¹k: no
    gradient passes through a factorisation. With T the covariance of N and, last, x, and with
    c̃ = [c; −1] and ẽ = [e; 0], they are −c̃ᵀT ẽ + cᵀ(y_N − D e) and c̃ᵀT c̃ + cᵀD c.
    """
    points = torch.cat([x_near, x.unsqueeze(1)], dim=1)
    with covariance.parameters_read_once(x):
        T = covariance.batched_block(points, points)
    with torch.no_grad():
        K, k = T[:, :-1, :-1], T[:, :-1, -1:]
        L = factor_with_noise(K, noise_near)
        # For each noise k and, as further columns, the targets that have it.
        columns = y_near.unflatten(0, (len(L), -1)).movedim(1, -1)
        solved = torch.cholesky_solve(torch.cat([k.expand(len(L), -1, -1, -1), columns], -1), L)
        c, e = solved[..., 0], solved[..., 1:].movedim(-1, 1).flatten(0, 1)
        c_table, e_table = pad(c, (0, 1), value=-1.0), pad(e, (0, 1))
    Tc = (T @ c_table.unsqueeze(-1)).squeeze(-1)
    mean = dot(c, y_near - noise_near * e) - dot(Tc, e_table)
    variance = dot(Tc, c_table) + dot(noise_near * c, c) + noise
    return mean, variance


def left_out_latents(
    model: VariationalGP, rows: Rows
) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
    """Mean and variance of the latents of rows, each without what its own site has contributed.

    With g the gradient of a row's expected log-likelihood by the mean and λ = −2 times that by the
    variance, the site adds λ w wᵀ to the precision of ν. Of s = c + p, with c = k_xx − wᵀw and
    p = wᵀ S̃ w, it changes p alone: to p₋ = p / (1 − λ p). The mean without it is m − (p₋ + c) g,
    where c g is the most that a row gives itself by a γ of its own. Exact where all rows are β and
    the noise is Gaussian.
    """
    basis = model.basis
    with torch.no_grad():
        factor = basis.factor(model.covariance, model.jitter, robust=True)
    parts = [_left_out(model, factor, chunk) for chunk in rows.chunks(CHUNK)]
    mean, variance = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    return mean, variance


def _left_out(
    model: VariationalGP, factor: Factor, rows: Rows
) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
    basis, x = model.basis, rows.x.to(model.basis.beta.device, torch.float64)
    mean, variance = (t.double() for t in latents_at(model, x))
    m, s = (t.detach().clone().requires_grad_() for t in (mean, variance))
    with torch.enable_grad():
        value = model.likelihood.expected_log_prob(rows.y.to(m.device), m, s)
        value = value if rows.weight is None else value * rows.weight.to(m)
        gradient, slope = torch.autograd.grad(value.sum(), [m, s])
    with torch.no_grad():
        projection = basis.project(model.covariance, factor, x)
        unexplained = projection.prior_variance - projection.w.square().sum(0)
        unexplained = torch.minimum(unexplained.clamp_min(0.0), variance)
        explained = variance - unexplained
        without = explained / (1.0 + 2.0 * slope * explained).clamp_min(LEAST_SHARE)
        return mean - (without + unexplained) * gradient, without + unexplained
