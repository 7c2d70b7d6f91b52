"""What the settings say of near rows, and what they refuse."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from orthogp.errors import ConfigurationError
from orthogp.estimators.defaults import point_counts, python_number, training_config
from orthogp.estimators.intake import FitData
from orthogp.estimators.known_noise import is_known
from orthogp.estimators.settings import Settings
from orthogp.estimators.start import given_points
from orthogp.execution.team import current_team
from orthogp.likelihoods import Gaussian, Likelihood
from orthogp.training import Rows, TrainingConfig

# Numbers of near rows to choose from; the larger one takes four times as long to predict.
NEIGHBORS = (64, 128)
OBJECTIVES = ("auto", "bound", "leave_one_out")
# Settings of the training by steps alone.
STEP_SETTINGS = (
    "batch_size", "learning_rate", "adam_beta2", "natural_step", "kl_columns", "residual_points",
    "schedule", "clip_norm", "residual_rule", "train_points", "shard_residual", "early_stopping",
)  # fmt: skip


@dataclass(frozen=True)
class NearSettings:
    """What the settings say of near rows: numbers to choose from, and whether γ are all rows."""

    counts: tuple[int, ...]
    all_rows: bool | None
    objective: str

    @property
    def by_steps(self) -> bool:
        """Whether hyperparameters are those of the bound, learned by steps."""
        return self.objective == "bound"


def near_settings(
    settings: Mapping[str, Any], data: FitData, likelihood: Likelihood
) -> NearSettings | None:
    """None where the posterior is trained by steps."""
    value, objective = python_number(settings["n_neighbors"]), settings["objective"]
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not (whole or value == "auto"):
        raise ConfigurationError(
            f"n_neighbors is {settings['n_neighbors']!r}; expected a whole number from 0, or 'auto'"
        )
    if objective not in OBJECTIVES:
        raise ConfigurationError(
            f"objective is {objective!r}; expected one of {', '.join(map(repr, OBJECTIVES))}"
        )
    residual = settings["n_residual"]
    # True for all rows, False for points, None for either.
    all_rows = (
        {"all": True, "auto": None}.get(residual, False) if isinstance(residual, str) else False
    )
    point_counts(settings if all_rows is False else {**settings, "n_residual": 0}, len(data.train))
    obstacle = "n_neighbors above 0" if value == 0 else _obstacle(settings, data, likelihood)
    require_row_noise(settings, likelihood, obstacle)
    if not obstacle:
        counts = NEIGHBORS if value == "auto" else (int(value),)
        return NearSettings(counts, all_rows, objective)
    by_sites = not isinstance(likelihood, Gaussian) and data.held_out is not None
    wanted = {
        f"n_neighbors={value}": value not in (0, "auto") and not by_sites,
        "n_residual='all'": all_rows is True,
        "objective='leave_one_out'": objective == "leave_one_out",
    }
    for name in wanted:
        if wanted[name]:
            raise ConfigurationError(f"{name} needs {obstacle}")
    return None


def require_row_noise(settings: Mapping[str, Any], likelihood: Likelihood, obstacle: str) -> None:
    """Refuses noise that differs from row to row where near rows have an obstacle."""
    if not isinstance(likelihood, Gaussian):
        obstacle = "Gaussian noise"
    elif settings["objective"] == "bound":
        obstacle = obstacle or "objective='leave_one_out' or 'auto'"
    wanted = {
        "a noise_variance for every row": is_known(settings["noise_variance"]),
        "noise='learned'": settings["noise"] == "learned",
    }
    for name in wanted:
        if obstacle and wanted[name]:
            raise ConfigurationError(f"{name} needs {obstacle}")
    if all(wanted.values()):
        raise ConfigurationError("noise='learned' and a noise_variance for every row: pass one")


def _obstacle(settings: Mapping[str, Any], data: FitData, likelihood: Likelihood) -> str:
    """What near rows need and this fit has not."""
    if not isinstance(likelihood, Gaussian):
        return "Gaussian noise, or rows that are held out to learn by (validation_fraction)"
    if not isinstance(data.train, Rows):
        return _obstacle_on_disk(settings, data)
    return _obstacle_of_basis(settings)


def _obstacle_of_basis(settings: Mapping[str, Any]) -> str:
    if settings["basis"] not in ("orthogonal", "coupled") or settings["optimizer"] != "natural":
        return "the orthogonal or the coupled basis with natural steps"
    return ""


def _obstacle_on_disk(settings: Mapping[str, Any], data: FitData) -> str:
    """What near rows of a streamed table need and this fit has not."""
    in_memory = "a table that fits in memory"
    if settings["rows_dir"] is None:
        return f"{in_memory}, or a folder for the rows of a larger one (rows_dir)"
    if settings["noise"] == "learned" or is_known(settings["noise_variance"]):
        return in_memory
    if settings["objective"] == "bound":
        return f"{in_memory}, or objective='auto'"
    if data.held_out is None:
        return f"{in_memory}, or rows that are held out (validation_fraction)"
    if current_team().size > 1:
        return f"{in_memory}, or a single process"
    return _obstacle_of_basis(settings)


def checked_config(settings: Mapping[str, Any], data: FitData) -> TrainingConfig:
    """The limits of a fit with near rows; refuses invalid settings, as any other fit does."""
    config = training_config(settings, data.num_rows, gaussian=True, seed=0)
    given_points(settings, "residual_points", data.units.inputs)
    _warn_of_unused(settings)
    return config


def _warn_of_unused(settings: Mapping[str, Any]) -> None:
    unused, defaults = [], signature(Settings).parameters
    for name in STEP_SETTINGS:
        value, default = settings[name], defaults[name].default
        # Points given are an array, which compares element by element.
        if value is not default and (default is None or value != default):
            unused.append(name)
    if unused:
        warnings.warn(
            f"{', '.join(unused)} {'has' if len(unused) == 1 else 'have'} no effect on a fit with "
            "near rows; n_neighbors=0 trains the variational posterior by steps",
            stacklevel=7,
        )
