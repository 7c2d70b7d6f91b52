"""q(f_β) for Adam: a mean and a covariance factor as parameters, whitened or not."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from orthogp.errors import ConfigurationError
from orthogp.linalg import Factor, cholesky, log_diagonal
from orthogp.posterior.gaussian import Whitened


class CovarianceFactor(nn.Module):
    """S = F Fᵀ by its triangular factor, whitened or not, for Adam."""

    def __init__(self, factor: Factor, num_latents: int, hold_fixed: str, dtype: torch.dtype):
        super().__init__()
        if hold_fixed not in ("whitened", "unwhitened"):
            raise ConfigurationError(
                f"hold_fixed is {hold_fixed!r}; with Adam on q(f_β) it is whitened or unwhitened"
            )
        self.hold_fixed = hold_fixed
        L = factor.L.detach()
        prior = torch.eye(L.shape[-1], dtype=dtype, device=L.device)
        prior = prior if hold_fixed == "whitened" else L.to(dtype)
        self.F = nn.Parameter(prior.repeat(num_latents, 1, 1))

    def extra_repr(self) -> str:
        return f"hold_fixed={self.hold_fixed!r}"

    def whitened(self, factor: Factor) -> tuple[Tensor, Tensor]:
        """S̃ and log|S̃|."""
        F = self.F.tril().double()
        # |F_ii|: the sign of a column is free, and Adam may step across zero.
        log_det = 2.0 * F.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
        if self.hold_fixed == "unwhitened":
            F = factor.R @ F
            log_det = log_det + 2.0 * log_diagonal(factor.R)
        return F @ F.mT, log_det


class FactorGaussian(nn.Module):
    """q(f_β) for Adam: a mean and a covariance factor as parameters, whitened or not."""

    def __init__(
        self,
        factor: Factor,
        num_latents: int,
        hold_fixed: str,
        dtype: torch.dtype,
    ):
        super().__init__()
        self.covariance = CovarianceFactor(factor, num_latents, hold_fixed, dtype)
        self.mean = nn.Parameter(factor.L.new_zeros(num_latents, factor.L.shape[-1], dtype=dtype))

    def whitened(self, factor: Factor, dtype: torch.dtype = torch.float64) -> Whitened:
        """(v, S̃) at the current K_β, in float64 whatever the `dtype` that would do."""
        S, log_det = self.covariance.whitened(factor)
        mean = self.mean.double()
        v = mean if self.covariance.hold_fixed == "whitened" else mean @ factor.R.mT
        return Whitened(v, S, log_det, definite(log_det))

    @torch.no_grad()
    def set_whitened(
        self, factor: Factor, v: Float[Tensor, "c b"], S: Float[Tensor, "c b b"]
    ) -> None:
        """Sets q(f_β) = N(L v, L S̃ Lᵀ)."""
        F, v = cholesky(S.double()), v.double()
        if self.covariance.hold_fixed == "unwhitened":
            F, v = factor.L @ F, v @ factor.L.mT
        self.covariance.F.copy_(F)
        self.mean.copy_(v)


def definite(log_det: Float[Tensor, " c"]) -> Int[Tensor, " c"]:
    """The `info` of an S̃ that is positive definite by construction."""
    return torch.zeros_like(log_det, dtype=torch.int32)
