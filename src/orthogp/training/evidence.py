"""The log evidence of Gaussian noise, with its gradient in closed form."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import hardshrink

from orthogp.kernel.covariance import Covariance
from orthogp.linalg import cholesky_failed, cholesky_inverse, log_diagonal

# Covariances up to this count as zero: products of smaller ones are denormal numbers, with which a
# processor computes a hundred times slower.
NEGLIGIBLE = 1e-100


def log_evidence(
    covariance: Covariance,
    noise: Float[Tensor, "*s"],
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "c n"],
    weight: Float[Tensor, " n"] | None = None,
    noise_scale: Float[Tensor, "#c n"] | None = None,
) -> Float[Tensor, ""]:
    """log ∫ p(f) Π N(y_n; f_n, σ²)^w_n df, summed over the outputs; NaN where K has no factor.

    The outputs have a noise each, or one for all, which then takes one factorisation. `noise_scale`
    multiplies the σ² of every row.
    """
    weight = torch.ones_like(x[:, 0]) if weight is None else weight
    with covariance.parameters_read_once(x):
        K = covariance.symmetric_block(x)
    noise = noise.reshape(-1, 1)
    noise = noise if noise_scale is None else noise * noise_scale
    parts = zip(noise, y.unsqueeze(1) if len(noise) > 1 else [y], strict=True)
    value = K.new_zeros(())
    for variance, targets in parts:
        # N(y; f, σ²)^w is N(y; f, σ² / w) but for its normaliser.
        normaliser = ((weight - 1.0) * (2 * math.pi * variance).log() + weight.log()).sum()
        found = _LogNormal.apply(K, variance / weight, targets)
        value = value + found - 0.5 * len(targets) * normaliser
    return value


class _LogNormal(torch.autograd.Function):
    """Σ_c log N(y_c; 0, A) of A = K + D:  ∂/∂A = ½ Σ_c (α_c α_cᵀ − A⁻¹) with α_c = A⁻¹ y_c."""

    @staticmethod
    def forward(ctx, K, noise, y):
        A = hardshrink(K, NEGLIGIBLE)
        A.diagonal().add_(noise)
        L, info = torch.linalg.cholesky_ex(A)
        if cholesky_failed(L, info):
            ctx.save_for_backward(A.fill_(math.nan))
            return A.new_full((), math.nan)
        P = cholesky_inverse(L)
        alpha = y @ P
        value = -0.5 * (alpha * y).sum() - len(y) * (
            log_diagonal(L) + 0.5 * len(A) * math.log(2 * math.pi)
        )
        ctx.save_for_backward(P.addmm_(alpha.mT, alpha, beta=-0.5 * len(y), alpha=0.5))
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, *grad_outputs):
        (slope,) = ctx.saved_tensors
        grad = grad_outputs[0] * slope
        return grad, grad.diagonal(), None
