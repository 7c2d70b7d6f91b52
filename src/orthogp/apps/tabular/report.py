"""What `orthogp fit` reports: a record of plain data, and its JSON."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orthogp.apps.tabular.measures import Measures
from orthogp.execution.files import write_atomically

# Name → title and what it means.
FIGURES = {
    "rmse": ("RMSE", "root of the mean squared error, in units of the target"),
    "mae": ("MAE", "mean absolute error, in units of the target"),
    "r2": ("R²", "share of the variance that is explained"),
    "log_density": ("log density", "mean of a row, in nats, per unit of the target"),
    "coverage_90": ("coverage of 90 % intervals", "share of the rows inside; 0.9 is right"),
    "width_90": ("width of 90 % intervals", "mean, in units of the target"),
    "rmse_of_the_mean": ("RMSE of the training mean", "what predicting a constant gives"),
    "accuracy": ("accuracy", "share of the rows whose most probable class is right"),
    "log_likelihood": ("log-likelihood", "mean log probability of the right class, in nats"),
    "brier": ("Brier score", "mean squared error of the probabilities, summed over classes"),
    "accuracy_of_the_commonest_class": (
        "accuracy of the commonest class", "what always predicting it gives"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class FitReport:
    """One fit. `rows` counts those of the table, without a target, of training and of test.

    `relevance` is (column, 1/lengthscale) of every column, the most relevant first.
    """

    table: str
    model: str
    target: str
    task: str
    reason: str
    rows: dict[str, int]
    columns: int
    inputs: int
    steps: int
    seconds: float
    interrupted: bool
    notes: tuple[str, ...]
    measures: Measures
    relevance: tuple[tuple[str, float], ...]
    settings: dict[str, Any]

    @property
    def about(self) -> str:
        """What the figures are about, in a sentence."""
        return (
            f"All figures are of {self.rows['test']} rows drawn at random and held out before "
            f"anything was fitted. The model saved is the one fitted to the other "
            f"{self.rows['training']} rows, the very one that is judged here."
        )

    def write_json(self, path: Path) -> None:
        text = json.dumps(_plain(asdict(self)), indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(path, [text.encode("utf-8", "replace"), b"\n"])


def _plain(value: Any) -> Any:
    """JSON has no NaN: null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
