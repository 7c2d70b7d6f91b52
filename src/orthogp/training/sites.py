"""The residual process by which near rows correct a trained model, for any likelihood.

Its kernel starts at that of the model, or where the residuals of a constant are predicted best from
the rows near them: the former where the model has found what there is to find, the latter where
the function is too rough for its points. Then kernel, noise and weight are learned by the density
of held-out rows, which the model has not been trained on, each predicted from the rows near it.
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
from orthogp.model import VariationalGP
from orthogp.posterior.neighbors import Neighbors, canonical_order
from orthogp.posterior.sites import SiteRows
from orthogp.training.batches import Rows
from orthogp.training.evaluate import predict_in_chunks
from orthogp.training.hyperparameters import climb
from orthogp.training.left_out import left_out_moments

# Rows near each row that is left out; rows of a step, from a pool; neighbours are found anew every
# so many steps, as lengthscales move.
NEAR, BATCH, POOL, REFRESH = 32, {"cpu": 256, "cuda": 2048}, 8, 25
# Steps that learn the scales alone, and all of the residual process.
SCALE_STEPS, STEPS = 50, 100
SCALE_RATE, KERNEL_RATE, CONSTANT_RATE = 0.1, 0.05, 0.1
# What near rows must gain on held-out rows, in nats a row.
LEAST_GAIN = 5e-4
# A row counts as no less likely than this, lest one that is impossible decides.
LEAST_LOG_DENSITY = -20.0
# Rows whose expected log-likelihoods are differentiated at a time.
CHUNK = 4096


@dataclass(frozen=True)
class ResidualProcess:
    """The kernel and the noise σ² of the residual process, and by what gradients are multiplied."""

    kernel: Kernel
    noise: Float[Tensor, ""]
    weight: Float[Tensor, ""]

    @staticmethod
    def of(rows: SiteRows) -> "ResidualProcess":
        return ResidualProcess(rows.kernel, rows.noise, rows.weight)

    def site_rows(self, model: VariationalGP, rows: Rows, count: int) -> SiteRows:
        """The rows with their sites in the posterior of a model."""
        x = rows.x.to(model.basis.beta)
        gradient = site_gradients(model.likelihood, rows, *_latents(model, rows))
        residual = (self.weight * gradient).to(x)
        # So that the same rows in any order give the same predictions.
        order = canonical_order(x, residual)
        return SiteRows(
            x[order], residual[:, order], self.noise, self.weight, deepcopy(self.kernel), count
        )


def learn_residual_process(
    model: VariationalGP,
    train: Rows,
    held_out: Rows,
    generator: torch.Generator,
    deadline: float = math.inf,
    train_kernel: bool = True,
) -> ResidualProcess | None:
    """The residual process that predicts held-out rows best; None where the model does without.

    `deadline` is a time of `time.monotonic()`.
    """
    rows = _joined(train, held_out)
    latents = _latents(model, rows)
    gradient = site_gradients(model.likelihood, rows, *latents)
    search = _Search(model.likelihood, rows, *latents, gradient, generator)
    held = torch.arange(len(train), len(rows), device=search.x.device)
    kernel = model.covariance.kernel
    logs = _starting_logs(model.covariance, search.x[:1])
    plain = _Candidate(kernel, logs)
    climb(
        [plain.logs], lambda step: search.density(plain, held, None), SCALE_STEPS, SCALE_RATE,
        deadline,
    )  # fmt: skip
    best, best_score = None, search.judge(plain, held, corrected=False) + LEAST_GAIN
    starts = [_Candidate(kernel, logs)]
    if train_kernel:
        starts.append(search.from_constant(_Candidate(kernel, logs), deadline))
    for start in starts:
        search.climb(start, [start.logs], held, SCALE_STEPS, SCALE_RATE, deadline)
        score = search.judge(start, held)
        if score > best_score:
            best, best_score = start, score
    if best is None:
        return None
    if train_kernel:
        moved = _Candidate(best.covariance.kernel, best.logs)
        search.climb(moved, moved.parameters(), held, STEPS, KERNEL_RATE, deadline)
        best = moved if search.judge(moved, held) > best_score else best
    return best.process()


class _Candidate:
    """A residual process under search: its kernel, and the logarithms of four scales.

    These are the noise, the weight of the gradients, and what multiplies mean and variance of the
    model's latents.
    """

    def __init__(self, kernel: Kernel, logs: Float[Tensor, "4"]):
        self.covariance = Covariance(deepcopy(kernel))
        self.logs = logs.detach().clone().requires_grad_()

    def parameters(self) -> list[Tensor]:
        return [*(p for p in self.covariance.parameters() if p.requires_grad), self.logs]

    def process(self) -> ResidualProcess:
        noise, weight, mean_scale, _ = self.logs.detach().exp()
        # Calibration will multiply the corrected mean by a scale of its own.
        return ResidualProcess(self.covariance.kernel, noise, weight / mean_scale)


class _Search:
    """The density of rows, each predicted from those near it, as a function of a candidate."""

    def __init__(
        self,
        likelihood: Likelihood,
        rows: Rows,
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
        gradient: Float[Tensor, "c n"],
        generator: torch.Generator,
    ):
        self.likelihood, self.generator = likelihood, generator
        self.mean, self.variance, self.gradient = mean, variance, gradient
        self.rows = rows.map(lambda t: t.to(mean.device))
        self.x = self.rows.x.double()

    def density(
        self, c: _Candidate, rows: Int[Tensor, " m"], near: Int[Tensor, "m k"] | None
    ) -> Float[Tensor, ""]:
        """The mean log density of these rows, corrected by those near them, if any are given."""
        noise, weight, mean_scale, variance_scale = c.logs.exp()
        mean = mean_scale * self.mean[:, rows]
        if near is not None:
            residuals = self.gradient[:, near]
            noise = noise.view(1, 1)
            spread = noise.unsqueeze(-1).expand(1, *near.shape)
            mean = (
                mean
                + weight
                * left_out_moments(
                    c.covariance, self.x[rows], noise, self.x[near], residuals, spread
                )[0]
            )
        density = self.likelihood.log_density(
            self.rows.y[rows], mean, variance_scale * self.variance[:, rows]
        ).clamp_min(LEAST_LOG_DENSITY)
        if self.rows.weight is not None:
            density = density * self.rows.weight[rows]
        return density.mean()

    def climb(
        self,
        c: _Candidate,
        parameters: list[Tensor],
        rows: Int[Tensor, " n"],
        steps: int,
        rate: float,
        deadline: float,
    ) -> None:
        """Uphill on the density of random ones of these rows."""
        batch = BATCH.get(self.x.device.type, BATCH["cpu"])
        pool, near = rows, rows

        def objective(step: int) -> Tensor:
            nonlocal pool, near
            if step % REFRESH == 0:
                order = torch.randperm(len(rows), generator=self.generator)
                pool = rows[order[: POOL * batch].to(rows.device)]
                near = self._nearest(c, pool)
            chosen = torch.randint(len(pool), (batch,), generator=self.generator).to(rows.device)
            return self.density(c, pool[chosen], near[chosen])

        before = [p.detach().clone() for p in parameters]
        if not climb(parameters, objective, steps, rate, deadline):
            with torch.no_grad():
                for parameter, value in zip(parameters, before, strict=True):
                    parameter.copy_(value)

    @torch.no_grad()
    def judge(self, c: _Candidate, rows: Int[Tensor, " n"], corrected: bool = True) -> float:
        """The mean log density of all these rows; -inf for values that lead nowhere."""
        total, near = 0.0, self._nearest(c, rows) if corrected else rows
        size = BATCH.get(self.x.device.type, BATCH["cpu"])
        try:
            for part, around in zip(rows.split(size), near.split(size), strict=True):
                found = self.density(c, part, around if corrected else None)
                total += float(found) * len(part)
        except NumericalError:
            return -math.inf
        return total / len(rows) if math.isfinite(total) else -math.inf

    def from_constant(self, c: _Candidate, deadline: float) -> _Candidate:
        """The candidate moved to where it predicts the residuals of the best constant best."""
        constant = self._best_constant()
        mean = constant.unsqueeze(1).expand_as(self.mean)
        variance = torch.zeros_like(mean)
        gradient = site_gradients(self.likelihood, self.rows, mean, variance)
        alone = _Search(self.likelihood, self.rows, mean, variance, gradient, self.generator)
        every = torch.arange(len(self.rows), device=self.x.device)
        alone.climb(c, c.parameters(), every, STEPS, CONSTANT_RATE, deadline)
        with torch.no_grad():
            c.logs[2:] = 0.0
        return c

    def _best_constant(self) -> Float[Tensor, " c"]:
        """The latents that predict all rows best if they are the same everywhere."""
        order = torch.randperm(len(self.rows), generator=self.generator)[:CHUNK]
        some = self.rows.map(lambda t: t[order.to(t.device)])
        constant = torch.zeros_like(self.mean[:, 0]).requires_grad_()

        def objective(step: int) -> Tensor:
            mean = constant.unsqueeze(1).expand(-1, len(some))
            return self.likelihood.log_density(some.y, mean, torch.zeros_like(mean)).mean()

        climb([constant], objective, STEPS, SCALE_RATE)
        return constant.detach()

    @torch.no_grad()
    def _nearest(self, c: _Candidate, rows: Int[Tensor, " m"]) -> Int[Tensor, "m k"]:
        scaled = self.x * c.covariance.relevance(self.x).sqrt()
        return Neighbors(scaled).nearest(scaled[rows], min(NEAR, len(self.x) - 1), rows)


@torch.no_grad()
def _starting_logs(covariance: Covariance, x: Float[Tensor, "1 d"]) -> Float[Tensor, "4"]:
    """σ² at half the prior variance, sites as their gradients have them, latents as they are."""
    noise = (0.5 * covariance.diagonal(x)).log()
    return torch.cat([noise, noise, torch.zeros_like(noise), torch.zeros_like(noise)])


def _latents(model: VariationalGP, rows: Rows) -> tuple[Tensor, Tensor]:
    """Mean and variance of the latents at rows in the posterior of the basis."""
    parts = predict_in_chunks(model.without_near_rows(), rows.x)
    mean, variance = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    return mean, variance


def site_gradients(
    likelihood: Likelihood,
    rows: Rows,
    mean: Float[Tensor, "c n"],
    variance: Float[Tensor, "c n"],
) -> Float[Tensor, "c n"]:
    """g_n = ∂/∂m E_q log p(y_n | f_n), times the weight of the row."""
    parts = []
    chunks = rows.chunks(CHUNK), mean.split(CHUNK, 1), variance.split(CHUNK, 1)
    for chunk, m, s in zip(*chunks, strict=True):
        m = m.detach().clone().requires_grad_()
        value = likelihood.expected_log_prob(chunk.y.to(m.device), m, s)
        if chunk.weight is not None:
            value = value * chunk.weight.to(m)
        parts += torch.autograd.grad(value.sum(), [m])
    return torch.cat(parts, dim=1)


def _joined(first: Rows, second: Rows) -> Rows:
    weight = None
    if first.weight is not None and second.weight is not None:
        weight = torch.cat([first.weight, second.weight])
    return Rows(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]), weight)
