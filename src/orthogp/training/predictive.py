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

Of all values found those are taken that predict left-out rows best (see `objectives`).
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from orthogp.execution.memory import affordable_bytes
from orthogp.training.batches import Rows
from orthogp.training.hyperparameters import Hyperparameters
from orthogp.training.objectives import Objectives
from orthogp.training.search_stages import Learned, Progress, SearchCheckpoint, Stage

# Rows whose evidence is climbed. It takes their cube: where there are many, that of some of them
# leads most of the way.
TIED_ROWS, FIRST_ROWS = {"cpu": 400, "cuda": 2000}, {"cpu": 1000, "cuda": 3000}
EVALUATIONS, LAST_EVALUATIONS, MAPPED_EVALUATIONS = 80, 25, {"cpu": 10, "cuda": 25}
# Rows of a large table whose evidence a GPU climbs once more; a CPU takes too long for as many.
# Three matrices of their size must be affordable: at most about twelve are in memory.
MANY_ROWS, MATRICES = {"cpu": 0, "cuda": 12000}, 3
# By how much the logarithms of lengthscales are expected to differ: their standard deviation.
SPREAD = 1.5
# Steps of Adam on an objective, and their size.
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
    search = Objectives(hyperparameters, rows, generator, centres)
    stages = stages_of(search)
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


def stages_of(o: Objectives) -> list[Stage]:
    """In their order; a large table has two ways to its patches, of which the better counts."""
    count, first = len(o.x), o.on_device(FIRST_ROWS)
    tied = _by_newton(o, "tied", "start", o.on_device(TIED_ROWS), EVALUATIONS)
    some = _by_newton(o, "some_rows", "tied", first, EVALUATIONS)
    has_map = o.hyperparameters.linear_map is not None
    by_map = [_by_map(o)] if has_map else []
    if o.exact:
        if count <= 1.5 * first:
            by_evidence = [_by_newton(o, "evidence", "tied", count, EVALUATIONS)]
        else:
            last = _by_newton(o, "evidence", "some_rows", count, LAST_EVALUATIONS)
            by_evidence = [some, last]
        steps = o.on_device(MAPPED_EVALUATIONS)
        mapped = _by_newton(o, "mapped_evidence", None, count, steps)
        again = _by_newton(o, "evidence", None, count, LAST_EVALUATIONS, margin=LEAST_GAIN)
        return [
            tied,
            *by_evidence,
            *by_map,
            replace(mapped, after="linear_map"),
            *_with_rough_part(o, again),
        ]
    patches = _by_adam(o, "patches", None, o.evidence_of_patches, PATCH_STEPS)
    left_out = _by_adam(o, "leave_one_out", None, o.leave_one_out, LEAVE_ONE_OUT_STEPS)
    if o.centres is not None:
        return [patches, left_out]
    affordable = math.isqrt(affordable_bytes(o.device) // (8 * MATRICES))
    most = min(o.on_device(MANY_ROWS), affordable)
    many = _by_newton(o, "many_rows", None, most, LAST_EVALUATIONS, margin=-LEAST_GAIN)
    return [
        tied,
        some,
        _by_adam(o, "evidence", "start", o.evidence_of_random_rows, EVIDENCE_STEPS),
        patches,
        *by_map,
        *([replace(many, unless="linear_map")] if most > first else []),
        left_out,
        *_with_rough_part(o, _by_map(o) if has_map else left_out),
    ]


def _by_adam(
    o: Objectives, name: str, source: str | None, objective: Callable[[int], Tensor], steps: int
) -> Stage:
    left_out = name == "leave_one_out"
    rate = LEAVE_ONE_OUT_RATE if left_out else EVIDENCE_RATE
    margin = LEAST_GAIN if left_out else 0.0

    def climb(most: int, deadline: float) -> int | None:
        return most if o.hyperparameters.climb(objective, most, rate, deadline) else None

    return Stage(name, source, climb, steps, ROUNDS, margin)


def _by_map(o: Objectives) -> Stage:
    """The leave-one-out density with a linear map of the inputs."""

    def climb(most: int, deadline: float) -> int | None:
        pull = 1.0 / (MAP_SPREAD**2 * len(o.others))
        smallest, largest = map(o.on_device, (SMALLEST_MAP_BATCH, LARGEST_MAP_BATCH))
        batch = min(largest, max(smallest, round(MAP_SHARE * len(o.x))))
        objective = partial(o.leave_one_out, batch=batch)
        done = o.hyperparameters.climb_with_map(objective, most, MAP_RATE, deadline, pull)
        return most if done else None

    return Stage("linear_map", None, climb, MAP_STEPS, MAP_ROUNDS, LEAST_GAIN)


def _with_rough_part(o: Objectives, stage: Stage) -> list[Stage]:
    """The same, with a rough part in the kernel, if there is one to try."""

    def climb(most: int, deadline: float) -> int | None:
        o.hyperparameters.add_rough_part()
        return stage.climb(most, deadline)

    named = replace(stage, name="rough_part", climb=climb)
    return [named] if o.hyperparameters.tries_rough_part else []


def _by_newton(
    o: Objectives, name: str, source: str | None, count: int, steps: int, margin: float = 0.0
) -> Stage:
    """The evidence of `count` fixed rows."""

    def climb(most: int, deadline: float) -> int:
        rows = o.sample(count).sort().values
        pull = 1.0 / (SPREAD**2 * len(rows))
        return o.hyperparameters.ascend(
            lambda: o.evidence(rows), most, deadline, tied=name == "tied", pull=pull
        )

    return Stage(name, source, climb, steps, margin=margin)
