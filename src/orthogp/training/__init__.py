"""The training engine: `fit` in `loop`, its state in `run`, one step in `step`."""

from orthogp.training.batches import Rows
from orthogp.training.callbacks import CsvHistory, Event, JsonlHistory, Report, TensorBoard
from orthogp.training.config import TrainingConfig
from orthogp.training.evaluate import (
    full_bound,
    gain_over_constant,
    held_out_log_density,
    latents_at,
    predict_in_chunks,
)
from orthogp.training.loop import Result, fit
from orthogp.training.progress import ProgressBar
from orthogp.training.sharing import gather_rows
from orthogp.training.solving import solvable, solve
from orthogp.training.start import start_hyperparameters
from orthogp.training.streams import Stream

__all__ = [
    "CsvHistory",
    "Event",
    "JsonlHistory",
    "ProgressBar",
    "Report",
    "Result",
    "Rows",
    "Stream",
    "TensorBoard",
    "TrainingConfig",
    "fit",
    "full_bound",
    "gain_over_constant",
    "gather_rows",
    "held_out_log_density",
    "latents_at",
    "predict_in_chunks",
    "solvable",
    "solve",
    "start_hyperparameters",
]
