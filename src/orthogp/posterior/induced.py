"""q(v) of the inducing points that knows of the residual process, for Gaussian noise.

With W = R K_βX, D the noise, and P_B = (K_⊥BB + D_B)⁻¹ for leaves B of neighbouring rows,

    S̃ = (I + Σ_B W_B P_B W_Bᵀ)⁻¹,    ν = S̃ Σ_B W_B P_B y_B.

Rows of one leaf share their residual process, rows of two leaves count as independent. Leaves of
one row are FITC, one leaf of all rows is exact.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.execution.memory import chunk_elements
from orthogp.kernel.covariance import Covariance
from orthogp.linalg import cholesky, cholesky_failed
from orthogp.posterior.neighbors import leaf_order
from orthogp.posterior.observations import Observations, Removed

# Relative to the prior variance: added where K_⊥NN + D has no factor, and ten times more each time.
FIRST_JITTER, ATTEMPTS = 1e-10, 8


@dataclass(frozen=True)
class Features:
    """w_x = R k_βx, and W of all rows."""

    covariance: Covariance
    beta: Float[Tensor, "b d"]
    R: Float[Tensor, "b b"]
    W: Float[Tensor, "n b"]

    @staticmethod
    @torch.no_grad()
    def of(
        covariance: Covariance,
        beta: Float[Tensor, "b d"],
        R: Float[Tensor, "b b"],
        x: Float[Tensor, "n d"],
    ) -> "Features":
        height = max(1, chunk_elements(x.device) // max(1, beta.shape[0]))
        W = x.new_empty(x.shape[0], beta.shape[0], dtype=R.dtype)
        for rows in torch.arange(x.shape[0], device=x.device).split(height):
            W[rows] = covariance.block(x[rows].to(R), beta.to(R)) @ R.mT
        return Features(covariance, beta.to(R), R, W)

    def __call__(self, x: Float[Tensor, "m d"]) -> Float[Tensor, "m b"]:
        return self.covariance.block(x, self.beta) @ self.R.mT


@dataclass(frozen=True)
class Contributions:
    """What each observation has contributed to q(v): of its leaf B the row p_iᵀ = e_iᵀ P_B.

    Where the noise grows by δ and the observation moves by Δ, S̃⁻¹ is less by g gᵀ and S̃⁻¹ν by g t,

        g = √κ W_B p_i,    t = √κ (p_iᵀ y_B − Δ/δ),    κ = 1 / (1/δ + P_ii).
    """

    Wp: Float[Tensor, "s n b"]
    py: Float[Tensor, "c n"]
    diagonal: Float[Tensor, "s n"]

    def of(
        self, place: Int[Tensor, " m"], removed: Removed
    ) -> tuple[Float[Tensor, "s m b"], Float[Tensor, "c m"]]:
        """g and t of the rows removed, which are at these places."""
        root = (removed.inverse_growth + self.diagonal[:, place]).rsqrt()
        g = root.unsqueeze(-1) * self.Wp[:, place]
        return g, root * (self.py[:, place] - removed.relative_shift)


@dataclass(frozen=True)
class InducedPosterior:
    """q(v), and what each observation has contributed to it.

    The latter is None once rows have joined, and for a q(v) that is that of a basis.
    """

    S: Float[Tensor, "s b b"]
    b: Float[Tensor, "c b"]
    contributions: Contributions | None = None

    @property
    def mean(self) -> Float[Tensor, "c b"]:
        return (self.S @ self.b.unsqueeze(-1)).squeeze(-1)

    def at(
        self,
        w: Float[Tensor, "s m b"],
        without: tuple[Float[Tensor, "s m b"], Float[Tensor, "c m"]] | None = None,
    ) -> tuple[Float[Tensor, "c m"], Float[Tensor, "s m"]]:
        """Mean and variance of wᵀ v; `without` are for each w the g and t that q(v) is without."""
        Sw = w @ self.S
        mean, variance = dot(w, self.mean.unsqueeze(-2)), dot(Sw, w)
        if without is None:
            return mean, variance
        g, t = without
        Sg = g @ self.S
        # Sherman and Morrison; leverage near one is a row that alone knows some direction.
        left = (1.0 - dot(Sg, g)).clamp_min(1e-10)
        along = dot(w, Sg) / left
        mean = mean + along * (dot(Sg, self.b.unsqueeze(-2)) - t)
        return mean, variance + along.square() * left

    def with_leaf(
        self,
        W: Float[Tensor, "a b"],
        K: Float[Tensor, "a a"],
        noise: Float[Tensor, "s a"],
        y: Float[Tensor, "c a"],
    ) -> "InducedPosterior":
        """q(v) once these rows are known as well; K is their K_⊥. O(a b² + a² b + a³).

        S̃′ = S̃ − S̃ W (P⁻¹ + Wᵀ S̃ W)⁻¹ Wᵀ S̃ and b′ = b + W P y, with P⁻¹ = K_⊥ + D.
        """
        K, W = K.unsqueeze(0), W.to(self.S)
        L = factor_with_noise(K, noise.unsqueeze(1)).squeeze(1)
        Py = torch.cholesky_solve(y.to(W).unsqueeze(-1), L).squeeze(-1)
        WS = W @ self.S
        H = factor_with_noise(L @ L.mT + WS @ W.mT, torch.zeros_like(noise).unsqueeze(0))[0]
        V = torch.linalg.solve_triangular(H, WS, upper=False)
        return InducedPosterior(self.S - V.mT @ V, self.b + Py @ W)


def induced_posterior(
    covariance: Covariance, features: Features, rows: Observations, leaf: int
) -> InducedPosterior:
    """q(v) from rows in leaves of at most `leaf`."""
    size, shared, dtype = features.beta.shape[0], rows.noise.shape[0], features.R.dtype
    precision = torch.eye(size, dtype=dtype, device=rows.x.device).repeat(shared, 1, 1)
    b = precision.new_zeros(len(rows.y), size)
    Wp = precision.new_empty(shared, len(rows), size)
    py = precision.new_empty(len(rows.y), len(rows))
    diagonal = precision.new_empty(shared, len(rows))
    order = leaf_order(rows.x * covariance.relevance(rows.x).sqrt().to(rows.x), leaf)
    for leaves in _batches(order, leaf, size):
        x, y, W = rows.x[leaves].to(dtype), rows.y[:, leaves].to(dtype), features.W[leaves]
        K = covariance.batched_block(x, x) - W @ W.mT
        P = torch.cholesky_inverse(factor_with_noise(K, rows.noise[:, leaves].to(dtype)))
        PW, Py = P @ W, (P @ y.unsqueeze(-1)).squeeze(-1)
        precision += torch.einsum("lib,slic->sbc", W, PW)
        b += torch.einsum("lib,cli->cb", W, Py)
        Wp[:, leaves], py[:, leaves] = PW, Py
        diagonal[:, leaves] = P.diagonal(dim1=-2, dim2=-1)
    S = torch.cholesky_inverse(cholesky(precision))
    return InducedPosterior(S, b, Contributions(Wp, py, diagonal))


def factor_with_noise(
    K: Float[Tensor, "m k k"], noise: Float[Tensor, "s m k"]
) -> Float[Tensor, "s m k k"]:
    """L of K + diag(noise) for every block, with as little jitter as those need that have none."""
    A = K.expand(len(noise), *K.shape).clone()
    A.diagonal(dim1=-2, dim2=-1).add_(noise)
    # Symmetric, and so in the order of columns that the factorisation wants.
    L, info = torch.linalg.cholesky_ex(A.mT)
    failed, jitter = cholesky_failed(L, info), FIRST_JITTER
    for _ in range(ATTEMPTS):
        if not failed.any():
            return L
        part = A[failed]
        part.diagonal(dim1=-2, dim2=-1).add_(jitter * part.diagonal(dim1=-2, dim2=-1).amax())
        L[failed], info[failed] = torch.linalg.cholesky_ex(part)
        failed, jitter = cholesky_failed(L, info), 10.0 * jitter
    if not failed.any():
        return L
    raise NumericalError(
        "the covariance of some rows and those near them is not positive definite; the kernel's "
        "parameters or the rows have diverged"
    )


def dot(x: Float[Tensor, "*a k"], y: Float[Tensor, "*b k"]) -> Tensor:
    return (x * y).sum(-1)


def _batches(order: Int[Tensor, " n"], leaf: int, size: int) -> Iterator[Int[Tensor, "l k"]]:
    """The leaves as rows of indices, some at a time; what is left at the end is one of its own."""
    whole = len(order) // leaf * leaf
    height = max(1, chunk_elements(order.device) // (leaf * max(leaf, size)))
    if whole:
        yield from order[:whole].reshape(-1, leaf).split(height)
    if whole < len(order):
        yield order[whole:].unsqueeze(0)
