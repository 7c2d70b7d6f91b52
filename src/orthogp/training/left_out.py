"""Predictions of rows left out, given the rows near each, for Gaussian noise."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from orthogp.kernel.covariance import Covariance
from orthogp.posterior.induced import dot, factor_with_noise


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
