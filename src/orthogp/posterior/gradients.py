"""The variance of the gradient of a function, for kernels that are sums of radial ones.

∂_i f is Gaussian as f is, and the kernel's derivatives take the place of its values. With
k(x, z) = Σ_t s_t κ_t(q), q = Σ_i ρ_ti (x_i − z_i)²,

    ∂k(x, z)/∂x_i = Σ_t 2 s_t ρ_ti κ′_t(q) (x_i − z_i)        Var ∂_i f(x) = −Σ_t 2 s_t ρ_ti κ′_t(0)

before any row is known. Given the rows near x, in the notation of `joint`,

    C = (K_⊥NN + D)⁻¹ ∂k_⊥Nx        Ŵ = ∂w_x − W_N C
    Var ∂_i f(x) = −Σ_t 2 s_t ρ_ti κ′_t(0) − |∂_i w_x|² − C_iᵀ ∂_i k_⊥Nx + Ŵ_iᵀ S̃ Ŵ_i.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.execution.memory import chunk_elements
from orthogp.kernel.covariance import Covariance
from orthogp.kernel.radial.terms import Parameters, RadialSum
from orthogp.kernel.radial.tiled import FAMILIES
from orthogp.posterior.joint import factor_of_near_rows
from orthogp.posterior.near_rows import NearPredictor


@torch.no_grad()
def gradient_variance(p: NearPredictor, x: Float[Tensor, "m d"]) -> Float[Tensor, "s m d"]:
    """Var ∂_i f(x); infinite for a function that is too rough to have a gradient."""
    kernel = _radial(p.covariance)
    x = x.to(p.device, torch.float64)
    width = max(p.count, 0 if p.features is None else len(p.features.beta))
    height = max(1, chunk_elements(x.device) // (width * max(p.count, x.shape[1])))
    return torch.cat([_variance(p, kernel, part) for part in x.split(height)], 1)


def _variance(p: NearPredictor, kernel: RadialSum, x: Float[Tensor, "m d"]) -> Tensor:
    near, d = p.nearest(x), x.shape[1]
    slopes = torch.stack([FAMILIES[family](x.new_zeros(1))[1] for family in kernel.families])
    if "matern12" in kernel.families:
        return x.new_full((len(p.rows.noise), len(x), d), torch.inf)
    scale = kernel.scale.unsqueeze(-1)
    prior = (-2.0 * slopes * scale * kernel.inverse.square()).sum(0).expand(d)
    found = prior.expand(len(p.rows.noise), len(x), d)
    dw = None
    if p.features is not None:
        dw = _slope(kernel, x, p.features.beta.expand(len(x), -1, -1)).mT @ p.features.R.mT
        found = found - dw.square().sum(-1)
    left = dw
    if near.shape[1]:
        dk = _slope(kernel, x, p.rows.x[near].double())
        # Without q(v) there is nothing along β.
        W = dk[..., :0] if p.features is None else p.features.W[near].double()
        dk = dk if dw is None else dk - W @ dw.mT
        C = torch.cholesky_solve(dk, factor_of_near_rows(p, near, x))
        found = found - (C * dk).sum(-2)
        left = None if dw is None else dw - C.mT @ W
    if p.induced is not None and left is not None:
        found = found + ((left @ p.induced.S.unsqueeze(1)) * left).sum(-1)
    return found.clamp_min(0.0)


def _slope(
    kernel: RadialSum, x: Float[Tensor, "m d"], z: Float[Tensor, "m l d"]
) -> Float[Tensor, "m l d"]:
    """∂k(x, z)/∂x."""
    difference, total = x.unsqueeze(1) - z, None
    for family, inverse, scale in zip(kernel.families, kernel.inverse, kernel.scale, strict=True):
        q = (difference * inverse).square().sum(-1)
        part = 2.0 * scale * FAMILIES[family](q)[1].unsqueeze(-1) * inverse.square() * difference
        total = part if total is None else total + part
    assert total is not None
    return total


def _radial(covariance: Covariance) -> RadialSum:
    if covariance.terms is None:
        raise ConfigurationError(
            "the standard deviation of a gradient is known for sums of RBF and Matérn kernels; the "
            f"kernel is a {type(covariance.kernel).__name__}"
        )
    return Parameters(covariance.terms).sum(torch.float64)
