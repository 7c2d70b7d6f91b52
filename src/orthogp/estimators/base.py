"""What the regressor and the classifier share: settings, checks, building, training, state."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood as GpytorchLikelihood
from gpytorch.means import Mean
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from orthogp import training
from orthogp.bases import Predictor
from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators.defaults import count_held_out, point_counts, training_config
from orthogp.estimators.scaling import Array, Scaling
from orthogp.likelihoods import Likelihood
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.points import choose_beta, choose_gamma
from orthogp.training import ProgressBar, Rows, full_bound, predict_in_chunks

DTYPES = {"float32": torch.float32, "float64": torch.float64}
# Rows that a prediction looks at together: memory does not grow with the table.
CHUNK_ROWS = 2**15


class OrthogonalGP(BaseEstimator):
    """A Gaussian process with |β| = `n_inducing` and |γ| = `n_residual` points.

    Every setting has the meaning that the documentation of the two estimators gives it; None means
    automatic, by the numbers of `orthogp.estimators.defaults`.
    """

    model_: VariationalGP
    elbo_: float
    history_: list[dict[str, Any]]
    n_iter_: int
    n_features_in_: int
    _predictor: Predictor
    _x_scaling: Scaling

    def __init__(
        self,
        n_inducing: int = 300,
        n_residual: int = 700,
        *,
        basis: str = "orthogonal",
        optimizer: str = "natural",
        kernel: Kernel | None = None,
        ard: bool = True,
        likelihood: str | GpytorchLikelihood | Likelihood | None = None,
        max_steps: int | None = None,
        max_time: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        natural_step: float | None = None,
        kl_columns: int | str | None = "auto",
        inducing_points: ArrayLike | None = None,
        residual_points: ArrayLike | None = None,
        schedule: str = "cosine",
        clip_norm: float | None = None,
        residual_rule: str = "adam",
        hold_fixed: str = "unwhitened",
        jitter: float | None = None,
        train_hyperparameters: bool = True,
        train_points: bool = True,
        noise_variance: float | None = None,
        standardize: bool = True,
        early_stopping: bool = False,
        validation_fraction: float | None = 0.1,
        warm_start: bool = False,
        checkpoint_dir: str | Path | None = None,
        callbacks: Sequence[Callable[[training.Event], None]] = (),
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "float32",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ):
        self.n_inducing = n_inducing
        self.n_residual = n_residual
        self.basis = basis
        self.optimizer = optimizer
        self.kernel = kernel
        self.ard = ard
        self.likelihood = likelihood
        self.max_steps = max_steps
        self.max_time = max_time
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.natural_step = natural_step
        self.kl_columns = kl_columns
        self.inducing_points = inducing_points
        self.residual_points = residual_points
        self.schedule = schedule
        self.clip_norm = clip_norm
        self.residual_rule = residual_rule
        self.hold_fixed = hold_fixed
        self.jitter = jitter
        self.train_hyperparameters = train_hyperparameters
        self.train_points = train_points
        self.noise_variance = noise_variance
        self.standardize = standardize
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.checkpoint_dir = checkpoint_dir
        self.callbacks = callbacks
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

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
        result = training.fit(model, train, config, held, callbacks, self.checkpoint_dir)
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
        expected = self.n_features_in_
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

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # pyright: ignore
        if "model_" in state:
            # On the host, so that it can be read where there is no such device.
            state["model_"] = deepcopy(self.model_).cpu()
            del state["_predictor"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model_" in state:
            self._place(state["model_"], self.device)

    def _place(self, model: VariationalGP, device: str | torch.device | None) -> None:
        """Predicts with `model`, on `device` if this machine has it."""
        wanted = torch_device(device)
        here = wanted.type != "cuda" or torch.cuda.is_available()
        self.model_ = model.to(wanted if here else "cpu")
        self._predictor = self.model_.predictor()


def torch_device(device: str | torch.device | None) -> torch.device:
    """The device meant; None is a GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(f"device is {device!r}, which torch does not know") from error


def torch_dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ConfigurationError(f"dtype is {dtype!r}; expected float32 or float64")
    return found
