"""The predictor from near rows in the precision that it needs: float32 where that moves little."""

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.kernel.covariance import Covariance
from orthogp.posterior.induced import Features, induced_posterior
from orthogp.posterior.near_rows import NearPredictor
from orthogp.posterior.neighbors import Neighbors
from orthogp.posterior.observations import MergedRows
from orthogp.posterior.predictor import Predictor

# float32 is used where at so many rows, each left out, it moves no mean by more than this share of
# the standard deviation of an observation, and no variance by more than this share of that one's.
PROBES, LARGEST_ROUNDING = 256, 0.01
# Machine code does without float32 where this share of the matrices has no factor in it: each of
# them is worked on again, without machine code, in twenty times the time.
MOST_FAILURES = 0.02


def near_predictor(
    covariance: Covariance,
    merged: MergedRows,
    count: int,
    features: Features | None,
    base: Predictor | None = None,
) -> NearPredictor:
    """The predictor for these rows; `features` are of their distinct inputs.

    None are for near rows alone.
    """
    rows = merged.distinct
    with torch.no_grad(), covariance.parameters_read_once(rows.x):
        neighbors = Neighbors(rows.x.double() * covariance.relevance(rows.x).sqrt())
        induced = None
        if features is not None:
            induced = induced_posterior(covariance, features, rows, leaf=count)
    found = NearPredictor(
        covariance, rows, count, neighbors, features, induced, base, merged=merged
    )
    wide = found.computing_in(torch.float64)
    if rows.x.dtype != torch.float32 or len(rows) < 2:
        return wide
    narrow = found.computing_in(torch.float32)
    return narrow if _rounding_is_small(narrow, wide) else wide


def _rounding_is_small(narrow: NearPredictor, wide: NearPredictor) -> bool:
    """Whether the two agree at some of the rows, each given the others."""
    assert wide.merged is not None
    table = wide.merged.rows
    rows = torch.arange(0, len(table), -(-len(table) // PROBES), device=wide.device)
    moments = wide.leave_one_out(rows)
    try:
        if narrow.share_of_failures(rows) > MOST_FAILURES:
            return False
        others = narrow.leave_one_out(rows)
    except NumericalError:
        return False
    return moves_little(moments, others, table.noise[:, rows])


def moves_little(
    moments: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], noise: Float[Tensor, "s n"]
) -> bool:
    """Whether the other means and variances are the same but for little of the spread."""
    (mean, variance), (other_mean, other_variance) = moments, others
    total = variance + noise
    moved = (other_mean - mean).abs() / total.sqrt(), (other_variance - variance).abs() / total
    return all(bool((share <= LARGEST_ROUNDING).all()) for share in moved)
