"""One JSON file a job: what was asked, what came out, and on what it ran."""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from orthogp.apps import describe_machine
from orthogp.errors import FileError
from orthogp.execution.files import write_atomically

FORMAT = 1
PACKAGES = (
    "orthogp", "torch", "gpytorch", "numpy", "scikit-learn", "ngboost", "lightgbm", "xgboost",
    "catboost", "pytabkit", "gpboost", "tabpfn",
)  # fmt: skip
COMMIT_VARIABLE = "ORTHOGP_COMMIT"

# One report of a run: step, seconds, bound, and metrics where there are any.
HistoryRow = dict[str, int | float]


@dataclass(frozen=True)
class Job:
    """A cell of an experiment's grid."""

    experiment: str
    dataset: str
    method: str
    split: int

    def __str__(self) -> str:
        return f"{self.experiment} {self.dataset} {self.method} split {self.split}"

    def path(self, out: Path) -> Path:
        return out / self.experiment / self.dataset / self.method / f"split-{self.split}.json"


@dataclass(frozen=True)
class Record:
    """What became of a job.

    `settings` are the model's and the training's; `data` has task, rows, inputs, classes,
    train_rows, test_rows. `metrics`, on the test rows of the z-scored targets: log_likelihood (nats
    a row) and rmse or accuracy (percent), coverage (percent of 90 % intervals, regression), and of
    the training rows bound (nats a row). Not every method has every metric. `costs`, where they are
    measured: fit_seconds, predict_seconds, peak_mib, cuda_peak_mib. `history` has one dict
    a report: step, seconds (of training alone), bound (nats a row, estimated from batches), and
    where the experiment draws curves the same test metrics.
    """

    job: Job
    status: Literal["done", "failed"]
    reason: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    recoveries: int = 0
    seconds: float = 0.0
    history: list[HistoryRow] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    finished: str = ""

    def without_history(self) -> "Record":
        return replace(self, history=[])


def write_record(record: Record, out: Path) -> Path:
    path = record.job.path(out)
    content = {"format": FORMAT, **asdict(record)}
    write_atomically(path, [json.dumps(content, indent=1).encode(), b"\n"])
    return path


def read_record(path: Path) -> Record:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FileError(f"{path} could not be read as a record: {error}") from error
    return _record(content, path)


def read_records(out: Path, experiment: str | None = None) -> list[Record]:
    """The records under `out`, of one experiment or all; a folder, or a file that
    `write_summary` wrote."""
    if out.is_file():
        found = list(_read_summary(out))
    else:
        paths = sorted(out.glob(f"{experiment or '*'}/*/*/split-*.json"))
        found = [read_record(path) for path in paths]
    return [r for r in found if experiment in (None, r.job.experiment)]


def write_summary(records: Iterable[Record], path: Path) -> None:
    """All records in one file, one JSON object a line, without their histories."""
    lines = [
        json.dumps({"format": FORMAT, **asdict(record.without_history())}).encode() + b"\n"
        for record in records
    ]
    write_atomically(path, lines)


def _read_summary(path: Path) -> Iterator[Record]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            content = json.loads(line)
        except ValueError as error:
            raise FileError(f"{path}, line {number}, is no record: {error}") from error
        yield _record(content, path)


def _record(content: Any, path: Path) -> Record:
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise FileError(f"{path} is not a record of format {FORMAT}")
    try:
        job = Job(**content.pop("job"))
        return Record(job, **content)
    except (TypeError, KeyError) as error:
        raise FileError(f"{path} is not a record of format {FORMAT}: {error}") from error


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
