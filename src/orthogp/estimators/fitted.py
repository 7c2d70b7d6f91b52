"""All that a fit learns, in one object that never changes, and what it predicts of new rows."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orthogp.estimators.calibration import Calibration, LatentScales
from orthogp.estimators.conformal import CrossScores
from orthogp.estimators.intake import Units
from orthogp.estimators.scaling import FARTHEST, Array
from orthogp.estimators.setting_checks import cpu_by_default
from orthogp.estimators.targets import LabelTargets
from orthogp.model import VariationalGP
from orthogp.posterior import AnyPredictor, StoredPredictor
from orthogp.tables import ColumnTable, plain_plan
from orthogp.training import predict_in_chunks
from orthogp.training.log_noise import mean_noise

# Rows that a prediction looks at together: memory does not grow with the table.
CHUNK_ROWS = 2**15


@dataclass(frozen=True)
class Fitted:
    """What an estimator has learned; a fit assigns it as its last act.

    `predictor` is the model's posterior, condensed; `elbo` is in the units of y; `history` has one
    dict a report; `steps` are those since the last fresh start; `scores` are those of rows that
    the fit has not seen, or of every row by a fit without it, by which a coverage can be promised.
    """

    units: Units
    model: VariationalGP
    predictor: AnyPredictor
    calibration: Calibration | LatentScales
    elbo: float
    history: tuple[dict[str, Any], ...]
    steps: int
    scores: NDArray[np.float64] | CrossScores | None = None

    def __post_init__(self) -> None:
        self.model.cache_predictor(self.predictor)

    @staticmethod
    @cpu_by_default()
    def on_device(device: torch.device, model: VariationalGP, **others: Any) -> "Fitted":
        """From all fields but the predictor, ready to predict on `device`."""
        model = model.to(device)
        return Fitted(model=model, predictor=model.predictor(), **others)

    def learned(self) -> dict[str, Any]:
        """All fields but the model and its predictor."""
        names = [field.name for field in fields(self) if field.name not in ("model", "predictor")]
        return {name: getattr(self, name) for name in names}

    def portable(self) -> dict[str, Any]:
        """All fields but the predictor, the model as a copy that needs no device."""
        return self.learned() | {"model": deepcopy(self.model).cpu()}

    def attributes(self) -> dict[str, Any]:
        """What scikit-learn and users expect to find on a fitted estimator, by name."""
        columns, targets = self.units.columns, self.units.targets
        found: dict[str, Any] = {
            "model_": self.model,
            "elbo_": self.elbo,
            "history_": [dict(row) for row in self.history],
            "n_iter_": self.steps,
            "n_features_in_": columns.count,
            "columns_": ColumnTable(self.units.plan or plain_plan(columns.labels)),
        }
        if columns.names is not None:
            found["feature_names_in_"] = columns.names
        if isinstance(targets, LabelTargets):
            found["classes_"] = targets.classes
        else:
            found["noise_learned_"] = self.model.log_noise is not None
            found["target_transform_"] = str(targets.transform or "none")
        return found

    @cached_property
    def noise_predictor(self) -> AnyPredictor:
        """The posterior of the noise's logarithm, condensed, where noise is a function of x."""
        assert self.model.log_noise is not None
        return self.model.log_noise.predictor()

    @cpu_by_default()
    def noise_scale(self, X: Array) -> Tensor | None:
        """What the noise of a new observation is multiplied by, `[c, n]`; None for nothing."""
        log_noise = self.model.log_noise
        if log_noise is None:
            return None
        parts = []
        for start in range(0, len(X), CHUNK_ROWS):
            x = self.standardised(X[start : start + CHUNK_ROWS])
            moments = predict_in_chunks(log_noise, x, self.noise_predictor)
            parts += [mean_noise(mean, variance).cpu() for mean, variance in moments]
        return torch.cat(parts, dim=1)

    def standardised(self, X: Array) -> Tensor:
        """New rows in the units of the model."""
        return self.units.inputs.standardise(X).clamp_(-FARTHEST, FARTHEST)

    @cpu_by_default()
    @torch.no_grad()
    def map_latents(
        self, X: Array, compute: Callable[[slice, Tensor, Tensor], Tensor]
    ) -> NDArray[np.float64]:
        """`compute(rows, mean, variance)` of the latents chunk by chunk, rows in the last axis."""
        parts = [compute(*chunk).cpu() for chunk in self._latents(X)]
        return torch.cat(parts, dim=-1).numpy()

    def _latents(self, X: Array) -> Iterator[tuple[slice, Tensor, Tensor]]:
        stop, size = 0, CHUNK_ROWS
        if isinstance(self.predictor, StoredPredictor):
            size = max(size, self.predictor.block_rows)
        for start in range(0, len(X), size):
            x = self.standardised(X[start : start + size])
            for mean, variance in predict_in_chunks(self.model, x, self.predictor):
                begin, stop = stop, stop + mean.shape[1]
                yield slice(begin, stop), mean, variance
