"""The settings of the estimators as options of the command line."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import typer

from orthogp.estimators.settings import Settings

# A command always starts afresh, and its --seed is the random state.
LEFT_OUT = ("warm_start", "random_state", "missing_targets")
# A command is watched: the bar is drawn unless it is refused. An option of words has one for no.
OWN_DEFAULTS = {"verbose": True, "coverage_guarantee": "none"}
# In this order: what can be text is read as text.
TYPES = {"str": str, "bool": bool, "float": float, "int": int}
MODEL, TRAINING = "The model", "The training"

HELP = {
    "n_inducing": (MODEL, "Inducing points β, which carry the covariance."),
    "n_residual": (
        MODEL,
        "Residual points γ, which refine the mean: a number, auto, or all for all rows.",
    ),
    "n_neighbors": (
        MODEL,
        "Rows near x that predictions are conditioned on besides: a number, auto, or 0 for none.",
    ),
    "rows_dir": (
        MODEL,
        "A new folder for the rows of a table beyond memory, which predictions are conditioned on.",
    ),
    "objective": (
        MODEL,
        "What hyperparameters are learned from: auto, leave_one_out (with near rows) or bound.",
    ),
    "basis": (MODEL, "orthogonal, coupled, hybrid or decoupled."),
    "optimizer": (MODEL, "natural or adam, for the posterior of β."),
    "ard": (MODEL, "A lengthscale for every input, or one for all."),
    "likelihood": (
        MODEL,
        "gaussian, student_t, laplace, poisson, negative_binomial or beta for numbers; bernoulli, "
        "softmax or robustmax for classes.",
    ),
    "noise_variance": (MODEL, "Where the noise starts, in units of the target squared."),
    "noise": (MODEL, "constant, or learned for noise that changes with the inputs."),
    "target_transform": (MODEL, "Of a skewed target: log, yeo-johnson, auto or none."),
    "input_transform": (MODEL, "Of skewed numbers: auto, where left-out rows gain, or none."),
    "linear_map": (MODEL, "Of the inputs: auto, where left-out rows gain, or none."),
    "linear_trend": (MODEL, "The prior mean of numbers: auto, where left-out rows gain, or none."),
    "coverage_guarantee": (
        MODEL,
        "Intervals and sets of classes with a guaranteed coverage: split (a fifth of the rows is "
        "kept from the fit), cross (five more fits, to all rows but a fifth) or none.",
    ),
    "categorical_features": (
        MODEL,
        "Columns of numbers that are categories, comma-separated; by their types by default.",
    ),
    "hold_fixed": (
        MODEL,
        "What of the posterior stands still while the kernel moves: unwhitened, whitened or dual.",
    ),
    "jitter": (MODEL, "Added to the covariance of β, relative to its mean diagonal."),
    "standardize": (MODEL, "Inputs, and targets with additive noise, to variance one."),
    "max_steps": (TRAINING, "Steps at most; by default by the number of rows."),
    "max_time": (TRAINING, "Seconds at most."),
    "batch_size": (TRAINING, "Rows of a step."),
    "learning_rate": (TRAINING, "Of Adam."),
    "adam_beta2": (TRAINING, "How slowly Adam forgets the squares of its gradients, in (0, 1)."),
    "natural_step": (TRAINING, "Of the natural steps, in (0, 1]."),
    "kl_columns": (TRAINING, "Points γ that estimate the KL in a step: a number, auto or none."),
    "schedule": (TRAINING, "constant or cosine."),
    "clip_norm": (TRAINING, "The largest norm of a gradient."),
    "residual_rule": (TRAINING, "How γ moves: adam, diagonal or exact."),
    "train_hyperparameters": (TRAINING, "Whether kernel and noise are learned."),
    "train_points": (TRAINING, "Whether β and γ move."),
    "shard_residual": (TRAINING, "Under torchrun, whether each process holds a part of γ only."),
    "early_stopping": (TRAINING, "Stop when held-out rows no longer gain."),
    "validation_fraction": (
        TRAINING,
        "Share of the training rows that calibrates predictions and judges when to stop.",
    ),
    "checkpoint_dir": (TRAINING, "Where a killed run is taken up again by the same command."),
    "device": (TRAINING, "cpu or cuda; by default a GPU where there is one."),
    "dtype": (TRAINING, "float32 or float64."),
    "verbose": (TRAINING, "Draw a progress bar on a terminal."),
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One argument of the constructor; `hint` is its annotation as written."""

    name: str
    hint: str
    default: Any

    @property
    def alternatives(self) -> list[str]:
        return self.hint.split(" | ")

    @property
    def type(self) -> type | None:
        """What the command line reads it as; None for what only Python can pass."""
        return next((kind for name, kind in TYPES.items() if name in self.alternatives), None)


@cache
def settings() -> tuple[Setting, ...]:
    """Every setting that has an option, in the constructor's order."""
    parameters = inspect.signature(Settings).parameters.values()
    found = [Setting(p.name, p.annotation, p.default) for p in parameters]
    return tuple(s for s in found if s.type is not None and s.name not in LEFT_OUT)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command whose `**` argument the program offers as one option a setting."""
    signature = inspect.signature(command)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [_parameter(setting) for setting in settings()]
    command.__signature__ = signature.replace(parameters=[*own, *options])  # pyright: ignore
    return command


def _parameter(setting: Setting) -> inspect.Parameter:
    panel, text = HELP.get(setting.name, (TRAINING, ""))
    hint: Any = setting.type
    if "None" in setting.alternatives:
        hint = hint | None
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=OWN_DEFAULTS.get(setting.name, setting.default),
        annotation=Annotated[hint, typer.Option(help=text, rich_help_panel=panel)],
    )


def as_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the program read, as the constructor takes it: `none` is None, or False."""
    by_name = {setting.name: setting for setting in settings()}
    return {name: _value(by_name[name], value) for name, value in given.items()}


def _value(setting: Setting, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if setting.name == "categorical_features" and value not in ("from_dtype", "none"):
        return [name.strip() for name in value.split(",")]
    if value.lower() == "none" and "None" in setting.alternatives:
        return None
    if value.lower() == "none" and "bool" in setting.alternatives:
        return False
    if "int" in setting.alternatives and value.isdecimal():
        return int(value)
    return value
