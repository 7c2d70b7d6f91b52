"""What the regressor and the classifier share: checks, building, training, rows in chunks."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any, Self

import numpy as np
import torch
from gpytorch.means import Mean
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from orthogp import training
from orthogp.errors import DataError
from orthogp.estimators.defaults import count_held_out, point_counts, training_config
from orthogp.estimators.persistent import Persistent
from orthogp.estimators.scaling import Array, Scaling
from orthogp.estimators.settings import no_type_check, torch_device, torch_dtype
from orthogp.likelihoods import Likelihood
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.points import choose_beta, choose_gamma
from orthogp.training import ProgressBar, Rows, full_bound, predict_in_chunks

# Rows that a prediction looks at together: memory does not grow with the table.
CHUNK_ROWS = 2**15


@no_type_check
class OrthogonalGP(Persistent):
    """An estimator with a `VariationalGP` inside; a subclass says what its targets are.

    After a fit: `elbo_`, the bound on all rows given, in nats and in the units of y; `history_`,
    one dict a report; `n_iter_`, the steps since the last fresh start; `model_`, the torch module.
    """

    # Whether rows are held out to calibrate, not only to stop early.
    _calibrates: bool
    # How scikit-learn is to check y.
    _target_checks: dict[str, Any]

    @abstractmethod
    def _learn_targets(self, y: NDArray, weight: Array | None, classes: NDArray | None) -> None:
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

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Trains from scratch, or goes on from the last fit with `warm_start`.

        A row's weight multiplies its expected log-likelihood; rows of weight zero are left out.
        """
        return self._fit(X, y, sample_weight, not (self.warm_start and hasattr(self, "model_")))

    def _fit(
        self, X: Any, y: Any, sample_weight: Any, fresh: bool, classes: NDArray | None = None
    ) -> Self:
        X, y, weight = self._checked(X, y, sample_weight, fresh)
        if fresh:
            scaled = self.standardize
            self._x_scaling = Scaling.of(X, weight, "X") if scaled else Scaling.none(X.shape[1])
            self._learn_targets(y, weight, classes)
        rows = self._rows(X, y, weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        generator = torch.Generator().manual_seed(seed)
        train, held = self._hold_out(rows, generator)
        model = self._new_model(train, generator) if fresh else self.model_
        model.to(torch_device(self.device))
        done, history = (0, []) if fresh else (self.n_iter_, self.history_)
        # A run that goes on must not take the checkpoints of the one before for its own.
        config = training_config(
            self.get_params(deep=False), len(train), model.likelihood.gaussian, seed + done
        )
        bar = (ProgressBar(config.max_steps, config.max_time),) if self.verbose else ()
        callbacks = (*self.callbacks, *bar)
        # A look at thousands of rows at every report is worth its time only to stop early.
        judges = held if self.early_stopping else None
        result = training.fit(model, train, config, judges, callbacks, self.checkpoint_dir)
        self.model_, self._predictor = model, model.predictor()
        self._calibrate(held, fresh)
        elapsed = history[-1]["seconds"] if history else 0.0
        reports = [
            replace(r, step=r.step + done, seconds=r.seconds + elapsed) for r in result.history
        ]
        self.history_ = [*history, *map(asdict, reports)]
        self.n_iter_ = done + result.steps
        counted = len(rows) if weight is None else float(weight.sum())
        self.elbo_ = full_bound(model, rows) + counted * self._log_jacobian()
        return self

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, fresh: bool
    ) -> tuple[Array, NDArray, Array | None]:
        X, y = validate_data(self, X, y, dtype=np.float64, reset=fresh, **self._target_checks)
        if sample_weight is None:
            return X, y, None
        weight = _check_sample_weight(
            sample_weight, X, dtype=np.float64, ensure_non_negative=True,
            allow_all_zero_weights=False,
        )  # fmt: skip
        counts = weight > 0
        return X[counts], y[counts], weight[counts]

    def _rows(self, X: Array, y: NDArray, weight: Array | None) -> Rows:
        dtype = torch_dtype(self.dtype)
        weights = None if weight is None else torch.from_numpy(weight).to(dtype)
        rows = Rows(self._x_scaling.standardise(X, dtype), self._encode(y), weights)
        # What was finite in float64 need not be in float32.
        rows.require_finite()
        return rows

    def _hold_out(self, rows: Rows, generator: torch.Generator) -> tuple[Rows, Rows | None]:
        count = count_held_out(
            len(rows), self.validation_fraction, self.early_stopping, self._calibrates
        )
        if count == 0:
            return rows, None
        order = torch.randperm(len(rows), generator=generator)
        return rows.map(lambda t: t[order[count:]]), rows.map(lambda t: t[order[:count]])

    def _new_model(self, rows: Rows, generator: torch.Generator) -> VariationalGP:
        """A model at its prior, with β and γ among the rows."""
        likelihood, mean, variance = self._prior(rows.y)
        num_inducing, num_residual = point_counts(self.get_params(deep=False), len(rows))
        beta = self._given_points("inducing_points")
        if beta is None:
            beta = choose_beta(rows.x, num_inducing, generator)
        gamma = self._given_points("residual_points")
        if gamma is None or self.basis == "coupled":
            gamma = choose_gamma(rows.x, num_residual, beta, generator)
        if self.kernel is None:
            kernel = default_kernel(rows.x.shape[1], self.ard, variance)
        else:
            kernel = deepcopy(self.kernel)
        basis = build_basis(
            self.basis, kernel, beta, gamma, likelihood.num_latents, self.optimizer,
            self.hold_fixed, self.jitter,
        )  # fmt: skip
        model = VariationalGP(kernel, likelihood, basis, mean, self.jitter)
        return model.to(torch_dtype(self.dtype))

    def _given_points(self, name: str) -> Tensor | None:
        points = getattr(self, name)
        if points is None:
            return None
        points = np.asarray(points, dtype=np.float64)
        expected = len(self._x_scaling.scale)
        if points.ndim != 2 or points.shape[1] != expected or not np.isfinite(points).all():
            raise DataError(
                f"{name} has shape {points.shape}; expected finite numbers of shape (m, {expected})"
            )
        return self._x_scaling.standardise(points, torch_dtype(self.dtype))

    def _inputs(self, X: Any) -> Array:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, dtype=np.float64, reset=False))

    def _latents(self, X: Array) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Which rows, and the latent means and variances there, chunk after chunk."""
        stop = 0
        for start in range(0, len(X), CHUNK_ROWS):
            x = self._x_scaling.standardise(X[start : start + CHUNK_ROWS])
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
