"""Random search: settings drawn from a space, and the best trial of many."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

TRIALS = 20
Draw = Callable[[np.random.Generator], Any]
Space = Mapping[str, Draw]
F = TypeVar("F")


@dataclass(frozen=True)
class Trial(Generic[F]):
    """`loss` is that of the held-out rows; `fitted` is whatever the library returns."""

    loss: float
    fitted: F
    settings: dict[str, Any]


def uniform(low: float, high: float) -> Draw:
    return lambda rng: float(rng.uniform(low, high))


def log_uniform(low: float, high: float) -> Draw:
    return lambda rng: float(np.exp(rng.uniform(np.log(low), np.log(high))))


def integers(low: int, high: int) -> Draw:
    """From low to high, both included."""
    return lambda rng: int(rng.integers(low, high + 1))


def log_integers(low: int, high: int) -> Draw:
    draw = log_uniform(float(low), float(high))
    return lambda rng: round(draw(rng))


def draw_settings(space: Space, rng: np.random.Generator) -> dict[str, Any]:
    return {name: draw(rng) for name, draw in space.items()}


def random_search(
    attempt: Callable[[dict[str, Any]], Trial[F]], space: Space, trials: int, seed: int
) -> Trial[F]:
    """The trial of least loss; the first has no settings of its own, the others are drawn.

    Holds two fitted models at most. A loss that is not a number counts as the worst.
    """
    rng = np.random.default_rng([seed, 2])
    best = attempt({})
    for _ in range(trials - 1):
        found = attempt(draw_settings(space, rng))
        if found.loss < best.loss or np.isnan(best.loss):
            best = found
    return best
