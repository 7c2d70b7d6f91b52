"""The residual process by which near rows correct a trained model, for any likelihood.

Its kernel starts at that of the model, or where the residuals of a constant are predicted best from
the rows near them: the former where the model has found most of what there is to find, the latter
where the function is too rough for its points. Then kernel, noise and weight are learned by the
density of rows, each predicted from the rows near it.

Rows that were held out from the training of the model tell most, but may be few. A row that the
model was trained on is better predicted than it should be. Its latents are moved against the
gradient of its own site, m − ρ s g, with the ρ that makes such rows as likely as held-out ones, or
as they are without their own sites where that is less.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import ClassificationLikelihood, Likelihood
from orthogp.model import VariationalGP
from orthogp.posterior.near_precision import near_predictor
from orthogp.posterior.neighbors import Neighbors, canonical_order
from orthogp.posterior.observations import MergedRows, Observations, OthersNear
from orthogp.posterior.sites import SiteRows
from orthogp.training.batches import Rows
from orthogp.training.evaluate import latents_at
from orthogp.training.hyperparameters import climb
from orthogp.training.left_out import left_out_latents, left_out_moments

# Rows near each row that is predicted; rows of a step, from a pool; neighbours are found anew every
# so many steps, as lengthscales move.
NEAR, BATCH, POOL, REFRESH = 32, {"cpu": 256, "cuda": 512}, 8, 25
# Steps that learn the scales alone, and all of the residual process.
SCALE_STEPS, STEPS = 50, 100
SCALE_RATE, KERNEL_RATE, CONSTANT_RATE = 0.1, 0.05, 0.1
# So many held-out rows are enough to learn from them alone.
ENOUGH_HELD_OUT = 2000
# Rows besides those held out by which candidates are compared, and how many standard errors are
# taken off what one gains.
MOST_JUDGED, ERRORS = 5000, 2.0
# A row counts as no less likely than this, lest one that is impossible decides.
LEAST_LOG_DENSITY = -20.0
# Rows whose expected log-likelihoods are differentiated at a time.
CHUNK = 4096
# The largest ρ, and how often the interval that holds it is halved.
LARGEST_SHIFT, HALVINGS = 4.0, 20
# By how many standard errors held-out rows may be more likely by chance.
CREDIBLE_ERRORS = 3.0


@dataclass(frozen=True)
class ResidualProcess:
    """The kernel and the noise σ² of the residual process, and by what gradients are multiplied.

    The kernel is on the host, so that processes can hand it to each other.
    """

    kernel: Kernel
    noise: float
    weight: float

    @staticmethod
    def of(rows: SiteRows) -> "ResidualProcess":
        return ResidualProcess(deepcopy(rows.kernel).cpu(), float(rows.noise), float(rows.weight))

    def site_rows(self, model: VariationalGP, rows: Rows, count: int) -> SiteRows:
        """The rows with their sites in the posterior of a model."""
        x, residual = self._observed(model, rows)
        # So that the same rows in any order give the same predictions.
        order = canonical_order(x, residual)
        kernel = deepcopy(self.kernel).to(x.device)
        return SiteRows(x[order], residual[:, order], self.noise, self.weight, kernel, count)

    def left_out_corrections(
        self, model: VariationalGP, rows: Rows, some: Int[Tensor, " m"], count: int
    ) -> Float[Tensor, "c m"]:
        """What the sites of the others near them add to the mean of some of the rows."""
        x, residual = self._observed(model, rows)
        noise = residual.new_full((1, len(x)), self.noise, dtype=torch.float64)
        merged = MergedRows.of(Observations(x, residual.double(), noise))
        covariance = Covariance(deepcopy(self.kernel).to(x.device))
        near = near_predictor(covariance, merged, count, features=None)
        return near.leave_one_out(some.to(x.device))[0]

    def _observed(
        self, model: VariationalGP, rows: Rows
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "c n"]]:
        """The rows on the device of the model, and what the residual process is there."""
        x = rows.x.to(model.basis.beta)
        gradient = site_gradients(
            model.likelihood, rows, *latents_at(model.without_near_rows(), rows.x)
        )
        return x, (self.weight * gradient).to(x)


def learn_residual_process(
    model: VariationalGP,
    train: Rows,
    held_out: Rows,
    start: Kernel,
    generator: torch.Generator,
    deadline: float = math.inf,
    train_kernel: bool = True,
) -> ResidualProcess | None:
    """The residual process that predicts rows best; None where the model does as well without.

    `start` is the kernel before any training; `deadline` is a time of `time.monotonic()`.
    """
    rows, model = _joined(train, held_out), model.without_near_rows()
    sites = _Sites.of(model.likelihood, rows, *latents_at(model, rows.x))
    held = torch.arange(len(train), len(rows), device=sites.mean.device)
    classes = isinstance(model.likelihood, ClassificationLikelihood)
    sites = _as_held_out(sites, held, generator, model if classes else None)
    search = _Search(sites, held, generator, deadline)
    best = _best_candidate(search, model.covariance.kernel, start if train_kernel else None)
    return None if best is None else best.process()


def _best_candidate(search: "_Search", kernel: Kernel, start: Kernel | None) -> "_Candidate | None":
    """Of the candidates the one that gains most, if any does; without `start` kernels stay."""
    plain = search.candidate(kernel)
    search.climb(plain, [plain.logs], SCALE_STEPS, SCALE_RATE, corrected=False)
    without = search.judge(plain, corrected=False)
    starts = [search.candidate(kernel)]
    if start is not None:
        starts.append(search.from_constant(search.candidate(start)))
    best, most = None, 0.0
    for candidate in starts:
        search.climb(candidate, [candidate.logs], SCALE_STEPS, SCALE_RATE)
        tried = [candidate]
        if start is not None:
            moved = _Candidate(candidate.covariance.kernel, candidate.logs)
            search.climb(moved, moved.parameters(), STEPS, KERNEL_RATE)
            tried.append(moved)
        for found in tried:
            gain = search.gain(found, without)
            if gain > most:
                best, most = found, gain
    return best


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
        noise, weight, mean_scale, _ = self.logs.detach().exp().tolist()
        # Calibration will multiply the corrected mean by a scale of its own.
        return ResidualProcess(self.covariance.kernel.cpu(), noise, weight / mean_scale)


@dataclass(frozen=True)
class _Sites:
    """Rows, on the device of their latents, with the marginals of these and the gradients g_n."""

    likelihood: Likelihood
    rows: Rows
    mean: Float[Tensor, "c n"]
    variance: Float[Tensor, "c n"]
    gradient: Float[Tensor, "c n"]

    @staticmethod
    def of(
        likelihood: Likelihood,
        rows: Rows,
        mean: Float[Tensor, "c n"],
        variance: Float[Tensor, "c n"],
    ) -> "_Sites":
        gradient = site_gradients(likelihood, rows, mean, variance)
        return _Sites(likelihood, rows.map(lambda t: t.to(mean.device)), mean, variance, gradient)

    def others(self, held: Int[Tensor, " m"]) -> Int[Tensor, " k"]:
        """The rows that were not held out."""
        every = torch.arange(len(self.rows), device=held.device)
        return every[~torch.isin(every, held)]


class _Search:
    """The density of rows, each predicted from those near it, as a function of a candidate."""

    def __init__(
        self,
        sites: _Sites,
        held: Int[Tensor, " m"],
        generator: torch.Generator,
        deadline: float,
    ):
        self.sites, self.held, self.generator, self.deadline = sites, held, generator, deadline
        # Calibration scales the latents of classes; those of numbers have the units of y.
        self.scales_mean = isinstance(sites.likelihood, ClassificationLikelihood)
        self.x = sites.rows.x.double()
        # Sites share their noise, which here is one.
        noise = torch.ones_like(self.x[:, 0]).unsqueeze(0)
        self.merged = MergedRows.of(Observations(self.x, sites.gradient, noise))
        self.batch = BATCH.get(self.x.device.type, BATCH["cpu"])
        enough = len(held) >= ENOUGH_HELD_OUT
        self.learned_from = held if enough else torch.arange(len(self.x), device=held.device)
        self.judged = torch.cat([held, random_rows(sites.others(held), MOST_JUDGED, generator)])

    @torch.no_grad()
    def candidate(self, kernel: Kernel) -> _Candidate:
        """With σ² at half the prior variance, and latents and sites as they are in the model."""
        noise = (0.5 * Covariance(kernel).diagonal(self.x[:1])).log()
        as_they_are = torch.zeros_like(noise)
        return _Candidate(kernel, torch.cat([noise, noise, as_they_are, as_they_are]))

    def densities(
        self,
        c: _Candidate,
        rows: Int[Tensor, " m"],
        others: OthersNear | None = None,
    ) -> Float[Tensor, " m"]:
        """The log density of these rows, corrected by the sites of those near them, if any."""
        noise, weight, mean_scale, variance_scale = c.logs.exp()
        mean = self.sites.mean[:, rows]
        if self.scales_mean:
            mean = mean_scale * mean
        if others is not None:
            given, near, noise = others.rows, others.near, noise.view(1, 1)
            near_noise = noise.unsqueeze(-1) * given.noise[:, near]
            correction, _ = left_out_moments(
                c.covariance, self.x[rows], noise, given.x[near], given.y[:, near], near_noise
            )
            mean = mean + weight * correction
        variance = variance_scale * self.sites.variance[:, rows]
        some = self.sites.rows.map(lambda t: t[rows])
        return clamped_density(self.sites.likelihood, some, mean, variance)

    def climb(
        self,
        c: _Candidate,
        parameters: Sequence[Tensor],
        steps: int,
        rate: float,
        corrected: bool = True,
    ) -> None:
        """Uphill on the mean density of random rows, or nowhere if that leads nowhere."""
        pool, others = self.learned_from, None

        def objective(step: int) -> Tensor:
            nonlocal pool, others
            if step % REFRESH == 0:
                pool = random_rows(self.learned_from, POOL * self.batch, self.generator)
                others = self._others_near(c, pool) if corrected else None
            chosen = torch.randint(len(pool), (self.batch,), generator=self.generator)
            chosen = chosen.to(pool.device)
            some = None if others is None else others._replace(near=others.near[chosen])
            return self.densities(c, pool[chosen], some).mean()

        before = [p.detach().clone() for p in parameters]
        if not climb(parameters, objective, steps, rate, self.deadline):
            with torch.no_grad():
                for parameter, value in zip(parameters, before, strict=True):
                    parameter.copy_(value)

    def gain(self, c: _Candidate, without: Float[Tensor, " m"]) -> float:
        """What is gained beyond chance over those densities, in nats a row.

        As all rows show, or as those held out show.
        """
        try:
            gains = self.judge(c) - without
        except NumericalError:
            return -math.inf
        parts = gains, gains[: len(self.held)]
        found = max(float(g.mean() - ERRORS * g.std() / len(g) ** 0.5) for g in parts)
        return found if math.isfinite(found) else -math.inf

    @torch.no_grad()
    def judge(self, c: _Candidate, corrected: bool = True) -> Float[Tensor, " m"]:
        """The densities of the rows by which candidates are compared, those held out first."""
        parts = self.judged.split(self.batch)
        if not corrected:
            return torch.cat([self.densities(c, rows) for rows in parts])
        others = self._others_near(c, self.judged)
        pairs = zip(parts, others.near.split(self.batch), strict=True)
        some = [self.densities(c, rows, others._replace(near=near)) for rows, near in pairs]
        return torch.cat(some)

    def from_constant(self, c: _Candidate) -> _Candidate:
        """The candidate moved to where it predicts the residuals of the best constant best."""
        constant = best_constant(self.sites.likelihood, self.sites.rows, self.generator)
        mean = constant.to(self.sites.mean).unsqueeze(1).expand_as(self.sites.mean)
        sites = _Sites.of(self.sites.likelihood, self.sites.rows, mean, torch.zeros_like(mean))
        alone = _Search(sites, self.held[:0], self.generator, self.deadline)
        alone.climb(c, c.parameters(), STEPS, CONSTANT_RATE)
        with torch.no_grad():
            c.logs[2:] = 0.0
        return c

    @torch.no_grad()
    def _others_near(self, c: _Candidate, rows: Int[Tensor, " m"]) -> OthersNear:
        points = self.merged.distinct.x * c.covariance.relevance(self.x).sqrt()
        return self.merged.others_near(Neighbors(points), rows, NEAR)


@torch.no_grad()
def _as_held_out(
    sites: _Sites,
    held: Int[Tensor, " m"],
    generator: torch.Generator,
    model: VariationalGP | None = None,
) -> _Sites:
    """With m − ρ s g at the rows trained on, where ρ makes them as likely as those held out.

    Where few are held out these may be likely by chance: with the model that the sites are of, rows
    trained on are at most as likely as they are without their own sites, unless these are so
    unlikely that training cannot have ended.
    """
    trained = sites.others(held)
    some, moves = random_rows(trained, MOST_JUDGED, generator), sites.variance * sites.gradient

    def densities(rows: Rows, mean: Tensor, variance: Tensor) -> Tensor:
        return sites.likelihood.log_density(rows.y, mean, variance).clamp_min(LEAST_LOG_DENSITY)

    def density(shift: float) -> float:
        moved = sites.mean[:, some] - shift * moves[:, some]
        return float(densities(trained_on, moved, sites.variance[:, some]).mean())

    held_out, trained_on = (sites.rows.map(lambda t, r=r: t[r]) for r in (held, some))
    of_held = densities(held_out, sites.mean[:, held], sites.variance[:, held])
    wanted, low, high = float(of_held.mean()), 0.0, LARGEST_SHIFT
    if model is not None:
        alone = float(densities(trained_on, *left_out_latents(model, trained_on)).mean())
        if alone > wanted - CREDIBLE_ERRORS * float(of_held.std()) / len(held) ** 0.5:
            wanted = min(wanted, alone)
    if density(0.0) <= wanted:
        return sites
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if density(middle) > wanted else (low, middle)
    moved = sites.mean[:, trained] - low * moves[:, trained]
    return replace(sites, mean=sites.mean.index_copy(1, trained, moved))


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


def best_constant(
    likelihood: Likelihood, rows: Rows, generator: torch.Generator
) -> Float[Tensor, " c"]:
    """The latents that predict rows best if they are the same everywhere."""
    every = torch.arange(len(rows), device=rows.y.device)
    y = rows.y[random_rows(every, CHUNK, generator)]
    # Labels and counts are few different ones.
    y, count = y.unique(dim=0, return_counts=True)
    share = count / count.sum()
    constant = torch.zeros(likelihood.num_latents, dtype=torch.float64, device=y.device)
    constant.requires_grad_()

    def objective(step: int) -> Tensor:
        mean = constant.unsqueeze(1).expand(-1, len(y))
        return (share * likelihood.log_density(y, mean, torch.zeros_like(mean))).sum()

    climb([constant], objective, STEPS, SCALE_RATE)
    return constant.detach()


def clamped_density(
    likelihood: Likelihood,
    rows: Rows,
    mean: Float[Tensor, "c n"],
    variance: Float[Tensor, "c n"],
) -> Float[Tensor, " n"]:
    """The log density of each row, times its weight; none counts as less likely than the least."""
    found = likelihood.log_density(rows.y, mean, variance).clamp_min(LEAST_LOG_DENSITY)
    return found if rows.weight is None else found * rows.weight


def random_rows(
    rows: Int[Tensor, " n"], count: int, generator: torch.Generator
) -> Int[Tensor, " m"]:
    """At most so many of the rows; drawn on the host, so that devices draw alike."""
    return rows[torch.randperm(len(rows), generator=generator)[:count].to(rows.device)]


def _joined(first: Rows, second: Rows) -> Rows:
    weight = None
    if first.weight is not None and second.weight is not None:
        weight = torch.cat([first.weight, second.weight])
    return Rows(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]), weight)
