"""Hyperparameters that predict, for Gaussian noise.

The bound of a few hundred points asks for noise where it has no points. In its place come

- the exact evidence of blocks of rows: random ones, which see what is long, and patches of
  neighbouring ones, which see what is short;
- from the better of these the leave-one-out density log p(y_i | the rows near x_i without i), which
  minibatches estimate without bias whatever the number of rows.

Of all values found those are taken that predict left-out rows best.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods.targets import latents_first
from orthogp.posterior.induced import dot, factor_with_noise
from orthogp.posterior.neighbors import Neighbors
from orthogp.training.batches import Rows
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.start import log_evidence

# Rows of a block, whose evidence takes their cube; rows near each row that is left out; rows that a
# step leaves out, from a pool whose neighbours are found anew every so many steps.
BLOCK_ROWS = {"cpu": 512, "cuda": 2048}
NEAR, BATCH, POOL, REFRESH = 32, {"cpu": 256, "cuda": 2048}, 8, 25
EVIDENCE_STEPS, PATCH_STEPS, LEAVE_ONE_OUT_STEPS = 100, 60, 100
EVIDENCE_RATE, LEAVE_ONE_OUT_RATE = 0.15, 0.05
# An objective is climbed again from where it led as long as that gains so much, in nats a row.
ROUNDS, LEAST_GAIN = 4, 0.01
# Rows by which the values found are compared.
JUDGED = 1000


@dataclass(frozen=True)
class Learned:
    """The leave-one-out density of each set of values tried, in nats a row, by its name."""

    densities: dict[str, float]
    chosen: str
    steps: int


def learn_to_predict(
    hyperparameters: Hyperparameters,
    rows: Rows,
    generator: torch.Generator,
    deadline: float = math.inf,
    max_steps: int | None = None,
    report: Callable[[int, float], None] = lambda step, density: None,
) -> Learned:
    """Moves the hyperparameters by at most `max_steps` steps.

    `report` is told of the steps so far and of the density that they have reached.
    """
    search = _Search(hyperparameters, rows, generator)
    tried = {"start": (search.density(), hyperparameters.values())}
    steps = 0

    def best() -> str:
        return max(tried, key=lambda name: tried[name][0])

    stages = (
        ("evidence", "start", search.evidence_of_random_rows, EVIDENCE_STEPS, EVIDENCE_RATE),
        ("patches", "evidence", search.evidence_of_patches, PATCH_STEPS, EVIDENCE_RATE),
        ("leave_one_out", None, search.leave_one_out, LEAVE_ONE_OUT_STEPS, LEAVE_ONE_OUT_RATE),
    )
    for name, source, objective, count, rate in stages:
        before, values = tried[best() if source is None or source not in tried else source]
        for _ in range(ROUNDS):
            hyperparameters.set(values)
            count = count if max_steps is None else min(count, max_steps - steps)
            ended = count == 0 or time.monotonic() >= deadline
            if ended or not hyperparameters.climb(objective, count, rate, deadline):
                break
            steps += count
            density, values = search.density(), hyperparameters.values()
            report(steps, density)
            if name not in tried or density > tried[name][0]:
                tried[name] = density, values
            if not density > before + LEAST_GAIN:
                break
            before = density
    chosen = best()
    hyperparameters.set(tried[chosen][1])
    return Learned({name: density for name, (density, _) in tried.items()}, chosen, steps)


class _Search:
    """The objectives, each a mean over rows."""

    def __init__(self, hyperparameters: Hyperparameters, rows: Rows, generator: torch.Generator):
        self.hyperparameters, self.covariance, self.generator = (
            hyperparameters,
            hyperparameters.covariance,
            generator,
        )
        self.device = hyperparameters.noise.device
        self.x, self.y = rows.x.to(self.device), latents_first(rows.y.to(self.device)).double()
        self.weight = None if rows.weight is None else rows.weight.to(self.device).double()
        self.judged = self._sample(JUDGED)
        self._neighbors, self._pool, self._near = None, self.judged, self.judged

    def evidence_of_random_rows(self, step: int) -> Tensor:
        return self._evidence(self._sample(self._block_rows()))

    def evidence_of_patches(self, step: int) -> Tensor:
        """Every other block is random: patches alone forget what is long."""
        if step % 2:
            return self.evidence_of_random_rows(step)
        if step % REFRESH == 0 or self._neighbors is None:
            self._neighbors = self._tree()
        centre = self._scaled(self.x[self._sample(1)])
        return self._evidence(self._neighbors.nearest(centre, self._block_rows())[0])

    def leave_one_out(self, step: int) -> Tensor:
        batch = BATCH.get(self.device.type, BATCH["cpu"])
        if step % REFRESH == 0:
            self._pool = self._sample(POOL * batch)
            self._near = self._tree().nearest(self._scaled(self.x[self._pool]), NEAR, self._pool)
        chosen = torch.randint(len(self._pool), (batch,), generator=self.generator)
        chosen = chosen.to(self.device)
        density = self._left_out(self._pool[chosen], self._near[chosen])
        return density.mean() + self.hyperparameters.log_prior() / len(self.x)

    @torch.no_grad()
    def density(self) -> float:
        """That of the judged rows; -inf for values that lead nowhere."""
        try:
            near = self._tree().nearest(self._scaled(self.x[self.judged]), NEAR, self.judged)
            value = self._left_out(self.judged, near).mean().item()
        except NumericalError:
            return -math.inf
        return value if math.isfinite(value) else -math.inf

    def _left_out(self, rows: Int[Tensor, " m"], near: Int[Tensor, "m k"]) -> Float[Tensor, " m"]:
        noise = self.hyperparameters.noise.unsqueeze(-1)
        noise_near = noise.unsqueeze(-1).expand(-1, *near.shape)
        if self.weight is not None:
            noise_near = noise_near / self.weight[near]
        density = leave_one_out_density(
            self.covariance, self.x[rows].double(), self.y[:, rows], noise, self.x[near].double(),
            self.y[:, near], noise_near,
        ).sum(0)  # fmt: skip
        return density if self.weight is None else density * self.weight[rows]

    def _evidence(self, rows: Int[Tensor, " m"]) -> Tensor:
        weight = None if self.weight is None else self.weight[rows]
        # One noise for all outputs, so that one factorisation serves them.
        value = log_evidence(
            self.covariance,
            self.hyperparameters.noise.mean(),
            self.x[rows].double(),
            self.y[:, rows],
            weight,
        )
        return value / len(rows) + self.hyperparameters.log_prior() / len(self.x)

    def _block_rows(self) -> int:
        return min(len(self.x), BLOCK_ROWS.get(self.device.type, BLOCK_ROWS["cpu"]))

    def _sample(self, count: int) -> Int[Tensor, " m"]:
        """Distinct rows; drawn on the host, so that every device draws the same."""
        order = torch.randperm(len(self.x), generator=self.generator)
        return order[:count].to(self.device)

    @torch.no_grad()
    def _scaled(self, x: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        return x.double() * self.covariance.relevance(x).sqrt()

    def _tree(self) -> Neighbors:
        return Neighbors(self._scaled(self.x))


def leave_one_out_density(
    covariance: Covariance,
    x: Float[Tensor, "m d"],
    y: Float[Tensor, "c m"],
    noise: Float[Tensor, "s 1"],
    x_near: Float[Tensor, "m k d"],
    y_near: Float[Tensor, "c m k"],
    noise_near: Float[Tensor, "s m k"],
) -> Float[Tensor, "c m"]:
    """log p(y | y_N) of every row given those near it, differentiable in the hyperparameters.

    With A = K_NN + D, c = A⁻¹ k and e = A⁻¹ y_N as constants, m = kᵀe + cᵀy_N − cᵀA e and
    s = k_xx − 2 cᵀk + cᵀA c have the values and the gradients of kᵀA⁻¹y_N and k_xx − kᵀA⁻¹k: no
    gradient passes through a factorisation.
    """
    with covariance.parameters_read_once(x):
        K = covariance.batched_block(x_near, x_near)
        k = covariance.batched_block(x_near, x.unsqueeze(1)).squeeze(-1)
        prior = covariance.diagonal(x)
    with torch.no_grad():
        L = factor_with_noise(K, noise_near)
        c = torch.cholesky_solve(k.unsqueeze(-1), L).squeeze(-1)
        e = torch.cholesky_solve(y_near.unsqueeze(-1), L).squeeze(-1)
    Ac = (K @ c.unsqueeze(-1)).squeeze(-1) + noise_near * c
    mean = dot(k, e) + dot(c, y_near) - dot(Ac, e)
    variance = prior - 2.0 * dot(c, k) + dot(Ac, c) + noise
    return -0.5 * ((y - mean).square() / variance + variance.log() + math.log(2.0 * math.pi))
