"""`orthogp fit` and `orthogp predict`: options to requests, results to the terminal and files."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from orthogp.apps import comma_separated
from orthogp.apps.tabular.options import as_arguments, with_settings
from orthogp.errors import ConfigurationError, OrthogpError

app = typer.Typer()

Table = Annotated[
    Path, typer.Argument(help="CSV (.csv, .tsv, also .gz), Parquet, or a folder of Parquet files.")
]
Model = Annotated[Path, typer.Argument(help="A file by `orthogp fit`.")]
INTERRUPTED = 130


@app.command("fit")
@with_settings
def fit_command(
    table: Table,
    target: Annotated[str, typer.Option(help="The column to predict.")],
    out: Annotated[Path, typer.Option(help="Where the model goes.")],
    task: Annotated[
        str | None, typer.Option(help="regression or classification; by the target by default.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="A column that names the rows: no input.")
    ] = None,
    drop: Annotated[str | None, typer.Option(help="Columns to leave out, comma-separated.")] = None,
    test_size: Annotated[
        float, typer.Option(help="Share of the rows held out for the report; 0 for none.")
    ] = 0.1,
    missing: Annotated[
        str,
        typer.Option(
            help="impute (numbers from the others of their row), refuse, or numbers that stand "
            "for missing values, such as -200,9999."
        ),
    ] = "impute",
    drop_missing_target: Annotated[
        bool, typer.Option(help="Whether rows without a target are left out, or refused.")
    ] = True,
    report: Annotated[Path | None, typer.Option(help="Write the report here as HTML.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the report here as JSON.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same number gives the same model.")] = 0,
    shards: Annotated[
        bool,
        typer.Option(
            "--shards",
            help="Under torchrun: every process has a table of its own, {rank} in whose path is "
            "the number of the process.",
        ),
    ] = False,
    **settings: Any,
) -> None:
    """Fit a model to a table and report on rows it has not seen.

    [bold]orthogp fit houses.csv --target price --out price.orthogp --report price.html[/]

    [bold]orthogp fit visits.parquet --target returned --id visit --max-time 600 --out model[/]
    """
    from orthogp.apps.launch import process_group
    from orthogp.apps.tabular.preparing import FitRequest

    arguments = as_arguments(settings)
    with process_group(arguments["device"]) as team:
        if shards:
            table = Path(str(table).replace("{rank}", str(team.rank)))
        request = FitRequest(
            table, target, out, task, id_column, tuple(comma_separated(drop)), test_size, missing,
            seed, arguments, drop_missing_target, shards,
        )  # fmt: skip
        status = run_fit(request, report, json_file, team.leads)
    if status:
        raise typer.Exit(status)


def run_fit(request, page, json_file, writes: bool) -> int:
    """The model and its report, written by the process that `writes`; the exit status."""
    from orthogp.apps.tabular.fitting import require_device, train
    from orthogp.apps.tabular.preparing import prepare
    from orthogp.tables import transform_notes

    require_places(request, [path for path in (page, json_file) if path is not None])
    require_device(request.settings["device"])
    try:
        prepared = prepare(request, say)
        model, interrupted = train(request, prepared)
        for note in transform_notes(model.plan):
            say(note)
    except KeyboardInterrupt:
        say("interrupted before there was a model; nothing was written")
        return INTERRUPTED
    if not writes:
        return 0
    model.save(request.out)
    end = "interrupted; the model as it stood" if interrupted else "the model"
    steps, rows = model.estimator.n_iter_, prepared.rows["training"]
    say(f"{end} is in {request.out}, after {steps} steps on {rows} rows")
    status = INTERRUPTED if interrupted else 0
    if request.test_size > 0:
        made = run_report(request, prepared, model, interrupted, page, json_file)
        status = status or made
    return status


def require_places(request, pages: list[Path]) -> None:
    """Refuses what cannot be written, before any work is done for it."""
    from orthogp.apps.tabular.writing import require_writable

    if request.test_size == 0 and pages:
        raise ConfigurationError("--report and --json are about test rows; --test-size 0 has none")
    for path in (request.out, *pages):
        require_writable(path)
        if path.absolute() == request.table.absolute():
            raise ConfigurationError(f"{path} is the table itself; write to another file")


def run_report(request, prepared, model, interrupted, page, json_file) -> int:
    """The report, everywhere it is wanted; the exit status. The model is safe already."""
    from orthogp.apps.tabular.fitting import judge
    from orthogp.apps.tabular.report import print_report
    from orthogp.apps.tabular.report_page import write_page

    try:
        explains = page is not None or json_file is not None
        found = judge(request, prepared, model, interrupted, explains)
        print_report(found, Console())
        if json_file is not None:
            found.write_json(json_file)
        if page is not None:
            write_page(found, page)
            say(f"the report is in {page}")
    except OrthogpError as error:
        say(f"the model is saved, but its report failed: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the model is saved, its report is not whole")
        return INTERRUPTED
    return 0


@app.command("predict")
def predict_command(
    model: Model,
    table: Table,
    out: Annotated[
        Path, typer.Option(help="Where to: .csv, .tsv, also .gz, .parquet, or a folder.")
    ],
    id_column: Annotated[
        str | None, typer.Option("--id", help="A column to keep; that of the fit by default.")
    ] = None,
    coverage_levels: Annotated[
        str | None, typer.Option(help="Quantiles, comma-separated; 0.05,0.5,0.95 by default.")
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option(
            help="Of guaranteed intervals or sets of classes, which a model has that was fitted "
            "with --coverage-guarantee; 0.9 by default."
        ),
    ] = None,
    batch_rows: Annotated[int, typer.Option(help="Rows in memory at a time, at most.")] = 2**16,
    safe_csv: Annotated[
        bool,
        typer.Option("--safe-csv", help="Put a quote before text that a spreadsheet would run."),
    ] = False,
) -> None:
    """Predict every row of a table: mean, std and quantiles, or label and probabilities.

    [bold]orthogp predict price.orthogp new.csv --out prices.csv[/]

    [bold]orthogp predict model visits.parquet --id visit --out returned.parquet[/]

    From a folder to a folder every file has its own, and the same command goes on after a crash:

    [bold]torchrun --nproc-per-node=4 -m orthogp predict model visits/ --out returned/[/]
    """
    from orthogp.apps.launch import process_group, take_gpu_in_turn
    from orthogp.apps.tabular.folders import PATIENCE
    from orthogp.apps.tabular.predicting import PredictRequest

    with process_group("cpu", PATIENCE) as team:
        take_gpu_in_turn()
        request = PredictRequest(
            model, table, out, id_column, levels(coverage_levels), batch_rows, safe_csv, coverage
        )
        status = run_predict(request, team)
    if status:
        raise typer.Exit(status)


def run_predict(request, team) -> int:
    """The predictions, in a file or in a folder; the exit status."""
    from orthogp.apps.tabular.folders import predict_folder
    from orthogp.apps.tabular.predicting import predict_table

    try:
        if request.to_folder:
            predict_folder(request, say, team)
        elif team.size > 1:
            raise ConfigurationError(
                f"--out is {request.out}, and {team.size} processes cannot write one file: pass a "
                "folder of Parquet files and a folder, or start one process"
            )
        else:
            predict_table(request, say)
    except KeyboardInterrupt:
        outcome = "what is finished is in {}" if request.to_folder else "{} was not written"
        say(f"interrupted; {outcome.format(request.out)}")
        return INTERRUPTED
    return 0


def say(text: str) -> None:
    """Prints a line without markup or control characters, which names may contain."""
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    Console(soft_wrap=True, highlight=False, markup=False, emoji=False).print(plain)


def levels(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in comma_separated(text))
    except ValueError as error:
        raise ConfigurationError(
            f"--coverage-levels is {text!r}; expected numbers between 0 and 1, comma-separated"
        ) from error
