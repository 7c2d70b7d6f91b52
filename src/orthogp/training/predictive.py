"""Hyperparameters that predict, for Gaussian noise.

The bound of a few hundred points asks for noise where it has no points. In its place comes, for a
table of a few thousand rows, the exact evidence of all rows: at first with the lengthscales of a
kernel tied to each other, then with each free, but pulled to where it was tied. A larger table has

- likewise the evidence of some of its rows, and, because there are several optima, from the start
  that of random blocks of rows;
- from the better of these the evidence of patches of neighbouring rows, which see what is short;
- from the better of these the leave-one-out density log p(y_i | the rows near x_i without i), which
  minibatches estimate without bias whatever the number of rows, with a linear map of the inputs;
- where the map predicts no better, on a GPU the evidence of some rows once more, of many now;
- from the better of these the leave-one-out density once more, with the map as it is;
- from the better of these the same density with a rough part in the kernel.

A small table has the map too, learned from half of its rows, and then the evidence of all of them
given the map, and once more with a rough part.

Of all values found those are taken that predict left-out rows best, by the mean of two figures in
nats a row: their log density, and that of a normal distribution with the same variance for all. The
former alone takes values by which most rows are predicted to the last digit and a few not at all.
The rows by which values are compared take no part in the leave-one-out density that is climbed, and
are predicted from more rows near them than it can afford.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orthogp.errors import NumericalError
from orthogp.execution.memory import affordable_bytes
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
from orthogp.training.search_stages import Learned, Progress, SearchCheckpoint, Stage

# Up to so many rows the evidence is that of all rows. It takes their cube: where there are many,
# that of some of them leads most of the way.
MOST_EXACT = {"cpu": 2000, "cuda": 6000}
TIED_ROWS, FIRST_ROWS = {"cpu": 400, "cuda": 2000}, {"cpu": 1000, "cuda": 3000}
EVALUATIONS, LAST_EVALUATIONS, MAPPED_EVALUATIONS = 80, 25, {"cpu": 10, "cuda": 25}
# Rows of a large table whose evidence a GPU climbs once more; a CPU takes too long for as many.
# Three matrices of their size must be affordable: at most about twelve are in memory.
MANY_ROWS, MATRICES = {"cpu": 0, "cuda": 12000}, 3
# By how much the logarithms of lengthscales are expected to differ: their standard deviation.
SPREAD = 1.5
# Rows of a block, whose evidence takes their cube; rows near each row that is left out; rows that a
# step leaves out, from a pool. Neighbours are found anew every so many steps, as lengthscales move.
BLOCK_ROWS = {"cpu": 512, "cuda": 2048}
NEAR, BATCH, POOL, REFRESH = 32, {"cpu": 256, "cuda": 2048}, 8, 20
EVIDENCE_STEPS, PATCH_STEPS, LEAVE_ONE_OUT_STEPS = 100, 60, 100
EVIDENCE_RATE, LEAVE_ONE_OUT_RATE = 0.15, 0.05
# Steps with a linear map take twice as long as those without. The rows of one decide how good the
# map becomes: on a CPU they are a share of those of the table, between two numbers.
MAP_STEPS, MAP_ROUNDS, MAP_RATE, MAP_SHARE = 100, 8, 0.02, 1 / 32
SMALLEST_MAP_BATCH, LARGEST_MAP_BATCH = {"cpu": 128, "cuda": 2048}, {"cpu": 512, "cuda": 2048}
# The standard deviation that is expected of the weights by which a linear map mixes inputs.
MAP_SPREAD = 0.3
# What a search of a large table takes if no stage is repeated.
TYPICAL_STEPS = 2 * EVALUATIONS + EVIDENCE_STEPS + PATCH_STEPS + 2 * LEAVE_ONE_OUT_STEPS
# An objective is climbed again from where it led as long as that gains so much, in nats a row, and
# could still become the best. Values by the leave-one-out density, which knows near rows alone, are
# taken where they predict better by as much than all others; those by the evidence of many rows
# unless they predict worse by as much.
ROUNDS, LEAST_GAIN = 4, 0.01
# Rows by which the values found are compared.
JUDGED, NEAR_JUDGED = {"cpu": 1000, "cuda": 4000}, 128

# Keeps the logarithm finite where nothing is left to err about.
SMALLEST_VARIANCE = 1e-12


@dataclass(frozen=True)
class _Judgement:
    """The log density of left-out rows, and by what values are compared, in nats a row."""

    density: float
    score: float


def learn_to_predict(
    hyperparameters: Hyperparameters,
    rows: Rows,
    generator: torch.Generator,
    deadline: float = math.inf,
    max_steps: int | None = None,
    report: Callable[[int, float], None] = lambda step, density: None,
    checkpoint: SearchCheckpoint | None = None,
    centres: Int[Tensor, " m"] | None = None,
) -> Learned:
    """Moves the hyperparameters by at most `max_steps` steps.

    `report` is called with the steps so far and the density that they have reached. A search
    with a `checkpoint` saves after every round, and goes on from what is saved to the same end. An
    interrupt ends it with the best values so far.

    With `centres` the rows are these and those near them in a larger table: only patches around
    them are climbed by and only they are left out, from values that other rows have led to.
    """
    search = _Search(hyperparameters, rows, generator, centres)
    stages = search.stages()
    saved = None if checkpoint is None else checkpoint.load()
    if saved is None:
        progress = Progress({"start": (search.judge().score, hyperparameters.values())})
    else:
        search.restore(saved[0])
        progress = Progress.of(*saved, len(hyperparameters.values()))
    interrupted = False
    while progress.stage < len(stages):
        stage, tried = stages[progress.stage], progress.tried
        if progress.round == 0 and not stage.is_wanted(progress.best()):
            progress.stage += 1
            continue
        source = stage.name if progress.round else stage.source
        before, values = tried[source if source in tried else progress.best()]
        affordable = math.inf if max_steps is None else max_steps - progress.steps
        if affordable <= 0 or time.monotonic() >= deadline:
            break
        hyperparameters.set(values)
        try:
            taken = stage.climb(int(min(stage.steps, affordable)), deadline)
            found = None if taken is None else search.judge()
            progress.steps += taken or 0
            score = -math.inf if found is None else found.score - stage.margin
            if found is not None:
                progress.add(stage.name, score, hyperparameters.values())
                report(progress.steps, found.density)
        except KeyboardInterrupt:
            interrupted = True
            break
        gain, left = score - before, stage.rounds - progress.round - 1
        best = progress.tried[progress.best()][0]
        # Rounds that gain less and less could not reach the best.
        again = gain > LEAST_GAIN and left > 0 and score + left * gain >= best
        progress.stage, progress.round = (
            (progress.stage, progress.round + 1) if again else (progress.stage + 1, 0)
        )
        if checkpoint is not None:
            tensors, meta = progress.state()
            checkpoint.save({**tensors, **search.state()}, meta)
    chosen = progress.best()
    hyperparameters.set(progress.tried[chosen][1])
    scores = {name: score for name, (score, _) in progress.tried.items()}
    return Learned(scores, chosen, progress.steps, interrupted, search.judged)


class _Search:
    """The objectives, each a mean over rows."""

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
        self.exact = centres is None and len(self.x) <= self._on_device(MOST_EXACT)
        self._choose_judged()

    @property
    def covariance(self) -> Covariance:
        return self.hyperparameters.covariance

    def _choose_judged(self) -> None:
        self._first_state = self.generator.get_state()
        # At most half of the rows, so that enough are left to climb by.
        among = len(self.x) if self.centres is None else len(self.centres)
        count = min(self._on_device(JUDGED), among // 2)
        order = self._sample(among, among)
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

    def stages(self) -> list[Stage]:
        """In their order; a large table has two ways to its patches, of which the better counts."""
        count, first = len(self.x), self._on_device(FIRST_ROWS)
        tied = self._by_newton("tied", "start", self._on_device(TIED_ROWS), EVALUATIONS)
        some = self._by_newton("some_rows", "tied", first, EVALUATIONS)
        has_map = self.hyperparameters.linear_map is not None
        by_map = [self._by_map()] if has_map else []
        if self.exact:
            if count <= 1.5 * first:
                by_evidence = [self._by_newton("evidence", "tied", count, EVALUATIONS)]
            else:
                last = self._by_newton("evidence", "some_rows", count, LAST_EVALUATIONS)
                by_evidence = [some, last]
            steps = self._on_device(MAPPED_EVALUATIONS)
            mapped = self._by_newton("mapped_evidence", None, count, steps)
            again = self._by_newton("evidence", None, count, LAST_EVALUATIONS, margin=LEAST_GAIN)
            return [
                tied,
                *by_evidence,
                *by_map,
                replace(mapped, after="linear_map"),
                *self._with_rough_part(again),
            ]
        patches = self._by_adam("patches", None, self.evidence_of_patches, PATCH_STEPS)
        left_out = self._by_adam("leave_one_out", None, self.leave_one_out, LEAVE_ONE_OUT_STEPS)
        if self.centres is not None:
            return [patches, left_out]
        affordable = math.isqrt(affordable_bytes(self.device) // (8 * MATRICES))
        most = min(self._on_device(MANY_ROWS), affordable)
        many = self._by_newton("many_rows", None, most, LAST_EVALUATIONS, margin=-LEAST_GAIN)
        return [
            tied,
            some,
            self._by_adam("evidence", "start", self.evidence_of_random_rows, EVIDENCE_STEPS),
            patches,
            *by_map,
            *([replace(many, unless="linear_map")] if most > first else []),
            left_out,
            *self._with_rough_part(self._by_map() if has_map else left_out),
        ]

    def _by_adam(
        self, name: str, source: str | None, objective: Callable[[int], Tensor], steps: int
    ) -> Stage:
        left_out = name == "leave_one_out"
        rate = LEAVE_ONE_OUT_RATE if left_out else EVIDENCE_RATE
        margin = LEAST_GAIN if left_out else 0.0

        def climb(most: int, deadline: float) -> int | None:
            return most if self.hyperparameters.climb(objective, most, rate, deadline) else None

        return Stage(name, source, climb, steps, ROUNDS, margin)

    def _by_map(self) -> Stage:
        """The leave-one-out density with a linear map of the inputs."""

        def climb(most: int, deadline: float) -> int | None:
            pull = 1.0 / (MAP_SPREAD**2 * len(self.others))
            smallest, largest = map(self._on_device, (SMALLEST_MAP_BATCH, LARGEST_MAP_BATCH))
            batch = min(largest, max(smallest, round(MAP_SHARE * len(self.x))))
            objective = partial(self.leave_one_out, batch=batch)
            done = self.hyperparameters.climb_with_map(objective, most, MAP_RATE, deadline, pull)
            return most if done else None

        return Stage("linear_map", None, climb, MAP_STEPS, MAP_ROUNDS, LEAST_GAIN)

    def _with_rough_part(self, stage: Stage) -> list[Stage]:
        """The same, with a rough part in the kernel, if there is one to try."""

        def climb(most: int, deadline: float) -> int | None:
            self.hyperparameters.add_rough_part()
            return stage.climb(most, deadline)

        named = replace(stage, name="rough_part", climb=climb)
        return [named] if self.hyperparameters.tries_rough_part else []

    def _by_newton(
        self, name: str, source: str | None, count: int, steps: int, margin: float = 0.0
    ) -> Stage:
        """The evidence of `count` fixed rows."""

        def climb(most: int, deadline: float) -> int:
            rows = self._sample(count).sort().values
            pull = 1.0 / (SPREAD**2 * len(rows))
            return self.hyperparameters.ascend(
                lambda: self._evidence(rows), most, deadline, tied=name == "tied", pull=pull
            )

        return Stage(name, source, climb, steps, margin=margin)

    def evidence_of_random_rows(self, step: int) -> Tensor:
        return self._evidence(self._sample(self._on_device(BLOCK_ROWS)))

    def evidence_of_patches(self, step: int) -> Tensor:
        """Every other block is random: patches alone forget what is long."""
        if step % 2:
            return self.evidence_of_random_rows(step)
        if step % REFRESH == 0:
            self._neighbors = self._tree()
        chosen = self._sample(1, None if self.centres is None else len(self.others))
        chosen = chosen if self.centres is None else self.others[chosen]
        centre = self._neighbors.points[self.merged.place[chosen]]
        inputs = self._neighbors.nearest(centre, self._on_device(BLOCK_ROWS))[0]
        return self._evidence_at_inputs(inputs)

    def leave_one_out(self, step: int, batch: int | None = None) -> Tensor:
        batch = batch or self._on_device(BATCH)
        if step % REFRESH == 0:
            self._pool = self.others[self._sample(POOL * batch, len(self.others))]
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
    def judge(self) -> _Judgement:
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
            return _Judgement(-math.inf, -math.inf)
        return _Judgement(density, score if math.isfinite(score) else -math.inf)

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

    def _evidence(self, rows: Int[Tensor, " m"]) -> Tensor:
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

    def _on_device(self, sizes: Mapping[str, int]) -> int:
        return sizes.get(self.device.type, sizes["cpu"])

    def _sample(self, count: int, among: int | None = None) -> Int[Tensor, " m"]:
        """Distinct ones of the first `among`; drawn on the host, so that devices draw alike."""
        order = torch.randperm(among or len(self.x), generator=self.generator)
        return order[:count].to(self.device)

    @torch.no_grad()
    def _tree(self) -> Neighbors:
        """Of the distinct inputs."""
        x = self.hyperparameters.mapped(self.merged.distinct.x.double())
        return Neighbors(x * self.covariance.relevance(self.x).sqrt())
