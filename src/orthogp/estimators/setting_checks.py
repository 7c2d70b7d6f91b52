"""Checks of settings that `TrainingConfig` does not check, and what they mean to torch."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.utils import check_random_state

from orthogp.errors import ConfigurationError

DTYPES = {"float32": torch.float32, "float64": torch.float64}
NOISES = ("constant", "learned")
FLAGS = (
    "ard", "standardize", "train_hyperparameters", "train_points", "shard_residual",
    "early_stopping", "warm_start",
)  # fmt: skip


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuses settings that are wrong whatever the data."""
    for name in FLAGS:
        # Any text would count as true.
        _require(settings, name, isinstance(settings[name], bool | np.bool_), "True or False")
    kernel, jitter = settings["kernel"], settings["jitter"]
    _require(settings, "kernel", kernel is None or isinstance(kernel, Kernel), "a GPyTorch kernel")
    valid = jitter is None or (is_number(jitter) and 0 <= jitter < np.inf)
    _require(settings, "jitter", valid, "a number, zero or more")
    share = settings["validation_fraction"]
    valid = share is None or (is_number(share) and 0 <= share < 1)
    _require(settings, "validation_fraction", valid, "a number in [0, 1)")
    valid = isinstance(settings["noise"], str) and settings["noise"] in NOISES
    _require(settings, "noise", valid, " or ".join(map(repr, NOISES)))
    valid = settings["missing_targets"] in ("error", "drop")
    _require(settings, "missing_targets", valid, "'error' or 'drop'")
    for name in ("input_transform", "linear_map", "linear_trend"):
        valid = settings[name] is None or settings[name] == "auto"
        _require(settings, name, valid, "'auto' or None")
    promise = settings["coverage_guarantee"]
    valid = isinstance(promise, bool | np.bool_) or promise in ("split", "cross")
    _require(settings, "coverage_guarantee", valid, "True, False, 'split' or 'cross'")
    for name in ("checkpoint_dir", "rows_dir"):
        valid = settings[name] is None or isinstance(settings[name], str | os.PathLike)
        _require(settings, name, valid, "the name of a folder")
    callbacks = settings["callbacks"]
    valid = isinstance(callbacks, tuple | list) and all(map(callable, callbacks))
    _require(settings, "callbacks", valid, "a list of functions")


def torch_device(device: Any) -> torch.device:
    """The device of a setting; None is a GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(f"device is {device!r}, which torch does not know") from error


@contextmanager
def cpu_by_default() -> Iterator[None]:
    """Tensors made inside without a device are on the CPU, whatever torch's default device is.

    Estimators start on the CPU and move to their own `device` in one place.
    """
    if torch.get_default_device().type == "cpu":
        yield
        return
    with torch.device("cpu"):
        yield


def torch_dtype(dtype: Any) -> torch.dtype:
    found = DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ConfigurationError(f"dtype is {dtype!r}; expected float32 or float64")
    return found


def usable_device(device: Any) -> torch.device:
    """The device of a setting, if this machine has it and it computes in float64."""
    found = torch_device(device)
    try:
        torch.zeros((), dtype=torch.float64, device=found).item()
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigurationError(
            f"device is {str(device)!r}, which cannot be used here ({reason:.120}); use 'cpu', or "
            "None for a GPU where there is one"
        ) from error
    return found


def seed_from(random_state: Any) -> int:
    """A seed below 2³¹; None draws a fresh one, without NumPy's global generator."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31 - 1))
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise ConfigurationError(
            f"random_state is {random_state!r}; expected None, a whole number in [0, 2³²) or a "
            "numpy.random.RandomState"
        ) from error


def is_count(value: Any) -> bool:
    """Whether it is a whole number from one."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and int(value) >= 1


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _require(settings: Mapping[str, Any], name: str, valid: bool, expected: str) -> None:
    if not valid:
        raise ConfigurationError(f"{name} is {settings[name]!r}; expected {expected}")
