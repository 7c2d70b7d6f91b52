"""Milliseconds of a full training step: batch, bound, gradients, natural step, Adam step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orthogp.apps.bench.checks import flat, require_known, require_positive, require_setup
from orthogp.apps.bench.contest import Say, compete, quiet
from orthogp.apps.bench.contestants import OURS, PEERS, lineup
from orthogp.apps.bench.contestants.contract import Setup
from orthogp.apps.machine import describe_machine


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
        require_known([*self.peers, *self.pythons])


def speed(config: SpeedConfig, say: Say = quiet) -> dict[str, Any]:
    """The medians of interleaved rounds; `ratio` is a contestant's time over ours."""
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
    return {
        "config": flat(config),
        "ms": ms,
        "ratio": {name: ms[name] / ms[OURS] for name in ms if name != OURS and OURS in ms},
        "peak_mb": outcome.peak_mb,
        "skipped": outcome.skipped,
        "versions": outcome.versions,
        "machine": describe_machine(config.setup.device),
    }
