"""A search in stages: what each climbs, what has been tried, and what it needs to go on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Learned:
    """The score of each set of values tried, in nats a row, by its name, and how it ended.

    `judged` are the rows that no linear map was learned from.
    """

    scores: dict[str, float]
    chosen: str
    steps: int
    interrupted: bool
    judged: Int[Tensor, " m"] = field(compare=False)


@runtime_checkable
class SearchCheckpoint(Protocol):
    """Where a search keeps what it needs to go on: tensors by name, and what JSON can hold."""

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None: ...

    def save(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Stage:
    """An objective, and from which of the values tried it is climbed; None is the best.

    `climb` takes the most steps and the deadline, and returns the steps taken, or None where they
    led nowhere. `margin` is by how much its values must be better than those of other stages. With
    `after` the stage is left out unless that one has the best values so far, with `unless` where it
    has them.
    """

    name: str
    source: str | None
    climb: Callable[[int, float], int | None]
    steps: int
    rounds: int = 1
    margin: float = 0.0
    after: str | None = None
    unless: str | None = None

    def is_wanted(self, best: str) -> bool:
        """Whether it is to be climbed where the stage `best` has the best values."""
        return self.after in (None, best) and self.unless != best


@dataclass
class Progress:
    """What has been tried, and which round of which stage comes next."""

    tried: dict[str, tuple[float, list[Tensor]]]
    stage: int = 0
    round: int = 0
    steps: int = 0

    def best(self) -> str:
        return max(self.tried, key=lambda name: self.tried[name][0])

    def add(self, name: str, score: float, values: list[Tensor]) -> None:
        if name not in self.tried or score > self.tried[name][0]:
            self.tried[name] = score, values

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {
            f"tried.{i}.{j}": value
            for i, (_, values) in enumerate(self.tried.values())
            for j, value in enumerate(values)
        }
        # As text, since JSON has no infinity.
        scores = [[name, repr(score)] for name, (score, _) in self.tried.items()]
        position = {"stage": self.stage, "round": self.round, "steps": self.steps}
        return tensors, {"scores": scores, **position}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], meta: Mapping[str, Any], count: int) -> "Progress":
        """From its state, where each set of values has `count` tensors."""
        tried = {
            name: (float(score), [tensors[f"tried.{i}.{j}"] for j in range(count)])
            for i, (name, score) in enumerate(meta["scores"])
        }
        return Progress(tried, meta["stage"], meta["round"], meta["steps"])
