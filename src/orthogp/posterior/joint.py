"""The posterior given near rows as functions of x that torch differentiates.

Which rows are near x is looked up and not differentiated; the factor of their covariance does not
depend on x. What does are k_⊥Nx, w_x and k_xx, in the notation of `near_rows`:

    c_x = (K_⊥NN + D)⁻¹ k_⊥Nx        ŵ_x = w_x − W_N c_x
    e_x = f_⊥(x) − c_xᵀ (f_⊥(N) + ε_N)
    m(x) = base(x) + ŵ_xᵀ ν + c_xᵀ y_N
    Cov(x, x′) = Cov(e_x, e_x′) + ŵ_xᵀ S̃ ŵ_x′

Everything is in float64, whatever x is.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.posterior.induced import dot, factor_with_noise
from orthogp.posterior.near_rows import SMALLEST_VARIANCE, NearPredictor
from orthogp.posterior.predictor import Predictor

# Of the points of a batch the near rows are kept apart while they are no more than these;
# otherwise batch after batch is worked on, with the rows that are near any of its points.
MOST_APART = 1024
# Numbers in the factors and covariances of the points that are worked on at a time.
CHUNK_ELEMENTS = 2**24


class Local(NamedTuple):
    """What x has of the rows near it; w and `left`, which is ŵ, only where there is q(v)."""

    near: Int[Tensor, "m k"]
    c: Float[Tensor, "s m k"]
    k: Float[Tensor, "m k"]
    w: Float[Tensor, "m b"] | None
    left: Float[Tensor, "s m b"] | None


class FactoredRows(NamedTuple):
    """Rows for each of m points, the factor L of their K_⊥NN + D, and W_N where there is q(v).

    None of it is a function of x but for the choice of the rows.
    """

    near: Int[Tensor, "m k"]
    L: Float[Tensor, "s m k k"]
    W: Float[Tensor, "m k b"] | None


@torch.no_grad()
def rows_near(p: NearPredictor, x: Float[Tensor, "m d"]) -> FactoredRows:
    """The rows nearest to each x; O(k³ + k² |β|) for a point."""
    near = p.nearest(x)
    W = None if p.features is None else p.features.W[near].double()
    return FactoredRows(near, factor_of_near_rows(p, near, x), W)


def local(p: NearPredictor, x: Float[Tensor, "m d"], given: FactoredRows | None = None) -> Local:
    """Given these rows, or else those near x; O(k² + k |β| + |β|²) for a point of given rows."""
    near, L, W = rows_near(p, x.detach()) if given is None else given
    shared = len(p.rows.noise)
    w = None if p.features is None else p.features(x)
    if near.shape[1] == 0:
        c = x.new_zeros(shared, len(x), 0)
        return Local(near, c, c[0], w, None if w is None else w.expand(shared, *w.shape))
    rows = p.rows.x[near].double()
    if p.covariance.fused:
        # About x: distances that are small are then exact.
        k = p.covariance.batched_block(rows - x.unsqueeze(1), torch.zeros_like(rows[:, :1]))
    else:
        k = p.covariance.batched_block(rows, x.unsqueeze(1))
    if w is None or W is None:
        c = torch.cholesky_solve(k, L).squeeze(-1)
        return Local(near, c, k.squeeze(-1), None, None)
    k = k - W @ w.unsqueeze(-1)
    c = torch.cholesky_solve(k, L).squeeze(-1)
    left = w - (c.unsqueeze(-2) @ W).squeeze(-2)
    return Local(near, c, k.squeeze(-1), w, left)


def mean_at(p: NearPredictor, x: Float[Tensor, "m d"], at: Local) -> Float[Tensor, "c m"]:
    """m(x)."""
    mean = dot(at.c, p.rows.y[:, at.near].double())
    if p.induced is not None and at.left is not None:
        mean = mean + dot(at.left, p.induced.mean.unsqueeze(-2))
    return mean if p.base is None else mean + basis_mean(p.base, x)


def basis_mean(p: Predictor, x: Float[Tensor, "m d"]) -> Float[Tensor, "c m"]:
    """The mean of a condensed basis."""
    mean = p.beta_weights @ p.covariance.block(p.beta, x)
    if not len(p.gamma):
        return mean
    # In float64: the optimizers that ask for gradients notice rounding.
    gamma, weights = p.gamma.double(), p.gamma_weights.double()
    return mean + p.covariance.matvec(x, gamma, weights)


def moments(
    p: NearPredictor, x: Float[Tensor, "*t q d"]
) -> tuple[Float[Tensor, "c *t q"], Float[Tensor, "c *t q q"]]:
    """Mean and joint covariance of the q points of every batch."""
    x = x.to(p.device, torch.float64)
    (*batch, q, d), c = x.shape, len(p.rows.y)
    k = min(p.count, len(p.rows))
    size = 0 if p.features is None else len(p.features.beta)
    together = (q * k) ** 2 if q * k <= MOST_APART else 0
    height = max(1, CHUNK_ELEMENTS // max(1, q * (k * k + size) + together))
    parts = [_moments(p, part) for part in x.reshape(-1, q, d).split(height)]
    mean, covariance = (torch.cat(part, 1) for part in zip(*parts, strict=True))
    covariance = covariance.reshape(len(covariance), *batch, q, q)
    return mean.reshape(c, *batch, q), covariance.expand(c, *batch, q, q)


def _moments(
    p: NearPredictor, x: Float[Tensor, "t q d"]
) -> tuple[Float[Tensor, "c t q"], Float[Tensor, "s t q q"]]:
    t, q, d = x.shape
    flat = x.reshape(-1, d)
    at = local(p, flat)
    mean = mean_at(p, flat, at).reshape(-1, t, q)
    if q == 1:
        return mean, _variance(p, flat, at).reshape(-1, t, 1, 1)
    if q * at.near.shape[1] <= MOST_APART:
        return mean, _covariance(p, x, at)
    w = [None] * t if at.w is None else at.w.split(q)
    parts = zip(at.near.split(q), at.c.split(q, dim=1), flat.split(q), w, strict=True)
    return mean, torch.stack([p.covariance_given(*part) for part in parts], 1)


def factor_of_near_rows(
    p: NearPredictor, near: Int[Tensor, "m k"], x: Float[Tensor, "m d"]
) -> Float[Tensor, "s m k k"]:
    """Of K_⊥NN + D."""
    rows = p.rows.x[near].double()
    if p.covariance.fused:
        rows = rows - x.unsqueeze(1)
    K = p.covariance.batched_block(rows, rows)
    if p.features is not None:
        W = p.features.W[near].double()
        K = torch.baddbmm(K, W, W.mT, alpha=-1.0)
    return factor_with_noise(K, p.rows.noise[:, near].double())


def _variance(p: NearPredictor, x: Float[Tensor, "m d"], at: Local) -> Float[Tensor, "s m"]:
    prior = p.covariance.diagonal(x)
    variance = prior - dot(at.c, at.k)
    if p.induced is not None and at.left is not None and at.w is not None:
        variance = variance - dot(at.w, at.w) + dot(at.left @ p.induced.S, at.left)
    return torch.maximum(variance, SMALLEST_VARIANCE * prior)


def _covariance(p: NearPredictor, x: Float[Tensor, "t q d"], at: Local) -> Float[Tensor, "s t q q"]:
    """With the near rows of every point kept apart from those of the others, as blocks."""
    t, q, _ = x.shape
    k = at.near.shape[1]
    found = p.covariance.batched_block(x, x).unsqueeze(0)
    w = None if at.w is None else at.w.reshape(t, q, -1)
    if w is not None:
        found = found - w @ w.mT
    if k:
        near = at.near.reshape(t, q * k)
        rows = p.rows.x[near].double()
        at_rows = p.covariance.batched_block(rows, x)
        with torch.no_grad():
            among = p.covariance.batched_block(rows, rows)
            same = near.unsqueeze(-1) == near.unsqueeze(-2)
            noise = same * p.rows.noise[:, near].double().unsqueeze(-1)
        if p.features is not None and w is not None:
            W = p.features.W[near].double()
            at_rows = at_rows - W @ w.mT
            among = torch.baddbmm(among, W, W.mT, alpha=-1.0)
        c = at.c.reshape(-1, t, q, k)
        C = (torch.eye(q).to(c)[:, :, None] * c.unsqueeze(-2)).flatten(-2)
        cross = C @ at_rows
        found = found - cross - cross.mT + C @ (among + noise) @ C.mT
    if p.induced is not None and at.left is not None:
        left = at.left.reshape(-1, t, q, at.left.shape[-1])
        found = found + left @ p.induced.S.unsqueeze(1) @ left.mT
    return found
