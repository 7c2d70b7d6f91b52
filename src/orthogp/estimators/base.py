"""What the regressor and the classifier share: checks, building, training, rows in chunks."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gpytorch.means import Mean
from numpy.typing import NDArray
from torch import Tensor

from orthogp import training
from orthogp.covariance import Covariance
from orthogp.errors import DataError
from orthogp.estimators.checks import (
    checked_numbers,
    checked_table,
    checked_weight,
    require_fitted,
)
from orthogp.estimators.defaults import (
    count_held_out,
    first_config,
    last_config,
    point_counts,
    start_steps,
    starts_by_evidence,
    training_config,
)
from orthogp.estimators.persistent import Persistent
from orthogp.estimators.scaling import Array, Moments, Scaling
from orthogp.estimators.setting_checks import check_settings, drawn_seed, present_device
from orthogp.estimators.settings import no_type_check, torch_dtype
from orthogp.estimators.spread import starting_kernel
from orthogp.estimators.streamed import Table, is_large, loaded, streamed_table
from orthogp.estimators.together import require_alike
from orthogp.likelihoods import Gaussian, Likelihood
from orthogp.model import VariationalGP, build_basis
from orthogp.points import choose_beta, choose_gamma
from orthogp.sources import as_source
from orthogp.team import current_team
from orthogp.training import (
    ProgressBar,
    Rows,
    TrainingConfig,
    full_bound,
    predict_in_chunks,
    start_hyperparameters,
)

# Rows that a prediction looks at together: memory does not grow with the table.
CHUNK_ROWS = 2**15
# In units of a column's spread. So far away radial kernels have long forgotten the data, and the
# squares of distances are still numbers.
FARTHEST = 1e100


@no_type_check
class OrthogonalGP(Persistent):
    """An estimator with a `VariationalGP` inside; a subclass says what its targets are.

    After a fit: `elbo_`, the bound on all rows given (for a table that was streamed an unbiased
    estimate, from a sample of its rows), in nats and in the units of y; `history_`,
    one dict a report; `n_iter_`, the steps since the last fresh start; `model_`, the torch module.
    The last steps, which take in the rows that calibrated, count for neither.
    """

    @abstractmethod
    def _checked_targets(self, y: Any, num_rows: int) -> NDArray:
        """Refuses targets that are missing, or that are not of the right kind and number."""

    @abstractmethod
    def _survey_targets(self, y: NDArray, weight: Array | None, before: Any) -> Any:
        """What `_learn_targets` must know of these targets and of those surveyed before."""

    @abstractmethod
    def _learn_targets(self, survey: Any, classes: NDArray | None) -> None:
        """Learns how `_encode` and its inverse are to work."""

    @abstractmethod
    def _encode(self, y: NDArray) -> Tensor:
        """Targets as the likelihood takes them."""

    @abstractmethod
    def _prior(self, y: Tensor) -> tuple[Likelihood, Mean | None, float]:
        """A fresh likelihood, the prior mean, and the variance of the default kernel's parts."""

    @abstractmethod
    def _calibrate(self, held: Rows | None, fresh: bool) -> None:
        """Learns from rows that training has not seen."""

    @abstractmethod
    def _log_jacobian(self) -> float:
        """log |∂(the model's y) / ∂(the user's y)| of one row."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Trains from scratch, or goes on from the last fit with `warm_start`.

        In place of arrays X may be the path of a Parquet file or directory, with names of columns
        for y and sample_weight; a NumPy memory map; or, alone, a torch Dataset or one of
        `orthogp.sources`. What is too large for memory is streamed.

        A row's weight multiplies its expected log-likelihood; rows of weight zero are left out.
        In an initialised process group every process calls it with the same rows, works on its
        share of each batch, and ends with the same model; callbacks are the first process's.
        """
        return self._fit(X, y, sample_weight, not (self.warm_start and hasattr(self, "model_")))

    def _fit(
        self, X: Any, y: Any, sample_weight: Any, fresh: bool, classes: NDArray | None = None
    ) -> Self:
        check_settings(self.get_params(deep=False))
        device = present_device(self.device)
        # Among several processes the first decides, so that all end with the same bits.
        team = current_team()
        seed = team.agree(drawn_seed(self.random_state))
        generator = torch.Generator().manual_seed(seed)
        source = as_source(X, y, sample_weight)
        if source is not None and is_large(source):
            table = streamed_table(self, source, fresh, classes, generator)
        else:
            if source is not None:
                X, y, sample_weight = loaded(source)
            table = self._table(X, y, sample_weight, fresh, classes, generator)
        require_alike(table.train, team)
        train, held = table.train, table.held
        settings = self.get_params(deep=False)
        if fresh:
            model, started = self._new_model(table.sample, len(train), generator)
        else:
            model = self.model_
            started = starts_by_evidence(settings, len(train), model.likelihood)
        model.to(device)
        done, history = (0, []) if fresh else (self.n_iter_, self.history_)
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
        self.model_, self._predictor = model, model.predictor()
        self._calibrate(held, fresh)
        if takes_in and result.reason != "interrupt":
            config = training_config(settings, len(table.judged), gaussian, seed + done, started)
            self._take_in(table.judged, config, result.steps)
        elapsed = history[-1]["seconds"] if history else 0.0
        reports = [
            replace(r, step=r.step + done, seconds=r.seconds + elapsed)
            for r in team.agree(result.history)
        ]
        self.history_ = [*history, *map(asdict, reports)]
        self.n_iter_ = done + result.steps
        bound = team.agree(full_bound(model, table.judged, table.num_rows))
        self.elbo_ = bound + table.weight * self._log_jacobian()
        return self

    def _take_in(self, rows: Rows, config: TrainingConfig, steps: int) -> None:
        """Lets what was held out to calibrate count as well, now that it has calibrated."""
        last = last_config(config, steps)
        if last is None:
            return
        folder = self.checkpoint_dir
        # A run of its own: it would take the checkpoints of the first for a stranger's.
        folder = None if folder is None else Path(folder) / "held-out"
        training.fit(self.model_, rows, last, checkpoint_dir=folder)
        self._predictor = self.model_.predictor()

    def _table(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        fresh: bool,
        classes: NDArray | None,
        generator: torch.Generator,
    ) -> Table:
        """Rows in memory, and those of them that are held out."""
        X, y, weight = self._checked(X, y, sample_weight, fresh)
        if fresh:
            self._learn_inputs(Moments.of(X, weight, "X"))
            self._learn_targets(self._survey_targets(y, weight, None), classes)
        rows = self._rows(X, y, weight)
        train, held = self._hold_out(rows, generator)
        total = float(len(rows) if weight is None else weight.sum())
        return Table(train, held, train, rows, len(rows), total)

    def _learn_inputs(self, moments: Moments) -> None:
        found = moments.scaling() if self.standardize else Scaling.none(len(moments.mean))
        self._x_scaling = current_team().agree(found)

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, fresh: bool
    ) -> tuple[Array, NDArray, Array | None]:
        X = checked_table(self, X, reset=fresh)
        y = self._checked_targets(y, len(X))
        weight = checked_weight(sample_weight, len(X))
        if weight is None:
            return X, y, None
        counts = weight > 0
        return X[counts], y[counts], weight[counts]

    def _rows(self, X: Array, y: NDArray, weight: Array | None) -> Rows:
        dtype = torch_dtype(self.dtype)
        weights = None if weight is None else torch.tensor(weight, dtype=dtype)
        rows = Rows(self._x_scaling.standardise(X, dtype), self._encode(y), weights)
        # What was finite in float64 need not be in float32.
        rows.require_finite()
        return rows

    def _hold_out(self, rows: Rows, generator: torch.Generator) -> tuple[Rows, Rows | None]:
        count = count_held_out(len(rows), self.validation_fraction, self.early_stopping)
        if count == 0:
            return rows, None
        order = torch.randperm(len(rows), generator=generator)
        return rows.map(lambda t: t[order[count:]]), rows.map(lambda t: t[order[:count]])

    def _new_model(
        self, rows: Rows, num_rows: int, generator: torch.Generator
    ) -> tuple[VariationalGP, bool]:
        """A model of `num_rows` rows at its prior, with β and γ among these.

        And whether a few of them said where its hyperparameters start.
        """
        likelihood, mean, variance = self._prior(rows.y)
        settings = self.get_params(deep=False)
        num_inducing, num_residual = point_counts(settings, num_rows)
        beta = self._given_points("inducing_points")
        if beta is None:
            beta = choose_beta(rows.x, num_inducing, generator)
        gamma = self._given_points("residual_points")
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

    def _given_points(self, name: str) -> Tensor | None:
        points = getattr(self, name)
        if points is None:
            return None
        points = checked_numbers(points, name)
        expected = len(self._x_scaling.scale)
        if points.ndim != 2 or points.shape[1] != expected:
            raise DataError(f"{name} has shape {points.shape}; expected (m, {expected})")
        return self._x_scaling.standardise(points, torch_dtype(self.dtype))

    def _inputs(self, X: Any) -> Array:
        require_fitted(self)
        return checked_table(self, X, reset=False)

    def _placed(self, X: Array) -> Tensor:
        """New rows where the model has its points."""
        return self._x_scaling.standardise(X).clamp_(-FARTHEST, FARTHEST)

    def _latents_of(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Latent means and variances at rows that are placed already."""
        chunks = predict_in_chunks(self.model_, rows.x, self._predictor)
        mean, variance = (torch.cat(part, dim=1) for part in zip(*chunks, strict=True))
        return mean, variance

    def _latents(self, X: Array) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Which rows, and the latent means and variances there, chunk after chunk."""
        stop = 0
        for start in range(0, len(X), CHUNK_ROWS):
            x = self._placed(X[start : start + CHUNK_ROWS])
            for mean, variance in predict_in_chunks(self.model_, x, self._predictor):
                begin, stop = stop, stop + mean.shape[1]
                yield slice(begin, stop), mean, variance

    @torch.no_grad()
    def _for_rows(
        self, X: Array, compute: Callable[[slice, Tensor, Tensor], Tensor]
    ) -> NDArray[np.float64]:
        """`compute` of every chunk, rows in the last axis."""
        parts = [compute(*chunk).cpu() for chunk in self._latents(X)]
        return torch.cat(parts, dim=-1).numpy()
