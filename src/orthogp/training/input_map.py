"""A map of the inputs in which rows of one class are near each other.

    z(x) = L x + Σ_j φ_j(x_j)

L is a matrix, and φ_j a curve: a function of one input with values in the space of z, straight
between knots and constant beyond them. A matrix turns and stretches; curves bend, so that near
tells of thresholds, and of levels that are numbers only by name.

What is learned from is the residual process of a constant: every row is predicted by the gradients
of the rows near it, without its own. The objective is the log density of the labels. In every step
a row is predicted from a random half of the rows nearest to it, so that a map does not gain by
knowing which rows are neighbours. Rows that were held out decide how long the map is learned, and
whether it is taken; they are no neighbours of the rows that it is learned from, for those would
tell it of their labels.
"""

import math
from copy import deepcopy
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Likelihood
from orthogp.posterior.neighbors import Neighbors
from orthogp.training.batches import Rows
from orthogp.training.hyperparameters import SMALLEST, climb
from orthogp.training.knots import Knots
from orthogp.training.left_out import left_out_moments
from orthogp.training.sites import best_constant, clamped_density, random_rows, site_gradients

# Rows that predict each row, drawn from twice as many.
NEAR = 32
# Rows of a step, a share of those of the table between two numbers, from a pool of so many times as
# many rows, whose neighbours are found anew every so many steps.
SMALLEST_BATCH, LARGEST_BATCH = {"cpu": 128, "cuda": 2048}, {"cpu": 512, "cuda": 2048}
BATCH_SHARE, POOL, REFRESH = 1 / 32, 8, 20
# Steps without a map; steps with one, in rounds of smaller and smaller steps while they gain.
STEPS, RATE = 100, 0.1
MAP_STEPS, MAP_RATE, MAP_ROUNDS, MAP_DECAY = 100, 0.03, 4, 0.7
# Of the prior: the standard deviation of the weights that mix inputs, in units of the lengthscales
# of the inputs, and the scale of the rise of a curve from knot to knot, in those of the outputs.
MIXING_SPREAD, RISE_SPREAD = 0.1, 0.05
# In nats a row: what a round must gain for another one. For the map to be taken all of them must
# gain this share of the loss beyond so many standard errors: the rest of a fit makes up for less.
LEAST_GAIN, ERRORS, LEAST_SHARE = 0.002, 2.0, 0.1
# Factors of the latents among which held-out rows choose before they judge.
LATENT_FACTORS = torch.linspace(-1.6, 0.7, 24).exp().tolist()
# Rows that are judged at a time.
CHUNK = 512


@dataclass(frozen=True)
class InputMap:
    """z(x) = L x + Σ_j φ_j(x_j), with outputs of variance one on average.

    φ_j has the values `curves[j]` at `knots[j]`, of which the last ones may be repeated.
    """

    linear: Float[Tensor, "z d"]
    knots: Float[Tensor, "d k"]
    curves: Float[Tensor, "d k z"]


class _Candidate:
    """The kernel, the constant, noise and weight of a residual process, and the map.

    What moves of the map is B and c with z = diag(ρ)⁻¹ (B diag(ρ) x + Σ_j c_j(x_j)), where ρ is the
    relevance of the inputs when the map begins: a step changes distances as much along any input
    that matters.
    """

    def __init__(self, kernel: Kernel, constant: Float[Tensor, " c"], knots: Knots):
        self.covariance, self.knots = Covariance(deepcopy(kernel)), knots
        noise = (0.5 * self.covariance.diagonal(knots.at.mT[:1])).detach().log()
        self.logs = torch.cat([noise, noise]).requires_grad_()
        self.constant = constant.clone().requires_grad_()
        width, count = knots.at.shape
        self.B = torch.eye(width, dtype=knots.at.dtype, device=knots.at.device).requires_grad_()
        self.c = knots.at.new_zeros(width * count, width).requires_grad_()
        self.relevance: Tensor | None = None

    def parameters(self) -> list[Tensor]:
        own = [p for p in self.covariance.parameters() if p.requires_grad]
        found = [*own, self.logs, self.constant]
        return found if self.relevance is None else [*found, self.B, self.c]

    @torch.no_grad()
    def begin_map(self) -> None:
        relevance = self.covariance.relevance(self.knots.at.mT).sqrt()
        self.relevance = relevance.clamp_min(SMALLEST * relevance.max())

    def mapped(self, x: Float[Tensor, "m d"]) -> Float[Tensor, "m z"]:
        if self.relevance is None:
            return x
        bent = self.knots.hat_functions(x) @ self.c
        return ((x * self.relevance) @ self.B.mT + bent) / self.relevance

    def negative_log_prior(self) -> Tensor | float:
        """Normal for the weights that mix inputs, and of the lengths of rises for curves."""
        if self.relevance is None:
            return 0.0
        mixing = (self.B - self.B.diag().diag()) / MIXING_SPREAD
        rises = self.c.unflatten(0, self.knots.at.shape).diff(dim=1)
        # Lengths, not squares: a curve may rise at once for the price of many small rises.
        lengths = (rises.square().sum(2) + SMALLEST).sqrt()
        return 0.5 * mixing.square().sum() + lengths.sum() / RISE_SPREAD

    @torch.no_grad()
    def move_knots(self, x: Float[Tensor, "n d"]) -> None:
        """To where the curves rise most."""
        curves = self.c.unflatten(0, self.knots.at.shape)
        knots = self.knots.where_curves_rise(x, curves)
        self.c.copy_(self.knots.values(knots.at, curves).flatten(0, 1))
        self.knots = knots

    @torch.no_grad()
    def learned(self, x: Float[Tensor, "n d"]) -> InputMap:
        """The map, with outputs in units of their lengthscales, but of variance one on average."""
        assert self.relevance is not None
        scale = self.covariance.relevance(x).sqrt()
        scale = scale / ((self.mapped(x) * scale).var(0).mean().sqrt().clamp_min(SMALLEST))
        scale = scale / self.relevance
        curves = (self.c * scale).unflatten(0, self.knots.at.shape)
        return InputMap(scale.unsqueeze(1) * self.B * self.relevance, self.knots.at, curves)


def learn_input_map(
    likelihood: Likelihood,
    train: Rows,
    held_out: Rows,
    kernel: Kernel,
    generator: torch.Generator,
    deadline: float = math.inf,
    max_steps: int | None = None,
) -> InputMap | None:
    """The map by which near rows predict best; None where held-out rows do not gain by it.

    The kernel is where learning begins. `deadline` is a time of `time.monotonic()`, and the steps
    are `max_steps` at most.
    """
    search = _Search(likelihood, train, held_out, generator, deadline)
    candidate = _Candidate(kernel, search.constant, Knots.of(search.x))
    left = math.inf if max_steps is None else max_steps
    if not search.climb(candidate, int(min(STEPS, left)), RATE):
        return None
    left -= STEPS
    density = plain = search.judge(candidate)
    best = None
    candidate.begin_map()
    for number in range(MAP_ROUNDS):
        rate = MAP_RATE * MAP_DECAY**number
        if left <= 0 or not search.climb(candidate, int(min(MAP_STEPS, left)), rate):
            break
        left -= MAP_STEPS
        found = search.judge(candidate)
        gain = float((found - density).mean())
        if gain > 0:
            density, best = found, deepcopy(candidate)
        # Written so that NaN counts as no gain.
        if not gain > LEAST_GAIN:
            break
        candidate.move_knots(search.x)
    if best is None or not _clearly_better(density, plain):
        return None
    return best.learned(search.x)


def _clearly_better(density: Float[Tensor, " h"], plain: Float[Tensor, " h"]) -> bool:
    gain = density - plain
    error = gain.std() / len(gain) ** 0.5
    return bool(gain.mean() - ERRORS * error > -LEAST_SHARE * plain.mean())


class _Search:
    """The density of rows, each predicted from those near it, as a function of a candidate."""

    def __init__(
        self,
        likelihood: Likelihood,
        train: Rows,
        held_out: Rows,
        generator: torch.Generator,
        deadline: float,
    ):
        self.likelihood, self.generator, self.deadline = likelihood, generator, deadline
        self.train, self.held_out, self.x = train, held_out, train.x.double()
        device = self.x.device.type
        smallest, largest = (b.get(device, b["cpu"]) for b in (SMALLEST_BATCH, LARGEST_BATCH))
        self.batch = min(largest, max(smallest, round(BATCH_SHARE * len(self.x))))
        self.constant = best_constant(likelihood, self.train, generator)
        mean = self.constant.unsqueeze(1).expand(-1, len(self.x))
        self.gradient = site_gradients(likelihood, self.train, mean, torch.zeros_like(mean))

    def climb(self, c: _Candidate, steps: int, rate: float) -> bool:
        """Uphill on the density of random rows; False where that leads nowhere."""
        every = pool = near = torch.arange(len(self.x), device=self.x.device)

        def objective(step: int) -> Tensor:
            nonlocal pool, near
            if step % REFRESH == 0:
                pool = random_rows(every, POOL * self.batch, self.generator)
                near = self._near(c, self.x[pool], pool)
            chosen = torch.randint(len(pool), (self.batch,), generator=self.generator)
            drawn = torch.rand(len(chosen), near.shape[1], generator=self.generator).argsort(1)
            chosen, drawn = chosen.to(pool.device), drawn[:, :NEAR].to(pool.device)
            rows = pool[chosen]
            mean = self._mean(c, self.x[rows], near[chosen].gather(1, drawn))
            density = self._density(self.train, rows, mean)
            return density.mean() - c.negative_log_prior() / len(self.x)

        return climb(c.parameters(), objective, steps, rate, self.deadline)

    @torch.no_grad()
    def judge(self, c: _Candidate) -> Float[Tensor, " h"]:
        """The densities of the held-out rows, their latents times the factor that suits most."""
        try:
            x = self.held_out.x.double()
            near = self._near(c, x)
            parts = zip(x.split(CHUNK), near.split(CHUNK), strict=True)
            mean = torch.cat([self._mean(c, *part) for part in parts], dim=1)
        except NumericalError:
            return torch.full((len(self.held_out),), -math.inf, device=self.x.device)
        every = torch.arange(len(x), device=x.device)
        found = [self._density(self.held_out, every, f * mean) for f in LATENT_FACTORS]
        return max(found, key=lambda density: float(density.mean()))

    def _mean(
        self, c: _Candidate, x: Float[Tensor, "m d"], near: Int[Tensor, "m k"]
    ) -> Float[Tensor, "c m"]:
        """The latents at x, given the gradients of the rows near each."""
        # Many rows are near several: each is mapped once.
        rows, place = near.unique(return_inverse=True)
        z, z_near = c.mapped(torch.cat([x, self.x[rows]])).tensor_split([len(x)])
        noise, weight = c.logs.exp()
        noise = noise.view(1, 1)
        spread = noise.unsqueeze(-1).expand(1, *near.shape)
        gradient = self.gradient[:, near]
        correction, _ = left_out_moments(c.covariance, z, noise, z_near[place], gradient, spread)
        return c.constant.unsqueeze(1) + weight * correction

    def _density(
        self, rows: Rows, which: Int[Tensor, " m"], mean: Float[Tensor, "c m"]
    ) -> Float[Tensor, " m"]:
        some = rows.map(lambda t: t[which])
        return clamped_density(self.likelihood, some, mean, torch.zeros_like(mean))

    @torch.no_grad()
    def _near(
        self, c: _Candidate, x: Float[Tensor, "m d"], without: Int[Tensor, " m"] | None = None
    ) -> Int[Tensor, "m k"]:
        """Of the rows that are trained on the nearest to each x, twice as many as predict it."""
        scale = c.covariance.relevance(self.x).sqrt()
        points, x = (torch.cat([c.mapped(p) for p in t.split(CHUNK)]) * scale for t in (self.x, x))
        return Neighbors(points).nearest(x, min(2 * NEAR, len(points) - 1), without)
