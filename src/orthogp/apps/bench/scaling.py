"""Time and peak memory of our training step against the number of residual points."""

from dataclasses import dataclass, field, replace
from typing import Any

from orthogp.apps.bench.checks import flat, require_positive, require_setup
from orthogp.apps.bench.contest import Say, compete, quiet
from orthogp.apps.bench.contestants import Entry
from orthogp.apps.bench.contestants.contract import Setup
from orthogp.apps.machine import describe_machine
from orthogp.errors import ConfigurationError


@dataclass(frozen=True)
class ScalingConfig:
    """`setup.n_residual` is replaced by each of `residuals`, zero for the coupled basis."""

    setup: Setup = field(default_factory=Setup)
    residuals: tuple[int, ...] = (0, 700, 7000, 70_000, 700_000)
    steps: int = 3
    repeats: int = 3

    def __post_init__(self) -> None:
        require_setup(self.setup)
        require_positive(self, "steps", "repeats")
        if not self.residuals or min(self.residuals) < 0:
            raise ConfigurationError(
                f"residuals is {self.residuals}; expected numbers of points, zero or more"
            )


def scaling(config: ScalingConfig, say: Say = quiet) -> dict[str, Any]:
    """Milliseconds and MiB by |γ|; each size has its process, so that the peak is its own."""
    task = {"do": "train", "steps": config.steps}
    ms, peak, skipped, versions = {}, {}, {}, {}
    for count in config.residuals:
        entry = Entry("ours", replace(config.setup, n_residual=count), "orthogp")
        outcome = compete({str(count): entry}, {}, task, task, "seconds", config.repeats, say)
        ms |= {name: 1e3 * seconds for name, seconds in outcome.values.items()}
        peak |= outcome.peak_mb
        skipped |= outcome.skipped
        versions |= outcome.versions
    return {
        "config": flat(config),
        "ms": ms,
        "peak_mb": peak,
        "skipped": skipped,
        "versions": versions,
        "machine": describe_machine(config.setup.device),
    }
