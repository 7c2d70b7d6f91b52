"""`orthogp bench …`: options to configurations, results to a table, JSON and a picture."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from orthogp.apps import comma_separated, whole_numbers
from orthogp.apps.accuracy.commands import (
    accuracy_command,
    accuracy_table_command,
    time_to_density_command,
)
from orthogp.errors import ConfigurationError

app = typer.Typer(help="Speed and accuracy beside other libraries.", no_args_is_help=True)
app.command("accuracy")(accuracy_command)
app.command("accuracy-table")(accuracy_table_command)
app.command("time-to-density")(time_to_density_command)

Inducing = Annotated[int, typer.Option(help="Inducing points |β|.")]
Residual = Annotated[int, typer.Option(help="Residual points |γ|.")]
Batch = Annotated[int, typer.Option(help="Rows of a batch.")]
Dims = Annotated[int, typer.Option(help="Inputs of a row.")]
Repeats = Annotated[int, typer.Option(help="Interleaved rounds whose median counts.")]
Peers = Annotated[str, typer.Option(help="Libraries to compare with, comma-separated.")]
Python = Annotated[
    list[str] | None, typer.Option(help="PEER=PATH: the Python of a peer's own environment.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="float32 or float64.")]
Ard = Annotated[bool, typer.Option("--ard", help="A lengthscale for every input.")]
Threads = Annotated[int | None, typer.Option(help="Cores of every contestant; all by default.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the result here.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the result here (PNG, PDF, SVG).")]
ALL_PEERS = "gpytorch,gpjax,gpflow"


@app.command("speed")
def bench_speed(
    n_inducing: Inducing = 300,
    n_residual: Residual = 700,
    batch: Batch = 1024,
    dims: Dims = 8,
    steps: Annotated[int, typer.Option(help="Steps of a round.")] = 30,
    repeats: Repeats = 9,
    peers: Peers = ALL_PEERS,
    python: Python = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    ard: Ard = False,
    threads: Threads = None,
    json_file: Json = None,
    plot: Plot = None,
) -> None:
    """Time of a full training step."""
    from orthogp.apps.bench.measurements import Setup, SpeedConfig, speed
    from orthogp.apps.bench.results import draw_bars

    setup = Setup(
        n_inducing=n_inducing,
        n_residual=n_residual,
        batch=batch,
        dims=dims,
        device=device,
        dtype=dtype,
        ard=ard,
        threads=threads,
    )
    config = SpeedConfig(setup, steps, repeats, tuple(comma_separated(peers)), interpreters(python))
    result = measured(lambda say: speed(config, say))
    show("A training step", "contestant", result, json_file)
    if plot is not None:
        draw_bars(result, "ms", "ms a training step", plot)
    fail_without_ours(result, "ms")


@app.command("predict")
def bench_predict(
    n_inducing: Inducing = 300,
    n_residual: Residual = 700,
    rows: Annotated[int, typer.Option(help="Rows to predict.")] = 1_000_000,
    dims: Dims = 8,
    repeats: Repeats = 3,
    peers: Peers = ALL_PEERS,
    python: Python = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    ard: Ard = False,
    threads: Threads = None,
    json_file: Json = None,
    plot: Plot = None,
) -> None:
    """Rows a second of prediction, mean and variance."""
    from orthogp.apps.bench.measurements import PredictConfig, Setup, predict
    from orthogp.apps.bench.results import draw_bars

    setup = Setup(
        n_inducing=n_inducing,
        n_residual=n_residual,
        dims=dims,
        test_rows=rows,
        device=device,
        dtype=dtype,
        ard=ard,
        threads=threads,
    )
    config = PredictConfig(setup, repeats, tuple(comma_separated(peers)), interpreters(python))
    result = measured(lambda say: predict(config, say))
    show("Prediction", "contestant", result, json_file)
    if plot is not None:
        draw_bars(result, "rows_per_s", "rows predicted a second", plot)
    fail_without_ours(result, "rows_per_s")


@app.command("scaling")
def bench_scaling(
    residuals: Annotated[str, typer.Option(help="Sizes of γ.")] = "0,700,7000,70000,700000",
    n_inducing: Inducing = 300,
    batch: Batch = 1024,
    dims: Dims = 8,
    steps: Annotated[int, typer.Option(help="Steps of a round.")] = 3,
    repeats: Repeats = 3,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    threads: Threads = None,
    json_file: Json = None,
    plot: Plot = None,
) -> None:
    """Time and memory of our training step against |γ|."""
    from orthogp.apps.bench.measurements import ScalingConfig, Setup, scaling
    from orthogp.apps.bench.results import draw_scaling

    setup = Setup(
        n_inducing=n_inducing,
        batch=batch,
        dims=dims,
        device=device,
        dtype=dtype,
        threads=threads,
    )
    config = ScalingConfig(setup, whole_numbers(residuals), steps, repeats)
    result = measured(lambda say: scaling(config, say))
    show("A training step", "residual points", result, json_file)
    if plot is not None:
        draw_scaling(result, plot)


@app.command("imports")
def bench_imports(repeats: Repeats = 7, json_file: Json = None) -> None:
    """Time of importing orthogp beside that of torch and GPyTorch."""
    from orthogp.apps.bench.measurements import ImportsConfig, imports

    result = measured(lambda say: imports(ImportsConfig(repeats), say))
    show("Importing", "import", result, json_file)


def interpreters(pairs: list[str] | None) -> dict[str, str]:
    pairs = pairs or []
    for pair in pairs:
        if "=" not in pair:
            raise ConfigurationError(f"--python is {pair!r}; expected PEER=PATH")
    return dict(pair.split("=", 1) for pair in pairs)


def measured(measure: Callable[[Callable[[str], None]], dict[str, Any]]) -> dict[str, Any]:
    """The result; progress is shown on stderr where that is a terminal."""
    with Console(stderr=True).status("starts") as status:
        return measure(status.update)


def show(title: str, first: str, result: dict[str, Any], path: Path | None) -> None:
    from orthogp.apps.bench.results import table

    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n")
    Console().print(table(title, first, result))


def fail_without_ours(result: dict[str, Any], key: str) -> None:
    from orthogp.apps.bench.contestants import OURS

    if OURS not in result[key]:
        raise typer.Exit(1)
