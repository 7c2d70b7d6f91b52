"""From a user's table to the rows of a fit: checked, standardised, some of them held out."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orthogp.errors import DataError
from orthogp.estimators.checks import Columns, checked_table, checked_weight
from orthogp.estimators.defaults import count_held_out
from orthogp.estimators.known_noise import row_noise
from orthogp.estimators.scaling import Array, Moments, Scaling
from orthogp.estimators.setting_checks import torch_dtype
from orthogp.estimators.targets import Learner, Targets
from orthogp.execution.team import Team, current_team
from orthogp.training import Rows, Stream


@dataclass(frozen=True)
class Units:
    """The columns and targets that a model was fitted to, and how they are standardised."""

    columns: Columns
    inputs: Scaling
    targets: Targets

    def rows(
        self,
        X: Array,
        y: NDArray,
        weight: Array | None,
        dtype: torch.dtype,
        noise_scale: Array | None = None,
    ) -> Rows:
        weights, scales = (
            None if part is None else torch.tensor(part, dtype=dtype)
            for part in (weight, noise_scale)
        )
        rows = Rows(self.inputs.standardise(X, dtype), self.targets.encode(y), weights, scales)
        # What was finite in float64 need not be in float32.
        rows.require_finite()
        return rows


@dataclass(frozen=True)
class FitData:
    """The rows of a fit.

    `held_out` rows calibrate and decide when to stop; β and γ are chosen from `sample`; the bound
    is computed on `bound_rows`, all of the `num_rows` rows or a random sample of them; `weight` is
    the sum of the weights of all rows. Where the noise of each row is known, `typical_noise` is the
    mean of the variances of each target, in units of y², which the rows' scales multiply.
    """

    units: Units
    train: Rows | Stream
    held_out: Rows | None
    sample: Rows
    bound_rows: Rows
    num_rows: int
    weight: float
    typical_noise: Array | None = None


@dataclass(frozen=True)
class Intake:
    """Prepares the rows of one fit of an estimator of this class with these settings.

    `units` are those of the fit that this one continues; None for one that learns its own.
    """

    estimator: type
    settings: Mapping[str, Any]
    learner: Learner
    units: Units | None

    @property
    def dtype(self) -> torch.dtype:
        return torch_dtype(self.settings["dtype"])

    def check_inputs(self, X: Any, columns: Columns | None) -> tuple[Array, Columns]:
        """X as numbers; its columns must be the ones given, if any."""
        return checked_table(self.estimator, X, columns)

    def learn(self, columns: Columns, moments: Moments, survey: Any) -> Units:
        """The units of a fresh fit to rows of these moments."""
        scaled = self.settings["standardize"]
        inputs = moments.scaling() if scaled else Scaling.none(columns.count)
        return Units(columns, current_team().agree(inputs), self.learner.learn(survey))

    def fit_data(self, X: Any, y: Any, sample_weight: Any, generator: torch.Generator) -> FitData:
        """Rows in memory, and those of them that are held out."""
        X, columns = self.check_inputs(X, self.units and self.units.columns)
        y = self.learner.check(y, len(X))
        weight = checked_weight(sample_weight, len(X))
        noise = row_noise(self.settings["noise_variance"], y)
        if weight is not None:
            weighted = weight > 0
            X, y, weight = X[weighted], y[weighted], weight[weighted]
            noise = None if noise is None else noise[weighted]
        units = self.units
        if units is None:
            moments = Moments.of(X, weight, "X")
            units = self.learn(columns, moments, self.learner.survey(y, weight, None))
        typical = scale = None
        if noise is not None:
            typical = np.array(np.average(noise, 0, weight))
            scale = noise / typical
        rows = units.rows(X, y, weight, self.dtype, scale)
        train, held_out = hold_out(rows, self.settings, generator)
        total = float(len(rows) if weight is None else weight.sum())
        return FitData(units, train, held_out, train, rows, len(rows), total, typical)


def hold_out(
    rows: Rows, settings: Mapping[str, Any], generator: torch.Generator
) -> tuple[Rows, Rows | None]:
    """The rows to train on, and those to calibrate with and to stop early by, if any."""
    count = count_held_out(len(rows), settings["validation_fraction"], settings["early_stopping"])
    if count == 0:
        return rows, None
    order = torch.randperm(len(rows), generator=generator)
    return rows.map(lambda t: t[order[count:]]), rows.map(lambda t: t[order[:count]])


def require_alike(rows: Rows | Stream, team: Team) -> None:
    """Refuses, in every process, rows that differ between processes."""
    if team.size == 1:
        return
    digest = hashlib.sha256(b"".join(rows.outline())).hexdigest()
    if not team.least(int(digest == team.agree(digest))):
        raise DataError(
            f"the {team.size} processes of the group were given different rows; pass the same X "
            "and y to fit in all of them: each works on its own share of every batch"
        )
