"""More rows for a posterior, without training: in time that does not grow with those it has.

A predictor of near rows takes new ones into its tables and its search (`growing`), and into q(v).
There they are, as long as they are no more than `count`, one leaf of neighbours of their own (see
`induced`), together with the rows before them where all of these are no more than `count` either;
from then on each is a leaf of one row. Which of these it is depends on how many rows there are and
not on the order in which they came, so that the same rows in any order give the same prediction but
for rounding. It is the exact Gaussian process where all rows are near and in one leaf, and where β
are all rows before and no more than `count` have joined.

A basis that has learned from rows which are not near (all bases have q(v) = N(ν, S̃) and the fixed
function r(x) of γ; see `projection`) is a predictor with no rows yet:

    f(x) = w_xᵀ v + r(x) + f_⊥(x),    v ~ N(ν, S̃),    f_⊥ ~ GP(0, k_⊥).
"""

from dataclasses import replace

import torch

from orthogp.kernel.covariance import Covariance
from orthogp.kernel.radial.writer import SUM_BYTES
from orthogp.linalg import cholesky
from orthogp.posterior.base import Basis
from orthogp.posterior.growing import GrowingNeighbors, GrowingTable
from orthogp.posterior.induced import Features, InducedPosterior, induced_posterior
from orthogp.posterior.near_rows import Growth, NearPredictor
from orthogp.posterior.observations import Observations
from orthogp.posterior.predictor import Predictor

# Rows that join q(v) together.
BATCH = 256


@torch.no_grad()
def basis_predictor(
    basis: Basis, covariance: Covariance, jitter: float, count: int, one_noise: bool
) -> NearPredictor:
    """The posterior of a basis, with no rows yet; `one_noise` says that all outputs share it.

    O(|β| |γ| + |β|³).
    """
    beta = basis.beta.double()
    factor = basis.factor(covariance, jitter, robust=True)
    projection = basis.project(covariance, factor, beta[:0])
    q = basis.coefficients(projection)
    S = q.S.double()
    precision = torch.cholesky_inverse(cholesky(S))
    b = (precision @ q.v.unsqueeze(-1)).squeeze(-1)
    same = one_noise and bool((S[:1] == S).all())
    induced = InducedPosterior(S[:1] if same else S, b)
    x, y = basis.beta.detach()[:0], b[:, :0]
    rows = Observations(x, y, b.new_zeros(len(induced.S), 0))
    features = Features(covariance, beta, factor.R, factor.R.new_empty(0, len(beta)))
    base = None
    if len(basis.gamma):
        gamma, a_gamma = (t.detach().to(beta) for t in (basis.gamma, basis.a_gamma))
        nothing = beta.new_zeros(len(y), 0, len(beta))
        # r(x) = k_xγ a_γ − k_xβ Rᵀ u
        weights = -projection.u @ factor.R
        base = Predictor(covariance, beta, gamma, weights, a_gamma, nothing, nothing[..., 0], 0)
    neighbors = GrowingNeighbors.none(x, y)
    return NearPredictor(covariance, rows, count, neighbors, features, induced, base)


@torch.no_grad()
def with_rows(p: NearPredictor, new: Observations) -> NearPredictor:
    """The predictor that knows of new rows as well, which come last.

    O(|β|² + count · (|β| + count)²) for a row, whatever the number of rows before.
    """
    if len(new.noise) > len(p.rows.noise):
        p = _with_own_noise(p, len(new.noise))
    growth = p.growth or _growth(p)
    new = replace(new, noise=new.noise.expand(len(p.rows.noise), -1))
    x, y = growth.x.appended(new.x), growth.y.appended(new.y.mT)
    noise = growth.noise.appended(new.noise.mT)
    rows = Observations(x.rows, y.rows.mT, noise.rows.mT)
    scale = p.covariance.relevance(new.x).sqrt()
    neighbors = p.neighbors
    assert neighbors is not None, "rows join those that are indexed"
    if not isinstance(neighbors, GrowingNeighbors):
        neighbors = GrowingNeighbors.of(neighbors, p.rows.x, p.rows.y)
    neighbors = neighbors.with_points(new.x.double() * scale, rows.x, rows.y)
    growth = replace(growth, x=x, y=y, noise=noise)
    found = replace(p, rows=rows, neighbors=neighbors, merged=None, growth=growth)
    if p.features is None or growth.W is None:
        return found
    W = growth.W.appended(p.features(new.x.double()))
    features = replace(p.features, W=W.rows)
    induced = _induced(p, features, rows, growth)
    return replace(found, features=features, induced=induced, growth=replace(growth, W=W))


def _with_own_noise(p: NearPredictor, outputs: int) -> NearPredictor:
    """The predictor with a noise and a q(v) for each output, where they have shared one."""

    def own(q: InducedPosterior | None) -> InducedPosterior | None:
        return None if q is None else InducedPosterior(q.S.expand(outputs, -1, -1), q.b)

    growth, rows = p.growth, replace(p.rows, noise=p.rows.noise.expand(outputs, -1))
    if growth is not None:
        noise = GrowingTable(rows.noise.mT)
        growth = replace(growth, noise=noise, before=own(growth.before))
    return replace(p, rows=rows, induced=own(p.induced), growth=growth)


def _growth(p: NearPredictor) -> Growth:
    W = None
    if p.features is not None:
        # Machine code reads whole vectors.
        lanes = SUM_BYTES // p.features.W.itemsize
        W = GrowingTable(p.features.W, width=-(-p.features.W.shape[1] // lanes) * lanes)
    before = None if p.induced is None else InducedPosterior(p.induced.S, p.induced.b)
    x, y, noise = (GrowingTable(t) for t in (p.rows.x, p.rows.y.mT, p.rows.noise.mT))
    return Growth(x, y, noise, W, before, start=len(p.rows))


def _induced(
    p: NearPredictor, features: Features, rows: Observations, growth: Growth
) -> InducedPosterior:
    """q(v) of all rows, from that of those before."""
    start, before, known = growth.start, len(p.rows), p.induced
    assert growth.before is not None
    assert known is not None
    joined = len(rows) - start
    if start > 0 and len(rows) <= p.count:
        found = induced_posterior(p.covariance, features, rows, leaf=p.count)
        return InducedPosterior(found.S, found.b)
    if joined <= p.count:
        return _with_leaf(p, growth.before, features, rows, slice(start, None))
    if before - start <= p.count:
        # They were a leaf until now, or none had joined.
        before, known = start, growth.before
    for first in range(before, len(rows), BATCH):
        part = slice(first, min(first + BATCH, len(rows)))
        known = _with_leaf(p, known, features, rows, part, alone=True)
    return known


def _with_leaf(
    p: NearPredictor,
    known: InducedPosterior,
    features: Features,
    rows: Observations,
    part: slice,
    alone: bool = False,
) -> InducedPosterior:
    """q(v) with these rows as one leaf, or as leaves of one row each."""
    # In float64, as W in the table may not be.
    x, y, noise = rows.x[part].double(), rows.y[:, part], rows.noise[:, part]
    W = features(x)
    if alone:
        K = torch.diag_embed(p.covariance.diagonal(x) - W.square().sum(-1))
        K = K.clamp_min(0.0)
    else:
        K = p.covariance.block(x, x) - W @ W.mT
    return known.with_leaf(W, K, noise, y)
