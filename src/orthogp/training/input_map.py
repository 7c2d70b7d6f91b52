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
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass, replace

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.kernel.covariance import Covariance
from orthogp.kernel.grouped import add_inputs
from orthogp.likelihoods import Likelihood
from orthogp.posterior.neighbors import Neighbors
from orthogp.training.additive_curves import learn_additive_curves
from orthogp.training.batches import Rows
from orthogp.training.curved_map import CHUNK, CurvedMap, InputMap, second_outputs
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
# In nats a row: what a round must gain for another one. For the map to be taken all of them
# must gain this share of the loss beyond two standard errors, since the rest of a fit makes up for
# less, and beyond one for inputs that near rows have no part in.
LEAST_GAIN, LEAST_SHARE, ERRORS, ERRORS_OF_INPUTS = 0.002, 0.1, 2.0, 1.0
# Factors of the latents among which held-out rows choose before they judge.
LATENT_FACTORS = torch.linspace(-1.6, 0.7, 24).exp().tolist()


class _Candidate:
    """The kernel, the constant, noise and weight of a residual process, and the map."""

    def __init__(self, kernel: Kernel, constant: Float[Tensor, " c"], x: Float[Tensor, "n d"]):
        self.covariance, self.map = Covariance(deepcopy(kernel)), None
        noise = (0.5 * self.covariance.diagonal(x[:1])).detach().log()
        self.logs = torch.cat([noise, noise]).requires_grad_()
        self.constant = constant.clone().requires_grad_()

    def parameters(self) -> list[Tensor]:
        own = [p for p in self.covariance.parameters() if p.requires_grad]
        found = [*own, self.logs, self.constant]
        return found if self.map is None else [*found, *self.map.parameters()]

    @torch.no_grad()
    def inverse(self, x: Float[Tensor, "n z"]) -> Float[Tensor, " z"]:
        """The inverse lengthscales."""
        found = self.covariance.relevance(x).sqrt()
        return found.clamp_min(SMALLEST * found.max())

    @torch.no_grad()
    def begin_map(self, x: Float[Tensor, "n d"]) -> None:
        knots, inverse = Knots.of(x), self.inverse(x)
        second = second_outputs(knots, inverse)
        kernel = deepcopy(self.covariance.kernel)
        add_inputs(kernel, second)
        self.covariance = Covariance(kernel)
        self.map = CurvedMap.of_inputs(knots, inverse, second)

    def mapped(self, x: Float[Tensor, "m d"]) -> Float[Tensor, "m z"]:
        return x if self.map is None else self.map(x)

    def negative_log_prior(self) -> Tensor | float:
        return 0.0 if self.map is None else self.map.negative_log_prior()

    @torch.no_grad()
    def learned(self, x: Float[Tensor, "n d"]) -> InputMap:
        assert self.map is not None
        return self.map.in_units(self.covariance.relevance(self.map(x[:1])).sqrt(), x)


@dataclass(frozen=True)
class LearnedMap:
    """A map, if one is taken, and the densities of held-out rows by it and without it."""

    map: InputMap | None
    density: Float[Tensor, " h"]
    plain: Float[Tensor, " h"]


def learn_input_map(
    likelihood: Likelihood,
    train: Rows,
    held_out: Rows,
    kernel: Kernel,
    generator: torch.Generator,
    deadline: float = math.inf,
    max_steps: int | None = None,
) -> LearnedMap | None:
    """The map by which near rows predict best; None where they cannot be learned from at all.

    The kernel is where learning begins. `deadline` is a time of `time.monotonic()`, and the steps
    are `max_steps` at most.
    """
    search = _Search(likelihood, train, held_out, generator, deadline)
    candidate = _Candidate(kernel, search.constant, search.x)
    plain = search.without_map(candidate, max_steps)
    if plain is None:
        return None
    additive = _from_additive_curves(search, candidate.inverse(search.x), kernel, max_steps)
    if additive is not None and _gains(additive[1], plain, ERRORS, LEAST_SHARE):
        learned = _learned(search, deepcopy(additive[0]), additive[1], max_steps)
    else:
        candidate.begin_map(search.x)
        learned = _learned(search, candidate, plain, max_steps)
    if learned is not None and _gains(learned[1], plain, ERRORS, LEAST_SHARE):
        return LearnedMap(learned[0].learned(search.x), learned[1], plain)
    # Near rows alone gain less by additive curves than the rest of a fit does.
    if additive is not None and _gains(additive[1], plain, ERRORS_OF_INPUTS, 0.0):
        return LearnedMap(additive[0].learned(search.x), additive[1], plain)
    return LearnedMap(None, plain, plain)


def _from_additive_curves(
    search: "_Search", inverse: Float[Tensor, " d"], kernel: Kernel, max_steps: int | None
) -> tuple[_Candidate, Float[Tensor, " h"]] | None:
    """A candidate whose map is one to additive curves, and the densities of held-out rows.

    `inverse` are the inverse lengthscales of the inputs.
    """
    found = learn_additive_curves(
        search.likelihood, search.train, search.constant, search.generator, search.deadline,
        max_steps,
    )  # fmt: skip
    if found is None:
        return None
    kernel = deepcopy(kernel)
    add_inputs(kernel, found.second)
    inner = search.with_inputs(found)
    candidate = _Candidate(kernel, search.constant, inner.x)
    density = inner.without_map(candidate, max_steps)
    if density is None:
        return None
    outputs = candidate.inverse(inner.x)
    candidate.map = CurvedMap.of_curves(found.knots, inverse, outputs, found.curves)
    return candidate, density


def _learned(
    search: "_Search",
    candidate: _Candidate,
    density: Float[Tensor, " h"],
    max_steps: int | None,
) -> tuple[_Candidate, Float[Tensor, " h"]] | None:
    """The candidate with the map that near rows have moved, as long as held-out rows gain."""
    left = math.inf if max_steps is None else max_steps - STEPS
    best = None
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
        assert candidate.map is not None
        candidate.map.move_knots(search.x)
    return None if best is None else (best, density)


def densities_by_inputs(
    plain: Float[Tensor, " h"],
    likelihood: Likelihood,
    train: Rows,
    held_out: Rows,
    kernel: Kernel,
    generator: torch.Generator,
    deadline: float = math.inf,
    max_steps: int | None = None,
) -> Float[Tensor, " h"] | None:
    """The densities of held-out rows where these inputs take the place of those of `plain`, if they
    gain. Otherwise like `learn_input_map`, which gives the densities `plain`.
    """
    search = _Search(likelihood, train, held_out, generator, deadline)
    candidate = _Candidate(kernel, search.constant, search.x)
    found = search.without_map(candidate, max_steps)
    gains = found is not None and _gains(found, plain, ERRORS_OF_INPUTS, LEAST_SHARE)
    return found if gains else None


def _gains(
    found: Float[Tensor, " h"], plain: Float[Tensor, " h"], errors: float, share: float
) -> bool:
    gain = found - plain
    error = gain.std() / len(gain) ** 0.5
    return bool(gain.mean() - errors * error > -share * plain.mean())


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

    def with_inputs(self, inputs: Callable[[Tensor], Tensor]) -> "_Search":
        """The same of rows with these functions of x as inputs."""
        found = copy(self)
        found.train, found.held_out = (
            replace(rows, x=inputs(rows.x.double())) for rows in (self.train, self.held_out)
        )
        found.x = found.train.x
        return found

    def without_map(self, c: _Candidate, max_steps: int | None) -> Float[Tensor, " h"] | None:
        """The densities of held-out rows once the rest of a candidate has been learned."""
        learned = self.climb(c, STEPS if max_steps is None else min(STEPS, max_steps), RATE)
        return self.judge(c) if learned else None

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
        points, x = (torch.cat([c.mapped(p) for p in t.split(CHUNK)]) for t in (self.x, x))
        scale = c.covariance.relevance(points).sqrt()
        count = min(2 * NEAR, len(points) - 1)
        return Neighbors(points * scale).nearest(x * scale, count, without)
