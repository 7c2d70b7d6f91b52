"""Rows a second of prediction: the latent mean and variance of every row, back in NumPy.

orthogp predicts means in float64 whatever it was trained in, and variances where they are small; a
peer everything in the dtype of the setup.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orthogp.apps.bench.checks import flat, require_known, require_positive, require_setup
from orthogp.apps.bench.contest import Say, compete, quiet
from orthogp.apps.bench.contestants import OURS, PEERS, lineup
from orthogp.apps.bench.contestants.contract import Setup
from orthogp.apps.machine import describe_machine

# Enough that the posterior is not the prior.
TRAINED_STEPS = 3


@dataclass(frozen=True)
class PredictConfig:
    """`setup.test_rows` are predicted in a round, in chunks of each contestant's best size."""

    setup: Setup = field(default_factory=lambda: Setup(test_rows=1_000_000))
    repeats: int = 3
    peers: tuple[str, ...] = PEERS
    pythons: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_setup(self.setup)
        require_positive(self.setup, "n_residual", "test_rows")
        require_positive(self, "repeats")
        require_known([*self.peers, *self.pythons])


def predict(config: PredictConfig, say: Say = quiet) -> dict[str, Any]:
    """The medians of interleaved rounds; `ratio` is our rows a second over a contestant's."""
    outcome = compete(
        lineup(config.setup, config.peers),
        config.pythons,
        warm_up={"do": "train", "steps": TRAINED_STEPS},
        task={"do": "predict"},
        key="rows_per_s",
        repeats=config.repeats,
        say=say,
    )
    rate = outcome.values
    return {
        "config": flat(config),
        "rows_per_s": rate,
        "ratio": {name: rate[OURS] / rate[name] for name in rate if name != OURS and OURS in rate},
        "peak_mb": outcome.peak_mb,
        "skipped": outcome.skipped,
        "versions": outcome.versions,
        "machine": describe_machine(config.setup.device),
    }
