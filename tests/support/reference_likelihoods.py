"""Slow versions of the likelihoods' integrals: dense grids in float64 NumPy, densities by SciPy."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Array = NDArray[np.float64]
LogDensity = Callable[[float, Array], Array]


def gaussian(noise: float) -> LogDensity:
    return lambda y, f: stats.norm.logpdf(y, f, np.sqrt(noise))


def laplace(noise: float) -> LogDensity:
    return lambda y, f: stats.laplace.logpdf(y, f, np.sqrt(noise))


def student_t(nu: float, noise: float) -> LogDensity:
    return lambda y, f: stats.t.logpdf(y, nu, f, np.sqrt(noise))


def bernoulli() -> LogDensity:
    return lambda y, f: special.log_ndtr((2 * y - 1) * f)


def poisson() -> LogDensity:
    return lambda y, f: stats.poisson.logpmf(y, np.logaddexp(0, f))


def negative_binomial(p: float) -> LogDensity:
    # SciPy counts failures before successes, so its probability is the complement.
    return lambda y, f: stats.nbinom.logpmf(y, np.logaddexp(0, f) * (1 - p) / p, 1 - p)


def beta(scale: float) -> LogDensity:
    def log_density(y: float, f: Array) -> Array:
        return stats.beta.logpdf(y, 1 + scale * special.expit(f), 1 + scale * special.expit(-f))

    return log_density


def weighted_grid(mean: float, variance: float, points: int = 100_001) -> tuple[Array, Array]:
    """A grid of f that covers twelve standard deviations, and weights that sum to one."""
    f = mean + np.sqrt(variance) * np.linspace(-12, 12, points)
    weights = stats.norm.pdf(f, mean, np.sqrt(variance))
    return f, weights / weights.sum()


def expected_log_prob(log_p: LogDensity, y: float, mean: float, variance: float) -> float:
    f, weights = weighted_grid(mean, variance)
    return float(weights @ log_p(y, f))


def log_density(log_p: LogDensity, y: float, mean: float, variance: float) -> float:
    f, weights = weighted_grid(mean, variance)
    return float(special.logsumexp(log_p(y, f), b=weights))


def moments(
    log_p: LogDensity, ys: Array, mean: float, variance: float, points: int = 401
) -> tuple[float, float]:
    """Mean and variance of y from its own density on the (equally spaced) grid `ys`."""
    f, weights = weighted_grid(mean, variance, points)
    density = np.array([weights @ np.exp(log_p(y, f)) for y in ys])
    density /= density.sum()
    centre = density @ ys
    return float(centre), float(density @ (ys - centre) ** 2)


def prob_largest(k: int, mean: Array, variance: Array) -> float:
    """P(f_k is the largest) for independent f_c ~ N(mean_c, variance_c)."""
    f, weights = weighted_grid(mean[k], variance[k])
    others = [c for c in range(len(mean)) if c != k]
    z = (f[:, None] - mean[others]) / np.sqrt(variance[others])
    return float(weights @ np.exp(special.log_ndtr(z).sum(1)))


def softmax(mean: Array, variance: Array, points: int = 61) -> tuple[Array, Array]:
    """E log softmax(f) and E softmax(f) of three latents, on a cube."""
    g = np.linspace(-8, 8, points)
    w = stats.norm.pdf(g) / stats.norm.pdf(g).sum()
    z = np.stack([axis.ravel() for axis in np.meshgrid(g, g, g, indexing="ij")], axis=1)
    weights = np.einsum("i,j,k->ijk", w, w, w).ravel()
    log_p = special.log_softmax(mean + np.sqrt(variance) * z, axis=1)
    return weights @ log_p, weights @ np.exp(log_p)
