"""A posterior whose near rows are in a folder, at given hyperparameters, for Gaussian noise.

q(v) of the inducing points is that of a sample of the rows in memory. Candidates are few or more
rows near x, with or without what β knows; the one that predicts held-out rows best is taken, a
dearer one only where it gains enough.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from orthogp.likelihoods.targets import latents_first
from orthogp.model import VariationalGP
from orthogp.posterior.cells import Cells, measure_recall
from orthogp.posterior.induced import induced_posterior
from orthogp.posterior.near_precision import PROBES as PRECISION_PROBES
from orthogp.posterior.near_precision import moves_little
from orthogp.posterior.row_store import RowStore, write_store
from orthogp.posterior.stored_rows import StoredPredictor, StoredRows
from orthogp.training.batches import Rows
from orthogp.training.every_row import LEAST_GAIN, Conditioned, LeftOut, RowTable, Score
from orthogp.training.streams import Stream

# Rows whose neighbours are read to learn hyperparameters from, and how many neighbours of each.
CENTRES, NEAR_CENTRES = {"cpu": 1024, "cuda": 8192}, 128
# Cells that are searched before it is known how many are needed, and queries that this is known by.
FIRST_PROBES, RECALL_QUERIES = 16, 128


def write_rows(
    folder: str | Path, stream: Stream, sample: Rows, scale: Float[Tensor, " d"]
) -> RowStore:
    """All rows of a stream in a folder, in cells by distances in the units of x times scale."""
    return write_store(folder, _blocks(stream), len(stream), sample.x, scale)


def _blocks(stream: Stream) -> Iterator[tuple[NDArray, NDArray, NDArray | None]]:
    for number in range(len(stream.sizes)):
        rows = stream.block(number)
        if rows is None:
            continue
        y = latents_first(rows.y).mT.float().numpy()
        weight = None if rows.weight is None else rows.weight.float().numpy()
        yield rows.x.float().numpy(), np.ascontiguousarray(y), weight


def neighbourhoods(
    store: RowStore, x: Float[Tensor, "m d"], scale: Float[Tensor, " d"], single: bool
) -> tuple[Rows, Int[Tensor, " centres"]]:
    """Rows of the table near some of its own, as they are there, and where among them those are.

    `single` says that a target is one number.
    """
    cells = Cells(store, scale, FIRST_PROBES)
    x = x[: CENTRES.get(scale.device.type, CENTRES["cpu"])].to(scale.device)
    places, local = cells.nearest(x, NEAR_CENTRES + 1).unique(return_inverse=True)
    found, y, weight = store.parts(cells.rows(places).cpu())
    rows = Rows(found.contiguous(), y[0].clone() if single else y.mT.contiguous(), weight)
    # A row, or another with the same inputs, is the nearest to itself.
    return rows, local[:, 0].unique().cpu()


def condition_on_store(
    model: VariationalGP,
    sample: Rows,
    store: RowStore,
    counts: Sequence[int],
    held_out: Rows,
    score: Score,
) -> Conditioned:
    """The model with the best of the numbers of near rows in `counts`, in rising order."""
    table = RowTable(model, sample, torch.arange(0))
    device = model.basis.beta.device
    x = held_out.x.to(device)
    with torch.no_grad():
        scale = model.covariance.relevance(x).sqrt()
    recall = measure_recall(Cells(store, scale, FIRST_PROBES), x[:RECALL_QUERIES], max(counts))
    first = StoredRows(store, counts[0], recall.probes, recall.share, narrow=False)
    near = Cells(store, scale, recall.probes).nearest(x, max(counts))
    best, best_score = None, -math.inf
    for count, on_beta in [(count, on_beta) for count in counts for on_beta in (False, True)]:
        rows = first.with_settings(count=count)
        if on_beta:
            with torch.no_grad():
                known = table.merged.distinct
                q = induced_posterior(model.covariance, table.features, known, count)
            rows = rows.with_settings(count=count, S=q.S, b=q.b)
        found = _narrowed(_with_rows(model, rows), held_out, near[:, :count])
        found_score = score(found.left_out)
        if best is None or found_score > best_score + LEAST_GAIN:
            best, best_score = found, found_score
    assert best is not None
    return best


def _with_rows(m: VariationalGP, rows: StoredRows) -> VariationalGP:
    return VariationalGP(m.covariance.kernel, m.likelihood, m.basis, m.mean, m.jitter, rows)


def _narrowed(model: VariationalGP, held_out: Rows, near: Int[Tensor, "n k"]) -> Conditioned:
    """The model's prediction of held-out rows, in float32 where that moves little."""
    rows, wide = model.near, model.predictor()
    assert isinstance(rows, StoredRows)
    assert isinstance(wide, StoredPredictor)
    x, probed = held_out.x.to(wide.device), slice(PRECISION_PROBES)
    narrow = replace(wide, dtype=torch.float32)
    moments, others = (p.marginals_given(x[probed], near[probed]) for p in (wide, narrow))
    if moves_little(moments, others, wide.noise):
        model = _with_rows(model, rows.with_settings(narrow=True))
    predictor = model.predictor()
    assert isinstance(predictor, StoredPredictor)
    mean, variance = predictor.marginals_given(x, near)
    mean = mean + model.prior_mean(x.double())
    left_out = LeftOut(held_out.y.to(x.device), mean, variance, torch.arange(len(x)))
    return Conditioned(model, predictor, left_out)
