"""The posterior of the residual process given the rows near x, for Gaussian noise.

f = f_∥ + f_⊥ with f_∥(x) = w_xᵀ v, as in the orthogonal basis: k_⊥(x, x′) = k(x, x′) − w_xᵀ w_x′.
With N the k rows nearest to x, D their noise, and q(v) = N(ν, S̃) from `induced`,

    c    = (K_⊥NN + D)⁻¹ k_⊥Nx        ŵ = w_x − W_N c
    m(x) = ŵᵀ ν + cᵀ y_N
    s(x) = k_⊥xx − cᵀ k_⊥Nx + ŵᵀ S̃ ŵ

k = N is the exact Gaussian process, whatever β.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orthogp.execution.memory import chunk_elements
from orthogp.kernel.covariance import Covariance
from orthogp.kernel.radial import compiled_backend
from orthogp.kernel.radial.terms import Parameters, RadialSum
from orthogp.posterior.growing import GrowingNeighbors, GrowingTable
from orthogp.posterior.induced import (
    Features,
    InducedPosterior,
    dot,
    factor_with_noise,
)
from orthogp.posterior.neighbors import Neighbors
from orthogp.posterior.observations import MergedRows, Observations, OthersNear
from orthogp.posterior.predictor import Predictor

SMALLEST_VARIANCE = 1e-10
# Of the rows near any of several x, those whose covariance with the others is in memory at a time.
JOINT_ROWS = 1024
# Columns beyond which the kernel of near rows is a matter of matrix products, not of machine code.
WIDEST = 256


class _Local(NamedTuple):
    """Which rows are near, c, the variance of f_⊥(x) given them, and ŵ."""

    near: Int[Tensor, "m k"]
    c: Float[Tensor, "s m k"]
    variance: Float[Tensor, "s m"]
    w: Float[Tensor, "s m b"] | None

    @property
    def failed(self) -> Bool[Tensor, " m"]:
        """Where a matrix had no factor."""
        return ~(self.variance.isfinite() & self.c.isfinite().all(-1)).all(0)


@dataclass(frozen=True)
class Growth:
    """Tables of rows that others have joined, and the q(v) of those that were there before.

    The first of the joined ones is at the place `start`.
    """

    x: GrowingTable
    y: GrowingTable
    noise: GrowingTable
    W: GrowingTable | None
    before: InducedPosterior | None
    start: int


@dataclass(frozen=True)
class NearPredictor:
    """m(x) and s(x) from the `count` rows nearest to x and, where there is one, from q(v).

    `rows` are at distinct inputs: all of a table at one input are one observation (`merged`).
    `base` is a posterior whose mean is added; the observations are less that mean then. `dtype` is
    that of K_⊥NN and its factor; what comes out is in float64. `growth` is there once rows have
    joined (`conditioning`), which are not merged. Without `neighbors` it is told which rows are
    near.
    """

    covariance: Covariance
    rows: Observations
    count: int
    neighbors: Neighbors | GrowingNeighbors | None
    features: Features | None
    induced: InducedPosterior | None
    base: Predictor | None = None
    dtype: torch.dtype = torch.float64
    merged: MergedRows | None = None
    growth: Growth | None = None

    @property
    def device(self) -> torch.device:
        return self.rows.x.device

    def computing_in(self, dtype: torch.dtype) -> "NearPredictor":
        """The predictor that works in this dtype, with W as it reads it."""
        if self.features is None:
            return replace(self, dtype=dtype)
        W = self.features.W.to(dtype)
        if self._compiled_kernel() is not None:
            from orthogp.kernel.radial.conditioned import aligned

            W = aligned(W, dtype)
        return replace(self, dtype=dtype, features=replace(self.features, W=W))

    @torch.no_grad()
    def marginals(
        self, x: Float[Tensor, "m d"]
    ) -> tuple[Float[Tensor, "c m"], Float[Tensor, "c m"]]:
        """Mean and variance at x."""
        with self.covariance.parameters_read_once(x):
            parts = [self._marginals(part, self.nearest(part)) for part in self._chunks(x)]
        mean, variance = _joined(parts)
        return mean if self.base is None else mean + self.base.mean(x), variance

    @torch.no_grad()
    def marginals_given(
        self, x: Float[Tensor, "m d"], near: Int[Tensor, "m k"]
    ) -> tuple[Float[Tensor, "c m"], Float[Tensor, "c m"]]:
        """Mean and variance at x given these rows, as if they were the nearest."""
        with self.covariance.parameters_read_once(x):
            parts = self._chunks(x)
            chosen = near.split(max(1, len(parts[0])))
            return _joined(map(self._marginals, parts, chosen))

    @torch.no_grad()
    def leave_one_out(
        self, rows: Int[Tensor, " m"]
    ) -> tuple[Float[Tensor, "c m"], Float[Tensor, "c m"]]:
        """Mean and variance at these rows of the table, each given all rows but itself."""
        assert self.merged is not None
        x = self.merged.rows.x[rows]
        with self.covariance.parameters_read_once(x):
            others, parts = self._others(rows), self._chunks(x)
            given, height = self._given(others), max(1, len(parts[0]))
            chosen = zip(parts, others.near.split(height), rows.split(height), strict=True)
            mean, variance = _joined(
                given._marginals(part, near, self._contributed(some)) for part, near, some in chosen
            )
        return mean if self.base is None else mean + self.base.mean(x), variance

    @torch.no_grad()
    def share_of_failures(self, rows: Int[Tensor, " m"]) -> float:
        """Of these rows, each left out, those whose matrices have no factor in machine code."""
        assert self.merged is not None
        x, kernel = self.merged.rows.x[rows].double(), self._compiled_kernel()
        if kernel is None:
            return 0.0
        others = self._others(rows)
        w = None if self.features is None else self.features(x)
        found = self._given(others)._compiled(others.near, x, w, kernel)
        return found.failed.double().mean().item()

    def _others(self, rows: Int[Tensor, " m"]) -> OthersNear:
        """What is near these rows of the table but themselves."""
        assert self.merged is not None
        assert isinstance(self.neighbors, Neighbors)
        return self.merged.others_near(self.neighbors, rows, self.count)

    def _given(self, others: OthersNear) -> "NearPredictor":
        """The predictor for the rows among which those are."""
        if others.rows is self.rows:
            return self
        features = self.features
        if features is not None:
            features = replace(features, W=features.W[others.source])
        return replace(self, rows=others.rows, features=features).computing_in(self.dtype)

    def _contributed(
        self, rows: Int[Tensor, " m"]
    ) -> tuple[Float[Tensor, "s m b"], Float[Tensor, "c m"]] | None:
        """What q(v) has from each of these rows of the table."""
        if self.induced is None or self.merged is None:
            return None
        assert self.induced.contributions is not None
        return self.induced.contributions.of(self.merged.place[rows], self.merged.removed(rows))

    @torch.no_grad()
    def nearest(self, x: Float[Tensor, "m d"]) -> Int[Tensor, "m k"]:
        scaled = x.double() * self.covariance.relevance(x).sqrt()
        assert self.neighbors is not None, "rows that are not indexed are given"
        return self.neighbors.nearest(scaled, self.count)

    @torch.no_grad()
    def full_covariance(self, x: Float[Tensor, "m d"]) -> Float[Tensor, "c m m"]:
        """The joint covariance at x: that of what is left of f_⊥(x_i) once c_iᵀ y_N is known."""
        x = x.to(self.device, torch.float64)
        local = [self._local(self.nearest(part), part) for part in self._chunks(x)]
        near = torch.cat([part.near for part in local])
        c = torch.cat([part.c for part in local], dim=1)
        w = None if self.features is None else self.features(x)
        return self.covariance_given(near, c, x, w).expand(len(self.rows.y), -1, -1)

    def covariance_given(
        self,
        near: Int[Tensor, "m k"],
        c: Float[Tensor, "s m k"],
        x: Float[Tensor, "m d"],
        w: Float[Tensor, "m b"] | None,
    ) -> Float[Tensor, "s m m"]:
        """The joint covariance at x, whose near rows, c and w_x are known; differentiable in all.

        Every row that is near any of the x counts once.
        """
        union, place = near.unique(return_inverse=True)
        W = None if self.features is None else self.features.W[union].double()
        rows = self.rows.x[union].double()
        C = c.new_zeros(len(c), len(x), len(union)).scatter(-1, place.expand_as(c), c)
        noise = self.rows.noise[:, union].double().unsqueeze(-2)
        # Cov(e, e) with e = f_⊥(x) − C (f_⊥ + ε) at the rows of the union.
        cross = C @ self._residual_covariance(rows, x, W, w)
        found = self._residual_covariance(x, x, w, w) - cross - cross.mT + (C * noise) @ C.mT
        for part in torch.arange(len(union), device=x.device).split(JOINT_ROWS):
            block = self._residual_covariance(rows[part], rows, None if W is None else W[part], W)
            found = found + C[..., part] @ (block.detach() @ C.mT)
        if self.induced is not None:
            assert w is not None
            assert W is not None
            left = w - C @ W
            found = found + left @ self.induced.S @ left.mT
        return found

    def _residual_covariance(
        self, x: Tensor, z: Tensor, w_x: Tensor | None, w_z: Tensor | None
    ) -> Float[Tensor, "n m"]:
        """K_⊥xz."""
        K = self.covariance.block(x, z)
        return K if w_x is None or w_z is None else K - w_x @ w_z.mT

    def _marginals(
        self,
        x: Float[Tensor, "m d"],
        near: Int[Tensor, "m k"],
        without: tuple[Float[Tensor, "s m b"], Float[Tensor, "c m"]] | None = None,
    ) -> tuple[Float[Tensor, "c m"], Float[Tensor, "c m"]]:
        """Mean and variance; `without` is for each x what q(v) does not know."""
        local = self._local(near, x)
        mean, variance = dot(local.c, self.rows.y[:, local.near].double()), local.variance
        if self.induced is not None:
            assert local.w is not None
            along, spread = self.induced.at(local.w, without)
            mean, variance = mean + along, variance + spread
        least = SMALLEST_VARIANCE * self.covariance.diagonal(x.double())
        return mean, torch.maximum(variance, least).expand_as(mean)

    def _local(self, near: Int[Tensor, "m k"], x: Float[Tensor, "m d"]) -> _Local:
        x = x.double()
        w = None if self.features is None else self.features(x)
        kernel = self._compiled_kernel()
        if near.shape[1] == 0:
            return self._unconditioned(near, x, w)
        if kernel is None:
            return self._conditioned(near, x, w, self.dtype)
        found = self._compiled(near, x, w, kernel)
        failed = found.failed
        if not failed.any():
            return found
        for rows in failed.nonzero().squeeze(1).split(self._height(compiled=False)):
            again = self._conditioned(near[rows], x[rows], None if w is None else w[rows])
            found.c[:, rows], found.variance[:, rows] = again.c, again.variance
            if found.w is not None and again.w is not None:
                found.w[:, rows] = again.w
        return found

    def _unconditioned(
        self, near: Int[Tensor, "m 0"], x: Float[Tensor, "m d"], w: Float[Tensor, "m b"] | None
    ) -> _Local:
        """Where there are no rows yet."""
        shared, prior = len(self.rows.noise), self.covariance.diagonal(x)
        if w is not None:
            prior, w = prior - w.square().sum(-1), w.expand(shared, *w.shape)
        return _Local(near, prior.new_zeros(shared, len(x), 0), prior.expand(shared, -1), w)

    def _conditioned(
        self,
        near: Int[Tensor, "m k"],
        x: Float[Tensor, "m d"],
        w: Float[Tensor, "m b"] | None,
        dtype: torch.dtype = torch.float64,
    ) -> _Local:
        x_near = (self.rows.x[near].double() - x.unsqueeze(1)).to(dtype)
        at = torch.zeros_like(x_near[:, :1])
        if not self.covariance.fused:
            # Only radial kernels are the same about any point.
            x_near, at = self.rows.x[near].to(dtype), x.unsqueeze(1).to(dtype)
        K = self.covariance.batched_block(x_near, x_near)
        k = self.covariance.batched_block(x_near, at)
        prior, W = self.covariance.diagonal(x), None
        if self.features is not None and w is not None:
            W = self.features.W[near].to(dtype)
            K = torch.baddbmm(K, W, W.mT, alpha=-1.0)
            k = torch.baddbmm(k, W, w.to(dtype).unsqueeze(-1), alpha=-1.0)
            prior = prior - w.square().sum(-1)
        L = factor_with_noise(K, self.rows.noise[:, near].to(dtype))
        half = torch.linalg.solve_triangular(L, k.expand(*L.shape[:-1], 1), upper=False)
        c = torch.linalg.solve_triangular(L.mT, half, upper=True).squeeze(-1)
        if w is not None and W is not None:
            w = w - (c.unsqueeze(-2) @ W).squeeze(-2)
        return _Local(near, c.double(), prior - half.double().square().sum((-2, -1)), w)

    def _compiled(
        self,
        near: Int[Tensor, "m k"],
        x: Float[Tensor, "m d"],
        w: Float[Tensor, "m b"] | None,
        kernel: RadialSum,
    ) -> _Local:
        """The same by machine code; numbers that are none where a matrix has no factor."""
        from orthogp.kernel.radial.conditioned import conditioned

        rows, W = self.rows, None if self.features is None else self.features.W
        found = [conditioned(near, rows.x, x, D, kernel, W, w) for D in rows.noise]
        c = torch.stack([part.c for part in found]).double()
        variance = torch.stack([part.variance for part in found]).double()
        left = [part.w for part in found if part.w is not None]
        return _Local(near, c, variance, torch.stack(left).double() if left else None)

    def _compiled_kernel(self) -> RadialSum | None:
        """The kernel for machine code, or None where there is none for it."""
        terms = self.covariance.terms
        if terms is None or compiled_backend(self.rows.x, WIDEST) is None:
            return None
        return Parameters(terms).sum(self.dtype)

    def _height(self, compiled: bool) -> int:
        """How many x are worked on at a time."""
        width = self.rows.x.shape[1]
        if not compiled:
            width = max(width, self.count, 0 if self.features is None else len(self.features.beta))
        return max(1, chunk_elements(self.device) // (self.count * width))

    def _chunks(self, x: Float[Tensor, "m d"]) -> tuple[Tensor, ...]:
        height = self._height(compiled=self._compiled_kernel() is not None)
        return x.to(self.device).split(height)


def _joined(parts: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    mean, variance = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    return mean, variance
