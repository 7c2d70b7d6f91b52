"""The kernel's parameters and the noise, moved uphill on any objective of theirs."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy

import torch
from gpytorch.constraints import GreaterThan
from jaxtyping import Float
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.execution.blas import one_blas_thread
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian
from orthogp.model.priors import log_prior, registered_priors
from orthogp.training.adam import Adam
from orthogp.training.config import TrainingConfig
from orthogp.training.rough_part import rough_part

BETA2 = 0.95
# A quasi-Newton search ends where a step gains less than this in nats a row, relative to the value
# where that is above one. It changes no parameter by more than this factor.
LEAST_STEP, MOST_CHANGE = 1e-5, 1e6
# Stands for the value where there is none.
NOWHERE = 1e10
# How near to its lower bound a parameter counts as.
SMALLEST = 1e-12


class _EndedError(Exception):
    """No evaluation or time is left."""


def climb(
    parameters: Sequence[Tensor],
    objective: Callable[[int], Tensor],
    steps: int,
    learning_rate: float,
    deadline: float = math.inf,
) -> bool:
    """Steps of Adam uphill, the number of each given to the objective.

    False where a value or a parameter is no longer finite; they stay where that was then.
    `deadline` is a time of `time.monotonic()` after which no step begins.
    """
    config = TrainingConfig(
        max_steps=steps, learning_rate=learning_rate, schedule_warmup=steps // 10
    )
    rate = torch.zeros((), device=parameters[0].device)
    adam = Adam(parameters, rate, BETA2)
    for step in range(steps):
        if time.monotonic() >= deadline:
            break
        try:
            value = objective(step)
        except NumericalError:
            return False
        if not value.isfinite():
            return False
        rate.fill_(config.learning_rate_at(step, step / steps))
        grads = torch.autograd.grad(-value, parameters)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        adam.step()
    for parameter in parameters:
        parameter.grad = None
    return all(bool(p.isfinite().all()) for p in parameters)


class Hyperparameters:
    """Those of a kernel and of Gaussian noise that are to be learned.

    With a `linear_map` L the kernel is one of L x; `climb_with_map` moves L too, all else leaves
    it. With `tries_rough_part` a rough part can join the kernel, which must be a default one.
    """

    def __init__(
        self,
        covariance: Covariance,
        likelihood: Gaussian,
        linear_map: Float[Tensor, "d d"] | None = None,
        tries_rough_part: bool = False,
    ):
        self.likelihood, self.linear_map, self.has_rough_part = likelihood, linear_map, False
        self._plain, self._joined = covariance, covariance
        self._rough = rough_part(covariance.kernel) if tries_rough_part else None
        if self._rough is not None:
            self._joined = Covariance(covariance.kernel + self._rough)
        self._constraints = {
            id(parameter): constraint
            for part in (self._joined.kernel, likelihood.likelihood)
            for _, parameter, constraint in part.named_parameters_and_constraints()
        }
        self._priors = registered_priors(covariance) + registered_priors(likelihood)

    @property
    def covariance(self) -> Covariance:
        """That of the kernel, with its rough part where that has joined."""
        return self._joined if self.has_rough_part else self._plain

    @property
    def parameters(self) -> list[Tensor]:
        """Those of the kernel and the noise that are learned."""
        return _trained(self.covariance, self.likelihood)

    @property
    def tries_rough_part(self) -> bool:
        return self._rough is not None

    @torch.no_grad()
    def add_rough_part(self) -> None:
        """Begins it at the lengthscales of the kernel, unless it has joined before."""
        if self._rough is not None and not self.has_rough_part:
            self._rough.load_state_dict(rough_part(self._plain.kernel).state_dict())
            self.has_rough_part = True

    @property
    def noise(self) -> Float[Tensor, " c"]:
        """σ² of every output, or one for all."""
        return self.likelihood.likelihood.noise.double().reshape(-1)

    def log_prior(self) -> Float[Tensor, ""]:
        zero = torch.zeros((), dtype=torch.float64, device=self.noise.device)
        return log_prior(self._priors) if self._priors else zero

    def mapped(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        """The inputs of the kernel."""
        return x if self.linear_map is None else x @ self.linear_map.mT

    def values(self) -> list[Tensor]:
        """Of all parameters, whether the rough part has joined and the linear map, if there is one.

        There are as many whether it has joined or not.
        """
        parts = list(self._all_parameters())
        if self.tries_rough_part:
            parts.append(torch.tensor(float(self.has_rough_part)))
        if self.linear_map is not None:
            parts.append(self.linear_map)
        return [part.detach().clone() for part in parts]

    @torch.no_grad()
    def set(self, values: Sequence[Tensor]) -> None:
        if self.linear_map is not None:
            *values, linear_map = values
            self.linear_map = linear_map.to(self.linear_map)
        if self.tries_rough_part:
            *values, has_rough_part = values
            self.has_rough_part = bool(has_rough_part)
        _copy(values, self._all_parameters())

    def _all_parameters(self) -> list[Tensor]:
        return _trained(self._joined, self.likelihood)

    def climb(
        self,
        objective: Callable[[int], Tensor],
        steps: int,
        learning_rate: float,
        deadline: float = math.inf,
    ) -> bool:
        """As `climb`, with these parameters."""
        return climb(self.parameters, objective, steps, learning_rate, deadline)

    def climb_with_map(
        self,
        objective: Callable[[int], Tensor],
        steps: int,
        learning_rate: float,
        deadline: float = math.inf,
        pull: float = 0.0,
    ) -> bool:
        """As `climb`, with these parameters and the linear map.

        What moves is B with L = diag(ρ)⁻¹ B diag(r), where ρ is the relevance of each of the
        kernel's inputs and r that of each x: a step changes distances as much along any x that
        matters, and hardly along one that does not. `pull` · ½ Σ_{i≠j} B_ij² is taken off.
        """
        before = self.linear_map
        assert before is not None
        with torch.no_grad():
            out = self.covariance.relevance(before).sqrt().unsqueeze(-1)
            within = (out * before).norm(dim=0)
            within = within.clamp_min(SMALLEST * within.max())
        B = (out * before / within).requires_grad_()

        def at_map(step: int) -> Tensor:
            self.linear_map = B * within / out
            mixed = B - B.diag().diag()
            return objective(step) - 0.5 * pull * mixed.square().sum()

        done = climb([*self.parameters, B], at_map, steps, learning_rate, deadline)
        self.linear_map = (B.detach() * within / out) if done else before
        return done

    def ascend(
        self,
        objective: Callable[[], Tensor],
        evaluations: int,
        deadline: float = math.inf,
        tied: bool = False,
        pull: float = 0.0,
    ) -> int:
        """Quasi-Newton steps uphill on an objective that is a function of the parameters alone.

        Positive parameters move by their logarithm. With `tied` the elements of a parameter, such
        as the lengthscales of a kernel, move together; otherwise `pull` · ½ |u − u₀|² is taken off,
        where u − u₀ is how far such elements have moved. Returns how often the objective was
        evaluated, and leaves the best values found.
        """
        # Imported here: it takes a while.
        import numpy as np
        from scipy.optimize import minimize

        parameters = self.parameters
        start = [p.detach().clone() for p in parameters]
        coordinates = [self._coordinates(p) for p in parameters]
        sizes = [1 if tied else p.numel() for p in parameters]
        several = torch.cat([torch.full((s,), float(s > 1), dtype=torch.float64) for s in sizes])
        best, count = (math.inf, start), 0

        def loss(moved: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal best, count
            if count == evaluations or time.monotonic() >= deadline:
                raise _EndedError
            count += 1
            u = torch.from_numpy(moved.copy()).requires_grad_()
            raw = [at(part) for at, part in zip(coordinates, u.split(sizes), strict=True)]
            _copy([value.detach() for value in raw], parameters)
            try:
                value = objective()
            except NumericalError:
                value = torch.tensor(math.nan)
            if not value.isfinite():
                return NOWHERE, np.zeros_like(moved)
            grads = torch.autograd.grad(-value, parameters)
            grads = [grad.to(part) for grad, part in zip(grads, raw, strict=True)]
            (grad,) = torch.autograd.grad(raw, [u], grads)
            away = pull * several * u.detach()
            found = -value.item() + 0.5 * float(away @ u.detach())
            if found < best[0]:
                best = found, [p.detach().clone() for p in parameters]
            return found, (grad + away).numpy()

        widest = math.log(MOST_CHANGE)
        with suppress(_EndedError), one_blas_thread():
            minimize(
                loss, np.zeros(sum(sizes)), jac=True, method="L-BFGS-B",
                bounds=[(-widest, widest)] * sum(sizes),
                options={"ftol": LEAST_STEP, "maxcor": 20, "maxiter": evaluations},
            )  # fmt: skip
        _copy(best[1], parameters)
        return count

    def _coordinates(self, parameter: Tensor) -> Callable[[Tensor], Tensor]:
        """The parameter as a function of how far it has moved, by its logarithm if positive."""
        raw = parameter.detach().cpu().double()
        constraint = self._constraints.get(id(parameter))
        if not isinstance(constraint, GreaterThan):
            return lambda moved: raw + moved.expand(raw.numel()).reshape(raw.shape)
        constraint = deepcopy(constraint).cpu().double()
        lowest = constraint.lower_bound
        above = (constraint.transform(raw) - lowest).clamp_min(SMALLEST)

        def at(moved: Tensor) -> Tensor:
            factor = moved.exp().expand(raw.numel()).reshape(raw.shape)
            return constraint.inverse_transform(lowest + above * factor)

        return at


def _trained(covariance: Covariance, likelihood: Gaussian) -> list[Tensor]:
    return [p for p in (*covariance.parameters(), *likelihood.parameters()) if p.requires_grad]


@torch.no_grad()
def _copy(values: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
