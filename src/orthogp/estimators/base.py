"""What the regressor and the classifier share: fitting, all or nothing."""

from abc import abstractmethod
from typing import Any, Self

import torch
from gpytorch.means import Mean
from numpy.typing import NDArray
from torch import Tensor

from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators.calibration import Calibration, LatentScales
from orthogp.estimators.checks import require_fitted
from orthogp.estimators.class_map import learns_class_map, with_class_map
from orthogp.estimators.explained import ExplainedEstimator
from orthogp.estimators.fitted import Fitted
from orthogp.estimators.inputs import TableRows
from orthogp.estimators.intake import FitData, Intake, require_alike
from orthogp.estimators.known_noise import is_known
from orthogp.estimators.near_rows import fit_near, with_noise_of
from orthogp.estimators.near_settings import NEIGHBORS, near_settings, require_row_noise
from orthogp.estimators.outcome import fitted_with_rows
from orthogp.estimators.promised import learn_cross, learn_split
from orthogp.estimators.rows_on_disk import fit_on_disk
from orthogp.estimators.scaling import Array
from orthogp.estimators.setting_checks import (
    cpu_by_default,
    seed_from,
    usable_device,
)
from orthogp.estimators.settings import no_type_check
from orthogp.estimators.sharded import as_shards
from orthogp.estimators.step_fit import StepFit
from orthogp.estimators.streamed import is_large, loaded, streamed_data
from orthogp.estimators.targets import Learner, Targets
from orthogp.execution.team import current_team
from orthogp.likelihoods import Likelihood
from orthogp.posterior import NearRows, StoredRows
from orthogp.sources import Shards, as_source
from orthogp.training import Rows


@no_type_check
class OrthogonalGP(ExplainedEstimator):
    """An estimator with a `VariationalGP` inside; a subclass defines its targets.

    After a fit: `elbo_`, the bound on all rows given (for a table that was streamed an unbiased
    estimate, from a sample of its rows), in nats and in the units of y; `history_`,
    one dict a report; `n_iter_`, the steps since the last fresh start; `model_`, the torch module.
    What follows on all rows, including those held out to calibrate, counts for neither. A fit that
    fails leaves all of this, and every prediction, as it was.
    """

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags

    @abstractmethod
    def _learner(self, classes: NDArray | None) -> Learner:
        """How targets are checked and learned; `classes` are all that may ever occur."""

    @abstractmethod
    def _prior(self, data: FitData) -> tuple[Likelihood, Mean | None, float]:
        """A fresh likelihood, the prior mean, and the variance of the default kernel's parts."""

    @abstractmethod
    def _identity(self, targets: Targets) -> Calibration | LatentScales:
        """The calibration that leaves predictions as they are."""

    @abstractmethod
    def _calibrate(
        self, likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor
    ) -> Calibration | LatentScales:
        """The calibration learned from targets that training has not seen, given the latents."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, shards: bool = False) -> Self:
        """Trains from scratch, or continues the last fit with `warm_start`.

        In place of arrays X may be the path of a Parquet file or directory, with names of columns
        for y and sample_weight; a NumPy memory map; or, alone, a torch Dataset or one of
        `orthogp.sources`. What is too large for memory is streamed.

        A row's weight multiplies its expected log-likelihood; rows of weight zero are left out.
        In an initialised process group every process calls it with the same rows, works on its
        share of each batch, and ends with the same model; callbacks are the first process's. With
        `shards` each process calls it with rows of its own, or None, and the model is that of all
        rows, one process after the other in the order of ranks.
        """
        return self._fit(X, y, sample_weight, continues=self.warm_start, shards=shards)

    @cpu_by_default()
    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        continues: bool,
        classes: NDArray | None = None,
        adds: bool = False,
        shards: bool = False,
    ) -> Self:
        """All or nothing: whatever fails on the way leaves the estimator as it was.

        `adds` says that rows join those of the previous fit where it holds them.
        """
        if shards and current_team().size > 1:
            X, y, sample_weight = as_shards(X, y, sample_weight), None, None
        if isinstance(X, Shards) and not is_large(X):
            X, y, sample_weight = loaded(X)
        before = getattr(self, "_fitted", None) if continues else None
        if adds and before is not None and isinstance(before.model.near, NearRows | StoredRows):
            self._set_fitted(self._learn_more(X, y, sample_weight, before))
        elif self.coverage_guarantee and not (adds and before is not None):
            if before is not None:
                raise ConfigurationError(
                    "coverage_guarantee needs a fit from scratch, for rows that the last fit has "
                    "seen can promise nothing; use warm_start=False"
                )
            if is_known(self._settings()["noise_variance"]):
                raise ConfigurationError(
                    "coverage_guarantee splits the rows, and noise_variance is one for every row; "
                    "pass one of the two"
                )
            table = TableRows(X, y, sample_weight, self.missing_targets)
            learn = learn_cross if self.coverage_guarantee == "cross" else learn_split
            self._set_fitted(learn(self, table, classes))
        else:
            self._set_fitted(self._learn(X, y, sample_weight, before, classes, adds))
        return self

    @abstractmethod
    def _scores(self, fitted: Fitted, X: Array, y: Any) -> Array:
        """How far the target of each row is from its prediction, in units of its own width."""

    @cpu_by_default()
    def condition_on(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """A new estimator that knows of these rows as well; this one stays as it is.

        Nothing is trained and nothing that both share is copied: rows join those that predictions
        are conditioned on, in milliseconds, however many there are already. Units, hyperparameters,
        calibration and `elbo_` stay those of the fit. The noise must be Gaussian; for any other
        likelihood `partial_fit` trains.
        """
        require_fitted(self)
        found = type(self)(**self.get_params(deep=False))
        found._set_fitted(self._learn_more(X, y, sample_weight, self._fitted))
        return found

    def _learn_more(self, X: Any, y: Any, sample_weight: Any, before: Fitted) -> Fitted:
        """Rows join those that predictions are conditioned on; nothing is trained."""
        settings, model = self._settings(), before.model
        intake = Intake(type(self), settings, self._learner(None), before.units, adds=True)
        data = _fit_data(intake, X, y, sample_weight, torch.Generator().manual_seed(0))
        if not isinstance(data.train, Rows):
            raise DataError("rows join a model from memory; pass so large a table in parts")
        require_alike(data.train, current_team())
        near, rows = near_settings(settings, data, model.likelihood), with_noise_of(model, data)
        count = near.counts[0] if near else NEIGHBORS[0]
        model = model.condition_on(rows.x, rows.y, rows.noise_divisor, count)
        # What was promised of coverage was of the model without these rows.
        learned = before.learned() | {"scores": None}
        return Fitted.on_device(usable_device(self.device), model, **learned)

    def _learn(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        before: Fitted | None,
        classes: NDArray | None,
        adds: bool,
    ) -> Fitted:
        """Fits a model to these rows, continuing from the previous fit if there is one."""
        settings = self._settings()
        device = usable_device(self.device)
        # Among several processes the first decides, so that all end with the same bits.
        team = current_team()
        seed = team.agree(seed_from(self.random_state))
        generator = torch.Generator().manual_seed(seed)
        units = before and before.units
        intake = Intake(type(self), settings, self._learner(classes), units, adds)
        data = _fit_data(intake, X, y, sample_weight, generator)
        require_alike(data.train, team)
        prior = self._prior(data)
        if before is not None and isinstance(before.model.near, NearRows | StoredRows):
            # There is nothing to continue: hyperparameters are found anew, q is solved for.
            before = None
        # A fit that was trained by steps is continued by steps.
        near = near_settings(settings, data, prior[0]) if before is None else None
        if before is not None:
            require_row_noise(settings, prior[0], "near rows, and this fit continues one without")
        if near is not None and not near.by_steps:
            fit_rows = fit_near if isinstance(data.train, Rows) else fit_on_disk
            found = fit_rows(settings, data, prior, near, self._calibrate, device, generator)
            return fitted_with_rows(data, found)
        if before is None and learns_class_map(settings, data, prior[0]):
            data = with_class_map(settings, data, prior[0], prior[2], device, generator)
        run = StepFit(
            settings, data, prior, near, before, adds, self._calibrate,
            self._identity(data.units.targets), device, seed, generator,
        )  # fmt: skip
        return run.fitted()


def _fit_data(
    intake: Intake, X: Any, y: Any, sample_weight: Any, generator: torch.Generator
) -> FitData:
    """The rows in memory, or a stream of those that are too many."""
    source = as_source(X, y, sample_weight)
    if source is None:
        return intake.fit_data(X, y, sample_weight, generator)
    if is_large(source):
        return streamed_data(intake, source, generator)
    return intake.fit_data(*loaded(source), generator)
