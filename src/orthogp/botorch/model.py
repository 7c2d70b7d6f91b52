"""A model for BoTorch: near rows and inducing points in place of an exact Gaussian process.

`OrthogonalGPModel(train_X, train_Y).fit()` is used where `SingleTaskGP` is: a joint posterior that
is differentiable in X, for q-batches and t-batches, conditioning, fantasies and functions. What
BoTorch asks of a model beyond the rows themselves is a Gaussian at some points. Fantasies, whose
rows differ from batch to batch, are conditioned on there:

    m′(x) = m(x) + Σ_xF (Σ_FF + D)⁻¹ (y_F − m_F)        Σ′_xx′ = Σ_xx′ − Σ_xF (Σ_FF + D)⁻¹ Σ_Fx′

with the joint mean and covariance m and Σ of the posterior at x and at the rows F of the fantasy,
of which they stay functions that torch differentiates. Observations without batches join the model
for good (`orthogp.posterior.conditioning`), in milliseconds.
"""

from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any, TypeVar

import numpy as np
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.deterministic import MatheronPathModel
from botorch.models.model import FantasizeMixin, Model
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal  # pyright: ignore
from jaxtyping import Float
from linear_operator import to_linear_operator
from numpy.typing import NDArray
from sklearn.base import clone
from torch import Size, Tensor
from torch.nn import Module, Parameter

from orthogp.botorch.fantasies import Fantasies, outputs_first
from orthogp.botorch.kernel import kernel_with_prior
from orthogp.errors import ConfigurationError, DataError
from orthogp.estimators import OrthogonalGPRegressor
from orthogp.estimators.scaling import FARTHEST
from orthogp.likelihoods import Gaussian

AnyModule = TypeVar("AnyModule", bound=Module)


class OrthogonalGPModel(Model, FantasizeMixin):
    """A BoTorch model of one outcome or several, of rows by the tens of thousands.

    Until `fit` is called its hyperparameters are those that a fit starts from. `train_Yvar` has the
    variance of the noise of every outcome, `[n, m]`, where that is known and not to be learned.
    `estimator` is an `OrthogonalGPRegressor` with the settings of a fit; its dtype is float64 and
    its device that of train_X. It standardises inputs and outcomes itself, so that transforms are
    needed only for what goes beyond that. Without a kernel of its own it has the default one with
    a prior on its lengthscales (`orthogp.botorch.kernel`). Outcomes share one kernel and have noise
    of their own; the posterior is that of the model itself, without the estimator's calibration.
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        estimator: OrthogonalGPRegressor | None = None,
        outcome_transform: OutcomeTransform | None = None,
        input_transform: InputTransform | None = None,
    ):
        super().__init__()
        if train_X.ndim != 2 or train_Y.ndim != 2 or len(train_X) != len(train_Y):
            raise DataError(
                f"train_X has shape {tuple(train_X.shape)} and train_Y {tuple(train_Y.shape)}; "
                "expected [n, d] and [n, m], without batches"
            )
        if train_Yvar is not None and train_Yvar.shape != train_Y.shape:
            raise DataError(
                f"train_Yvar has shape {tuple(train_Yvar.shape)}; expected that of train_Y, "
                f"{tuple(train_Y.shape)}"
            )
        template = OrthogonalGPRegressor() if estimator is None else estimator
        _check_settings(template)
        if input_transform is not None:
            self.input_transform = input_transform.to(train_X)
            self.input_transform.train()
            self.transform_inputs(train_X)
            self.input_transform.eval()
        noise = None if train_Yvar is None else train_Yvar.detach()
        if outcome_transform is not None:
            outcome_transform.train()
            noise = outcome_transform(train_Y, train_Yvar, X=train_X)[1]
            outcome_transform.eval()
            self.outcome_transform = outcome_transform
        # The variances of noise, where they are known, are those of outcomes as transformed.
        self._rows = [(train_X.detach(), train_Y.detach(), noise)]
        settings: dict[str, Any] = {"dtype": "float64", "device": str(train_X.device)}
        if template.kernel is None and template.standardize:
            inputs = self.transform_inputs(train_X[:1]).shape[-1]
            settings["kernel"] = kernel_with_prior(inputs, bool(template.ard))
        self._template = _changed(template, **settings)
        self._num_outcomes = train_Y.shape[-1]
        self._outputs = list(range(self._num_outcomes))
        self._fantasies: Fantasies | None = None
        self._gp: OrthogonalGPRegressor | None = None
        self._unit_tensors: list[Tensor] = []

    def fit(self) -> "OrthogonalGPModel":
        """Finds hyperparameters that predict rows left out; takes `fit_gpytorch_mll`'s place."""
        self._require_rows("fit")
        self._learn(train_hyperparameters=bool(self._template.train_hyperparameters))
        return self

    def _learn(self, train_hyperparameters: bool, **parts: Any) -> None:
        X, Y, noise = self.train_inputs[0], self.train_targets, self._known_noise()
        if noise is not None:
            parts["noise_variance"] = _array(noise)
        gp = _changed(self._template, train_hyperparameters=train_hyperparameters, **parts)
        self._set_estimator(gp.fit(X.cpu().numpy(), _array(Y)))

    def _known_noise(self) -> Float[Tensor, "n m"] | None:
        """Of all rows, where that of any is known; of the others it is what the model has."""
        if all(noise is None for *_, noise in self._rows):
            return None
        parts = [
            self._noise.to(Y).expand_as(Y) if noise is None else noise.to(Y)
            for _, Y, noise in self._rows
        ]
        return torch.cat(parts)

    def _set_estimator(self, gp: OrthogonalGPRegressor) -> None:
        self._gp = gp
        likelihood = gp.model_.likelihood
        assert isinstance(likelihood, Gaussian)
        self.covar_module, self.likelihood = gp.model_.covariance.kernel, likelihood.likelihood
        units = gp._fitted.units
        scalings = (units.inputs, units.targets.scaling)  # pyright: ignore
        like = gp.model_.basis.beta.detach()
        parts = [t for scaling in scalings for t in (scaling.shift, scaling.scale)]
        self._unit_tensors = [torch.as_tensor(t).to(like) for t in parts]

    @property
    def estimator(self) -> OrthogonalGPRegressor:
        """The fitted estimator: of inputs and outcomes as they are transformed."""
        self._condition()
        assert self._gp is not None
        return self._gp

    def _condition(self) -> None:
        """On the rows, with the hyperparameters that a fit starts from, where there was none yet.

        It takes a while, which is wasted where `fit` follows: it waits until it counts.
        """
        if self._gp is None:
            self._learn(train_hyperparameters=False)

    def __getattr__(self, name: str) -> Any:
        if name in ("likelihood", "covar_module") and self.__dict__.get("_gp", self) is None:
            self._condition()
        return super().__getattr__(name)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Parameter]]:
        self._condition()
        return super().named_parameters(*args, **kwargs)

    @property
    def _units(self) -> list[Tensor]:
        """Shift and scale of inputs, then those of outcomes."""
        self._condition()
        return self._unit_tensors

    @property
    def train_inputs(self) -> tuple[Float[Tensor, "n d"]]:
        """All rows, as the input transform leaves them."""
        return (self.transform_inputs(torch.cat([X for X, *_ in self._rows])),)

    @property
    def train_targets(self) -> Float[Tensor, "n m"]:
        """All outcomes, as the outcome transform leaves them."""
        Y = torch.cat([Y for _, Y, _ in self._rows])
        return self.outcome_transform(Y)[0] if hasattr(self, "outcome_transform") else Y

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    @property
    def batch_shape(self) -> Size:
        return Size() if self._fantasies is None else self._fantasies.batch_shape

    def _set_transformed_inputs(self) -> None:
        """Rows are transformed when the model takes them."""

    _revert_to_original_inputs = _set_transformed_inputs

    def posterior(
        self,
        X: Float[Tensor, "*t q d"],
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """The joint posterior of the q points of every batch; differentiable in X, once.

        A tensor of `observation_noise` has variances, `[*t, q, m]` or `[*t, 1, m]`, of outcomes as
        they are transformed.
        """
        self.eval()
        if output_indices is not None and output_indices != list(range(self.num_outputs)):
            return self.subset_output(output_indices).posterior(
                X, None, observation_noise, posterior_transform
            )
        transformed = self.transform_inputs(X)
        mean, covariance = self._moments(transformed)
        if observation_noise is not False:
            noise = observation_noise if isinstance(observation_noise, Tensor) else self._noise
            covariance = covariance + torch.diag_embed(outputs_first(noise, mean))
        # A linear operator is factorised when samples are drawn, with jitter where points coincide.
        mean, operator = mean.to(X), to_linear_operator(covariance.to(X))
        if self.num_outputs == 1:
            distribution = MultivariateNormal(mean.squeeze(-2), operator.squeeze(-3))
        else:
            both = MultivariateNormal(mean, operator)
            distribution = MultitaskMultivariateNormal.from_batch_mvn(both, task_dim=-1)
        found: Posterior = GPyTorchPosterior(distribution)
        if hasattr(self, "outcome_transform"):
            found = self.outcome_transform.untransform_posterior(found, X=transformed)
        return found if posterior_transform is None else posterior_transform(found, X=X)

    @property
    def _noise(self) -> Float[Tensor, "1 m"]:
        """The variances of noise, in units of outcomes as they are transformed."""
        noise = self.likelihood.noise.detach().double().reshape(1, -1)
        scale = self._units[3]
        return (noise.expand(1, len(scale)) * scale.square())[:, self._outputs]

    def _moments(
        self, X: Float[Tensor, "*t q d"]
    ) -> tuple[Float[Tensor, "*b m q"], Float[Tensor, "*b m q q"]]:
        """Mean and covariance of every outcome, given the fantasies."""
        if self._fantasies is None:
            return self._model_moments(X)
        return self._fantasies.condition(*self._model_moments(self._fantasies.before(X)))

    def _model_moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        shift_x, scale_x, shift_y, scale_y = self._units
        x = ((X.to(shift_x) - shift_x) / scale_x).clamp(-FARTHEST, FARTHEST)
        mean, covariance = self.estimator.model_.moments(x)
        mean, covariance = mean[self._outputs].movedim(0, -2), covariance[self._outputs]
        shift_y, scale_y = (t[self._outputs].unsqueeze(-1) for t in (shift_y, scale_y))
        covariance = covariance.movedim(0, -3) * scale_y.square().unsqueeze(-1)
        return mean * scale_y + shift_y, covariance

    def condition_on_observations(
        self,
        X: Float[Tensor, "*b f d"],
        Y: Float[Tensor, "*y f m"],
        noise: Float[Tensor, "*n f m"] | None = None,
        **kwargs: Any,
    ) -> "OrthogonalGPModel":
        """The model given these observations; no hyperparameter moves, and this one stays.

        Without batches, and where no gradient is asked for, the rows join the model for good, in
        milliseconds. Batches of observations give a model of that batch shape. `noise` has the
        variances, of outcomes as they are transformed. No other keyword of BoTorch's changes
        anything here.
        """
        transformed, outcomes = self.transform_inputs(X), Y
        if hasattr(self, "outcome_transform"):
            outcomes = self.outcome_transform(Y)[0]
        tracked = any(t.requires_grad for t in (X, Y))
        whole = self._fantasies is None and len(self._outputs) == self._num_outcomes
        if X.ndim == 2 and Y.ndim == 2 and whole and not tracked:
            return self._joined(X, Y, transformed, outcomes, noise)
        variances = self._noise.expand(X.shape[-2], -1) if noise is None else noise.to(self._noise)
        new = Fantasies(transformed.to(self._noise), outcomes.to(self._noise), variances)
        found = self._copy()
        found._fantasies = new if self._fantasies is None else self._fantasies.and_then(new)
        return found

    def _joined(
        self, X: Tensor, Y: Tensor, transformed: Tensor, outcomes: Tensor, noise: Tensor | None
    ) -> "OrthogonalGPModel":
        if len(X) == 0:
            return self
        gp = self.estimator
        if noise is None and self._rows[0][2] is not None:
            # As in BoTorch's models of known noise: the mean of those known.
            noise = self._noise
        if noise is not None:
            noise = noise.to(outcomes).expand_as(outcomes)
            gp = copy(gp).set_params(noise_variance=_array(noise))
        found = self._copy()
        found._rows = [*self._rows, (X.detach(), Y.detach(), noise)]
        found._set_estimator(gp.condition_on(transformed.cpu().numpy(), _array(outcomes)))
        return found

    def subset_output(self, idcs: list[int]) -> "OrthogonalGPModel":
        """The model of some of the outcomes, sharing all else."""
        found = self._copy()
        found._outputs = [self._outputs[i] for i in idcs]
        if self._fantasies is not None:
            found._fantasies = self._fantasies.subset(idcs)
        if hasattr(self, "outcome_transform"):
            found.outcome_transform = self.outcome_transform.subset_output(idcs)
        return found

    def sample_functions(self, n: int, seed: int | None = None) -> "SampledFunctions":
        """n functions of the posterior as a deterministic model.

        At `[q, d]` it gives `[n, q, m]`, at `[*t, n, q, d]` each function at points of its own.
        """
        return SampledFunctions(self, sample_shape=Size([n]), seed=seed)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Takes hyperparameters and transforms, and conditions on the rows that the model has."""
        self._require_rows("load_state_dict")
        model = self.estimator.model_
        found = super().load_state_dict(state_dict, strict, assign)
        self._learn(False, kernel=model.covariance.kernel, likelihood=model.likelihood)
        return found

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Hyperparameters and transforms."""
        self._condition()
        return super().state_dict(*args, **kwargs)

    def _require_rows(self, name: str) -> None:
        if self._fantasies is not None or len(self._outputs) != self._num_outcomes:
            raise ConfigurationError(
                f"{name} is for a model of all its outcomes and without fantasies"
            )

    def _copy(self) -> "OrthogonalGPModel":
        """A model that shares everything until it is given something else."""
        return _shallow_copy(self)


class SampledFunctions(MatheronPathModel):
    """Functions of the posterior of an `OrthogonalGPModel`."""

    def given_rows_near(self, X: Float[Tensor, "*t n q d"]) -> "SampledFunctions":
        """The same functions for searches that start at X: points keep the rows near their start.

        Which rows are near changes as a point moves, where a function has a small step. Given rows
        make it smooth, and evaluate it in a fraction of the time. It is the posterior's close to X,
        and further away one that knows less: compare with the functions themselves at the end. What
        it is evaluated at has the shape of X.
        """
        found = _shallow_copy(self)
        found._path = self._path.given_rows_near(X)  # pyright: ignore
        return found


def _shallow_copy(module: AnyModule) -> AnyModule:
    found = copy(module)
    for name in ("_parameters", "_buffers", "_modules"):
        object.__setattr__(found, name, getattr(module, name).copy())
    return found


def _check_settings(estimator: OrthogonalGPRegressor) -> None:
    if estimator.likelihood not in (None, "gaussian"):
        raise ConfigurationError("a BoTorch model has Gaussian noise; leave likelihood as None")
    if estimator.noise != "constant":
        raise ConfigurationError(
            f"noise is {estimator.noise!r}; a BoTorch model has constant noise, or known noise as "
            "train_Yvar"
        )
    if estimator.target_transform is not None:
        raise ConfigurationError("target_transform is BoTorch's outcome_transform here; pass that")


def _changed(estimator: OrthogonalGPRegressor, **settings: Any) -> OrthogonalGPRegressor:
    """An unfitted estimator with other settings."""
    found = clone(estimator)
    assert isinstance(found, OrthogonalGPRegressor)
    return found.set_params(**settings)


def _array(values: Float[Tensor, "n m"]) -> NDArray[np.float64]:
    """Without the axis of outcomes where there is one."""
    found = values.cpu().double().numpy()
    return found[:, 0] if found.shape[1] == 1 else found
