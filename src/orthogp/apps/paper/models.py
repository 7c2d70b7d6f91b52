"""The paper's methods as models, and the closed-form optimum to compare them with."""

from dataclasses import asdict, replace
from time import monotonic

import torch

from orthogp.apps.paper.experiments import Experiment, ModelSettings
from orthogp.apps.paper.metrics import model_metrics
from orthogp.apps.paper.own import FitResult
from orthogp.likelihoods import Bernoulli, Gaussian, Likelihood, RobustMax
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.posterior import Orthogonal
from orthogp.posterior.optimum import decoupled_optimum, set_optimum
from orthogp.posterior.points import choose_beta, choose_gamma
from orthogp.training import Rows, full_bound

LABEL_ERRORS = 1e-3


def build_model(
    settings: ModelSettings, train: Rows, num_classes: int, seed: int, device: str
) -> VariationalGP:
    """A method's model at its prior; the same seed gives every method the same points."""
    dtype = getattr(torch, settings.dtype)
    x, rng = train.x.to(dtype), torch.Generator().manual_seed(seed)
    beta = choose_beta(x, settings.n_inducing, rng)
    gamma = choose_gamma(x, settings.n_residual, beta, rng)
    kernel = default_kernel(x.shape[1], settings.ard, settings.variance)
    likelihood = _likelihood(num_classes, settings.noise_variance)
    basis = build_basis(
        settings.basis, kernel, beta, gamma, likelihood.num_latents, settings.optimizer,
        settings.hold_fixed,
    )  # fmt: skip
    model = VariationalGP(kernel, likelihood, basis)
    if settings.unit_start:
        _start_at_the_identity(model)
    return model.to(device, dtype)


@torch.no_grad()
def _start_at_the_identity(model: VariationalGP) -> None:
    """q(f_β) = N(0, I), where the code published with the paper starts, in place of the prior."""
    basis = model.basis
    assert isinstance(basis, Orthogonal)
    factor = basis.factor(model.covariance, model.jitter, robust=True)
    S = (factor.R @ factor.R.mT).expand(basis.num_latents, -1, -1)
    basis.q.set_whitened(factor, S.new_zeros(S.shape[:2]), S)


def _likelihood(num_classes: int, noise_variance: float) -> Likelihood:
    if num_classes > 2:
        return RobustMax(num_classes, LABEL_ERRORS)
    if num_classes == 2:
        return Bernoulli(1)
    likelihood = Gaussian(1)
    likelihood.likelihood.noise = noise_variance  # pyright: ignore
    return likelihood


def run_optimum(
    experiment: Experiment, train: Rows, test: Rows, seed: int, device: str
) -> FitResult:
    """The best that any decoupled basis can do with these points and hyperparameters."""
    settings = replace(experiment.model_settings("regression", "OrthNat"), dtype="float64")
    start = monotonic()
    model = build_model(settings, train, 0, seed, device)
    basis = model.basis
    assert isinstance(basis, Orthogonal)
    rows = train.to(basis.beta.device, torch.float64)
    factor = basis.factor(model.covariance, model.jitter, robust=True)
    optimum = decoupled_optimum(
        model.covariance, factor, basis.beta, basis.gamma, rows.x, rows.y, settings.noise_variance
    )
    set_optimum(basis, factor, optimum)
    seconds = monotonic() - start
    metrics = model_metrics(model, test) | {"bound": full_bound(model, train) / len(train)}
    return FitResult(asdict(settings), metrics, seconds=seconds)
