"""An estimator that tells of its function: draws of it, and what columns matter to it."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from orthogp.errors import ConfigurationError
from orthogp.estimators.additive import additive_columns, additive_values, component_means
from orthogp.estimators.checks import require_fitted
from orthogp.estimators.explaining import Explanation, relevance, shapley_values
from orthogp.estimators.functions import SampledFunctions
from orthogp.estimators.scaling import Array
from orthogp.estimators.setting_checks import (
    cpu_by_default,
    is_count,
    seed_from,
)
from orthogp.estimators.settings import no_type_check
from orthogp.estimators.stored import StoredEstimator
from orthogp.posterior import StoredRows
from orthogp.tables import Encoded


@no_type_check
class ExplainedEstimator(StoredEstimator):
    """Functions of the posterior, the relevance of columns, and their shares in predictions."""

    @cpu_by_default()
    def sample_functions(
        self, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> SampledFunctions:
        """Draws of the function itself, without noise: callable at any X, as often as wanted.

        `f = gp.sample_functions(5)` and then `f(X)` is `(n, 5)`, or `(n, t, 5)` for several
        targets, in the units of y; of a classifier and for a likelihood with a link the latents, as
        `predict_latent` gives them. Two calls see the same functions. The kernel must be a sum of
        RBF and Matérn kernels, as the default is.
        """
        require_fitted(self)
        if not is_count(n_samples):
            raise ConfigurationError(f"n_samples is {n_samples!r}; expected a whole number from 1")
        generator = torch.Generator().manual_seed(seed_from(random_state))
        functions = self._fitted.model.sample_functions(n_samples, generator)
        return SampledFunctions(type(self), self._fitted, functions)

    @property
    def relevance_(self) -> dict[str, float]:
        """1/lengthscale of every column that is an input, the most relevant first.

        In units of the column's standard deviation, averaged over the parts of the kernel. All
        inputs of a category share a lengthscale; a column of several counts by the shortest. With a
        linear map of the inputs it is that of the kernel along each of them. It
        ranks how fast the function varies, not what causes what. Empty for a kernel without a
        lengthscale for every input.
        """
        require_fitted(self)
        sources = self.columns_.plan.sources
        return dict(relevance(self.model_.covariance.kernel, sources, self._fitted.units.inputs))

    def explain(
        self,
        X: Any,
        background: Any = None,
        n_samples: int = 32,
        random_state: int | np.random.RandomState | None = 0,
    ) -> Explanation:
        """What each column contributes to each prediction: Shapley values.

        They add up, exactly, to the prediction less that of the background: the mean of the
        regressor, the probabilities of the classifier. They are sampled, and more samples vary less
        between seeds. Where the regressor's kernel is a sum of RBF and Matérn kernels on one column
        each, they are exact for the rows of the background.

        Args:
            X: rows to explain.
            background: rows that stand for the absence of a column; None draws from those that the
                model holds.
            n_samples: how many of the background are drawn; each costs 2 (d + 1) predictions a row.
            random_state: the same number gives the same values.
        """
        fitted, inputs = self._prediction_inputs(X)
        if not is_count(n_samples):
            raise ConfigurationError(f"n_samples is {n_samples!r}; expected a whole number from 1")
        if background is None:
            near = fitted.model.near
            if isinstance(near, StoredRows):
                held = near.spaced_inputs(n_samples)
            else:
                held = fitted.model.basis.beta if near is None else near.x
            rows = held.detach().double().cpu().numpy()
        else:
            rows = self._prediction_inputs(background)[1]
        rng = np.random.default_rng(seed_from(random_state))
        rows = rows[rng.choice(len(rows), min(n_samples, len(rows)), replace=False)]
        if background is None:
            rows = fitted.units.inputs.in_units(rows)
        sources = np.array(self.columns_.plan.sources, dtype=object)
        names = tuple(self.columns_.plan.columns)
        parts = [np.flatnonzero(sources == name) for name in names]
        ask = getattr(self, "predict_proba", None) or cast(Any, self).predict
        additive = additive_columns(fitted, self.columns_.plan.sources)
        if additive:
            return self._explain_sum(inputs, rows, additive)
        values, base = shapley_values(lambda matrix: ask(Encoded(matrix)), inputs, rows, parts, rng)
        return Explanation(values, base, names)

    def _explain_sum(self, X: Array, background: Array, columns: Sequence[str]) -> Explanation:
        """The contributions of columns whose functions add up to the prediction."""
        sources, names = self.columns_.plan.sources, tuple(self.columns_.plan.columns)
        at_rows = component_means(self._fitted, X, columns, sources)
        at_background = component_means(self._fitted, background, columns, sources)
        predict = cast(Any, self).predict
        base, prediction = predict(Encoded(background)).mean(axis=0), predict(Encoded(X))
        sums = (prediction - base).reshape(len(X), -1)
        values = np.zeros((len(X), len(names), sums.shape[1]))
        places = [names.index(column) for column in columns]
        values[:, places] = additive_values(at_rows, at_background, sums)
        values = values.reshape(*values.shape[:2], *prediction.shape[1:])
        return Explanation(values, np.asarray(base), names)
