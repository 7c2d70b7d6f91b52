"""Writers that are killed, or write at once: what has a final name is whole, nothing is left."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
import torch

import killed_write
from interrupted import train
from orthogp.apps.tabular.reading import open_table
from orthogp.apps.tabular.writing import table_writer
from orthogp.execution import files
from runs import same

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder for every kind of file and moment, as a kill at that moment left it."""
    folder = tmp_path_factory.mktemp("killed")
    path = os.pathsep.join(filter(None, sys.path))
    script = [sys.executable, killed_write.__file__, str(folder)]
    subprocess.run(script, check=True, env=os.environ | {"PYTHONPATH": path}, timeout=600)
    return folder


def unfinished(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".tmp")]


@needs_fork
@pytest.mark.parametrize("moment", killed_write.MOMENTS)
@pytest.mark.parametrize("kind", killed_write.KINDS)
def test_a_kill_leaves_the_old_file_or_the_whole_new_one(killed, kind, moment):
    folder = killed / f"{kind}-{moment}"
    name, write, read = killed_write.KINDS[kind]
    before, after = map(killed_write.content, ("old", "new"))
    assert read(folder / name) == (after if moment == "renamed" else before)
    # A kill gives nobody time to clean up; the next to write the same file does.
    assert len(unfinished(folder)) == (moment != "renamed")
    write(folder / name, "new")
    assert read(folder / name) == after
    assert os.listdir(folder) == [name]


def test_only_what_no_living_process_writes_is_taken_for_a_leftover(tmp_path):
    path = tmp_path / "model"
    mine = tmp_path / ".model.notes.tmp"
    mine.write_text("a user's own")
    dead = tmp_path / ".model.0123456789ab.tmp"
    dead.write_text("half")
    with files.whole_file(path) as file:
        file.write(b"first")
        (living,) = set(unfinished(tmp_path)) - {mine.name}
        files.write_atomically(path, [b"second"])
        assert path.read_bytes() == b"second"
        assert set(unfinished(tmp_path)) == {mine.name, living}
    # The last to end has it.
    assert path.read_bytes() == b"first"
    assert sorted(os.listdir(tmp_path)) == [mine.name, "model"]


def test_an_unfinished_file_is_never_one_that_was_there(tmp_path, monkeypatch):
    """Or a link laid in a folder that all can write to would lead anywhere."""
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "0" * 2 * size)
    (tmp_path / "precious").write_text("precious")
    (tmp_path / f".model.{'0' * 12}.tmp").symlink_to("precious")
    with files.whole_file(tmp_path / "model") as file:
        file.write(b"new")
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "model").read_bytes() == b"new"


def test_threads_that_write_one_file_at_once_leave_it_whole(tmp_path):
    path, failures = tmp_path / "table.parquet", []

    def write(number: int) -> None:
        try:
            for _ in range(5):
                batch = pa.RecordBatch.from_pydict({"a": [number] * 1000})
                with table_writer(path, batch.schema) as add:
                    add(batch)
                (found,) = open_table(path).batches({"a": "number"}, 10**6)
                assert len(set(found["a"].to_pylist())) == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert os.listdir(tmp_path) == ["table.parquet"]


TWINS = """
import os, sys
from pathlib import Path
import torch
from interrupted import train
from runs import contents

folder = Path(sys.argv[1])
children = []
for number in range(2):
    children.append(os.fork())
    if children[-1] == 0:
        m, _ = train(folder / "checkpoints")
        torch.save(contents(m), folder / f"end-{number}")
        os._exit(0)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


@needs_fork
def test_two_runs_with_one_checkpoint_folder_end_as_one_alone_does(tmp_path, undisturbed):
    """The same run twice at once: they share their checkpoints, and neither spoils the other's."""
    path = os.pathsep.join(filter(None, sys.path))
    script = [sys.executable, "-W", "ignore", "-c", TWINS, str(tmp_path)]
    subprocess.run(script, check=True, env=os.environ | {"PYTHONPATH": path}, timeout=600)
    for number in range(2):
        assert same(torch.load(tmp_path / f"end-{number}", weights_only=True), undisturbed[1])
    assert unfinished(tmp_path / "checkpoints") == []
    _, again = train(tmp_path / "checkpoints")
    assert again.steps == undisturbed[2].steps
