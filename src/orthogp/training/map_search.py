"""How well near rows predict labels, as a function of a map of the inputs.

What predicts is the residual process of a constant: every row is predicted by the gradients of the
rows near it, without its own. In every step a row is predicted from a random half of the rows
nearest to it, so that a map does not gain by knowing which rows are neighbours. Rows that were held
out are no neighbours of the rows that a map is learned from, for those would tell it of their
labels.
"""

import math
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import replace

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.kernel.covariance import Covariance
from orthogp.kernel.grouped import add_inputs
from orthogp.likelihoods import Likelihood
from orthogp.posterior.neighbors import Neighbors
from orthogp.posterior.observations import MergedRows, Observations, OthersNear
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
# Steps that learn all but a map.
STEPS, RATE = 100, 0.1
# Factors of the latents among which held-out rows choose before they judge.
LATENT_FACTORS = torch.linspace(-1.6, 0.7, 24).exp().tolist()


class Candidate:
    """The kernel, the constant, noise and weight of a residual process, and the map.

    `density` are the densities of the held-out rows by it, once it has been judged.
    """

    def __init__(self, kernel: Kernel, constant: Float[Tensor, " c"], x: Float[Tensor, "n d"]):
        self.covariance, self.map = Covariance(deepcopy(kernel)), None
        noise = (0.5 * self.covariance.diagonal(x[:1])).detach().log()
        self.logs = torch.cat([noise, noise]).requires_grad_()
        self.constant = constant.clone().requires_grad_()
        self.density = x.new_full((1,), -math.inf)

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


class MapSearch:
    """The density of rows, each predicted from those near it, as a function of a candidate.

    `deadline` is a time of `time.monotonic()`, and the steps of a candidate and its map are
    `max_steps` at most.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        train: Rows,
        held_out: Rows,
        generator: torch.Generator,
        deadline: float = math.inf,
        max_steps: int | None = None,
    ):
        self.likelihood, self.generator, self.deadline = likelihood, generator, deadline
        self.max_steps = max_steps
        self.train, self.held_out, self.x = train, held_out, train.x.double()
        device = self.x.device.type
        smallest, largest = (b.get(device, b["cpu"]) for b in (SMALLEST_BATCH, LARGEST_BATCH))
        self.batch = min(largest, max(smallest, round(BATCH_SHARE * len(self.x))))
        self.constant = best_constant(likelihood, self.train, generator)
        mean = self.constant.unsqueeze(1).expand(-1, len(self.x))
        self.gradient = site_gradients(likelihood, self.train, mean, torch.zeros_like(mean))
        self.merged = self._merged()

    def _merged(self) -> MergedRows:
        """The rows that are trained on, with sites that share a noise, which here is one."""
        noise = torch.ones_like(self.gradient[:1])
        return MergedRows.of(Observations(self.x, self.gradient, noise))

    def with_inputs(self, inputs: Callable[[Tensor], Tensor]) -> "MapSearch":
        """The same of rows with these functions of x as inputs."""
        found = copy(self)
        found.train, found.held_out = (
            replace(rows, x=inputs(rows.x.double())) for rows in (self.train, self.held_out)
        )
        found.x = found.train.x
        found.merged = found._merged()
        return found

    @property
    def map_steps(self) -> int | float:
        """How many steps are left once a candidate has had its own."""
        return math.inf if self.max_steps is None else self.max_steps - STEPS

    def candidate(self, kernel: Kernel) -> Candidate | None:
        """One without a map of which the rest has been learned, if it can be."""
        found = Candidate(kernel, self.constant, self.x)
        steps = STEPS if self.max_steps is None else min(STEPS, self.max_steps)
        return found if self.climb(found, steps, RATE) else None

    def climb(self, c: Candidate, steps: int, rate: float) -> bool:
        """Uphill on the density of random rows, and judged there.

        False where that leads nowhere.
        """
        every = pool = torch.arange(len(self.x), device=self.x.device)
        others = self._others_near(c, pool[:0])

        def objective(step: int) -> Tensor:
            nonlocal pool, others
            if step % REFRESH == 0:
                pool = random_rows(every, POOL * self.batch, self.generator)
                others = self._others_near(c, pool)
            chosen = torch.randint(len(pool), (self.batch,), generator=self.generator)
            width = others.near.shape[1]
            drawn = torch.rand(len(chosen), width, generator=self.generator).argsort(1)
            chosen, drawn = chosen.to(pool.device), drawn[:, :NEAR].to(pool.device)
            rows, near = pool[chosen], others.near[chosen].gather(1, drawn)
            mean = self._mean(c, self.x[rows], others.rows, near)
            density = self._density(self.train, rows, mean)
            return density.mean() - c.negative_log_prior() / len(self.x)

        if not climb(c.parameters(), objective, steps, rate, self.deadline):
            return False
        c.density = self._judge(c)
        return True

    @torch.no_grad()
    def _judge(self, c: Candidate) -> Float[Tensor, " h"]:
        """The densities of the held-out rows, their latents times the factor that suits most."""
        try:
            x, given = self.held_out.x.double(), self.merged.distinct
            found = self._neighbors(c).nearest(self._seen(c, x), 2 * NEAR)
            parts = zip(x.split(CHUNK), found.split(CHUNK), strict=True)
            mean = torch.cat([self._mean(c, part, given, near) for part, near in parts], dim=1)
        except NumericalError:
            return torch.full((len(self.held_out),), -math.inf, device=self.x.device)
        every = torch.arange(len(x), device=x.device)
        found = [self._density(self.held_out, every, f * mean) for f in LATENT_FACTORS]
        return max(found, key=lambda density: float(density.mean()))

    def _mean(
        self, c: Candidate, x: Float[Tensor, "m d"], given: Observations, near: Int[Tensor, "m k"]
    ) -> Float[Tensor, "c m"]:
        """The latents at x, given the gradients of the sites near each."""
        # Many sites are near several x: each is mapped once.
        rows, place = near.unique(return_inverse=True)
        z, z_near = c.mapped(torch.cat([x, given.x[rows]])).tensor_split([len(x)])
        noise, weight = c.logs.exp()
        noise = noise.view(1, 1)
        near_noise = noise.unsqueeze(-1) * given.noise[:, near]
        correction, _ = left_out_moments(
            c.covariance, z, noise, z_near[place], given.y[:, near], near_noise
        )
        return c.constant.unsqueeze(1) + weight * correction

    def _density(
        self, rows: Rows, which: Int[Tensor, " m"], mean: Float[Tensor, "c m"]
    ) -> Float[Tensor, " m"]:
        some = rows.map(lambda t: t[which])
        return clamped_density(self.likelihood, some, mean, torch.zeros_like(mean))

    @torch.no_grad()
    def _others_near(self, c: Candidate, rows: Int[Tensor, " m"]) -> OthersNear:
        """The sites nearest to each of the rows trained on, twice as many as predict it."""
        return self.merged.others_near(self._neighbors(c), rows, 2 * NEAR)

    @torch.no_grad()
    def _neighbors(self, c: Candidate) -> Neighbors:
        return Neighbors(self._seen(c, self.merged.distinct.x))

    @torch.no_grad()
    def _seen(self, c: Candidate, x: Float[Tensor, "m d"]) -> Float[Tensor, "m z"]:
        """Inputs in units in which their distances are those of the kernel."""
        points = torch.cat([c.mapped(part) for part in x.split(CHUNK)])
        return points * c.covariance.relevance(points).sqrt()
