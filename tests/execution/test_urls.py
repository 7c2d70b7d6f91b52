"""Files in stores that fsspec knows: fits from them, models and checkpoints in them."""

import numpy as np
import pandas as pd
import pytest

from orthogp import OrthogonalGPRegressor
from orthogp.errors import DataError, FileError
from orthogp.estimators import streamed
from orthogp.execution.urls import RemotePath, locate

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"a": RNG.normal(size=300), "b": RNG.normal(size=300)})
TABLE["y"] = np.sin(2 * TABLE.a) + TABLE.b
NEW = TABLE[["a", "b"]][:20]


def small(**settings) -> OrthogonalGPRegressor:
    defaults = {"n_inducing": 10, "n_neighbors": 0, "max_steps": 30, "random_state": 0}
    return OrthogonalGPRegressor(**defaults | settings)


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path):
    """The URL of an empty folder."""
    fsspec = pytest.importorskip("fsspec")
    if request.param == "file":
        yield f"file://{tmp_path}/folder"
        return
    memory = fsspec.filesystem("memory")
    yield "memory://folder"
    memory.rm("/", recursive=True)


def test_what_is_no_url_is_a_path(tmp_path):
    assert locate(str(tmp_path)) == tmp_path
    assert locate(f"file://{tmp_path}/x") == tmp_path / "x"
    assert locate("C:\\folder").name.endswith("folder")
    assert locate("memory://a/b/") == RemotePath("memory://a/b")
    found = locate("memory://a") / "b"
    assert (str(found), found.name, str(found.parent)) == ("memory://a/b", "b", "memory://a")


@pytest.mark.parametrize("large", [False, True])
def test_a_fit_from_a_store_is_the_fit_from_the_disk(store, tmp_path, monkeypatch, large):
    if large:
        monkeypatch.setattr(streamed, "LOADED_BYTES", 0)
    (tmp_path / "local").mkdir()
    for k, part in enumerate((TABLE[:120], TABLE[120:])):
        part.to_parquet(tmp_path / "local" / f"part-{k}.parquet", row_group_size=50)
        data = (tmp_path / "local" / f"part-{k}.parquet").read_bytes()
        place = locate(f"{store}/part-{k}.parquet")
        place.parent.mkdir(exist_ok=True) if not isinstance(place, RemotePath) else None
        place.write_bytes(data)
    expected = small().fit(tmp_path / "local", "y").predict(NEW)
    assert np.array_equal(small().fit(store, "y").predict(NEW), expected)
    one = small().fit(f"{store}/part-0.parquet", "y").predict(NEW)
    assert np.array_equal(one, small().fit(tmp_path / "local/part-0.parquet", "y").predict(NEW))


def test_a_model_is_written_to_a_store_and_read_again(store):
    gp = small().fit(NEW, TABLE.y[:20])
    gp.save(f"{store}/deep/model.orthogp")
    again = OrthogonalGPRegressor.load(f"{store}/deep/model.orthogp")
    assert np.array_equal(again.predict(NEW), gp.predict(NEW))
    with pytest.raises(FileError, match="could not be read"):
        OrthogonalGPRegressor.load(f"{store}/no.orthogp")


def test_a_damaged_model_is_refused(store):
    small().fit(NEW, TABLE.y[:20]).save(f"{store}/model.orthogp")
    place = locate(f"{store}/model.orthogp")
    data = place.read_bytes()
    place.write_bytes(data[:-1])
    with pytest.raises(FileError, match="damaged"):
        OrthogonalGPRegressor.load(f"{store}/model.orthogp")


def test_a_killed_fit_goes_on_from_a_store(store):
    settings = {"max_steps": 60, "checkpoint_dir": f"{store}/points"}
    X, y = TABLE[["a", "b"]], TABLE.y
    expected = small(max_steps=60).fit(X, y).predict(NEW)
    steps = []

    def killed(event) -> None:
        steps.append(event.step)
        if event.step > 20:
            raise InterruptedError("killed")

    with pytest.raises(InterruptedError):
        small(**settings, callbacks=[killed]).fit(X, y)
    found = list(locate(f"{store}/points").glob("step-*"))
    events = []
    gp = small(**settings, callbacks=[events.append]).fit(X, y)
    assert np.array_equal(gp.predict(NEW), expected)
    assert not found or events[0].step > 0


def test_checkpoints_are_the_last_two(store):
    import torch

    from orthogp.training.checkpoint import Checkpoints

    points = Checkpoints(f"{store}/points", "f" * 64)
    assert points.latest() is None
    for step in (10, 20, 30):
        points.save(step, {"a": torch.tensor([float(step)])}, {"step": step})
    assert len(points._paths()) == 2
    latest = points.latest()
    assert latest is not None
    assert latest.meta["step"] == 30
    before = points.latest(20)
    assert before is not None
    assert float(before.tensors["a"]) == 20.0


def test_a_protocol_that_nobody_knows_is_one_sentence():
    gp = small().fit(NEW, TABLE.y[:20])
    with pytest.raises(FileError, match="needs a package for nowhere://"):
        gp.save("nowhere://bucket/model.orthogp")
    with pytest.raises(FileError, match="needs a package for nowhere://"):
        small().fit("nowhere://bucket/table", "y")


def test_an_empty_folder_of_a_store_is_refused(store):
    with pytest.raises((DataError, FileError), match=r"is not there|no Parquet files"):
        small().fit(f"{store}/nothing", "y")
