"""What every configuration of a benchmark refuses, and how it is written down."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from orthogp.apps.bench.contestants import PEERS
from orthogp.errors import ConfigurationError


def require_known(peers: Iterable[str]) -> None:
    unknown = [name for name in peers if name not in PEERS]
    if unknown:
        raise ConfigurationError(f"{unknown[0]!r} is no peer; expected some of {', '.join(PEERS)}")


def require_positive(config: Any, *names: str) -> None:
    for name in names:
        if getattr(config, name) <= 0:
            raise ConfigurationError(f"{name} is {getattr(config, name)}; expected more than 0")


def require_setup(setup: Any) -> None:
    require_positive(setup, "n_inducing", "batch", "dims", "rows")
    for name, known in (("device", ("cpu", "cuda")), ("dtype", ("float32", "float64"))):
        if getattr(setup, name) not in known:
            raise ConfigurationError(
                f"{name} is {getattr(setup, name)!r}; expected {' or '.join(known)}"
            )
    if setup.threads is not None:
        require_positive(setup, "threads")


def flat(config: Any) -> dict[str, Any]:
    """A configuration for JSON, with the fields of its setup among its own."""
    fields = asdict(config)
    return fields.pop("setup") | fields
