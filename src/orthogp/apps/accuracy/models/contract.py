"""What a model is given, what it returns, and how it is listed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from orthogp.apps.accuracy.predictive import Array, ClassProbabilities, Predictive

# Of the training rows, to stop early on, to choose settings by and to take residuals from.
HELD_OUT_SHARE = 0.1


@dataclass(frozen=True)
class Problem:
    """Training rows, z-scored, and what a fit may use.

    `y` are numbers where `num_classes` is 0, else labels 0..num_classes − 1, some of which may have
    no row.
    """

    x: Array
    y: Any
    num_classes: int
    seed: int
    device: str = "cpu"
    threads: int = 1

    @property
    def regression(self) -> bool:
        return self.num_classes == 0


@dataclass(frozen=True)
class FittedModel:
    """`predict` gives the distributions at new rows; `settings` are for the record."""

    predict: Callable[[Array], Predictive | ClassProbabilities]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """`fit` imports `package` when it is called; `extra` is the extra of orthogp that installs it.

    A model that `uses_device` runs on the device that is asked for, any other on the CPU.
    """

    title: str
    fit: Callable[[Problem], FittedModel]
    package: str
    extra: str | None = None
    tasks: tuple[str, ...] = ("regression", "classification")
    uses_device: bool = False

    @property
    def installed(self) -> bool:
        return find_spec(self.package) is not None

    @property
    def how_to_install(self) -> str:
        wanted = f"'orthogp[{self.extra}]'" if self.extra else self.package
        return f"{self.package} is not installed: pip install {wanted}"


@dataclass(frozen=True)
class HeldOutSplit:
    """The rows of a problem in two parts: to fit to, and to watch."""

    x: Array
    y: Any
    x_held: Array
    y_held: Any


def hold_out(problem: Problem) -> HeldOutSplit:
    """A tenth of the rows held out, drawn by the problem's seed.

    Every class keeps a row to fit to: a class of one row is never held out.
    """
    order = np.random.default_rng([problem.seed, 1]).permutation(len(problem.y))
    count = max(1, round(HELD_OUT_SHARE * len(order)))
    if not problem.regression:
        # A row of every class goes to the end, where the rows to fit to are.
        _, first = np.unique(problem.y[order], return_index=True)
        order = np.concatenate([np.delete(order, first), order[first]])
        count = max(1, min(count, len(order) - len(first)))
    held, fit = order[:count], order[count:]
    return HeldOutSplit(problem.x[fit], problem.y[fit], problem.x[held], problem.y[held])


def compact_labels(y: Any) -> tuple[Any, Any]:
    """The labels that occur, and y as places among them: 0..k − 1 without a gap."""
    return np.unique(y, return_inverse=True)
