"""The regressor: how it learns from numbers."""

from copy import deepcopy
from typing import Any, Self

from gpytorch.means import ConstantMean, Mean
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from torch import Tensor

from orthogp.errors import ConfigurationError
from orthogp.estimators.calibration import Calibration, calibrate
from orthogp.estimators.defaults import REGRESSION_VARIANCE
from orthogp.estimators.noise import set_noise
from orthogp.estimators.predictive import PredictsNumbers
from orthogp.estimators.settings import no_type_check
from orthogp.estimators.state import unpack_numbers
from orthogp.estimators.targets import NumberLearner, NumberTargets, Targets
from orthogp.likelihoods import Likelihood, RegressionLikelihood, as_likelihood


@no_type_check
class OrthogonalGPRegressor(RegressorMixin, PredictsNumbers):
    """Gaussian process regression on one target or several."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Goes on training with these rows, in the units of the first call."""
        return self._fit(X, y, sample_weight, goes_on=True)

    def _learner(self, classes: NDArray | None) -> NumberLearner:
        return NumberLearner(bool(self.standardize), self._new_likelihood)

    def _new_likelihood(self, num_targets: int) -> RegressionLikelihood:
        spec = "gaussian" if self.likelihood is None else deepcopy(self.likelihood)
        likelihood = as_likelihood(spec, num_targets)
        if not isinstance(likelihood, RegressionLikelihood):
            raise ConfigurationError(
                f"the likelihood {self.likelihood!r} is one of classes; use OrthogonalGPClassifier"
            )
        return likelihood

    def _prior(self, y: Tensor, targets: Targets) -> tuple[Likelihood, Mean | None, float]:
        assert isinstance(targets, NumberTargets)
        likelihood = self._new_likelihood(targets.count)
        likelihood.check_targets(y)
        named = self.likelihood is None or isinstance(self.likelihood, str)
        if likelihood.location and (named or self.noise_variance is not None):
            set_noise(likelihood, self.noise_variance, targets.scaling.scale)
        if likelihood.location:
            return likelihood, None, REGRESSION_VARIANCE
        level, variance = likelihood.starting_prior(y)
        mean = ConstantMean()
        mean.initialize(constant=level)
        return likelihood, mean, variance

    def _identity(self, targets: Targets) -> Calibration:
        assert isinstance(targets, NumberTargets)
        return Calibration.identity(targets.count)

    def _calibrate(
        self, likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor
    ) -> Calibration:
        assert isinstance(likelihood, RegressionLikelihood)
        return calibrate(likelihood, y, mean, variance)

    _unpack_targets = staticmethod(unpack_numbers)
