"""The check of shapes and types, in the first calls of each function in each file of tests.

A training run calls the same functions with the same shapes hundreds of times, and checking all of
these calls takes longer than the run itself.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.machinery import ModuleSpec, PathFinder

from beartype import beartype

CALLS = 5
_calls: dict[Callable, int] = {}
_switched_off: list[Callable] = []


def first_calls(function: Callable) -> Callable:
    """A typechecker for jaxtyping: beartype, until `function` has been called `CALLS` times."""
    # Made at the first call: most functions are never called in a given run of pytest.
    checked = None

    @wraps(function)
    def check(*args, **kwargs):
        nonlocal checked
        if checked is None:
            checked = beartype(function)
        number = _calls.get(check, 0)
        _calls[check] = number + 1
        if number < CALLS:
            return checked(*args, **kwargs)
        _switch_off(function)
        return function(*args, **kwargs)

    return check


def start_again() -> None:
    """Checks every function's next `CALLS` calls."""
    for function in _switched_off:
        vars(function).pop("__no_type_check__", None)
    _switched_off.clear()
    _calls.clear()


class TritonModules:
    """A finder of modules whose functions Triton translates, which no check can wrap."""

    NAMES = ("orthogp.kernel.radial.families", "orthogp.kernel.radial.fused")

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path) if name.startswith(cls.NAMES) else None


def _switch_off(stand_in: Callable) -> None:
    """Spares the function of orthogp that `stand_in` has the signature of what jaxtyping costs.

    One that its module does not name, as a function within a function, is not found.
    """
    found = sys.modules.get(stand_in.__module__)
    for name in stand_in.__qualname__.split("."):
        found = inspect.getattr_static(found, name, None)
    # The function within a property, a cached one, a static method or a method of the class.
    for name in ("fget", "func", "__func__"):
        found = getattr(found, name, found)
    while inspect.isfunction(found) and "__no_type_check__" not in vars(found):
        # jaxtyping heeds the mark that typing.no_type_check leaves, on what it wraps too.
        found.__no_type_check__ = True  # pyright: ignore[reportFunctionMemberAccess]
        _switched_off.append(found)
        found = getattr(found, "__wrapped__", None)
