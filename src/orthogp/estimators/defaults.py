"""Automatic settings: every number that an estimator chooses where its user gives None."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from orthogp.errors import ConfigurationError
from orthogp.estimators.calibration import SMALLEST_SAMPLE
from orthogp.likelihoods import Gaussian, Likelihood
from orthogp.training import TrainingConfig

RESIDUAL_POINTS = 700
BATCH_SIZE = 1024
STEPS_A_ROW, FEWER_STEPS = 1 / 3, 100
FEWEST_STEPS, MOST_STEPS = 200, 10_000
# Where the noise is not Gaussian near rows make up for what fewer steps leave, and larger batches
# for a table that is large.
OTHER_STEPS_A_ROW, FEWER_OTHER_STEPS = 1 / 12, 50
# A GPU takes no longer for a thousand steps than to get ready.
FEWEST_OTHER_STEPS, MOST_OTHER_STEPS = {"cpu": 200, "cuda": 1000}, 3000
BATCH_A_ROW, SMALLEST_OTHER_BATCH, LARGEST_OTHER_BATCH = 1 / 12, 512, 4096
# Of a small table, whose hyperparameters are close already.
MOST_ROWS_STARTED, START_STEPS = 3000, 100
STEPS_A_ROW_STARTED, FEWER_STEPS_STARTED, FEWEST_STEPS_STARTED = 1 / 4, 125, 100
# Of the steps: a short run would spend itself in the engine's own warm-up.
WARMUP_SHARE, LONGEST_WARMUP = 0.1, 100
# For this many steps and more; a shorter run takes longer ones, as the root of its share.
LEARNING_RATE_STEPS, LEARNING_RATE_STEPS_STARTED = 5000, 300
LEARNING_RATE, HIGHEST_LEARNING_RATE = 0.03, 0.2
# Adam forgets the squares of its gradients over this share of the steps, those of the first being
# large; over so many at most, and more where the likelihood is not Gaussian.
MEMORY_SHARE, LONGEST_MEMORY, LONGEST_OTHER_MEMORY = 0.1, 100, 1000
NATURAL_STEP, EXACT_NATURAL_STEP = 0.1, 1.0
# Reports, of TrainingConfig.report_every steps each, without a better held-out density.
PATIENCE = 10
MOST_HELD_OUT = 5000
# The last run, on all rows, makes this share of the steps before it, at this share of their rates;
# Adam starts afresh there, and fewer steps than these would leave γ unsettled.
LAST_STEPS, LAST_RATE, LAST_NATURAL_STEP, STEPS_TO_SETTLE = 0.1, 0.1, 0.3, 100

# Residual points that training moves where more can be solved for: hyperparameters and points are
# learned with these, so that more of them can only raise the bound.
MOST_TRAINED = 7000

# In units of the standardised y.
NOISE_VARIANCE = 0.1
REGRESSION_VARIANCE = 1.0
# Latents of ±2 make a class sure or unsure; a prior of variance one would hold it undecided.
CLASSIFICATION_VARIANCE = 5.0

# Settings that TrainingConfig takes as they are.
PASSED_ON = (
    "max_time", "kl_columns", "schedule", "clip_norm", "residual_rule", "train_hyperparameters",
    "train_points", "shard_residual",
)  # fmt: skip


def point_counts(settings: Mapping[str, Any], num_rows: int) -> tuple[int, int]:
    """|β| and |γ|; where the rows have duplicates there will be fewer still."""
    inducing, residual = (
        python_number(settings["n_inducing"]),
        python_number(settings["n_residual"]),
    )
    if not isinstance(inducing, int) or isinstance(inducing, bool) or inducing < 1:
        raise ConfigurationError(f"n_inducing is {inducing!r}; expected a whole number from 1")
    residual = RESIDUAL_POINTS if residual == "auto" else residual
    if not isinstance(residual, int) or isinstance(residual, bool) or residual < 0:
        raise ConfigurationError(
            f"n_residual is {residual!r}; expected a whole number from 0, 'auto', or 'all' with "
            "near rows"
        )
    residual = 0 if settings["basis"] == "coupled" else residual
    return min(inducing, num_rows), min(residual, num_rows)


def starts_by_evidence(settings: Mapping[str, Any], num_rows: int, likelihood: Likelihood) -> bool:
    """Whether hyperparameters start where the evidence of a few rows has them.

    The start must be the estimator's to choose, and the run so short that it matters.
    """
    automatic = all(settings[name] is None for name in ("kernel", "noise_variance"))
    named = settings["likelihood"] is None or isinstance(settings["likelihood"], str)
    natural = settings["optimizer"] == "natural"
    free = automatic and named and settings["train_hyperparameters"]
    short = num_rows <= MOST_ROWS_STARTED
    return bool(isinstance(likelihood, Gaussian) and natural and free and short)


def start_steps(settings: Mapping[str, Any]) -> int:
    """Steps of the search for starting hyperparameters, at most `max_steps`."""
    steps = python_number(settings["max_steps"])
    return min(START_STEPS, steps) if isinstance(steps, int) and steps > 0 else START_STEPS


def training_config(
    settings: Mapping[str, Any],
    num_rows: int,
    gaussian: bool,
    seed: int,
    started: bool = False,
    device: str = "cpu",
) -> TrainingConfig:
    """How to train on `num_rows` rows; None in `settings` means automatic.

    `started` says that the hyperparameters are where the evidence of a few rows has them. `device`
    is the kind of the device that trains.
    """
    chosen = {name: python_number(value) for name, value in settings.items()}
    batch_size = _or(chosen["batch_size"], _automatic_batch(num_rows, gaussian))
    # TrainingConfig refuses other types.
    full_batch = isinstance(batch_size, int) and batch_size >= num_rows
    natural = EXACT_NATURAL_STEP if full_batch and gaussian else NATURAL_STEP
    steps = _or(chosen["max_steps"], _automatic_steps(num_rows, gaussian, started, device))
    warmup = min(LONGEST_WARMUP, int(WARMUP_SHARE * steps)) if isinstance(steps, int) else 0
    return TrainingConfig(
        max_steps=steps,
        batch_size=batch_size,
        learning_rate=_or(chosen["learning_rate"], _automatic_rate(steps, started)),
        adam_beta2=_or(chosen["adam_beta2"], _automatic_beta2(steps, gaussian)),
        natural_step=_or(chosen["natural_step"], natural),
        schedule_warmup=warmup,
        natural_warmup=warmup,
        patience=PATIENCE if chosen["early_stopping"] else None,
        seed=seed,
        **{name: chosen[name] for name in PASSED_ON},
    )


def first_config(config: TrainingConfig, share: float = 0.0) -> TrainingConfig:
    """Leaves time for what follows the run: that of `last_config`, or solving for q.

    And besides a `share` of the time.
    """
    if config.max_time is None:
        return config
    return replace(config, max_time=(1.0 - LAST_STEPS - share) * config.max_time)


def last_config(config: TrainingConfig, steps: int) -> TrainingConfig | None:
    """The run on all rows after one of `steps` steps without those held out; None if too short.

    `config` is one for all the rows. Kernel, noise and points stay fixed, so that the rows may
    calibrate again: what they change is forgotten as soon as a run continues without them.
    """
    count = round(LAST_STEPS * steps)
    if count == 0:
        return None
    # Where a natural step is exact there is nothing to average over.
    natural_scale = 1.0 if config.natural_step == EXACT_NATURAL_STEP else LAST_NATURAL_STEP
    return replace(
        config,
        max_steps=count,
        max_time=None if config.max_time is None else LAST_STEPS * config.max_time,
        learning_rate=LAST_RATE * min(1.0, count / STEPS_TO_SETTLE) * config.learning_rate,
        natural_step=natural_scale * config.natural_step,
        natural_warmup=0,
        schedule_warmup=count // 5,
        train_hyperparameters=False,
        train_points=False,
        patience=None,
        seed=config.seed + 1,
    )


def count_held_out(num_rows: int, fraction: float | int | None, early_stopping: bool) -> int:
    """Rows held out to calibrate and to stop early; none where they are too few to calibrate."""
    fraction = 0.0 if fraction is None else fraction
    if not 0 <= fraction < 1:
        raise ConfigurationError(
            f"validation_fraction is {fraction!r}; expected a number in [0, 1)"
        )
    count = min(MOST_HELD_OUT, round(fraction * num_rows))
    if early_stopping:
        if fraction == 0 or num_rows < 2:
            raise ConfigurationError(
                f"early_stopping needs rows to judge by; validation_fraction is {fraction!r} "
                f"of {num_rows} row(s)"
            )
        return min(max(1, count), num_rows - 1)
    return count if count >= SMALLEST_SAMPLE else 0


def _automatic_batch(num_rows: int, gaussian: bool) -> int:
    if gaussian or num_rows <= BATCH_SIZE:
        return min(BATCH_SIZE, num_rows)
    return int(np.clip(num_rows * BATCH_A_ROW, SMALLEST_OTHER_BATCH, LARGEST_OTHER_BATCH))


def _automatic_steps(num_rows: int, gaussian: bool, started: bool, device: str) -> int:
    if started:
        return max(FEWEST_STEPS_STARTED, int(num_rows * STEPS_A_ROW_STARTED - FEWER_STEPS_STARTED))
    if gaussian:
        return int(np.clip(num_rows * STEPS_A_ROW - FEWER_STEPS, FEWEST_STEPS, MOST_STEPS))
    steps = num_rows * OTHER_STEPS_A_ROW - FEWER_OTHER_STEPS
    fewest = FEWEST_OTHER_STEPS.get(device, FEWEST_OTHER_STEPS["cpu"])
    return int(np.clip(steps, fewest, MOST_OTHER_STEPS))


def _automatic_rate(steps: Any, started: bool) -> float:
    if not isinstance(steps, int) or steps < 1:
        return LEARNING_RATE
    share = min(1.0, steps / (LEARNING_RATE_STEPS_STARTED if started else LEARNING_RATE_STEPS))
    return min(HIGHEST_LEARNING_RATE, LEARNING_RATE / share**0.5)


def _automatic_beta2(steps: Any, gaussian: bool) -> float:
    longest = LONGEST_MEMORY if gaussian else LONGEST_OTHER_MEMORY
    share = MEMORY_SHARE * steps if isinstance(steps, int) else longest
    return 1.0 - 1.0 / min(longest, max(2.0, share))


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def python_number(value: Any) -> Any:
    """A NumPy number, as a parameter grid gives, as a Python one; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value
