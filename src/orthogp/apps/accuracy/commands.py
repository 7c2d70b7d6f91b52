"""`orthogp bench accuracy` and `orthogp bench accuracy-table`."""

from typing import Annotated

import typer
from rich.console import Console

from orthogp.apps import comma_separated
from orthogp.apps.paper.commands import DataDir, From, Out, outcome, output_folder, require_data_dir
from orthogp.errors import ConfigurationError


def accuracy_command(
    out: Out,
    data_dir: DataDir = None,
    datasets: Annotated[str | None, typer.Option(help="Comma-separated; all by default.")] = None,
    models: Annotated[
        str | None, typer.Option(help="Comma-separated; all that are installed by default.")
    ] = None,
    splits: Annotated[int, typer.Option(help="How many: 3 means splits 0, 1 and 2.")] = 1,
    device: Annotated[
        str, typer.Option(help="cpu or cuda; trees and GPBoost run on the CPU whatever it is.")
    ] = "cpu",
    jobs: Annotated[int, typer.Option(help="Jobs at a time; times are rough with several.")] = 1,
) -> None:
    """Fit models to data sets and measure them: one record each; run again to go on."""
    from orthogp.apps.accuracy.job import accuracy_jobs, run_model
    from orthogp.apps.accuracy.models import find_models
    from orthogp.apps.paper.job import Place
    from orthogp.apps.paper.runner import run_jobs

    if jobs < 1:
        raise ConfigurationError(f"--jobs is {jobs}; expected at least one")
    console = Console(soft_wrap=True, highlight=False, markup=False)
    chosen = find_models(comma_separated(models) or None)
    for name, model in chosen.items():
        if not model.installed:
            console.print(f"{name} is skipped: {model.how_to_install}")
    installed = {name: model for name, model in chosen.items() if model.installed}
    folder, wanted = require_data_dir(data_dir), comma_separated(datasets) or None
    items = accuracy_jobs(folder, installed, wanted, splits, device)
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
    if counts["failed"]:
        raise typer.Exit(1)


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
