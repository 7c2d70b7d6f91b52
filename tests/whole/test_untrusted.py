"""Files from strangers: loaded as data, or refused in one sentence."""

import errno
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from archives import zipped
from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import FileError
from orthogp.execution import files
from orthogp.storage import load_model

TORTURE = Path(__file__).parents[2] / "benchmarks" / "torture"
MUTANTS = 30


@pytest.fixture(scope="module")
def torture():
    """The fuzzer's own modules, by name."""
    if not TORTURE.is_dir():
        pytest.skip("needs the benchmarks of the checkout")
    sys.path.insert(0, str(TORTURE))
    try:
        import forgeries
        import trial

        return {"forgeries": forgeries, "trial": trial}
    finally:
        sys.path.remove(str(TORTURE))


@pytest.fixture(scope="module")
def fuzzed(torture, tmp_path_factory):
    """What a short run of the fuzzer ended with, and the folder of its valid files."""
    folder = tmp_path_factory.mktemp("fuzzed")
    # In a process of its own, without the checks of shapes that these tests run under.
    script = [sys.executable, str(TORTURE / "files.py"), "--count", str(MUTANTS), "--workers", "1"]
    places = ["--originals", str(folder / "originals"), "--keep", str(folder / "kept")]
    done = run(*script, *places)
    return done, folder / "originals"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, sys.path))
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)


@pytest.fixture(scope="module")
def parts(torture, fuzzed):
    """A valid file, by its name, taken apart."""
    folder = fuzzed[1]
    return lambda name: torture["forgeries"].Parts.of((folder / f"{name}.orthogp").read_bytes())


def refused(path: Path, load=load_model) -> str:
    """The one sentence that the file is refused with."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FileError) as raised:
            load(path)
    sentence = str(raised.value)
    assert sentence.startswith(str(path))
    assert "\n" not in sentence
    assert len(sentence) < len(str(path)) + 250
    return sentence[len(str(path)) + 1 :]


def test_no_mutant_crashes_hangs_executes_or_predicts_nonsense(fuzzed):
    done, _ = fuzzed
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) mutants, (\d+) refused, .*\((\d+) with equal", done.stdout)
    assert found is not None, done.stdout
    mutants, refusals, equal = map(int, found.groups())
    assert mutants == MUTANTS
    assert refusals > 0.6 * MUTANTS
    # Not everything is refused for a trifle: what changes nothing that matters still loads.
    assert equal > 0.03 * MUTANTS


def test_the_watch_sees_what_it_is_to_see(torture, tmp_path):
    """Or the fuzzer would pass for want of eyes."""
    (tmp_path / "inside").mkdir()
    watch, harm = torture["trial"].Watch(tmp_path / "inside"), torture["forgeries"].Harm()
    with watch.on():
        pickle.loads(pickle.dumps(harm))
        (tmp_path / "outside").write_text("")
        (tmp_path / "inside" / "file").write_text("")
    seen = " ".join(watch.deeds)
    assert "pickle.find_class" in seen
    assert "os.system" in seen
    assert "outside" in seen
    assert "inside/file" not in seen


FOREIGN = {
    "a pickle": lambda: pickle.dumps({"a": 1}),
    "an archive": lambda: zipped({"../../evil.py": b"raise SystemExit", "/etc/evil": b""}),
    "a bomb": lambda: zipped({"data.pkl": bytes(2**24)}),
    "nothing": lambda: b"",
    "half a magic line": lambda: b"orthogp mod",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_another_kind_are_not_opened(name, tmp_path):
    path = tmp_path / "model.orthogp"
    path.write_bytes(FOREIGN[name]())
    assert refused(path) == "is not an orthogp model"
    assert os.listdir(tmp_path) == ["model.orthogp"]


def test_an_archive_of_torch_is_not_unpickled(tmp_path):
    path = tmp_path / "model.orthogp"
    torch.save({"a": torch.zeros(2)}, path)
    assert zipfile.is_zipfile(path)
    assert refused(path) == "is not an orthogp model"


def test_a_pickle_behind_a_valid_checksum_is_not_loaded(torture, tmp_path):
    path = tmp_path / "model.orthogp"
    payload = pickle.dumps(torture["forgeries"].Harm())
    path.write_bytes(torture["forgeries"].signed(b"orthogp model 1\n", payload))
    assert refused(path).startswith("is damaged: its header claims")


def fifo(path: Path) -> None:
    os.mkfifo(path)


PLACES = {
    "a pipe": (fifo, "could not be read: it is not a regular file"),
    "a folder": (Path.mkdir, "could not be read: it is not a regular file"),
    "a device": (
        lambda path: path.symlink_to("/dev/zero"),
        "could not be read: it is not a regular",
    ),
    "a loop": (
        lambda path: path.symlink_to(path),
        f"could not be read: {os.strerror(errno.ELOOP)}",
    ),
    "a dead link": (lambda path: path.symlink_to("nowhere"), "could not be read: No such file"),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a POSIX system")
def test_what_is_no_file_is_neither_waited_for_nor_read_for_ever(name, tmp_path):
    make, sentence = PLACES[name]
    make(tmp_path / "model.orthogp")
    assert refused(tmp_path / "model.orthogp").startswith(sentence)


def header_only(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


def described(entry: dict) -> bytes:
    meta = {"__metadata__": {"orthogp": "{}"}}
    return header_only(json.dumps({**meta, "x": entry}).encode()) + bytes(8)


def in_metadata(text: str) -> bytes:
    return save({}, metadata={"orthogp": text})


# Each costs far more to take at its word than the memory that is allowed.
GREEDY = {
    "absurd shape": lambda: described({"dtype": "F64", "shape": [10**12], "data_offsets": [0, 8]}),
    "absurd offsets": lambda: described(
        {"dtype": "F64", "shape": [10**12], "data_offsets": [0, 8 * 10**12]}
    ),
    "no bytes": lambda: described({"dtype": "F64", "shape": [0, 2**62], "data_offsets": [0, 0]}),
    "long header": lambda: header_only(b"{}", 2**40),
    "large header": lambda: header_only(b'{"a":"' + b"x" * 2**25 + b'"}'),
    "many lists": lambda: header_only(b'{"a":[' + b"[]," * 2**20 + b"[]]}"),
    "many lists within": lambda: in_metadata('{"a":[' + "{}," * 2**20 + "{}]}"),
    "deep": lambda: in_metadata("[" * 10**6 + "]" * 10**6),
    "a long number": lambda: in_metadata('{"a":' + "9" * 10**6 + "}"),
    "a key twice": lambda: in_metadata('{"format": [1, 0], "format": [1, 0]}'),
}
CHILD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from trial import limit_memory
from orthogp.errors import FileError
from orthogp.storage import load_model
limit_memory(2**30)
for path in map(Path, sys.argv[2:]):
    began = time.monotonic()
    try:
        load_model(path)
        print("loaded", path)
    except FileError as error:
        print("refused" if time.monotonic() - began < 20 else "slow", error)
"""


def test_greedy_files_are_refused_within_a_memory_limit(torture, tmp_path):
    signed = torture["forgeries"].signed
    for name, payload in GREEDY.items():
        (tmp_path / name.replace(" ", "-")).write_bytes(signed(b"orthogp model 1\n", payload()))
    with open(tmp_path / "sparse", "wb") as file:
        file.write(signed(b"orthogp model 1\n", described({"data_offsets": [0, 2**40]})))
        file.truncate(2**40)
    paths = sorted(tmp_path.iterdir())
    done = run(sys.executable, "-c", CHILD, str(TORTURE), *map(str, paths))
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert [line.split()[:2] for line in printed] == [["refused", str(path)] for path in paths]
    assert not [line for line in printed if len(line) > 400]


def test_a_description_too_long_to_be_read_is_not_written(tmp_path):
    with pytest.raises(FileError, match="16777216"):
        files.write(tmp_path / "model", "model", {}, {"levels": "x" * files.LARGEST_HEADER})
    assert os.listdir(tmp_path) == []


def test_a_file_does_not_say_where_the_next_fit_writes(parts, tmp_path):
    own = parts("regressor-one")
    own.meta["meta"]["settings"] |= {
        "checkpoint_dir": str(tmp_path / "elsewhere"), "callbacks": ["print"], "device": "cuda:7",
        "kernel": "os.system", "inducing_points": [[0.0, 0.0]], "n_inducing": 5,
    }  # fmt: skip
    (tmp_path / "model").write_bytes(own.joined())
    gp = OrthogonalGPRegressor.load(tmp_path / "model", device="cpu")
    assert gp.n_inducing == 5
    assert (gp.checkpoint_dir, gp.callbacks, gp.kernel) == (None, (), None)
    assert (gp.device, gp.inducing_points) == ("cpu", None)


def in_settings(key, value):
    return lambda own: own.meta["meta"].__setitem__(key, value)


def shape(entries):
    def change(own):
        # No bytes at all, so that only the sizes can be wrong.
        own.data.clear()
        for name, entry in own.header.items():
            entry["shape"], entry["data_offsets"] = entries.get(name, [0]), [0, 0]

    return change


def many_parts(own):
    part = {"type": "ConstantKernel", "settings": {}, "parts": {}}
    parts = {f"kernels.{i}": part for i in range(2000)}
    own.meta["kernel"] = {"type": "AdditiveKernel", "settings": {}, "parts": parts}
    own.meta["kernel"]["constraints"] = {}


def spoil_weights(own):
    begin, end = own.header["likelihood.density_quadrature.weights"]["data_offsets"]
    own.data[begin:end] = struct.pack(f"<{(end - begin) // 8}d", *[0.5] * ((end - begin) // 8))


def spoil_unit(own):
    begin, end = own.header["tensors.y_scale"]["data_offsets"]
    own.data[begin:end] = struct.pack("<d", 1.7e308)


LIES = {
    "a bound beyond floats": (in_settings("elbo", 10**400), "regressor-one"),
    "infinitely many steps": (in_settings("n_iter", float("inf")), "regressor-one"),
    "a deep name": (in_settings("estimator", json.loads("[" * 300 + "]" * 300)), "regressor-one"),
    "labels beyond integers": (
        in_settings("classes", {"kind": "i", "values": [10**400, 1, 2, 3]}), "classifier-numbers",
    ),
    "labels of no kind": (in_settings("classes", {"kind": "V", "values": []}), "classifier-two"),
    "no points": (
        shape({"basis.beta": [0, 2**40], "basis.gamma": [0, 2**40], "basis.a_gamma": [2**30, 0],
               "basis.q.precision": [2**30, 0, 0]}), "regressor-one",
    ),
    "two thousand parts": (many_parts, "regressor-one"),
    "own weights": (spoil_weights, "regressor-counts"),
    "units beyond floats": (spoil_unit, "regressor-one"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_behind_a_valid_checksum_is_refused(name, parts, tmp_path):
    change, kind = LIES[name]
    own = parts(kind)
    change(own)
    (tmp_path / "model").write_bytes(own.joined())
    classifies = kind.startswith("classifier")
    refused(
        tmp_path / "model", (OrthogonalGPClassifier if classifies else OrthogonalGPRegressor).load
    )
