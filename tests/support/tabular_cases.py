"""Small tables, and the program run on them, for tests."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from typer.testing import CliRunner

from orthogp.apps.tabular.commands import app

NASTY = "<script>alert(1)</script>"
SMALL = ("--n-inducing", "8", "--n-residual", "8", "--max-steps", "20", "--device", "cpu")


def sample(rows: int = 240, seed: int = 0) -> pa.Table:
    """Numbers with and without gaps, text, truth values, a constant; one target of each kind."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=rows), rng.uniform(0, 100, size=rows)
    colour = rng.choice(["red", "green", "blue"], size=rows)
    y = 10 * np.sin(2 * a) + 0.1 * b + 5 * (colour == "red") + rng.normal(size=rows)
    gaps = rng.random(rows) < 0.1
    return pa.table(
        {
            "key": [f"00{i}" for i in range(rows)],
            "a": a,
            "b": pa.array(b, mask=gaps),
            "count": rng.integers(0, 50, size=rows),
            "colour": colour.tolist(),
            "flag": (rng.random(rows) < 0.5).tolist(),
            "same": [3.5] * rows,
            NASTY: rng.normal(size=rows),
            "y": y,
            "label": np.select([y > 8, y > 2], ["high", "mid"], "low").tolist(),
        }
    )


def write(table: pa.Table, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        separator = "\t" if ".tsv" in path.name else ","
        options = pyarrow.csv.WriteOptions(delimiter=separator)
        with pa.output_stream(path) as stream:
            pyarrow.csv.write_csv(table, stream, options)
    return path


def run(*arguments: object, status: int = 0) -> str:
    """What the program says; a refusal is raised."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.output


def fit(table: Path, out: Path, *more: object, target: str = "y", status: int = 0) -> str:
    """A small fit to a sample, in which `key` names the rows; the other target is left out."""
    other = {"y": "label", "label": "y"}[target]
    fixed = ("--target", target, "--out", out, "--id", "key", "--drop", other, *SMALL)
    return run("fit", table, *fixed, *more, status=status)


def predict(model: Path, table: Path, out: Path, *more: object) -> pa.Table:
    run("predict", model, table, "--out", out, *more)
    return read(out)


def read(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    return pyarrow.csv.read_csv(path)
