"""A linear trend as the mean of the process.

Away from all rows a stationary kernel returns to its mean. Where the target is nearly linear in an
input with a long tail, rows further out than those of training are then far off; a trend goes on.
It is judged by rows that are left out: those for which it is furthest from its own mean must gain,
and random ones, which have more rows near them, must not lose.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from gpytorch.means import LinearMean
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from orthogp.kernel.covariance import Covariance
from orthogp.posterior.near_precision import near_predictor
from orthogp.posterior.observations import MergedRows, Observations

Array = NDArray[np.float64]

# Rows for each weight of a trend, and weights at most: the regression takes their cube.
ROWS_A_WEIGHT, MOST_WEIGHTS = 10, 1000
# The rows are divided into so many parts; those of each are predicted by a trend of the others.
FOLDS = 5
# The standard deviation of an input that varies, as a share of its largest value.
SMALLEST_SPREAD = 1e-6
# Penalties on the squared weights of standardised inputs, in squared errors of one row.
PENALTIES = np.logspace(-2, 4, 7)
# The furthest rows that are left out, the fewest that can tell, and their share of all; random
# rows and their share; and the rows near each of them.
FURTHEST, FEWEST_FURTHEST, FURTHEST_SHARE = 100, 10, 1 / 20
RANDOM, RANDOM_SHARE, NEAR = 500, 1 / 2, 128
# By how many standard errors and nats a row the furthest rows must gain, and how much random ones
# may lose.
SIGNIFICANT, LEAST_GAIN, MOST_LOST = 2.0, 0.25, 0.01


@dataclass(frozen=True)
class Trend:
    """x ↦ bias + weightsᵀ x."""

    weights: Float[Array, " d"]
    bias: float

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        return x @ self.weights + self.bias

    def mean(self) -> LinearMean:
        found = LinearMean(len(self.weights)).double()
        weights, bias = torch.from_numpy(self.weights)[:, None], torch.tensor([self.bias])
        found.load_state_dict({"weights": weights, "bias": bias})
        return found.requires_grad_(False)


@torch.no_grad()
def learn_trend(
    covariance: Covariance, rows: Observations, generator: torch.Generator
) -> Trend | None:
    """The trend of rows with one target; None where left-out rows do not gain by it."""
    count, width = rows.x.shape
    number = min(FURTHEST, int(FURTHEST_SHARE * count))
    few = number < FEWEST_FURTHEST or width * ROWS_A_WEIGHT > count
    if len(rows.y) > 1 or few or width > MOST_WEIGHTS:
        return None
    x, y, noise = (t.cpu().double().numpy() for t in (rows.x, rows.y[0], rows.noise[0]))
    fold = torch.randperm(count, generator=generator).numpy() % FOLDS
    trend, trends = fit_trends(x, y, np.broadcast_to(noise.mean() / noise, y.shape), fold)
    from_mean = np.abs(trend(x) - trend(x).mean())
    far, others = torch.from_numpy(np.argsort(-from_mean, kind="stable")).tensor_split([number])
    order = torch.randperm(len(others), generator=generator)
    random = others[order[: min(RANDOM, int(RANDOM_SHARE * count))]]
    residuals = torch.from_numpy(np.stack([y - t(x) for t in trends])).to(rows.y)
    targets = replace(rows, y=torch.cat([rows.y, residuals]))
    errors, variance = left_out_errors(covariance, targets, torch.cat([far, random]), fold)
    gain, error = gain_of_second(errors[:, :number], variance[:number])
    at_random, _ = gain_of_second(errors[:, number:], variance[number:])
    taken = gain > max(LEAST_GAIN, SIGNIFICANT * error) and at_random > -MOST_LOST
    return trend if taken else None


def fit_trends(
    x: Float[Array, "n d"], y: Float[Array, " n"], weight: Float[Array, " n"], fold: NDArray
) -> tuple[Trend, list[Trend]]:
    """The ridge regression of all rows, and that of the rows outside of each fold.

    The penalty is that by which the latter predict the rows of their folds best.
    """
    center, scale = x.mean(axis=0), x.std(axis=0)
    # The mean of a constant is rounded: what differs from it is no slope.
    scale = np.where(scale > SMALLEST_SPREAD * np.abs(x).max(axis=0), scale, 1.0)
    A = np.c_[(x - center) / scale, np.ones(len(x))]
    parts = [np.flatnonzero(fold == k) for k in range(FOLDS)]
    weighted = [A[part].T * weight[part] for part in parts]
    grams = [W @ A[part] for W, part in zip(weighted, parts, strict=True)]
    moments = [W @ y[part] for W, part in zip(weighted, parts, strict=True)]
    gram, moment = sum(grams), sum(moments)
    penalised = np.diag(np.r_[np.ones(x.shape[1]), 0.0])

    def solutions(penalty: float) -> list[NDArray]:
        """Of all rows, then of those outside of each fold."""
        systems = [(gram, moment)]
        systems += [(gram - G, moment - m) for G, m in zip(grams, moments, strict=True)]
        return [np.linalg.solve(G + penalty * penalised, m) for G, m in systems]

    def loss(penalty: float) -> float:
        found = zip(parts, solutions(penalty)[1:], strict=True)
        return sum((weight[part] * (y[part] - A[part] @ w) ** 2).sum() for part, w in found)

    found = [
        Trend(w[:-1] / scale, float(w[-1] - (w[:-1] / scale) @ center))
        for w in solutions(min(PENALTIES, key=loss))
    ]
    return found[0], found[1:]


def left_out_errors(
    covariance: Covariance, targets: Observations, chosen: Int[Tensor, " m"], fold: NDArray
) -> tuple[Float[Array, "2 m"], Float[Array, " m"]]:
    """The errors of these rows without a trend and with one, and the variance of both.

    The targets are y, and y less the trend of the rows outside of each fold. Rows that are left out
    are predicted from those near them.
    """
    near = near_predictor(covariance, MergedRows.of_ordered(targets), NEAR, None)
    here = chosen.to(targets.x.device)
    mean, variance = near.leave_one_out(here)
    errors = (targets.y[:, here] - mean).cpu().numpy()
    variance = (variance + targets.noise[:, here])[0].cpu().numpy()
    own = 1 + fold[chosen.numpy()]
    return np.stack([errors[0], errors[own, np.arange(len(own))]]), variance


def gain_of_second(
    errors: Float[Array, "2 m"], variance: Float[Array, " m"]
) -> tuple[float, float]:
    """What the second errors gain, in nats a row, and the standard error of that by the jackknife.

    It is the mean of the gains of two log densities: the one of these variances, and that of a
    normal distribution with one variance for all rows.
    """
    squared, count = errors**2, errors.shape[1]
    total = squared.sum(axis=1, keepdims=True)
    of_rows = 0.5 * (squared[0] - squared[1]) / variance

    def gain(total: Float[Array, "2 k"], of_rows: Array | float, count: int) -> Array:
        # Positive where nothing is left to err about.
        before, after = np.maximum(total, np.finfo(float).eps)
        return 0.5 * (of_rows / count + 0.5 * np.log(before / after))

    without = gain(total - squared, of_rows.sum() - of_rows, count - 1)
    error = np.sqrt((count - 1) * without.var())
    return float(gain(total, of_rows.sum(), count)[0]), float(error)
