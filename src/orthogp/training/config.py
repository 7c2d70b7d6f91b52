"""The settings of a training run: one frozen dataclass, saved with every result."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from orthogp.errors import ConfigurationError

# Below this many γ the exact KL costs less than half of what the batch itself costs.
EXACT_KL_UP_TO = 512
# Of more, the paper's share, 64 of 700: a smaller one leaves the gradients of a_γ and γ to chance.
# Never more than a usual batch has rows, so that time stays linear in |γ|.
FEWEST_COLUMNS, COLUMN_SHARE, MOST_COLUMNS = 64, 64 / 700, 1024
FIRST_NATURAL_STEP = 1e-5
# Points of γ that may all take the learning rate as their step. Neighbours tend to move the
# function in the same direction: of more points each takes a smaller step, so that the sum of
# their steps does not grow.
FULL_STEPS_UP_TO = 700
SCHEDULES = ("constant", "cosine")
RULES = ("adam", "diagonal", "exact")


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of one run. Steps are counted, never epochs; times are seconds.

    `adam_beta2` is the decay of Adam's mean of squared gradients: those of the first steps are
    large, and in a short run a slow decay leaves the last steps too small. `residual_step` is the
    step size of the rule for a_γ, by default the learning rate, less where there are many γ.
    `residual_floor` is ε of D + ε, relative to the prior variance: without it a γ near a point of β
    moves the function elsewhere by many times the learning rate. `shard_residual` lets the
    processes of a team hold γ in parts.
    """

    max_steps: int = 5000
    max_time: float | None = None
    batch_size: int = 1024
    learning_rate: float = 0.03
    adam_beta2: float = 0.999
    natural_step: float = 0.1
    natural_warmup: int = 100
    schedule: str = "cosine"
    schedule_warmup: int = 100
    clip_norm: float | None = None
    kl_columns: int | str | None = "auto"
    residual_rule: str = "adam"
    residual_step: float | None = None
    residual_floor: float = 1e-2
    refresh_every: int = 200
    train_hyperparameters: bool = True
    train_points: bool = True
    shard_residual: bool = False
    report_every: int = 50
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_steps", "batch_size", "refresh_every", "report_every"):
            self._require(name, _is_count(getattr(self, name)), "a positive whole number")
        for name in ("natural_warmup", "schedule_warmup", "seed"):
            good = _is_count(getattr(self, name), least=0)
            self._require(name, good, "a whole number, zero or more")
        self._require("learning_rate", _is_positive(self.learning_rate), "a positive number")
        self._require("residual_floor", _is_positive(self.residual_floor), "a positive number")
        for name in ("max_time", "clip_norm", "residual_step"):
            value = getattr(self, name)
            self._require(name, value is None or _is_positive(value), "a positive number or None")
        good = _is_positive(self.adam_beta2) and self.adam_beta2 < 1
        self._require("adam_beta2", good, "a number in (0, 1)")
        good = _is_positive(self.natural_step) and self.natural_step <= 1
        self._require("natural_step", good, "a number in (0, 1]")
        good = self.patience is None or _is_count(self.patience)
        self._require("patience", good, "a positive whole number or None")
        self._require("schedule", self.schedule in SCHEDULES, " or ".join(SCHEDULES))
        self._require("residual_rule", self.residual_rule in RULES, " or ".join(RULES))
        good = self.kl_columns in (None, "auto") or _is_count(self.kl_columns)
        self._require("kl_columns", good, "a positive whole number, None (exact) or 'auto'")

    def _require(self, name: str, good: bool, expected: str) -> None:
        if not good:
            raise ConfigurationError(f"{name} is {getattr(self, name)!r}; expected {expected}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def columns(self, num_residual: int) -> int | None:
        """How many γ estimate the KL in a step, None for all of them."""
        if self.kl_columns == "auto":
            if num_residual <= EXACT_KL_UP_TO:
                return None
            share = round(COLUMN_SHARE * num_residual)
            return min(MOST_COLUMNS, max(FEWEST_COLUMNS, share))
        if self.kl_columns is None:
            return None
        return None if int(self.kl_columns) >= num_residual else int(self.kl_columns)

    def learning_rate_at(self, step: int, progress: float) -> float:
        """The rate of step `step`, which begins when `progress` of the run is done."""
        if self.schedule == "constant":
            return self.learning_rate
        rise = min(1.0, (step + 1) / max(1, self.schedule_warmup))
        return self.learning_rate * rise * _cosine(progress)

    def residual_step_at(
        self, step: int, progress: float, num_rows: int, num_residual: int
    ) -> float:
        """The step size of the γ rule. Adam's follows the schedule of the other rates."""
        if self.residual_rule != "adam":
            return self.residual_step or self.learning_rate / num_rows
        if self.residual_step is None:
            ratio = min(1.0, FULL_STEPS_UP_TO / max(1, num_residual))
        else:
            ratio = self.residual_step / self.learning_rate
        return ratio * self.learning_rate_at(step, progress)

    def natural_step_at(self, step: int, progress: float, gaussian: bool) -> float:
        """τ of step `step`: raised linearly first unless the likelihood is Gaussian.

        Under the cosine it falls to a tenth, so that q averages over ten times as many batches
        at the end.
        """
        rise = 1.0 if gaussian else min(1.0, (step + 1) / max(1, self.natural_warmup))
        fall = 1.0 if self.schedule == "constant" else max(0.1, _cosine(progress))
        return max(FIRST_NATURAL_STEP, self.natural_step * rise * fall)


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0


def _is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
