"""Where a run stands: all that it takes to go back there, in memory and in a file."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from orthogp.errors import FileError, OrthogpError
from orthogp.training.callbacks import Report

# The types of a report's columns; where it has None a number may stand too.
NO_REPORT = Report(0, 0.0, 0.0, None, 0.0, 0.0)
Tensors = dict[str, Tensor]


@dataclass
class Progress:
    """All but the tensors that a run needs to go on where it stopped."""

    step: int = 0
    seconds: float = 0.0
    last_refresh: int = -1
    recoveries: int = 0
    caution: float = 1.0
    best: float = -math.inf
    best_step: int = 0
    history: list[Report] = field(default_factory=list)

    def copy(self) -> "Progress":
        return replace(self, history=list(self.history))


@dataclass(frozen=True)
class State:
    """The step's tensors, where the feed and the sampler of columns stand, and the progress."""

    tensors: Tensors
    rows: dict[str, Any]
    columns: dict[str, Any]
    progress: Progress


def packed(state: State, best: Tensors | None) -> tuple[Tensors, dict[str, Any]]:
    """A state and the best one's tensors as a file holds them: tensors by name, and JSON."""
    parts = {
        "state": state.tensors,
        "rows": {name: t for name, t in state.rows.items() if isinstance(t, Tensor)},
        "columns": state.columns,
        "best": best or {},
    }
    tensors = {f"{k}.{name}": t for k, part in parts.items() for name, t in part.items()}
    numbers = {name: n for name, n in state.rows.items() if name not in parts["rows"]}
    return tensors, {"progress": asdict(state.progress), "rows": numbers}


def unpacked(tensors: Tensors, meta: dict[str, Any]) -> tuple[State, Tensors | None]:
    """The reverse of `packed`."""
    progress = dict(meta["progress"])
    history = [Report(**row) for row in progress.pop("history")]
    for report in history:
        require_like(report, NO_REPORT, "report")
    state = State(
        _under("state.", tensors),
        _under("rows.", tensors) | meta["rows"],
        _under("columns.", tensors),
        Progress(**progress, history=history),
    )
    return state, _under("best.", tensors) or None


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}


@contextlib.contextmanager
def damaged_otherwise() -> Iterator[None]:
    """Whatever fails in the block is a `FileError`: a checksum says that a file is as it was
    written, not by whom."""
    try:
        yield
    except OrthogpError:
        raise
    except Exception as error:
        raise FileError(
            "the checkpoint of this run does not hold what the run needs; remove it to start again"
        ) from error


def require_like(found: Any, expected: Any, name: str = "state") -> None:
    """Refuses what is not built as `expected` is: the same names, types, shapes and dtypes.

    A float may stand where None is expected; lists, such as a history, are looked at elsewhere.
    """
    if isinstance(expected, State | Progress | Report):
        fits = type(found) is type(expected)
        found, expected = (vars(found), vars(expected)) if fits else (None, {})
    if isinstance(expected, Tensor):
        fits = isinstance(found, Tensor) and (found.shape, found.dtype) == (
            expected.shape,
            expected.dtype,
        )
    elif isinstance(expected, dict):
        fits = isinstance(found, dict) and found.keys() == expected.keys()
        for key in expected if fits else ():
            require_like(found[key], expected[key], key)
    else:
        fits = type(found) is type(expected) or (expected is None and type(found) is float)
    if not fits:
        raise FileError(f"the checkpoint of this run has another {name:.80} than the run")
