"""`orthogp paper …`: the experiments listed, run, tabulated, drawn and reported."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orthogp.apps import comma_separated
from orthogp.errors import ConfigurationError

app = typer.Typer(help="The paper's experiments.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="An experiment; `orthogp paper list` names them.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Data sets as DIR/regression/NAME.npz and DIR/classification/NAME.npz; "
                      "the variable ORTHOGP_DATA by default."),
]  # fmt: skip
Out = Annotated[Path, typer.Option(help="The folder of the records.")]
From = Annotated[
    Path, typer.Option("--out", help="The folder of the records, or a file by `paper collect`.")
]


@app.command("list")
def list_command(data_dir: DataDir = None) -> None:
    """The experiments, their methods, and the data sets they would run on."""
    from orthogp.apps.paper.datasets import available, default_data_dir
    from orthogp.apps.paper.experiments import EXPERIMENTS

    console, folder = Console(), data_dir or default_data_dir()
    for name, experiment in EXPERIMENTS.items():
        console.print(f"[bold]{name}[/]  {experiment.title}")
        for task, methods in experiment.methods.items():
            console.print(f"  {task}: {', '.join(methods)}", soft_wrap=True, highlight=False)
            if folder is not None:
                chosen = experiment.choose(task, available(folder, task))
                console.print(f"    on {', '.join(chosen) or 'nothing that is there'}",
                              soft_wrap=True, highlight=False)  # fmt: skip


@app.command("run")
def run_command(
    experiment: Name,
    out: Out,
    data_dir: DataDir = None,
    datasets: Annotated[str | None, typer.Option(help="Comma-separated; all by default.")] = None,
    methods: Annotated[str | None, typer.Option(help="Comma-separated; all by default.")] = None,
    splits: Annotated[int, typer.Option(help="How many: 3 means splits 0, 1 and 2.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Fewer than the paper's 20 000.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    jobs: Annotated[int, typer.Option(help="Jobs at a time; a large GPU has room for 16.")] = 1,
) -> None:
    """Run an experiment: one record a data set, method and split; run again to go on."""
    from orthogp.apps.paper.job import Place
    from orthogp.apps.paper.runner import grid, run_jobs

    folder = require_data_dir(data_dir)
    for name, value in (("steps", steps), ("jobs", jobs)):
        if value is not None and value < 1:
            raise ConfigurationError(f"--{name} is {value}; expected at least one")
    items = grid(
        experiment,
        folder,
        comma_separated(datasets) or None,
        comma_separated(methods) or None,
        splits,
    )
    console, done, failed = Console(), 0, 0

    def report(job, record) -> None:
        nonlocal done, failed
        done += 1
        failed += record is not None and record.status == "failed"
        console.print(f"[{done}/{len(items)}] {job}: {outcome(record)}", markup=False,
                      highlight=False, soft_wrap=True)  # fmt: skip

    try:
        run_jobs(items, Place(folder, out, device, steps), jobs, report)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    console.print(f"{len(items)} jobs, {failed} failed; records in {out}", highlight=False)
    if failed:
        raise typer.Exit(1)


def outcome(record) -> str:
    """A record in one line."""
    if record is None:
        return "another process is at it"
    if record.status == "failed":
        return f"failed: {record.reason}"
    named = ", ".join(f"{name} {value:.4g}" for name, value in record.metrics.items())
    return f"{named}; {record.seconds:.0f} s"


@app.command("table")
def table_command(experiment: Name, out: From) -> None:
    """Tables beside the paper's own, on the terminal; as CSV and LaTeX under OUT/tables."""
    from orthogp.apps.paper.tables import claims, print_claims, print_table, tables, write_tables

    records = require_records(out, experiment)
    console = Console()
    for table in tables(records, experiment):
        print_table(table, console)
    # Claims about other experiments cannot be checked with these records.
    print_claims([c for c in claims(records) if c.status != "cannot say"], console)
    folder = output_folder(out) / "tables"
    written = write_tables(records, experiment, folder)
    console.print(f"{len(written)} files in {folder}", highlight=False)


@app.command("figure")
def figure_command(experiment: Name, out: From) -> None:
    """The experiment's figures as SVG and PNG under OUT/figures."""
    from orthogp.apps.paper.figures import draw_figures

    folder = output_folder(out) / "figures"
    drawn = draw_figures(require_records(out, experiment), experiment, folder)
    if not drawn:
        raise ConfigurationError(
            f"the records of {experiment} in {out} hold nothing to draw; curves need the histories "
            "that `paper collect` leaves out"
        )
    for path in drawn:
        print(path)


@app.command("report")
def report_command(
    out: From,
    page: Annotated[Path | None, typer.Option(help="OUT/report.html by default.")] = None,
) -> None:
    """One HTML page with everything: claims, tables, curves, settings."""
    from orthogp.apps.paper.records import read_records
    from orthogp.apps.paper.report import write_report

    print(write_report(read_records(out), page or output_folder(out) / "report.html"))


@app.command("fetch")
def fetch_command(
    names: Annotated[str | None, typer.Argument(help="Comma-separated; all by default.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Download the paper's data sets into the data directory; what is there is kept."""
    from orthogp.apps.paper.fetching import fetch
    from orthogp.apps.paper.fetching.sources import SOURCES

    console = Console(soft_wrap=True, highlight=False, markup=False)
    wanted = comma_separated(names) or list(dict.fromkeys(source.name for source in SOURCES))
    outcomes = fetch(wanted, require_data_dir(data_dir), console.print)
    failed = [outcome.name for outcome in outcomes if outcome.status == "failed"]
    if failed:
        console.print(f"not fetched: {', '.join(failed)}")
        raise typer.Exit(1)


@app.command("collect")
def collect_command(
    out: Out, file: Annotated[Path, typer.Argument(help="Where to, one record a line.")]
) -> None:
    """All records in one file, without their histories."""
    from orthogp.apps.paper.records import read_records, write_summary

    records = read_records(out)
    write_summary(records, file)
    print(f"{len(records)} records in {file}")


def output_folder(out: Path) -> Path:
    """The folder of the records, or that of the file they were collected in."""
    return out.parent if out.is_file() else out


def require_data_dir(given: Path | None) -> Path:
    from orthogp.apps.paper.datasets import default_data_dir

    folder = given or default_data_dir()
    if folder is None:
        raise ConfigurationError(
            "no data directory: pass --data-dir DIR or set ORTHOGP_DATA; "
            "`orthogp paper fetch` fills one"
        )
    return folder


def require_records(out: Path, experiment: str):
    from orthogp.apps.paper.experiments import find_experiment
    from orthogp.apps.paper.records import read_records

    find_experiment(experiment)
    records = read_records(out, experiment)
    if not records:
        raise ConfigurationError(f"{out} has no records of {experiment}; `orthogp paper run` first")
    return records
