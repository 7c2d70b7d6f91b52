"""What is measured: a training step, prediction, the growth of a step with |γ|, and imports."""

import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from orthogp.apps import describe_machine
from orthogp.apps.bench.contest import BenchResult, Say, compete, quiet
from orthogp.apps.bench.contestants import OUR_MODEL, OURS, PEERS, Entry, lineup
from orthogp.apps.bench.contestants.contract import Setup
from orthogp.errors import ConfigurationError

# Enough that the posterior is not the prior.
TRAINED_STEPS = 3
BASE = "torch_gpytorch"
STATEMENTS = {
    BASE: "import torch, gpytorch",
    "orthogp": "import orthogp",
    "orthogp_regressor": "from orthogp import OrthogonalGPRegressor",
}
TIMED = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


@dataclass(frozen=True)
class SpeedConfig:
    """`pythons` names the interpreter of a peer that lives in another environment."""

    setup: Setup = field(default_factory=Setup)
    steps: int = 30
    repeats: int = 9
    peers: tuple[str, ...] = PEERS
    pythons: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_setup(self.setup)
        require_positive(self.setup, "n_residual")
        require_positive(self, "steps", "repeats")
        require_peers([*self.peers, *self.pythons])


def speed(config: SpeedConfig, say: Say = quiet) -> dict[str, Any]:
    """Milliseconds of a full training step: batch, bound, gradients, natural step, Adam step.

    The medians of interleaved rounds; `ratio` is a contestant's time over ours.
    """
    task = {"do": "train", "steps": config.steps}
    outcome = compete(
        lineup(config.setup, config.peers),
        config.pythons,
        warm_up=task,
        task=task,
        key="seconds",
        repeats=config.repeats,
        say=say,
    )
    ms = {name: 1e3 * seconds for name, seconds in outcome.values.items()}
    ratio = {name: ms[name] / ms[OURS] for name in ms if name != OURS and OURS in ms}
    return _result(config, outcome, ms=ms, ratio=ratio)


@dataclass(frozen=True)
class PredictConfig:
    """`setup.test_rows` are predicted in a round, in chunks of each contestant's best size.

    What is timed is the latent mean and variance of every row, back in NumPy. orthogp predicts
    means in float64 whatever it was trained in, and variances where they are small; a peer
    everything in the dtype of the setup.
    """

    setup: Setup = field(default_factory=lambda: Setup(test_rows=1_000_000))
    repeats: int = 3
    peers: tuple[str, ...] = PEERS
    pythons: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_setup(self.setup)
        require_positive(self.setup, "n_residual", "test_rows")
        require_positive(self, "repeats")
        require_peers([*self.peers, *self.pythons])


def predict(config: PredictConfig, say: Say = quiet) -> dict[str, Any]:
    """Rows predicted a second.

    The medians of interleaved rounds; `ratio` is our rows a second over a contestant's.
    """
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
    ratio = {name: rate[OURS] / rate[name] for name in rate if name != OURS and OURS in rate}
    return _result(config, outcome, rows_per_s=rate, ratio=ratio)


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
    """Milliseconds and peak MiB of our training step by |γ|.

    Each size has its process, so that the peak is its own.
    """
    task = {"do": "train", "steps": config.steps}
    total = BenchResult()
    for count in config.residuals:
        entry = Entry(OUR_MODEL, replace(config.setup, n_residual=count), "orthogp")
        outcome = compete({str(count): entry}, {}, task, task, "seconds", config.repeats, say)
        total.values |= outcome.values
        total.peak_mb |= outcome.peak_mb
        total.skipped |= outcome.skipped
        total.versions |= outcome.versions
    ms = {name: 1e3 * seconds for name, seconds in total.values.items()}
    return _result(config, total, ms=ms)


@dataclass(frozen=True)
class ImportsConfig:
    repeats: int = 7

    def __post_init__(self) -> None:
        require_positive(self, "repeats")


def imports(config: ImportsConfig, say: Say = quiet) -> dict[str, Any]:
    """Milliseconds of an import in a fresh process.

    The medians of interleaved processes; `ratio` is over torch and GPyTorch alone.
    """
    figures = {name: [] for name in STATEMENTS}
    # One round more than counted: the first reads files that later ones find in memory.
    for k in range(config.repeats + 1):
        for name, statement in STATEMENTS.items():
            say(f"{name}: round {k} of {config.repeats}")
            seconds = seconds_of(statement)
            if k:
                figures[name].append(seconds)
    ms = {name: 1e3 * median(seconds) for name, seconds in figures.items()}
    return {
        "config": asdict(config) | {"statements": STATEMENTS},
        "ms": ms,
        "ratio": {name: ms[name] / ms[BASE] for name in ms if name != BASE},
        "machine": describe_machine("cpu"),
    }


def seconds_of(statement: str) -> float:
    code = TIMED.format(statement)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ConfigurationError(
            f"{statement!r} failed: {lines[-1] if lines else 'without a word'}"
        )
    return float(done.stdout)


def require_peers(peers: Iterable[str]) -> None:
    unknown = [name for name in peers if name not in PEERS]
    if unknown:
        raise ConfigurationError(f"{unknown[0]!r} is no peer; expected some of {', '.join(PEERS)}")


def require_positive(config: Any, *names: str) -> None:
    for name in names:
        if getattr(config, name) <= 0:
            raise ConfigurationError(f"{name} is {getattr(config, name)}; expected more than 0")


def require_setup(setup: Any) -> None:
    require_positive(setup, "n_inducing", "batch", "dims", "rows")
    for name, choices in (("device", ("cpu", "cuda")), ("dtype", ("float32", "float64"))):
        if getattr(setup, name) not in choices:
            raise ConfigurationError(
                f"{name} is {getattr(setup, name)!r}; expected {' or '.join(choices)}"
            )
    if setup.threads is not None:
        require_positive(setup, "threads")


def _result(config: Any, outcome: BenchResult, **figures: dict[str, float]) -> dict[str, Any]:
    """The figures for JSON, with the configuration, its setup's fields among its own."""
    fields = asdict(config)
    return {
        "config": fields.pop("setup") | fields,
        **figures,
        "peak_mb": outcome.peak_mb,
        "skipped": outcome.skipped,
        "versions": outcome.versions,
        "machine": describe_machine(config.setup.device),
    }
