"""Downloads from a server on this machine: what is stored, what is refused, and what is said."""

import gzip
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from archives import compressed, zipped
from orthogp.apps.paper import fetching
from orthogp.apps.paper.datasets import checked, load
from orthogp.apps.paper.fetching import differences_from_paper, download, fetch, readers
from orthogp.apps.paper.fetching.originals import target_last
from orthogp.apps.paper.fetching.readers import gunzip, labels, read_numbers, uncompress, zip_member
from orthogp.apps.paper.fetching.sources import DataSource
from orthogp.errors import ConfigurationError, DataError, FileError

ROWS = 20
TABLE = "".join(f"{i},{i * i},{i % 2}\n" for i in range(ROWS)).encode()


@dataclass
class Site:
    """What the server answers under a path: a body, a status, and the length it announces."""

    address: str
    bodies: dict[str, bytes] = field(default_factory=dict)
    announced: dict[str, int] = field(default_factory=dict)
    silent: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)

    def put(self, path: str, body: bytes, announced: int | None = None) -> str:
        self.bodies[path] = body
        if announced is not None:
            self.announced[path] = announced
        return self.address + path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        site: Site = self.server.site  # pyright: ignore
        site.asked.append(self.path)
        if self.path == "/silent":
            site.silent.wait(10)
            return
        body = site.bodies.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(site.announced.get(self.path, len(body or b""))))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format, *args):
        pass


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.site = Site(f"http://127.0.0.1:{server.server_port}")  # pyright: ignore
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.site  # pyright: ignore
    server.site.silent.set()  # pyright: ignore
    server.shutdown()
    thread.join()
    server.server_close()


def regression(name: str, *urls: str) -> DataSource:
    def read(content):
        return target_last(read_numbers(gunzip(content)))

    return DataSource(name, "regression", urls, "a note", read)


def classification(name: str, url: str) -> DataSource:
    def read(content):
        X, y = target_last(read_numbers(zip_member(content, "table.csv")))
        return X, labels(y)

    return DataSource(name, "classification", (url,), "a note", read)


def test_a_set_is_stored_as_the_loader_reads_it_with_its_origin_beside_it(site, tmp_path):
    content = gzip.compress(TABLE)
    source = regression("made", site.put("/made.csv.gz", content))
    messages = []
    (outcome,) = fetch(["made"], tmp_path, messages.append, (source,))
    assert (outcome.name, outcome.status, outcome.detail) == ("made", "fetched", ())
    table = load(tmp_path, "regression", "made")
    np.testing.assert_array_equal(table.X, [[i, i * i] for i in range(ROWS)])
    np.testing.assert_array_equal(table.y, [i % 2 for i in range(ROWS)])
    with np.load(tmp_path / "regression" / "made.npz") as stored:
        assert stored["X"].dtype == stored["y"].dtype == np.float32
    origin = json.loads((tmp_path / "regression" / "made.json").read_text())
    assert origin["addresses"] == list(source.urls)
    assert origin["bytes"] == len(content)
    assert origin["sha256"] == hashlib.sha256(content).hexdigest()
    assert (origin["N"], origin["D"], origin["K"]) == (ROWS, 2, 0)
    assert origin["date"].endswith("+00:00")
    assert messages[0] == f"made: {source.urls[0]}"
    assert messages[-1] == "made: a note"
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["made.json", "made.npz"]


def test_parts_at_several_addresses_are_one_set(site, tmp_path):
    half = TABLE.index(b"10,")
    urls = [
        site.put("/0.gz", gzip.compress(TABLE[:half])),
        site.put("/1.gz", gzip.compress(TABLE[half:])),
    ]
    fetch(["made"], tmp_path, print, (regression("made", *urls),))
    np.testing.assert_array_equal(load(tmp_path, "regression", "made").X[:, 0], range(ROWS))


def test_the_part_that_is_missing_is_named(site, tmp_path):
    urls = (site.put("/0.gz", gzip.compress(TABLE)), site.address + "/1.gz")
    (outcome,) = fetch(["made"], tmp_path, print, (regression("made", *urls),))
    assert outcome.detail == (f"{urls[1]} answered 404 Not Found",)


def test_a_set_that_is_there_is_kept(site, tmp_path):
    source = regression("made", site.put("/made.gz", gzip.compress(TABLE)))
    fetch(["made"], tmp_path, print, (source,))
    before = (tmp_path / "regression" / "made.npz").read_bytes()
    messages = []
    (outcome,) = fetch(["made"], tmp_path, messages.append, (source,))
    assert outcome.status == "kept"
    assert "is there already" in messages[0]
    assert len(site.asked) == 1
    assert (tmp_path / "regression" / "made.npz").read_bytes() == before


def test_a_file_of_several_sets_is_downloaded_once(site, tmp_path):
    url = site.put("/all.zip", zipped({"table.csv": TABLE}))
    sources = (classification("one", url), classification("two", url))
    outcomes = fetch(["one", "two", "one"], tmp_path, print, sources)
    assert [(o.name, o.status) for o in outcomes] == [("one", "fetched"), ("two", "fetched")]
    assert site.asked == ["/all.zip"]
    assert load(tmp_path, "classification", "two").num_classes == 2


def test_a_set_that_fails_does_not_stop_the_others(site, tmp_path):
    good = regression("good", site.put("/good.gz", gzip.compress(TABLE)))
    bad = regression("bad", site.address + "/bad.gz")
    messages = []
    outcomes = fetch(["bad", "good"], tmp_path, messages.append, (bad, good))
    assert [o.status for o in outcomes] == ["failed", "fetched"]
    assert outcomes[0].detail == (f"{site.address}/bad.gz answered 404 Not Found",)
    assert f"bad: {site.address}/bad.gz answered 404 Not Found" in messages
    assert not (tmp_path / "regression" / "bad.npz").exists()
    assert not (tmp_path / "regression" / "bad.json").exists()


def test_the_next_source_is_tried(site, tmp_path):
    first = regression("made", site.address + "/gone.gz")
    second = regression("made", site.put("/made.gz", gzip.compress(TABLE)))
    (outcome,) = fetch(["made"], tmp_path, print, (first, second))
    assert outcome.status == "fetched"
    assert site.asked == ["/gone.gz", "/made.gz"]
    origin = json.loads((tmp_path / "regression" / "made.json").read_text())
    assert origin["addresses"] == list(second.urls)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>Welcome</html>", "could not be read: Not a gzipped file"),
        (gzip.compress(TABLE)[:-20], "could not be read: Compressed file ended"),
        (gzip.compress(b"a,b,c\n"), "could not be read: could not convert string"),
        (gzip.compress(TABLE + b"1,2\n"), "could not be read: the number of columns changed"),
        (gzip.compress(TABLE.replace(b"3,9,1", b"3,nan,1")), "X has 1 missing and 0 infinite"),
        (gzip.compress(b"1,2,3\n"), "has 1 rows; expected at least 10"),
    ],
    ids=["a page", "cut", "words", "a short line", "a hole", "one row"],
)
def test_content_that_is_no_table_fails_with_its_address(site, tmp_path, body, message):
    url = site.put("/made.gz", body)
    (outcome,) = fetch(["made"], tmp_path, print, (regression("made", url),))
    assert outcome.status == "failed"
    assert outcome.detail[0].startswith(url)
    assert message in outcome.detail[0]
    assert not list(tmp_path.rglob("*.*"))


def test_an_unknown_name_is_refused_before_anything_is_fetched(site, tmp_path):
    source = regression("made", site.put("/made.gz", gzip.compress(TABLE)))
    with pytest.raises(ConfigurationError, match="for odd"):
        fetch(["made", "odd"], tmp_path, print, (source,))
    assert site.asked == []


def test_what_cannot_be_written_is_said(site, tmp_path):
    (tmp_path / "regression").write_text("a file, not a folder")
    source = regression("made", site.put("/made.gz", gzip.compress(TABLE)))
    (outcome,) = fetch(["made"], tmp_path, print, (source, source))
    assert outcome.status == "failed"
    assert "could not be written" in outcome.detail[0]
    assert len(site.asked) == 1


def test_a_truncated_download_is_refused(site):
    url = site.put("/cut", b"half of it", announced=20)
    with pytest.raises(FileError, match="broke off"):
        download(url, 5.0)


def test_a_download_without_end_is_refused(site, monkeypatch):
    monkeypatch.setattr(fetching, "MAX_DOWNLOAD", 1000)
    with pytest.raises(FileError, match="1000 bytes"):
        download(site.put("/large", bytes(1001)), 5.0)
    assert download(site.put("/whole", bytes(1000)), 5.0) == bytes(1000)


def test_a_server_that_is_not_there_or_says_nothing_is_named(site):
    with pytest.raises(FileError, match="refused"):
        download("http://127.0.0.1:1/", 5.0)
    with pytest.raises(FileError, match="timed out"):
        download(site.address + "/silent", 0.1)


def test_the_counts_are_compared_with_the_paper():
    X, y = np.ones((100, 9)), np.arange(100) % 3
    protein = checked("protein", "regression", X, y, "here", "")
    assert differences_from_paper(protein) == ("100 rows where the paper has 45730",)
    # The paper's 12 inputs of this set include a column that is no feature.
    wine = checked("wine-quality-white", "classification", X, y, "here", "")
    assert differences_from_paper(wine) == (
        "100 rows where the paper has 4898",
        "9 inputs where the paper has 11",
        "3 classes where the paper has 7",
    )
    assert differences_from_paper(checked("other", "regression", X, y, "here", "")) == ()


def test_differences_are_said_and_stored(site, tmp_path):
    source = regression("kin40k", site.put("/made.gz", gzip.compress(TABLE)))
    messages = []
    (outcome,) = fetch(["kin40k"], tmp_path, messages.append, (source,))
    expected = ["20 rows where the paper has 40000", "2 inputs where the paper has 8"]
    assert (outcome.status, list(outcome.detail)) == ("fetched", expected)
    assert f"kin40k: {'; '.join(expected)}" in messages
    origin = json.loads((tmp_path / "regression" / "kin40k.json").read_text())
    assert origin["differences"] == expected


BOMB = b"0\n" * 5000


@pytest.mark.parametrize(
    "unpack",
    [
        lambda: read_numbers(gunzip(gzip.compress(BOMB))),
        lambda: read_numbers(zip_member(zipped({"a": BOMB}), "a")),
        lambda: uncompress(compressed(BOMB)),
    ],
    ids=["gz", "zip", "Z"],
)
def test_a_bomb_is_refused(monkeypatch, unpack):
    monkeypatch.setattr(readers, "MAX_UNPACKED", len(BOMB))
    unpack()
    monkeypatch.setattr(readers, "MAX_UNPACKED", len(BOMB) - 1)
    with pytest.raises(DataError, match="9999 bytes"):
        unpack()


def test_a_member_is_read_by_its_name_and_never_unpacked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = zipped({"../../outside/a.csv": b"1\n", "xa.csv": b"2\n", "b/c.csv": b"3\n"})
    assert zip_member(content, "a.csv").read() == b"1\n"
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match="0 members"):
        zip_member(content, "c/a.csv")
    with pytest.raises(DataError, match="2 members"):
        zip_member(zipped({"x/a": b"", "y/a": b""}), "a")
