"""Which code ran, with what, on what, and when."""

import os
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from orthogp.apps.machine import describe_machine

PACKAGES = ("orthogp", "torch", "gpytorch", "numpy", "scikit-learn", "ngboost")
COMMIT_VARIABLE = "ORTHOGP_COMMIT"


def provenance(device: str) -> dict[str, Any]:
    """The fields of a record that say where it comes from."""
    return {
        "machine": {"device": device, **describe_machine(device)},
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "commit": commit(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str:
    """Of the source that runs; the variable names it where the source came without its history."""
    if COMMIT_VARIABLE in os.environ:
        return os.environ[COMMIT_VARIABLE]
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
