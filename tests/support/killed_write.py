"""Files written by processes that are killed while they write.

    python killed_write.py FOLDER

For every kind of file and every moment there is a folder FOLDER/KIND-MOMENT, with an old file that
a new one was to replace. The children are forked, so that the imports are paid for once.
"""

import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
import torch

from orthogp.apps.tabular.reading import open_table
from orthogp.apps.tabular.writing import table_writer
from orthogp.execution import files

MOMENTS = ("amid", "unsynced", "unnamed", "renamed")
LENGTHS = {"old": 50, "new": 5000}


def die(*_) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def content(which: str) -> list[float]:
    return [float(i) for i in range(LENGTHS[which])]


def write_model(path: Path, which: str, amid=lambda: None) -> None:
    # A generator: the moment comes when a part has been written.
    def parts():
        yield b"orthogp model 1\n"
        amid()
        yield from whole[1:]

    whole = []
    original = files.write_atomically
    files.write_atomically = lambda path, given: whole.extend(given)
    files.write(path, "model", {"x": torch.tensor(content(which))}, {})
    files.write_atomically = original
    files.write_atomically(path, parts())


def read_model(path: Path) -> list[float]:
    return files.read(path, "model")[0]["x"].tolist()


def write_table(path: Path, which: str, amid=lambda: None) -> None:
    batches = pa.table({"x": content(which)}).to_batches(max_chunksize=40)
    with table_writer(path, batches[0].schema) as write:
        for batch in batches:
            write(batch)
            amid()


def read_table(path: Path) -> list[float]:
    return [
        x
        for batch in open_table(path).batches({"x": "number"}, 10**6)
        for x in batch["x"].to_pylist()
    ]


KINDS = {
    "model": ("model.orthogp", write_model, read_model),
    "csv": ("table.csv", write_table, read_table),
    "zipped": ("table.csv.gz", write_table, read_table),
    "parquet": ("table.parquet", write_table, read_table),
}


def replace_file(folder: Path, kind: str, moment: str) -> None:
    name, write, _ = KINDS[kind]
    replace = os.replace

    def rename_and_die(source, target):
        replace(source, target)
        die()

    if moment == "unsynced":
        os.fsync = die
    elif moment != "amid":
        os.replace = die if moment == "unnamed" else rename_and_die
    write(folder / name, "new", die if moment == "amid" else lambda: None)


def main(folder: Path) -> None:
    for kind, (name, write, _) in KINDS.items():
        for moment in MOMENTS:
            place = folder / f"{kind}-{moment}"
            place.mkdir()
            write(place / name, "old")
            child = os.fork()
            if child == 0:
                replace_file(place, kind, moment)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status), (kind, moment)
            assert os.WTERMSIG(status) == signal.SIGKILL, (kind, moment)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
