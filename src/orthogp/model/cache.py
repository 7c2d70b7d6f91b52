"""What is computed from the tensors of a module, for as long as none of them changes."""

from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

from torch import nn

from orthogp.posterior.growing import Uncopied

T = TypeVar("T")


class ModuleCache(Uncopied):
    """Values by name; all are forgotten once a parameter or a buffer has another value."""

    def __init__(self) -> None:
        self._state: Any = None
        self._values: dict[str, Any] = {}

    def get(self, module: nn.Module, name: str, compute: Callable[[], T]) -> T:
        """The value of that name, computed where there is none for the module as it stands."""
        if not self.knows(module, name):
            self.put(module, name, compute())
        return self._values[name]

    def knows(self, module: nn.Module, name: str) -> bool:
        return name in self._values and self._state == _state(module)

    def put(self, module: nn.Module, name: str, value: Any) -> None:
        state = _state(module)
        if state != self._state:
            self._state, self._values = state, {}
        self._values[name] = value


def _state(module: nn.Module) -> tuple:
    """Where every tensor is and how often it has been written to."""
    tensors = chain(module.parameters(), module.buffers())
    # A tensor of inference mode counts nothing, and must not be written to.
    return tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)
