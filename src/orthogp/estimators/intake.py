"""From a user's table to the rows of a fit: checked, standardised, some of them held out."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators.checks import Columns, checked_weight, missing_targets, targets_where
from orthogp.estimators.defaults import count_held_out
from orthogp.estimators.input_transform import choose_inputs, may_choose_inputs
from orthogp.estimators.inputs import RawRows, checked_rows, encode_rows, learn_plan, rows_where
from orthogp.estimators.known_noise import is_known, row_noise
from orthogp.estimators.scaling import Array, Moments, Scaling
from orthogp.estimators.setting_checks import torch_dtype
from orthogp.estimators.target_transform import choose_transform
from orthogp.estimators.targets import Learner, NumberLearner, Targets
from orthogp.execution.team import Team, current_team
from orthogp.tables import Described, Plan
from orthogp.training import Rows, Stream


@dataclass(frozen=True)
class Units:
    """The columns and targets that a model was fitted to, and how they are standardised.

    `plan` says how columns become inputs; None for models of before there were plans.
    """

    columns: Columns
    inputs: Scaling
    targets: Targets
    plan: Plan | None = None

    @property
    def groups(self) -> tuple[int, ...] | None:
        """The number of each input's lengthscale; None where every input has its own.

        The inputs are those of the columns, and what a map of them adds.
        """
        groups = None if self.plan is None else self.plan.groups
        if groups is None or self.inputs.linear_map is None:
            return groups
        added, first = len(self.inputs.linear_map) - len(groups), max(groups) + 1
        return (*groups, *range(first, first + added))

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

    `units` are those of the fit that this one continues; None for one that learns its own. `adds`
    says that the rows are others than those which the units were learned from.
    """

    estimator: type
    settings: Mapping[str, Any]
    learner: Learner
    units: Units | None
    adds: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return torch_dtype(self.settings["dtype"])

    def check_inputs(self, X: Any, columns: Columns | None) -> tuple[RawRows, Columns]:
        """X as it is to be encoded; its columns must be the ones given, if any."""
        return checked_rows(self.estimator, X, columns, self.units and self.units.plan)

    def learn(self, columns: Columns, plan: Plan, moments: Moments, targets: Targets) -> Units:
        """The units of a fresh fit to rows whose inputs have these moments."""
        scaled = self.settings["standardize"]
        inputs = moments.scaling(plan.groups) if scaled else Scaling.none(len(plan.sources))
        return Units(columns, current_team().agree(inputs), targets, plan)

    def _with_transform(self, X: RawRows, y: NDArray) -> Learner:
        """The learner with the transform of the target that suits these rows."""
        if not isinstance(self.learner, NumberLearner) or self.learner.transform != "auto":
            return self.learner
        known = is_known(self.settings["noise_variance"])
        suits = self.learner.new_likelihood(1).location and not known
        chosen = choose_transform(self.estimator, self.settings, X, y) if suits else None
        return replace(self.learner, transform=chosen)

    def fit_data(self, X: Any, y: Any, sample_weight: Any, generator: torch.Generator) -> FitData:
        """Rows in memory, and those of them that are held out."""
        described = X.learning if isinstance(X, Described) else None
        X, columns = self.check_inputs(X, self.units and self.units.columns)
        weight = checked_weight(sample_weight, len(X))
        noise = None if y is None else row_noise(self.settings["noise_variance"], np.asarray(y))
        if self.settings["missing_targets"] == "drop" and y is not None and len(y) == len(X):
            present = ~missing_targets(y)
            if not present.any():
                raise DataError("y is missing in every row; there is nothing to learn from")
            X, y = rows_where(X, present), targets_where(y, present)
            weight = None if weight is None else weight[present]
            noise = None if noise is None else noise[present]
        y = self.learner.check(y, len(X))
        if weight is not None:
            weighted = weight > 0
            X, y, weight = rows_where(X, weighted), y[weighted], weight[weighted]
            noise = None if noise is None else noise[weighted]
        units = self.units
        if units is None:
            learner = self._with_transform(X, y)
            if noise is not None and getattr(learner, "transform", None) is not None:
                raise ConfigurationError(
                    "noise_variance is in units of y², and target_transform changes them; pass one "
                    "of the two"
                )
            targets = learner.learn(learner.survey(y, weight, None))
            statistics = targets.statistics(y)
            plan = learn_plan(self.settings, X, columns, statistics, described)
            if may_choose_inputs(self.settings):
                plan = choose_inputs(plan, X, statistics)
            X = encode_rows(plan, X, statistics)
            units = self.learn(columns, plan, Moments.of(X, weight, "X"), targets)
        else:
            X = encode_rows(units.plan, X, None if self.adds else units.targets.statistics(y))
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
            "and y to fit in all of them, or shards=True where each has rows of its own"
        )
