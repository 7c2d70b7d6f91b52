"""What the command line does: tables, the demonstration, benchmarks, the paper's experiments."""

import os
import platform
from pathlib import Path

from orthogp.errors import ConfigurationError


def comma_separated(text: str | None) -> list[str]:
    """The parts of a list on the command line, without the spaces around them."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def whole_numbers(text: str) -> tuple[int, ...]:
    """The whole numbers of a list on the command line."""
    try:
        return tuple(int(part) for part in comma_separated(text))
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is not a list of whole numbers") from error


def describe_machine(device: str) -> dict[str, str | int]:
    """On what a figure was measured, for a file of results."""
    found: dict[str, str | int] = {
        "processor": processor(),
        "cores": usable_cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    if device == "cuda":
        import torch

        found["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return found


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
