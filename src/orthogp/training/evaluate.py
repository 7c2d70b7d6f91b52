"""The bound on all rows, and predictions for any number of them, in chunks."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.bases import Predictor, marginals
from orthogp.model import VariationalGP
from orthogp.training.batches import ColumnSampler, Rows
from orthogp.training.memory import kept_pages

# Numbers in the largest temporary, c × b × rows.
CHUNK_ELEMENTS = {"cpu": 2**19, "cuda": 2**25}
# Beyond this many γ the exact KL, quadratic in them, is estimated from this many columns.
EXACT_KL_LIMIT = 20_000
ESTIMATE_COLUMNS = 4096


def chunk_rows(model: VariationalGP) -> int:
    budget = CHUNK_ELEMENTS.get(model.basis.beta.device.type, CHUNK_ELEMENTS["cpu"])
    return max(64, budget // (model.basis.num_latents * model.basis.beta.shape[0]))


@torch.no_grad()
def full_bound(model: VariationalGP, rows: Rows) -> float:
    """The bound on the whole data set, in nats, in float64.

    The KL is exact up to `EXACT_KL_LIMIT` residual points and an unbiased estimate beyond.
    """
    basis, device = model.basis, model.basis.beta.device
    factor = basis.factor(model.covariance, model.jitter, robust=True)
    count = basis.gamma.shape[0]
    columns = None
    if count > EXACT_KL_LIMIT:
        columns = ColumnSampler(count, ESTIMATE_COLUMNS, 0, device).draw(1)[0]
    empty = rows.x[:0].to(device, torch.float64)
    whole = basis.project(model.covariance, factor, empty, columns)
    total = -basis.kl(model.covariance, whole, basis.coefficients(whole))
    for part in rows.chunks(chunk_rows(model)):
        part = part.to(device, torch.float64)
        p = basis.project(model.covariance, factor, part.x)
        mean, variance = marginals(p, basis.coefficients(p))
        log_prob = model.likelihood.expected_log_prob(
            part.y, mean + model.prior_mean(part.x), variance
        )
        total = total + (log_prob if part.weight is None else log_prob * part.weight).sum()
    return float(total)


@torch.no_grad()
def predict_in_chunks(
    model: VariationalGP, x: Float[Tensor, "n d"], predictor: Predictor | None = None
) -> Iterator[tuple[Float[Tensor, "c m"], Float[Tensor, "c m"]]]:
    """Latent means and variances, chunk after chunk in the order of the rows."""
    predictor = model.predictor() if predictor is None else predictor
    with kept_pages():
        for part in x.split(chunk_rows(model)):
            yield model.predict(part.to(predictor.beta.device), predictor)


@torch.no_grad()
def held_out_log_density(model: VariationalGP, rows: Rows) -> float:
    """The mean log density of rows that the model has not seen, in nats a row."""
    device, total = model.basis.beta.device, 0.0
    predictor = model.predictor()
    for part in rows.chunks(chunk_rows(model)):
        mean, variance = model.predict(part.x.to(device), predictor)
        total = total + model.likelihood.log_density(part.y.to(device), mean, variance).sum()
    return float(total) / len(rows)
