"""A latent function for the logarithm of Gaussian noise that changes with x.

    y = f(x) + ε,    ε ~ N(0, σ² e^{g(x)})

q(f) and q(g) are found in turn. Given q(f), g has the likelihood `LogNoise` of the expected squares
E ε_n² / σ², for which natural steps and a bound are in closed form; given q(g), f has the noise of
the expected precision, σ² e^{m_g − s_g/2}. The expected squares come from predictions of rows that
were left out: with their mean, variance s and noise v,

    E ε² = (v / (s + v) · error)² + s v / (s + v),

what the row itself adds to its prediction being taken into account. What is learned of g at a row
is likewise judged without that row, which is left out with others in a fold.
"""

from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import ConstantMean
from jaxtyping import Float
from torch import Tensor

from orthogp.likelihoods.log_noise import LogNoise
from orthogp.model import VariationalGP, build_basis
from orthogp.posterior import kl_divergence
from orthogp.posterior.points import choose_beta
from orthogp.training.batches import Rows
from orthogp.training.config import TrainingConfig
from orthogp.training.evaluate import full_bound, latents_at
from orthogp.training.loop import fit

POINTS = 100
# Of the kernel at the start, in units of the root of the number of inputs; one of the noise's
# logarithm is a factor of e.
LENGTHSCALE, VARIANCE = 1.0, 1.0
STEPS, BATCH, LEARNING_RATE, NATURAL_STEP = 300, 1024, 0.05, 0.2
# Rounds of expected squares and q(g), kernel and points being as they are after the first; each has
# so many steps on all rows.
ROUNDS, ROUND_STEPS, ROUND_NATURAL_STEP = 6, 10, 0.4
# Folds in which rows are left out of q(g).
FOLDS = 5
# Beyond these factors of the mean noise nothing is learned.
LARGEST_LOG = 15.0


@dataclass(frozen=True)
class Errors:
    """Rows that were left out: their errors, and the variance of the function, in units of σ.

    `level` is the noise that they would have if it were constant.
    """

    x: Float[Tensor, "n d"]
    error: Float[Tensor, "c n"]
    variance: Float[Tensor, "c n"]
    weight: Float[Tensor, " n"] | None
    level: Float[Tensor, "c 1"]

    def expected_squares(self, noise: Float[Tensor, "c #n"]) -> Float[Tensor, "c n"]:
        """E ε² of every row, where its noise has this variance so far."""
        noise = noise if self.weight is None else noise / self.weight
        share = noise / (self.variance + noise)
        return (share * self.error).square() + share * self.variance

    def rows(self, noise: Float[Tensor, "c #n"]) -> Rows:
        squares = self.expected_squares(noise)
        return Rows(self.x, squares[0] if len(squares) == 1 else squares.mT, self.weight)


@dataclass(frozen=True)
class LogNoiseFit:
    """The model of g, and mean and variance of g at every row, each without the row's fold."""

    model: VariationalGP
    mean: Float[Tensor, "c n"]
    variance: Float[Tensor, "c n"]
    interrupted: bool


def learn_log_noise(
    errors: Errors,
    generator: torch.Generator,
    max_time: float | None = None,
    start: VariationalGP | None = None,
) -> LogNoiseFit:
    """q(g) from errors of left-out rows, its kernel being learned unless there is a `start`."""
    noise, model, reason = errors.level, start, "steps"
    if model is not None:
        noise = expected_noise(model, errors.x)
    rows = errors.rows(noise)
    if model is None:
        model = new_log_noise(rows, len(errors.error), generator)
        reason = _train(model, rows, generator, max_time)
    for _ in range(ROUNDS):
        rows = errors.rows(expected_noise(model, errors.x))
        _settle(model, rows)
    left_out = left_out_latents(model, rows, generator)
    return LogNoiseFit(model, *left_out, reason == "interrupt")


def new_log_noise(rows: Rows, num_targets: int, generator: torch.Generator) -> VariationalGP:
    """A model of g at its prior, about the logarithm of the mean of the squares."""
    num_inputs = rows.x.shape[1]
    kernel = ScaleKernel(MaternKernel(2.5, ard_num_dims=num_inputs)).to(rows.x)
    kernel.outputscale = VARIANCE
    kernel.base_kernel.lengthscale = LENGTHSCALE * num_inputs**0.5
    mean = ConstantMean().to(rows.x)
    mean.initialize(constant=float(rows.y.double().mean().log()))
    beta = choose_beta(rows.x.cpu(), POINTS, generator).to(rows.x)
    basis = build_basis("coupled", kernel, beta, beta[:0], num_targets)
    return VariationalGP(kernel, LogNoise(num_targets), basis, mean).to(rows.x.device)


def expected_noise(model: VariationalGP, x: Float[Tensor, "n d"]) -> Float[Tensor, "c n"]:
    """e^{m − s/2}: the noise of the expected precision, E e^{−g} = e^{−m + s/2}."""
    mean, variance = latents_at(model, x)
    return bounded_exp(mean - 0.5 * variance)


def bounded_exp(log: Tensor) -> Tensor:
    return log.clamp(-LARGEST_LOG, LARGEST_LOG).exp()


def _train(
    model: VariationalGP, rows: Rows, generator: torch.Generator, max_time: float | None
) -> str:
    """Kernel, mean and q(g) by steps; why they ended."""
    config = TrainingConfig(
        max_steps=STEPS, max_time=max_time, batch_size=min(BATCH, len(rows)),
        learning_rate=LEARNING_RATE, adam_beta2=0.97, natural_step=NATURAL_STEP,
        natural_warmup=STEPS // 10, schedule_warmup=STEPS // 10, train_points=False,
        seed=int(torch.randint(2**31 - 1, (), generator=generator)),
    )  # fmt: skip
    return fit(model, rows, config).reason


def _settle(model: VariationalGP, rows: Rows) -> None:
    """Natural steps on all rows, everything but q(g) being as it is."""
    config = TrainingConfig(
        max_steps=ROUND_STEPS, batch_size=len(rows), natural_step=ROUND_NATURAL_STEP,
        natural_warmup=0, schedule="constant", train_hyperparameters=False, train_points=False,
    )  # fmt: skip
    fit(model, rows, config)


def left_out_latents(
    model: VariationalGP, rows: Rows, generator: torch.Generator
) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c n"]]:
    """Mean and variance of g at rows that q(g) was learned from, each by a q(g) without its fold.

    Kernel and points are those of all rows.
    """
    mean = rows.x.new_empty(model.basis.num_latents, len(rows), dtype=torch.float64)
    variance = torch.empty_like(mean)
    order = torch.randperm(len(rows), generator=generator).to(rows.x.device)
    for fold in order.tensor_split(min(FOLDS, len(rows))):
        is_there = torch.ones(len(rows), dtype=torch.bool, device=rows.x.device)
        is_there[fold] = False
        part = deepcopy(model)
        _settle(part, rows.map(lambda t, chosen=is_there: t[chosen]))
        mean[:, fold], variance[:, fold] = latents_at(part, rows.x[fold])
    return mean, variance


@torch.no_grad()
def bound_with_log_noise(model: VariationalGP, rows: Rows, num_rows: int | None = None) -> float:
    """The bound on the evidence of both functions, on the whole data set, in nats.

    E log N(y; f, σ² e^g) is that of the noise of the expected precision less s_g / 4.
    """
    log_noise = model.log_noise
    assert log_noise is not None
    mean, variance = latents_at(log_noise, rows.x)
    scaled = with_noise_scale(rows, bounded_exp(mean - 0.5 * variance))
    weight = 1.0 if rows.weight is None else rows.weight.to(variance)
    spread = 0.25 * float((weight * variance).sum())
    share = 1.0 if num_rows is None else len(rows) / num_rows
    basis = log_noise.basis
    factor = basis.factor(log_noise.covariance, log_noise.jitter, robust=True)
    projection = basis.project(log_noise.covariance, factor, basis.beta[:0].double())
    kl = kl_divergence(projection, basis.coefficients(projection))
    return full_bound(model, scaled, num_rows) - spread / share - float(kl)


def with_noise_scale(rows: Rows, scale: Float[Tensor, "c n"]) -> Rows:
    """The rows with noise scaled so, in the layout of their targets."""
    found = scale[0] if rows.y.ndim == 1 else scale.mT
    return replace(rows, noise_scale=found.to(rows.x))


def mean_noise(mean: Float[Tensor, "c n"], variance: Float[Tensor, "c n"]) -> Float[Tensor, "c n"]:
    """E e^g, by what σ² is multiplied for a new observation."""
    return bounded_exp(mean + 0.5 * variance)
