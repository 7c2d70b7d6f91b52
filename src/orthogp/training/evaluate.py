"""The bound on all rows, and predictions for any number of them, in chunks."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.likelihoods import Likelihood
from orthogp.likelihoods.row_noise import log_jacobian, with_unit_scale
from orthogp.likelihoods.targets import latents_first
from orthogp.model import VariationalGP
from orthogp.posterior import AnyPredictor, Basis, StoredPredictor, kl_divergence, marginals
from orthogp.training.batches import ColumnSampler, Rows
from orthogp.training.streams import Stream

T = TypeVar("T", Tensor, Rows)
U = TypeVar("U")
# Numbers in the largest temporary: c × b × rows of the bound, b × rows of a prediction.
BOUND_ELEMENTS = {"cpu": 2**19, "cuda": 2**25}
PREDICTION_ELEMENTS = {"cpu": 2**20, "cuda": 2**25}
# Beyond this many γ the exact KL, quadratic in them, is estimated from this many columns.
EXACT_KL_LIMIT = 50_000
ESTIMATE_COLUMNS = 4096


def bound_rows(basis: Basis) -> int:
    """How many rows the bound takes at a time."""
    return _rows(basis, BOUND_ELEMENTS, basis.num_latents)


def prediction_rows(basis: Basis) -> int:
    """How many rows are predicted at a time."""
    return _rows(basis, PREDICTION_ELEMENTS, 1)


def _rows(basis: Basis, elements: dict[str, int], latents: int) -> int:
    budget = elements.get(basis.beta.device.type, elements["cpu"])
    # Every chunk costs the cube of |β| besides.
    size = basis.beta.shape[0]
    return max(64, size, budget // (latents * size))


@torch.no_grad()
def full_bound(model: VariationalGP, rows: Rows | Stream, num_rows: int | None = None) -> float:
    """The bound on the whole data set, in nats, in float64.

    Where `rows` are a random sample of `num_rows` it is an unbiased estimate. The KL is exact up
    to `EXACT_KL_LIMIT` residual points and where these are the rows, an unbiased estimate beyond.
    """
    basis, device = model.basis, model.basis.beta.device
    factor = basis.factor(model.covariance, model.jitter, robust=True)
    count, places = basis.gamma.shape[0], _places_among(basis.gamma, rows)
    columns = None
    if count > EXACT_KL_LIMIT and places is None:
        columns = ColumnSampler(count, ESTIMATE_COLUMNS, 0, device).draw(1)[0]
    whole = basis.project(model.covariance, factor, basis.beta[:0].double(), columns)
    q = basis.coefficients(whole)
    kl = kl_divergence(whole, q)
    total, done = torch.zeros_like(kl), 0

    def expected_log_prob(part: Rows) -> tuple[Tensor, int]:
        part = part.to(device, torch.float64)
        p = whole.at(part.x)
        if places is not None:
            p.at_x = whole.at_gamma[:, places[done : done + len(part)]]
        mean, variance = marginals(p, q)
        y, mean = part.y, mean + model.prior_mean(part.x)
        if part.noise_scale is None:
            log_prob = model.likelihood.expected_log_prob(y, mean, variance)
        else:
            scale = latents_first(part.noise_scale)
            log_prob = model.likelihood.expected_log_prob(
                *with_unit_scale(scale, y, mean, variance)
            ) + log_jacobian(scale, len(mean))
        log_prob = log_prob if part.weight is None else log_prob * part.weight
        return log_prob.sum(), len(part)

    size = bound_rows(basis)
    for found, taken in _in_memory(rows.chunks(size), size, device, expected_log_prob):
        total, done = total + found, done + taken
    share = 1.0 if num_rows is None else len(rows) / num_rows
    return float(total / share - kl)


def _places_among(points: Float[Tensor, "g d"], rows: Rows | Stream) -> Int[Tensor, " n"] | None:
    """Which of as many points each row is; None unless each is one of them."""
    if not isinstance(rows, Rows) or len(rows) != len(points):
        return None
    both = torch.cat([points.double(), rows.x.to(points.device, torch.float64)])
    found, places = both.unique(dim=0, return_inverse=True)
    at_points, at_rows = places.split(len(points))
    which = at_points.new_full((len(found),), -1)
    which[at_points] = torch.arange(len(points), device=points.device)
    chosen = which[at_rows]
    return None if bool((chosen < 0).any()) else chosen


@torch.no_grad()
def predict_in_chunks(
    model: VariationalGP,
    x: Float[Tensor, "n d"],
    predictor: AnyPredictor | None = None,
) -> Iterator[tuple[Float[Tensor, "c m"], Float[Tensor, "c m"]]]:
    """Latent means and variances, chunk after chunk in the order of the rows.

    Where a device's memory ends, chunks are halved, and stay so.
    """
    predictor = model.predictor() if predictor is None else predictor
    device = predictor.device

    def predict(part: Tensor) -> tuple[Tensor, Tensor]:
        return model.predict(part.to(device), predictor)

    size = prediction_rows(model.basis)
    if isinstance(predictor, StoredPredictor):
        size = predictor.block_rows
    yield from _in_memory([x], size, device, predict)


def latents_at(
    model: VariationalGP, x: Float[Tensor, "n d"]
) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
    """Mean and variance of the latents at any number of rows."""
    mean, variance = zip(*predict_in_chunks(model, x), strict=True)
    return torch.cat(mean, dim=1), torch.cat(variance, dim=1)


@torch.no_grad()
def held_out_log_density(model: VariationalGP, rows: Rows) -> float:
    """The mean log density of rows that the model has not seen, in nats a row."""
    device, total = model.basis.beta.device, 0.0
    predictor = model.predictor()

    def log_density(part: Rows) -> Tensor:
        mean, variance = model.predict(part.x.to(device), predictor)
        return model.likelihood.log_density(part.y.to(device), mean, variance).sum()

    for found in _in_memory([rows], prediction_rows(model.basis), device, log_density):
        total = total + found
    return float(total) / len(rows)


@torch.no_grad()
def gain_over_constant(
    likelihood: Likelihood,
    y: Shaped[Tensor, "n *outputs"],
    mean: Float[Tensor, "c n"],
    variance: Float[Tensor, "c n"],
) -> float:
    """How much more likely rows are than if the latent mean were the same everywhere.

    The mean over the rows, in nats; variances stay as they are. Zero or less where the model has
    found nothing in x that says anything about y.
    """
    y, constant = y.to(mean.device), mean.mean(1, keepdim=True).expand_as(mean)
    density = likelihood.log_density
    return float((density(y, mean, variance) - density(y, constant, variance)).mean())


def _in_memory(
    parts: Iterable[T], rows: int, device: torch.device, work: Callable[[T], U]
) -> Iterator[U]:
    """The work on every part, at most so many rows at a time, in their order.

    Where a device's memory ends, parts are halved, and stay so.
    """
    for whole in parts:
        waiting = [whole]
        while waiting:
            part = waiting.pop()
            if len(part) > rows:
                cut: Any = part.chunks if isinstance(part, Rows) else part.split
                waiting += reversed([*cut(rows)])
                continue
            try:
                found = work(part)
            except torch.OutOfMemoryError as error:
                rows = len(part) // 2
                if rows == 0:
                    raise NumericalError(
                        f"{device} has no memory left for even one row; free some, or use "
                        "device='cpu'"
                    ) from error
                waiting.append(part)
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                continue
            yield found
