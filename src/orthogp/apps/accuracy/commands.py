"""`orthogp bench accuracy`, `accuracy-table` and `time-to-density`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from orthogp.apps import comma_separated, whole_numbers
from orthogp.apps.paper.commands import DataDir, From, Out, outcome, output_folder, require_data_dir
from orthogp.errors import ConfigurationError

if TYPE_CHECKING:
    from orthogp.apps.paper.records import Job

DataSets = Annotated[str | None, typer.Option(help="Comma-separated; all by default.")]
Models = Annotated[
    str | None, typer.Option(help="Comma-separated; all that are installed by default.")
]
Device = Annotated[
    str, typer.Option(help="cpu or cuda; trees and GPBoost run on the CPU whatever it is.")
]


def accuracy_command(
    out: Out,
    data_dir: DataDir = None,
    datasets: DataSets = None,
    models: Models = None,
    splits: Annotated[int, typer.Option(help="How many: 3 means splits 0, 1 and 2.")] = 1,
    device: Device = "cpu",
    jobs: Annotated[int, typer.Option(help="Jobs at a time; times are rough with several.")] = 1,
) -> None:
    """Fit models to data sets and measure them: one record each; run again to go on."""
    if jobs < 1:
        raise ConfigurationError(f"--jobs is {jobs}; expected at least one")
    console = Console(soft_wrap=True, highlight=False, markup=False)
    folder = require_data_dir(data_dir)
    items = _items(console, folder, datasets, models, splits, device)
    if not _run(console, items, out, folder, device, jobs):
        raise typer.Exit(1)


def time_to_density_command(
    out: Out,
    data_dir: DataDir = None,
    datasets: DataSets = None,
    models: Models = None,
    device: Device = "cpu",
    rows: Annotated[
        str, typer.Option(help="Comma-separated numbers of rows that models are fitted to as well.")
    ] = "1000,4000,16000,64000",
    densities: Annotated[
        str | None,
        typer.Option(help="Comma-separated; by default 1 to 0.02 nats below the best of all."),
    ] = None,
) -> None:
    """Seconds until each model reaches a log density, with as many rows as that takes."""
    from orthogp.apps.accuracy.standings import to_markdown
    from orthogp.apps.accuracy.time_to_density import density_tables, jobs_by_rows
    from orthogp.apps.paper.datasets import load, training_count
    from orthogp.apps.paper.records import read_records
    from orthogp.apps.paper.tables import print_table
    from orthogp.execution.files import write_atomically

    console = Console(soft_wrap=True, highlight=False, markup=False)
    folder = require_data_dir(data_dir)
    sizes, levels = whole_numbers(rows), [_number(part) for part in comma_separated(densities)]
    items = _items(console, folder, datasets, models, 1, device)
    named = {job.dataset: task for job, task in items}
    most = {name: training_count(len(load(folder, task, name).y)) for name, task in named.items()}
    items = jobs_by_rows(items, sizes, most)
    succeeded = _run(console, items, out, folder, device, 1)
    wanted = {job for job, _ in items}
    tables = density_tables([r for r in read_records(out) if r.job in wanted], levels)
    for table in tables:
        print_table(table, console)
    path = output_folder(out) / "tables" / "time-to-density.md"
    write_atomically(path, ["\n".join(map(to_markdown, tables)).encode()])
    console.print(str(path))
    if not succeeded:
        raise typer.Exit(1)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"--densities has {text!r}, which is not a number") from None


def _items(
    console: Console,
    folder: Path,
    datasets: str | None,
    models: str | None,
    splits: int,
    device: str,
) -> "list[tuple[Job, str]]":
    """The jobs of the models that are installed; the others are named."""
    from orthogp.apps.accuracy.job import accuracy_jobs
    from orthogp.apps.accuracy.models import find_models

    chosen = find_models(comma_separated(models) or None)
    for name, model in chosen.items():
        if not model.installed:
            console.print(f"{name} is skipped: {model.how_to_install}")
    installed = {name: model for name, model in chosen.items() if model.installed}
    return accuracy_jobs(folder, installed, comma_separated(datasets) or None, splits, device)


def _run(
    console: Console,
    items: "list[tuple[Job, str]]",
    out: Path,
    folder: Path,
    device: str,
    jobs: int,
) -> bool:
    """Runs the jobs that have no record yet; whether none failed."""
    from orthogp.apps.accuracy.job import run_model
    from orthogp.apps.paper.job import Place
    from orthogp.apps.paper.runner import run_jobs

    done, counts = 0, {"refused": 0, "failed": 0}

    def report(job, record) -> None:
        nonlocal done
        done += 1
        if record is not None and record.status == "failed":
            counts["refused" if refused(record) else "failed"] += 1
        console.print(f"[{done}/{len(items)}] {job}: {outcome(record)}")

    try:
        run_jobs(items, Place(folder, out, device, run=run_model), jobs, report)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    ended = ", ".join(f"{count} {how}" for how, count in counts.items())
    console.print(f"{len(items)} jobs, {ended}; records in {out}")
    return not counts["failed"]


def refused(record) -> bool:
    """Whether a model declined a table, as an exact GP does one that memory has no room for."""
    return record.reason.startswith(ConfigurationError.__name__)


def accuracy_table_command(
    out: From,
    models: Annotated[
        str | None, typer.Option(help="Comma-separated, as in the records; all by default.")
    ] = None,
    pictures: Annotated[bool, typer.Option(help="Draw the pictures as well.")] = True,
) -> None:
    """Tables on the terminal, as Markdown under OUT/tables, and pictures under OUT/figures."""
    from orthogp.apps.accuracy.pictures import draw_pictures
    from orthogp.apps.accuracy.standings import (
        METRICS,
        build_standings,
        missing_results,
        result_table,
        to_markdown,
    )
    from orthogp.apps.paper.records import read_records
    from orthogp.apps.paper.tables import print_table
    from orthogp.execution.files import write_atomically

    console, wanted, written = Console(), comma_separated(models), []
    records = [r for r in read_records(out) if not wanted or r.job.method in wanted]
    for task, metrics in METRICS.items():
        standings = build_standings(records, task)
        if not standings.records:
            continue
        tables = [result_table(standings, metric) for metric in metrics]
        for table in tables:
            print_table(table, console)
        missing = missing_results(standings)
        for line in missing:
            console.print(f"no result: {line}", markup=False, highlight=False)
        pieces = [*map(to_markdown, tables), *(f"- no result: {line}" for line in missing), ""]
        path = output_folder(out) / "tables" / f"accuracy-{task}.md"
        write_atomically(path, ["\n".join(pieces).encode()])
        written.append(path)
        if pictures:
            written += draw_pictures(standings, output_folder(out) / "figures")
    if not written:
        raise ConfigurationError(f"{out} has no records; `orthogp bench accuracy` first")
    for path in written:
        console.print(str(path), highlight=False, soft_wrap=True)
