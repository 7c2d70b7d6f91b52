"""A folder of Parquet files through a model: a file of predictions for each, under the same name.

A file of predictions is complete or absent, and its metadata describe its input and settings:
finished files are not written again, and files of other runs are not touched.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from pathlib import Path

import pyarrow.parquet
import torch

from orthogp.apps.tabular.model import TableModel
from orthogp.apps.tabular.predicting import (
    PredictRequest,
    choose_id,
    empty_predictions,
    guaranteed_coverage,
    load_table_model,
    missing_notes,
    predicted,
    quantile_levels,
    require_kinds,
    say_promise,
    say_unused_columns,
)
from orthogp.apps.tabular.preparing import require_known_columns, unseen_notes
from orthogp.apps.tabular.reading import ParquetSource, open_table, parquet_files, readable
from orthogp.apps.tabular.writing import require_folder, table_writer
from orthogp.errors import ConfigurationError, DataError, FileError
from orthogp.execution.files import remove_leftovers
from orthogp.execution.team import Team
from orthogp.tables import Tally, listed

# The first to finish waits for the last, however large its files.
PATIENCE = timedelta(days=30)
MARK = b"orthogp"
FOOTER_END = 8
OTHERS = {
    "model": "by another model",
    "id": "with another --id",
    "levels": "with other --coverage-levels",
    "coverage": "with another --coverage",
    "source": "of an input that has changed since, or was another",
}


def predict_folder(request: PredictRequest, say: Callable[[str], None], team: Team) -> int:
    """Writes predictions for every file, those of one file by one process; how many rows came."""
    _require_separate_folders(request)
    model, source = load_table_model(request), open_table(request.table)
    assert isinstance(source, ParquetSource)
    id_column = choose_id(model, source, request)
    say_unused_columns(model, source, id_column, say)
    mark = {
        "model": hashlib.sha256(request.model.read_bytes()).hexdigest(),
        "id": id_column,
        "levels": list(quantile_levels(request)) if model.task == "regression" else [],
    }
    coverage = guaranteed_coverage(model, request)
    if coverage is not None:
        mark["coverage"] = coverage
    files = {str(file.path.relative_to(request.table)): file for file in source.files()}
    # The first process looks and decides: another may see the folder a moment later.
    shares = team.agree(_shares(request, files, mark, say, team.size) if team.leads else None)
    assert shares is not None
    tally, count = Tally(), 0
    for name in shares[team.rank]:
        count += _predict_file(request, model, files[name], id_column, mark, tally)
    count, tally = _sum_counts(team, model, count, tally)
    for note in (*missing_notes(tally), *unseen_notes(tally)):
        say(note)
    done = sum(map(len, shares))
    say(f"{count} rows in {done} files written to {request.out}, of {len(files)} files in all")
    say_promise(model, request, say)
    return count


def _require_separate_folders(request: PredictRequest) -> None:
    require_folder(request.out)
    if request.safe_csv:
        raise ConfigurationError(f"--safe-csv is for CSV files, and {request.out} is for Parquet")
    table, out = request.table.resolve(), request.out.resolve()
    if out.is_relative_to(table) or table.is_relative_to(out):
        raise ConfigurationError(
            f"--out is {request.out} and the table is {request.table}: one lies in the other; name "
            "a folder apart from it"
        )


def _shares(
    request: PredictRequest,
    files: Mapping[str, ParquetSource],
    mark: Mapping[str, object],
    say: Callable[[str], None],
    processes: int,
) -> list[list[str]]:
    """The files that each process is to do: those that are not finished."""
    for folder in {(request.out / name).parent for name in files}:
        remove_leftovers(folder, "*")
    written = {str(path.relative_to(request.out)): path for path in parquet_files(request.out)}
    for name, path in written.items():
        expected = dict(mark)
        if name in files:
            expected["source"] = outline(files[name].path)
        _require_same_settings(path, expected)
    orphans = [name for name in written if name not in files]
    if orphans:
        say(f"predictions without an input in {request.table}, left as they are: {listed(orphans)}")
    pending = {
        name: file.path.stat().st_size for name, file in files.items() if name not in written
    }
    if len(pending) < len(files):
        say(f"{len(files) - len(pending)} of {len(files)} files are finished already")
    return balanced_shares(pending, processes)


def balanced_shares(sizes: Mapping[str, int], shares: int) -> list[list[str]]:
    """The names in shares of nearly equal size: the largest first, each to the smallest share."""
    dealt: list[list[str]] = [[] for _ in range(shares)]
    loads = [0] * shares
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        smallest = loads.index(min(loads))
        dealt[smallest].append(name)
        loads[smallest] += sizes[name]
    return dealt


def _require_same_settings(path: Path, expected: Mapping[str, object]) -> None:
    """Refuses a file of predictions that this prediction would not have written."""
    with readable(path):
        metadata = pyarrow.parquet.read_schema(path).metadata or {}
    try:
        found = json.loads(metadata[MARK])
        other = next((name for name, value in expected.items() if found[name] != value), None)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"{path} was not written by `orthogp predict`; name another folder as --out"
        ) from error
    if other is not None:
        raise FileError(
            f"{path} holds predictions {OTHERS[other]}; remove it, or name another folder as --out"
        )


def outline(path: Path) -> str:
    """A digest of a Parquet file's footer, which has the sizes, counts and extremes of its columns:
    it differs between files without reading them."""
    with readable(path), open(path, "rb") as file:
        file.seek(-FOOTER_END, 2)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-FOOTER_END - length, 2)
        return hashlib.sha256(file.read(length)).hexdigest()


def _predict_file(
    request: PredictRequest,
    model: TableModel,
    file: ParquetSource,
    id_column: str | None,
    mark: Mapping[str, object],
    tally: Tally,
) -> int:
    require_kinds(model, file)
    require_known_columns(file, [] if id_column is None else [id_column])
    # Taken first: of a file that changes while it is read, the predictions are an old one's.
    description = json.dumps({**mark, "source": outline(file.path)})
    batches = predicted(model, file, request, id_column, tally)
    try:
        first = next(batches, None)
        if first is None:
            first = empty_predictions(model, file, request, id_column)
        schema = first.schema.with_metadata({MARK: description.encode()})
        count = 0
        with table_writer(request.out / file.path.relative_to(request.table), schema) as write:
            for batch in chain([first], batches):
                write(batch)
                count += batch.num_rows
    except DataError as error:
        raise DataError(f"{file.path}: {error}") from error
    return count


def _sum_counts(team: Team, model: TableModel, count: int, tally: Tally) -> tuple[int, Tally]:
    """The counts of all processes, summed."""
    names: Sequence[str] = list(model.plan.kinds)
    counts = [torch.tensor([part.get(name, 0) for name in names], dtype=torch.float64)
              for part in (tally.missing, tally.unseen)]  # fmt: skip
    total, *summed = team.sum([torch.tensor(float(count), dtype=torch.float64), *counts])
    missing, unseen = (
        {name: int(n) for name, n in zip(names, part.tolist(), strict=True) if n} for part in summed
    )
    return int(total), Tally(unseen, missing)
