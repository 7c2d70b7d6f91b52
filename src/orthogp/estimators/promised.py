"""Fits that promise a coverage: which rows are scored by which fit, in memory and in a file."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import is_classifier
from torch import Tensor

from orthogp.errors import FileError
from orthogp.estimators.checks import checked_labels
from orthogp.estimators.conformal import (
    FOLDS,
    CrossScores,
    cross_bounds,
    fold_rows,
    rank_of,
    split_rows,
)
from orthogp.estimators.fitted import Fitted
from orthogp.estimators.inputs import TableRows, encoded
from orthogp.estimators.predictive import moments_of, noise_scale_at, parts_of
from orthogp.estimators.setting_checks import seed_from
from orthogp.execution.team import current_team
from orthogp.tables import Plan

# Ends of intervals that are compared at once.
CHUNK_NUMBERS = 2**22


def learn_split(estimator: Any, table: TableRows, classes: NDArray | None) -> Fitted:
    """Fits to some of the rows; the others, which no part of the fit has seen, are scored."""
    seed = current_team().agree(seed_from(estimator.random_state))
    rows, scored = map(table.take, split_rows(len(table), seed))
    if classes is None and is_classifier(estimator):
        # Some may be among the scored rows alone.
        classes = checked_labels(np.concatenate([rows.y, scored.y]))
    found = estimator._learn(*rows, None, classes, adds=False)
    return replace(found, scores=_scores(estimator, found, scored))


def learn_cross(estimator: Any, table: TableRows, classes: NDArray | None) -> Fitted:
    """Fits to all rows, and to all but those of each fold, which are scored by that fit."""
    seed = current_team().agree(seed_from(estimator.random_state))
    folds, rows = fold_rows(len(table), seed), table.take(np.arange(len(table)))
    if classes is None and is_classifier(estimator):
        classes = checked_labels(rows.y)
    found = estimator._learn(*rows, None, classes, adds=False)
    own = {"callbacks": (), "verbose": False, "checkpoint_dir": None, "random_state": seed}
    settings = {**estimator.get_params(deep=False), **own, "coverage_guarantee": False}
    estimators, scores = [], np.empty(len(table))
    for fold in range(FOLDS):
        left_out = folds == fold
        other = type(estimator)(**settings)
        others = table.take(np.flatnonzero(~left_out))
        other._set_fitted(other._learn(*others, None, classes, adds=False))
        scores[left_out] = _scores(other, other._fitted, table.take(np.flatnonzero(left_out)))
        estimators.append(other)
    return replace(found, scores=CrossScores(tuple(estimators), scores, folds))


def _scores(estimator: Any, fitted: Fitted, scored: Any) -> NDArray[np.float64]:
    inputs = encoded(type(estimator), scored.X, fitted.units.columns, fitted.units.plan)
    return estimator._scores(fitted, inputs, scored.y)


def cross_interval(
    cross: CrossScores, X: Any, coverage: float, noise_variance: ArrayLike | None
) -> tuple[NDArray, NDArray]:
    """The ends μ_k(x) ∓ R_i σ_k(x) of every scored row i, k its fold, at their ranks."""
    parts = []
    for fold, estimator in enumerate(cross.estimators):
        fitted, inputs = estimator._prediction_inputs(X)
        scale = noise_scale_at(fitted, inputs, noise_variance)
        mean, std = fitted.map_latents(inputs, moments_of(fitted, scale))
        parts.append((mean, std, cross.scores[cross.folds == fold], parts_of(fitted).targets))
    targets, rows = parts[0][0].shape

    def ends(some: slice, sign: float) -> NDArray:
        return np.stack(
            [
                of.in_units(mean[:, some] + sign * score * std[:, some])
                for mean, std, scores, of in parts
                for score in scores
            ]
        )

    step, found = max(1, CHUNK_NUMBERS // (len(cross.scores) * targets)), []
    for start in range(0, rows, step):
        some = slice(start, start + step)
        found.append(cross_bounds(ends(some, -1.0), ends(some, 1.0), coverage))
    low, high = (np.concatenate(part) for part in zip(*found, strict=True))
    return low, high


def cross_set(cross: CrossScores, X: Any, coverage: float) -> NDArray[np.bool_]:
    """The classes whose scores 1 − p_k are above fewer than (n + 1) c of those of the rows."""
    above = np.zeros((), dtype=np.int64)
    for fold, estimator in enumerate(cross.estimators):
        scores = np.sort(cross.scores[cross.folds == fold])
        above = above + np.searchsorted(scores, 1.0 - estimator.predict_proba(X), side="left")
    return above < rank_of(len(cross.scores), coverage)


def plans_of(estimator: Any) -> tuple[Plan, ...]:
    """The plan of a fitted estimator, and those of the ones fitted without each fold."""
    scores = estimator._fitted.scores
    others = scores.estimators if isinstance(scores, CrossScores) else ()
    return tuple(found.columns_.plan for found in (estimator, *others))


def pack_cross(cross: CrossScores) -> dict[str, Tensor]:
    """As tensors of a file: each estimator is the bytes of a file of its own."""
    found = {"cross_scores": torch.from_numpy(cross.scores)}
    found["cross_folds"] = torch.from_numpy(cross.folds)
    with tempfile.TemporaryDirectory() as folder:
        for fold, estimator in enumerate(cross.estimators):
            path = Path(folder) / f"fold-{fold}"
            estimator.save(path)
            content = np.frombuffer(path.read_bytes(), np.uint8).copy()
            found[f"cross_fold_{fold}"] = torch.from_numpy(content)
    return found


def unpack_cross(
    estimator: type, tensors: Mapping[str, Tensor], passed: Mapping[str, Any], device: Any
) -> CrossScores | None:
    """The reverse of `pack_cross`, for untrusted input; `passed` are parts that no file holds."""
    if "cross_scores" not in tensors:
        return None
    scores, folds = tensors["cross_scores"].numpy(), tensors["cross_folds"].numpy()
    plain = scores.dtype == np.float64 and folds.dtype == np.int64 and scores.ndim == 1
    valid = plain and folds.shape == scores.shape and len(scores) and np.isfinite(scores).all()
    if not valid or folds.min() < 0 or folds.max() >= FOLDS:
        raise FileError("its scores of folds are not those of rows")
    estimators = []
    with tempfile.TemporaryDirectory() as folder:
        for fold in range(FOLDS):
            path = Path(folder) / f"fold-{fold}"
            path.write_bytes(tensors[f"cross_fold_{fold}"].to(torch.uint8).numpy().tobytes())
            estimators.append(estimator.load(path, **passed, device=device))
    return CrossScores(tuple(estimators), scores, folds)
