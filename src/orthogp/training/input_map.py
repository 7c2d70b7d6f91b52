"""A map of the inputs in which rows of one class are near each other.

    z(x) = L x + Σ_j φ_j(x_j)

L is a matrix, and φ_j a curve: a function of one input with values in the space of z, straight
between knots and constant beyond them. A matrix turns and stretches; curves bend, so that near
tells of thresholds, and of levels that are numbers only by name.

It begins with the inputs as they are or with additive curves, and climbs the log density of the
labels, each predicted from the rows near it. Rows that were held out decide where it begins, how
long it is learned, and whether it is taken.
"""

import math
from copy import deepcopy
from dataclasses import dataclass

from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Generator, Tensor

from orthogp.kernel.grouped import add_inputs
from orthogp.likelihoods import Likelihood
from orthogp.training.additive_curves import learn_additive_curves
from orthogp.training.batches import Rows
from orthogp.training.curved_map import CurvedMap, InputMap
from orthogp.training.map_search import Candidate, MapSearch

# Steps with a map, in rounds of smaller and smaller steps while they gain.
MAP_STEPS, MAP_RATE, MAP_ROUNDS, MAP_DECAY = 100, 0.03, 4, 0.7
# In nats a row: what a round must gain for another one. For the map to be taken all of them
# must gain this share of the loss beyond two standard errors, since the rest of a fit makes up for
# less, and beyond one for inputs that near rows have no part in.
LEAST_GAIN, LEAST_SHARE, ERRORS, ERRORS_OF_INPUTS = 0.002, 0.1, 2.0, 1.0
# How many rows for each rise of a curve make curves that were learned from these rows as good for
# new ones, and so for points that learn from the same rows once more.
ROWS_A_RISE = 10


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
    generator: Generator,
    deadline: float = math.inf,
    max_steps: int | None = None,
) -> LearnedMap | None:
    """The map by which near rows predict best; None where they cannot be learned from at all.

    The kernel is where learning begins. `deadline` is a time of `time.monotonic()`, and the steps
    are `max_steps` at most.
    """
    search = MapSearch(likelihood, train, held_out, generator, deadline, max_steps)
    start = search.candidate(kernel)
    if start is None:
        return None
    plain = start.density
    additive = _by_additive_curves(search, start.inverse(search.x), kernel)
    clearly = additive is not None and _gains(additive.density, plain, ERRORS, LEAST_SHARE)
    if additive is not None and clearly:
        start = deepcopy(additive)
    else:
        start.begin_map(search.x)
    taken = _learned(search, start)
    if taken is None or not _gains(taken.density, plain, ERRORS, LEAST_SHARE):
        # Near rows alone gain less by additive curves than the rest of a fit does.
        taken = additive
        if taken is None or not (clearly or _gains_with_many_rows(search, taken, plain)):
            return LearnedMap(None, plain, plain)
    return LearnedMap(taken.learned(search.x), taken.density, plain)


def _by_additive_curves(
    search: MapSearch, inverse: Float[Tensor, " d"], kernel: Kernel
) -> Candidate | None:
    """A candidate whose map is one to additive curves.

    `inverse` are the inverse lengthscales of the inputs.
    """
    found = learn_additive_curves(
        search.likelihood, search.train, search.constant, search.generator, search.deadline,
        search.max_steps,
    )  # fmt: skip
    if found is None:
        return None
    kernel = deepcopy(kernel)
    add_inputs(kernel, found.second)
    of_curves = search.with_inputs(found)
    candidate = of_curves.candidate(kernel)
    if candidate is not None:
        outputs = candidate.inverse(of_curves.x)
        candidate.map = CurvedMap.of_curves(found.knots, inverse, outputs, found.curves)
    return candidate


def _learned(search: MapSearch, candidate: Candidate) -> Candidate | None:
    """The candidate with the map that near rows have moved, as long as held-out rows gain."""
    left, best, density = search.map_steps, None, candidate.density
    for number in range(MAP_ROUNDS):
        rate = MAP_RATE * MAP_DECAY**number
        if left <= 0 or not search.climb(candidate, int(min(MAP_STEPS, left)), rate):
            break
        left -= MAP_STEPS
        gain = float((candidate.density - density).mean())
        if gain > 0:
            best, density = deepcopy(candidate), candidate.density
        # Written so that NaN counts as no gain.
        if not gain > LEAST_GAIN:
            break
        assert candidate.map is not None
        candidate.map.move_knots(search.x)
    return best


def _gains_with_many_rows(
    search: MapSearch, additive: Candidate, plain: Float[Tensor, " h"]
) -> bool:
    """Whether the curves gain, and all of them together have few rises for the rows."""
    assert additive.map is not None
    rises = additive.map.knots.number_of_rises * len(search.constant)
    enough = len(search.x) >= ROWS_A_RISE * rises
    return enough and _gains(additive.density, plain, ERRORS_OF_INPUTS, 0.0)


def densities_by_inputs(
    plain: Float[Tensor, " h"],
    likelihood: Likelihood,
    train: Rows,
    held_out: Rows,
    kernel: Kernel,
    generator: Generator,
    deadline: float = math.inf,
    max_steps: int | None = None,
) -> Float[Tensor, " h"] | None:
    """The densities of held-out rows where these inputs take the place of those of `plain`, if they
    gain. Otherwise like `learn_input_map`, which gives the densities `plain`.
    """
    search = MapSearch(likelihood, train, held_out, generator, deadline, max_steps)
    found = search.candidate(kernel)
    if found is None or not _gains(found.density, plain, ERRORS_OF_INPUTS, LEAST_SHARE):
        return None
    return found.density


def _gains(
    found: Float[Tensor, " h"], plain: Float[Tensor, " h"], errors: float, share: float
) -> bool:
    """Whether the mean rises, beyond so many standard errors, by a share of the loss."""
    gain = found - plain
    error = gain.std() / len(gain) ** 0.5
    return bool(gain.mean() - errors * error > -share * plain.mean())
