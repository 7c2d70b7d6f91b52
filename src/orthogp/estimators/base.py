"""What the regressor and the classifier share: building a model, and training it."""

import math
import warnings
from abc import abstractmethod
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import torch
from gpytorch.means import Mean
from numpy.typing import NDArray
from torch import Tensor

from orthogp import training
from orthogp.errors import DataError
from orthogp.estimators.calibration import Calibration, LatentScales
from orthogp.estimators.checks import checked_numbers, checked_table, require_fitted
from orthogp.estimators.defaults import (
    first_config,
    last_config,
    point_counts,
    start_steps,
    starts_by_evidence,
    training_config,
)
from orthogp.estimators.fitted import Fitted
from orthogp.estimators.intake import Intake, Table
from orthogp.estimators.persistent import Persistent
from orthogp.estimators.scaling import Array, Scaling
from orthogp.estimators.setting_checks import check_settings, drawn_seed, present_device
from orthogp.estimators.settings import cpu_by_default, no_type_check, torch_dtype
from orthogp.estimators.spread import starting_kernel
from orthogp.estimators.streamed import is_large, loaded, streamed_table
from orthogp.estimators.targets import Learner, Targets
from orthogp.estimators.together import require_alike
from orthogp.execution.team import current_team
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian, Likelihood
from orthogp.model import VariationalGP, build_basis
from orthogp.posterior.points import choose_beta, choose_gamma
from orthogp.sources import as_source
from orthogp.training import (
    ProgressBar,
    Rows,
    TrainingConfig,
    full_bound,
    gain_over_constant,
    predict_in_chunks,
    start_hyperparameters,
)

# A fit is compared with a constant at so many rows, and is to be better by so many nats a row.
JUDGED_ROWS, LEAST_GAIN = 2000, 5e-4


@no_type_check
class OrthogonalGP(Persistent):
    """An estimator with a `VariationalGP` inside; a subclass says what its targets are.

    After a fit: `elbo_`, the bound on all rows given (for a table that was streamed an unbiased
    estimate, from a sample of its rows), in nats and in the units of y; `history_`,
    one dict a report; `n_iter_`, the steps since the last fresh start; `model_`, the torch module.
    The last steps, which take in the rows that calibrated, count for neither. A fit that fails
    leaves all of this, and every prediction, as it was.
    """

    @abstractmethod
    def _learner(self, classes: NDArray | None) -> Learner:
        """How targets are checked and learned; `classes` are all that may ever come."""

    @abstractmethod
    def _prior(self, y: Tensor, targets: Targets) -> tuple[Likelihood, Mean | None, float]:
        """A fresh likelihood, the prior mean, and the variance of the default kernel's parts."""

    @abstractmethod
    def _identity(self, targets: Targets) -> Calibration | LatentScales:
        """The calibration that leaves predictions as they are."""

    @abstractmethod
    def _calibrate(
        self, likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor
    ) -> Calibration | LatentScales:
        """The calibration learned from targets that training has not seen, given the latents."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Trains from scratch, or goes on from the last fit with `warm_start`.

        In place of arrays X may be the path of a Parquet file or directory, with names of columns
        for y and sample_weight; a NumPy memory map; or, alone, a torch Dataset or one of
        `orthogp.sources`. What is too large for memory is streamed.

        A row's weight multiplies its expected log-likelihood; rows of weight zero are left out.
        In an initialised process group every process calls it with the same rows, works on its
        share of each batch, and ends with the same model; callbacks are the first process's.
        """
        return self._fit(X, y, sample_weight, goes_on=self.warm_start)

    @cpu_by_default()
    def _fit(
        self, X: Any, y: Any, sample_weight: Any, goes_on: bool, classes: NDArray | None = None
    ) -> Self:
        """All or nothing: whatever fails on the way leaves the estimator as it was."""
        before = getattr(self, "_fitted", None) if goes_on else None
        self._adopt(self._learn(X, y, sample_weight, before, classes))
        return self

    def _learn(
        self, X: Any, y: Any, sample_weight: Any, before: Fitted | None, classes: NDArray | None
    ) -> Fitted:
        """What these rows teach, going on from what was learned before, if anything."""
        settings = self.get_params(deep=False)
        check_settings(settings)
        device = present_device(self.device)
        # Among several processes the first decides, so that all end with the same bits.
        team = current_team()
        seed = team.agree(drawn_seed(self.random_state))
        generator = torch.Generator().manual_seed(seed)
        intake = Intake(type(self), settings, self._learner(classes), before and before.units)
        table = _table(intake, X, y, sample_weight, generator)
        require_alike(table.train, team)
        train, held = table.train, table.held
        if before is None:
            done, history = 0, ()
            model, started = self._new_model(table, generator)
        else:
            done, history = before.steps, before.history
            # Training moves a model in place, and this run may yet fail.
            model = deepcopy(before.model)
            started = starts_by_evidence(settings, len(train), model.likelihood)
        model.to(device)
        # A run that goes on must not take the checkpoints of the one before for its own.
        gaussian = model.likelihood.gaussian
        config = training_config(settings, len(train), gaussian, seed + done, started)
        takes_in = held is not None and isinstance(train, Rows)
        if takes_in:
            config = first_config(config)
        bar = (ProgressBar(config.max_steps, config.max_time),) if self.verbose else ()
        callbacks = (*self.callbacks, *bar)
        # A look at thousands of rows at every report is worth its time only to stop early.
        judges = held if self.early_stopping else None
        result = training.fit(model, train, config, judges, callbacks, self.checkpoint_dir)
        if team.leads:
            _warn_if_nothing_learned(model, table.judged if held is None else held)
        if held is not None:
            found = self._calibrate(model.likelihood, held.y, *_latents(model, held))
            calibration = team.agree(found)
        else:
            calibration = before.calibration if before else self._identity(table.units.targets)
        if takes_in and result.reason != "interrupt":
            config = training_config(settings, len(table.judged), gaussian, seed + done, started)
            self._take_in(model, table.judged, config, result.steps)
        elapsed = history[-1]["seconds"] if history else 0.0
        reports = [
            replace(r, step=r.step + done, seconds=r.seconds + elapsed)
            for r in team.agree(result.history)
        ]
        bound = team.agree(full_bound(model, table.judged, table.num_rows))
        return Fitted(
            units=table.units,
            model=model,
            predictor=model.predictor(),
            calibration=calibration,
            elbo=bound + table.weight * table.units.targets.log_jacobian,
            history=(*history, *map(asdict, reports)),
            steps=done + result.steps,
        )

    def _take_in(
        self, model: VariationalGP, rows: Rows, config: TrainingConfig, steps: int
    ) -> None:
        """Lets what was held out to calibrate count as well, now that it has calibrated."""
        last = last_config(config, steps)
        if last is None:
            return
        folder = self.checkpoint_dir
        # A run of its own: it would take the checkpoints of the first for a stranger's.
        folder = None if folder is None else Path(folder) / "held-out"
        training.fit(model, rows, last, checkpoint_dir=folder)

    def _new_model(self, table: Table, generator: torch.Generator) -> tuple[VariationalGP, bool]:
        """A model of a table at its prior, with β and γ among the rows of its sample.

        And whether a few of them said where its hyperparameters start.
        """
        units, rows, num_rows = table.units, table.sample, len(table.train)
        likelihood, mean, variance = self._prior(rows.y, units.targets)
        settings = self.get_params(deep=False)
        num_inducing, num_residual = point_counts(settings, num_rows)
        beta = self._given_points("inducing_points", units.inputs)
        if beta is None:
            beta = choose_beta(rows.x, num_inducing, generator)
        gamma = self._given_points("residual_points", units.inputs)
        if gamma is None or self.basis == "coupled":
            gamma = choose_gamma(rows.x, num_residual, beta, generator)
        if self.kernel is None:
            kernel = starting_kernel(settings, rows.x, num_rows, variance)
        else:
            kernel = deepcopy(self.kernel)
        dtype = torch_dtype(self.dtype)
        kernel, likelihood = kernel.to(dtype), likelihood.to(dtype)
        started = starts_by_evidence(settings, num_rows, likelihood)
        if started:
            assert isinstance(likelihood, Gaussian)
            steps = start_steps(settings)
            started = start_hyperparameters(Covariance(kernel), likelihood, rows, generator, steps)
        basis = build_basis(
            self.basis, kernel, beta, gamma, likelihood.num_latents, self.optimizer,
            self.hold_fixed, self.jitter,
        )  # fmt: skip
        model = VariationalGP(kernel, likelihood, basis, mean, self.jitter)
        return model.to(dtype), started

    def _given_points(self, name: str, inputs: Scaling) -> Tensor | None:
        points = getattr(self, name)
        if points is None:
            return None
        points = checked_numbers(points, name)
        expected = len(inputs.scale)
        if points.ndim != 2 or points.shape[1] != expected:
            raise DataError(f"{name} has shape {points.shape}; expected (m, {expected})")
        return inputs.standardise(points, torch_dtype(self.dtype))

    def _asked(self, X: Any) -> tuple[Fitted, Array]:
        """What was learned, and the rows that are asked about."""
        require_fitted(self)
        fitted = self._fitted
        return fitted, checked_table(type(self), X, fitted.units.columns)[0]


def _table(intake: Intake, X: Any, y: Any, sample_weight: Any, generator: torch.Generator) -> Table:
    """The rows in memory, or a stream of those that are too many."""
    source = as_source(X, y, sample_weight)
    if source is None:
        return intake.table(X, y, sample_weight, generator)
    if is_large(source):
        return streamed_table(intake, source, generator)
    return intake.table(*loaded(source), generator)


def _warn_if_nothing_learned(model: VariationalGP, rows: Rows) -> None:
    """Warns of a fit that predicts rows, at best held-out ones, no better than a constant does."""
    rows = rows.map(lambda t: t[:: math.ceil(len(rows) / JUDGED_ROWS)])
    varies = bool((rows.y != rows.y[:1]).any())
    # Written so that NaN counts as nothing learned.
    if varies and not gain_over_constant(model, rows) > LEAST_GAIN:
        warnings.warn(
            "the fit predicts y no better than a constant would: either X says nothing about y, or "
            "training did not find what it says; try more steps (max_steps), a smaller "
            "learning_rate, fewer points (n_inducing, n_residual), or a kernel that suits the data",
            stacklevel=5,
        )


def _latents(model: VariationalGP, rows: Rows) -> tuple[Tensor, Tensor]:
    """Latent means and variances at rows in the units of the model."""
    chunks = predict_in_chunks(model, rows.x)
    mean, variance = (torch.cat(part, dim=1) for part in zip(*chunks, strict=True))
    return mean, variance
