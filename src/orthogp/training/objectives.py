"""What a search for hyperparameters climbs, and by what it compares the values it has found.

Everything is a mean over rows, as a function of the kernel, the noise and a linear map: the
evidence of some rows, that of patches of neighbouring rows, which see what is short, and the
leave-one-out density log p(y_i | the rows near x_i without i), which minibatches estimate without
bias whatever the number of rows.

Values are compared by rows that have no part in that density, each predicted from more rows than it
can afford: by the mean of two figures in nats a row, their log density, and that of a normal
distribution with the same variance for all. The former alone takes values by which most rows are
predicted to the last digit and a few not at all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods.targets import latents_first
from orthogp.posterior import NearPredictor
from orthogp.posterior.neighbors import Neighbors
from orthogp.posterior.observations import MergedRows, Observations
from orthogp.posterior.optimum import leave_one_out as exact_leave_one_out
from orthogp.training.batches import Rows
from orthogp.training.evidence import log_evidence
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.left_out import left_out_moments, log_normal

# Up to so many rows the model is the exact process, and all of them are left out of each other.
MOST_EXACT = {"cpu": 2000, "cuda": 6000}
# Rows of a block, whose evidence takes their cube; rows near each row that is left out; rows that a
# step leaves out, from a pool. Neighbours are found anew every so many steps, as lengthscales move.
BLOCK_ROWS = {"cpu": 512, "cuda": 2048}
NEAR, BATCH, POOL, REFRESH = 32, {"cpu": 256, "cuda": 2048}, 8, 20
# Rows by which the values found are compared, and rows near each.
JUDGED, NEAR_JUDGED = {"cpu": 1000, "cuda": 4000}, 128
# Keeps the logarithm finite where nothing is left to err about.
SMALLEST_VARIANCE = 1e-12


@dataclass(frozen=True)
class Judgement:
    """The log density of left-out rows, and by what values are compared, in nats a row."""

    density: float
    score: float


class Objectives:
    """The objectives of some rows, or of those around some `centres` in a larger table."""

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        rows: Rows,
        generator: torch.Generator,
        centres: Int[Tensor, " m"] | None = None,
    ):
        self.hyperparameters, self.generator = hyperparameters, generator
        self.device = hyperparameters.noise.device
        self.x, self.y = rows.x.to(self.device), latents_first(rows.y.to(self.device)).double()
        self.weight = None if rows.weight is None else rows.weight.to(self.device).double()
        scale = rows.noise_scale
        self.noise_scale = (
            None if scale is None else latents_first(scale).to(self.device, torch.float64)
        )
        # Relative to σ².
        noise = torch.ones_like(self.y[:1]) if self.noise_scale is None else self.noise_scale
        noise = noise if self.weight is None else noise / self.weight
        self.merged = merged = MergedRows.of(Observations(self.x, self.y, noise))
        # Of the rows at each distinct input, how many there are and how they differ.
        weight = torch.ones_like(self.y[:1]) if self.weight is None else self.weight.unsqueeze(0)
        self.number = merged.total(weight)[0]
        self.spread = merged.total((self.y - merged.distinct.y[:, merged.place]).square() / noise)
        self.centres = None if centres is None else centres.to(self.device)
        self.exact = centres is None and len(self.x) <= self.on_device(MOST_EXACT)
        self._choose_judged()

    @property
    def covariance(self) -> Covariance:
        return self.hyperparameters.covariance

    def _choose_judged(self) -> None:
        self._first_state = self.generator.get_state()
        # At most half of the rows, so that enough are left to climb by.
        among = len(self.x) if self.centres is None else len(self.centres)
        count = min(self.on_device(JUDGED), among // 2)
        order = self.sample(among, among)
        order = order if self.centres is None else self.centres[order]
        self.judged, self.others = order.tensor_split([count])

    def state(self) -> dict[str, Tensor]:
        """What the next round depends on beside the hyperparameters: the generator's state, and
        that by which the rows to be judged were chosen."""
        return {"first_generator": self._first_state, "generator": self.generator.get_state()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["first_generator"].cpu())
        self._choose_judged()
        self.generator.set_state(state["generator"].cpu())

    def evidence_of_random_rows(self, step: int) -> Tensor:
        return self.evidence(self.sample(self.on_device(BLOCK_ROWS)))

    def evidence_of_patches(self, step: int) -> Tensor:
        """Every other block is random: patches alone forget what is long."""
        if step % 2:
            return self.evidence_of_random_rows(step)
        if step % REFRESH == 0:
            self._neighbors = self._tree()
        chosen = self.sample(1, None if self.centres is None else len(self.others))
        chosen = chosen if self.centres is None else self.others[chosen]
        centre = self._neighbors.points[self.merged.place[chosen]]
        inputs = self._neighbors.nearest(centre, self.on_device(BLOCK_ROWS))[0]
        return self._evidence_at_inputs(inputs)

    def leave_one_out(self, step: int, batch: int | None = None) -> Tensor:
        batch = batch or self.on_device(BATCH)
        if step % REFRESH == 0:
            self._pool = self.others[self.sample(POOL * batch, len(self.others))]
            self._given = self.merged.others_near(self._tree(), self._pool, NEAR)
        chosen = torch.randint(len(self._pool), (batch,), generator=self.generator)
        chosen = chosen.to(self.device)
        rows = self._pool[chosen]
        mean, variance = self._moments(rows, self._given.rows, self._given.near[chosen])
        density = log_normal(self.y[:, rows] - mean, variance).sum(0)
        if self.weight is not None:
            density = density * self.weight[rows]
        return density.mean() + self._log_prior()

    @torch.no_grad()
    def judge(self) -> Judgement:
        """By left-out rows, and the priors' share; -inf for values that lead nowhere."""
        try:
            if self.exact:
                # A map is learned from the others.
                rows = slice(None) if self.hyperparameters.linear_map is None else self.judged
                mean, variance = (part[:, rows] for part in self._exactly_left_out())
            else:
                rows, (mean, variance) = self.judged, self._judged_moments()
            weight = torch.ones_like(self.y[0]) if self.weight is None else self.weight
            error, weight = self.y[:, rows] - mean, weight[rows]
            alike = (weight * error.square()).sum(1, keepdim=True) / weight.sum()
            density, of_alike = (
                (weight * log_normal(error, v.clamp_min(SMALLEST_VARIANCE)).sum(0)).mean().item()
                for v in (variance, alike)
            )
            score = 0.5 * (density + of_alike) + self._log_prior().item()
        except NumericalError:
            return Judgement(-math.inf, -math.inf)
        return Judgement(density, score if math.isfinite(score) else -math.inf)

    def _judged_moments(self) -> tuple[Float[Tensor, "c m"], Float[Tensor, "c m"]]:
        noise = self.hyperparameters.noise.unsqueeze(-1)

        def observed(part: Observations) -> Observations:
            x = self.hyperparameters.mapped(part.x.double()).to(part.x)
            return Observations(x, part.y, noise * part.noise)

        rows, distinct = observed(self.merged.rows), observed(self.merged.distinct)
        merged = replace(self.merged, rows=rows, distinct=distinct)
        near = NearPredictor(
            self.covariance, distinct, NEAR_JUDGED, self._tree(), None, None, merged=merged
        )
        mean, variance = near.leave_one_out(self.judged)
        return mean, variance + self._noise(self.judged)

    def _exactly_left_out(self) -> tuple[Float[Tensor, "c n"], Float[Tensor, "s n"]]:
        """Of every row given those at other inputs: from its copies any values would predict it."""
        noise, merged = self.hyperparameters.noise.unsqueeze(-1), self.merged
        x = self.hyperparameters.mapped(merged.distinct.x.double())
        mean, variance = exact_leave_one_out(
            self.covariance, x, merged.distinct.y, noise * merged.distinct.noise
        )
        return mean[:, merged.place], variance[:, merged.place] + self._noise()

    def _moments(
        self, rows: Int[Tensor, " m"], given: Observations, near: Int[Tensor, "m k"]
    ) -> tuple[Float[Tensor, "c m"], Float[Tensor, "s m"]]:
        """Mean and variance of rows, each given some observations with a noise relative to σ²."""
        noise = self.hyperparameters.noise.reshape(-1, 1, 1) * given.noise[:, near]
        x, x_near = (self.hyperparameters.mapped(t.double()) for t in (self.x[rows], given.x[near]))
        return left_out_moments(
            self.covariance, x, self._noise(rows), x_near, given.y[:, near], noise
        )

    def _noise(self, rows: Int[Tensor, " m"] | slice = slice(None)) -> Float[Tensor, "s #m"]:
        """The variance of the noise of a new observation at each of these rows."""
        noise = self.hyperparameters.noise.unsqueeze(-1)
        return noise if self.noise_scale is None else noise * self.noise_scale[:, rows]

    def evidence(self, rows: Int[Tensor, " m"]) -> Tensor:
        weight = None if self.weight is None else self.weight[rows]
        scale = None if self.noise_scale is None else self.noise_scale[:, rows]
        x = self.hyperparameters.mapped(self.x[rows].double())
        value = log_evidence(
            self.covariance, self.hyperparameters.noise, x, self.y[:, rows], weight, scale
        )
        return value / len(rows) + self._log_prior()

    def _evidence_at_inputs(self, inputs: Int[Tensor, " m"]) -> Tensor:
        """That of all rows at some distinct inputs, up to a constant."""
        at, total = self.merged.distinct[inputs], self.number[inputs].sum()
        x = self.hyperparameters.mapped(at.x.double())
        noise = self.hyperparameters.noise
        value = log_evidence(self.covariance, noise, x, at.y, noise_scale=at.noise)
        # Rows at one input differ by noise alone.
        within = (total - len(inputs)) * noise.log() + self.spread[:, inputs].sum(1) / noise
        value = value - 0.5 * within.expand(len(at.y)).sum()
        return value / total + self._log_prior()

    def _log_prior(self) -> Tensor:
        """A row's share of it."""
        return self.hyperparameters.log_prior() / len(self.x)

    def on_device(self, sizes: Mapping[str, int]) -> int:
        return sizes.get(self.device.type, sizes["cpu"])

    def sample(self, count: int, among: int | None = None) -> Int[Tensor, " m"]:
        """Distinct ones of the first `among`; drawn on the host, so that devices draw alike."""
        order = torch.randperm(among or len(self.x), generator=self.generator)
        return order[:count].to(self.device)

    @torch.no_grad()
    def _tree(self) -> Neighbors:
        """Of the distinct inputs."""
        x = self.hyperparameters.mapped(self.merged.distinct.x.double())
        return Neighbors(x * self.covariance.relevance(self.x).sqrt())
