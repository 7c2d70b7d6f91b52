"""Every setting of the two estimators, with its default.

Importing this imports no torch: the command line makes its options from it, and help must be quick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import torch
    from gpytorch.kernels import Kernel
    from gpytorch.likelihoods import Likelihood as GpytorchLikelihood
    from numpy.typing import ArrayLike

    from orthogp.likelihoods import Likelihood
    from orthogp.training import Event

Class = TypeVar("Class")


def no_type_check(decorated: Class) -> Class:
    """Hints for readers and tools only, never checked at run time, even in tests.

    scikit-learn demands that a constructor takes anything and that `fit` judges it. The name is
    the one that type checkers at run time look for; `typing`'s own hides the hints from all.
    """
    return decorated


@no_type_check
class Settings:
    """The constructor of the estimators. None means automatic: see `estimators.defaults`.

    The model
        n_inducing, n_residual: the sizes of β and γ, at most as many as distinct rows. With near
            rows γ are all rows ("all"), none (a number), or whichever predicts better ("auto");
            without them "auto" is 700.
        n_neighbors: how many of the rows nearest to x each prediction is conditioned on besides.
            For Gaussian noise "auto" chooses, and takes the exact process where the table is
            small; for other likelihoods it is 64 where that predicts held-out rows better. 0 is
            the variational posterior alone, as it is for tables beyond memory without `rows_dir`.
        rows_dir: a folder, new or empty, for the rows of a table beyond memory, which predictions
            are conditioned on: 4 bytes for every input and target of a row. The model needs it as
            long as it predicts. None writes none, and such a table has no near rows.
        objective: what hyperparameters are learned from: "leave_one_out", predictions of rows from
            those near them; "bound", that of the variational posterior; "auto", the former with
            near rows and the latter without.
        basis: "orthogonal", "coupled" (ignores γ), "hybrid" or "decoupled".
        optimizer: "natural" or "adam", for q(f_β); hybrid and decoupled need "adam".
        kernel: any GPyTorch kernel; None is Matérn-5/2 + RBF, with a Matérn-1/2 where near rows
            predict better by it. It sees standardised columns, and so do the priors on its
            parameters, which count.
        ard: whether the default kernel has a lengthscale for every column.
        likelihood: a name, a GPyTorch likelihood or one of `orthogp.likelihoods`; None is Gaussian
            for the regressor, Bernoulli or softmax for the classifier.
        noise_variance: where the noise starts, in units of y². None leaves it, and the default
            kernel with it, to the evidence of a few rows where the table is small. An array has the
            noise of every row, which is known then and not learned: `(n,)`, or `(n, t)` for t
            targets. It needs Gaussian noise and near rows, as does noise="learned".
        noise: "constant", or "learned" for noise that changes with x: a second latent function is
            its logarithm, kept where it predicts left-out rows better beyond chance.
        inducing_points, residual_points: where β and γ start, in the units of X; where columns
            are encoded, a number for every input.
        hold_fixed: what of q(f_β) stands still while the kernel moves: "unwhitened", "whitened" or
            "dual".
        categorical_features: which columns are categories, as in scikit-learn: "from_dtype" (text
            and categories of a table), a list of names or numbers of columns, a mask, or None for
            text alone. `columns_` says what each column was taken for, and why.
        target_transform: None, "log" or "yeo-johnson" for a skewed target of the regressor, or
            "auto": whichever gives left-out rows the highest density in the units of y. All answers
            are in the units of y; `target_transform_` says what was chosen.
        input_transform: "auto" takes the logarithm of skewed columns of numbers of a table, or the
            normal scores of their quantiles, and adds indicators of gaps and of frequent values,
            where that gives left-out rows a higher density. Of an array it decides on indicators of
            gaps alone, and with classes on normal scores of skewed inputs where `linear_map` is
            judged and not taken. None transforms nothing and has the indicators of gaps.
        linear_map: "auto" learns a linear map of the standardised inputs, of which the default
            kernel then is one, where that predicts left-out rows better; None does without. For
            classes it has curves of single inputs besides. It needs near rows and, unless there are
            classes, Gaussian noise.
        linear_trend: "auto" gives a regressor with the default kernel and one target a prior mean
            that is linear in x, by ridge regression, where that predicts better the left-out rows
            that it is furthest from its average for; None does without. It needs near rows and
            Gaussian noise.
        coverage_guarantee: whether intervals and sets of classes are promised to hold a share of
            new rows: True or "split" keeps a fifth of the rows (at most 2000) from the fit; "cross"
            keeps none, fits five times more, and promises less.
        missing_targets: "error" refuses rows whose target is missing, "drop" leaves them out.
        jitter: added to K_β, relative to its mean diagonal.
        standardize: whether columns, and targets with additive noise, are standardised.

    The training
        max_steps, max_time, batch_size, learning_rate, adam_beta2, natural_step, schedule,
        clip_norm, kl_columns, residual_rule, train_hyperparameters, train_points, shard_residual:
            as in `TrainingConfig`.
        early_stopping: stop when held-out rows no longer gain, and return to the best.
        validation_fraction: the share of rows held out to stop early and to calibrate predictions;
            no more than 5000, and none where they would be too few to calibrate: then predictions
            of rows without what they contributed themselves do so, of classes besides held-out
            rows where these are few. Of a table in memory they are taken in afterwards. None asks
            for no calibration; a fit with near rows and Gaussian noise is calibrated all the same.
        warm_start: whether `fit` goes on from the last fit.
        checkpoint_dir: where a run leaves its state, and where the same call, with the same
            `random_state`, finds it after a crash.
        callbacks, verbose: who is told of progress; `verbose` draws a bar on a terminal.
        device: None is a GPU where there is one.
        dtype: "float32" or "float64", of training; predictions are always in float64.
        random_state: the same number gives the same model; None draws one afresh, without NumPy's
            global generator.
    """

    def __init__(
        self,
        n_inducing: int = 300,
        n_residual: int | str = "auto",
        *,
        n_neighbors: int | str = "auto",
        rows_dir: str | Path | None = None,
        objective: str = "auto",
        basis: str = "orthogonal",
        optimizer: str = "natural",
        kernel: Kernel | None = None,
        ard: bool = True,
        likelihood: str | GpytorchLikelihood | Likelihood | None = None,
        max_steps: int | None = None,
        max_time: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        adam_beta2: float | None = None,
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
        shard_residual: bool = False,
        noise_variance: float | ArrayLike | None = None,
        noise: str = "constant",
        categorical_features: str | Sequence[str] | Sequence[int] | Sequence[bool] | None = (
            "from_dtype"
        ),
        missing_targets: str = "error",
        target_transform: str | None = None,
        input_transform: str | None = "auto",
        linear_map: str | None = "auto",
        linear_trend: str | None = "auto",
        coverage_guarantee: bool | str = False,
        standardize: bool = True,
        early_stopping: bool = False,
        validation_fraction: float | None = 0.1,
        warm_start: bool = False,
        checkpoint_dir: str | Path | None = None,
        callbacks: Sequence[Callable[[Event], None]] = (),
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "float32",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ):
        self.n_inducing = n_inducing
        self.n_residual = n_residual
        self.n_neighbors = n_neighbors
        self.rows_dir = rows_dir
        self.objective = objective
        self.basis = basis
        self.optimizer = optimizer
        self.kernel = kernel
        self.ard = ard
        self.likelihood = likelihood
        self.max_steps = max_steps
        self.max_time = max_time
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.adam_beta2 = adam_beta2
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
        self.shard_residual = shard_residual
        self.noise_variance = noise_variance
        self.noise = noise
        self.categorical_features = categorical_features
        self.missing_targets = missing_targets
        self.target_transform = target_transform
        self.input_transform = input_transform
        self.linear_map = linear_map
        self.linear_trend = linear_trend
        self.coverage_guarantee = coverage_guarantee
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
