"""Where β and γ start: k-means centres and a random sample, no two points the same."""

import warnings

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.errors import DataError

KMEANS_ROWS = 20_000
KMEANS_ITERATIONS = 30


def choose_beta(
    x: Float[Tensor, "n d"], count: int, generator: torch.Generator
) -> Float[Tensor, "b d"]:
    """At most `count` distinct k-means centres of a subsample of x, in the dtype of x.

    Data with many duplicates give coincident centres; those are replaced by distinct rows, and
    where there are not enough distinct rows there are fewer points.
    """
    # Imported here: the torch layer does without scikit-learn until it chooses points.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    _require_rows(x)
    rows = max(KMEANS_ROWS, 10 * count)
    sample = x if x.shape[0] <= rows else x[_permutation(x, generator)[:rows]]
    distinct = torch.unique(sample, dim=0)
    if distinct.shape[0] <= count:
        return distinct
    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans = KMeans(count, max_iter=KMEANS_ITERATIONS, random_state=seed)
        # In float32 scikit-learn's search for starting centres takes twice as long.
        fitted = kmeans.fit(np.ascontiguousarray(sample.cpu().double().numpy()))
    centres = torch.as_tensor(fitted.cluster_centers_).to(x)
    # In the order of the rows, not sorted: the choice is then the same for columns in any order.
    return _distinct_first(centres, _unseen(sample, sample[:0]), count, generator)


def choose_gamma(
    x: Float[Tensor, "n d"],
    count: int,
    beta: Float[Tensor, "b d"],
    generator: torch.Generator,
) -> Float[Tensor, "g d"]:
    """At most `count` random rows of x that differ by value from β and from each other."""
    _require_rows(x)
    order = _permutation(x, generator)
    # Twice as many candidates as needed are nearly always enough; all rows are looked at last.
    for candidates in (2 * count, x.shape[0]):
        chosen = _unseen(x[order[:candidates]], beta)[:count]
        if chosen.shape[0] == count:
            break
    return chosen


def _distinct_first(
    centres: Tensor, rows: Tensor, count: int, generator: torch.Generator
) -> Tensor:
    centres = _unseen(centres, centres[:0])
    fill = rows[_permutation(rows, generator)]
    return torch.cat([centres, _unseen(fill, centres)])[:count]


def _unseen(candidates: Tensor, taken: Tensor) -> Tensor:
    """The first occurrence of each candidate row that equals no taken row, in their order."""
    both = torch.cat([taken.to(candidates), candidates])
    _, group = torch.unique(both, dim=0, return_inverse=True)
    position = torch.arange(both.shape[0], device=both.device)
    first = torch.full_like(position, both.shape[0]).scatter_reduce(0, group, position, "amin")
    keep = first[group] == position
    keep[: taken.shape[0]] = False
    return both[keep]


def _permutation(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randperm(x.shape[0], generator=generator, device=generator.device).to(x.device)


def _require_rows(x: Tensor) -> None:
    if x.shape[0] == 0:
        raise DataError("x has no rows; at least one is needed to place inducing points")
