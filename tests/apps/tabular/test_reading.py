"""Tables on a disk: the same from every format, in order, and one sentence for what is none."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from orthogp.apps.tabular.reading import open_table
from orthogp.errors import DataError, FileError
from orthogp.tables import as_numbers, as_texts, kind_of
from tabular_cases import sample, write

KINDS = {"a": "number", "b": "number", "colour": "text", "flag": "bool", "key": "text"}
PLACES = ["t.csv", "t.csv.gz", "t.tsv", "t.tsv.gz", "t.parquet", "folder"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same table in every format; the folder has it in three parts."""
    place, table = tmp_path_factory.mktemp("tables"), sample()
    for name in PLACES[:-1]:
        write(table, place / name)
    for i in range(3):
        write(table.slice(80 * i, 80), place / "folder" / f"part-{i}.parquet")
    return place


@pytest.mark.parametrize("place", PLACES)
def test_every_format_reads_the_same(folder, place):
    table = sample()
    found = open_table(folder / place).read(["flag", "b", "colour", "count"])
    assert found.column_names == ["flag", "b", "colour", "count"]
    for name in found.column_names:
        assert found.column(name).to_pylist() == table.column(name).to_pylist()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rows", [1, 7, 10**6])
def test_batches_join_to_the_whole_in_order(folder, place, rows):
    batches = list(open_table(folder / place).batches(KINDS, rows))
    assert max(batch.num_rows for batch in batches) <= rows
    whole = pa.Table.from_batches(batches)
    assert whole.column_names == list(KINDS)
    assert whole.to_pydict() == sample().select(list(KINDS)).to_pydict()


def test_a_long_parquet_file_is_not_read_ahead(tmp_path):
    values, path = np.random.default_rng(0).normal(size=4_000_000), tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pa.table({"a": values}), path, row_group_size=20_000)
    before, held = pa.total_allocated_bytes(), []
    for _ in open_table(path).batches({"a": "number"}, 5000):
        held.append(pa.total_allocated_bytes() - before)
    assert max(held) < values.nbytes / 4


def test_what_looks_like_a_number_is_text_where_text_is_asked_for(folder):
    batch = next(open_table(folder / "t.csv").batches({"key": "text"}, 3))
    assert batch.column("key").to_pylist() == ["000", "001", "002"]


def test_folders_named_after_values_are_a_column(tmp_path):
    for year in (2019, 2020):
        write(pa.table({"a": [1.0, 2.0]}), tmp_path / f"year={year}" / "part.parquet")
    table = open_table(tmp_path).read(["a", "year"])
    assert table.column("year").to_pylist() == [2019, 2019, 2020, 2020]


def test_line_ends_inside_quotes_do_not_end_a_row(tmp_path):
    (tmp_path / "t.csv").write_text('a,text\n1,"two\nlines"\n2,one\n')
    table = open_table(tmp_path / "t.csv").read(["text"])
    assert table.column("text").to_pylist() == ["two\nlines", "one"]


CONTENTS = {
    "t.parquet": (b"PAR1 and nothing else", "as a table"),
    "t.csv": (b"", "as a table"),
    "ragged.csv": (b"a,b\n1,2\n3\n", "2 columns"),
    "t.csv.gz": (b"no gzip", "as a table"),
    "t.xlsx": (b"PK", "no name"),
    "twice.csv": (b"a,b,a\n1,2,3\n", "several columns"),
}


def read_all(path):
    source = open_table(path)
    return source.read(source.names)


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_no_table_is_refused_in_a_sentence(tmp_path, name):
    content, message = CONTENTS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises((FileError, DataError), match=message) as refusal:
        read_all(tmp_path / name)
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_damaged_archive_is_refused(tmp_path):
    whole = gzip.compress(b"a,b\n" + b"1,2\n" * 100_000)
    (tmp_path / "t.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match=r"t\.csv\.gz"):
        list(open_table(tmp_path / "t.csv.gz").batches({"a": "number"}, 1000))


def test_places_without_a_table(tmp_path):
    with pytest.raises(FileError, match="does not exist"):
        open_table(tmp_path / "t.csv")
    with pytest.raises(FileError, match="no Parquet files"):
        open_table(tmp_path)


def test_a_wrong_value_is_named_with_its_column(tmp_path):
    (tmp_path / "t.csv").write_text("a,size\n1,2\n3,large\n")
    with pytest.raises(FileError, match=r"column 'size'.*'large'"):
        list(open_table(tmp_path / "t.csv").batches({"a": "number", "size": "number"}, 10))


def test_kinds():
    words = pa.array(["x", "", None])
    kinds = {
        "number": [pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(5, 2)],
        "text": [pa.string(), pa.large_string(), words.dictionary_encode().type],
        "time": [pa.date32(), pa.timestamp("s"), pa.time32("s"), pa.duration("s")],
        "bool": [pa.bool_()],
        "empty": [pa.null()],
        "other": [pa.binary(), pa.list_(pa.int8()), pa.struct({"a": pa.int8()})],
    }
    for kind, types in kinds.items():
        assert [kind_of(t) for t in types] == [kind] * len(types)


def test_values():
    assert as_texts(pa.array(["x", "", None])).to_pylist() == ["x", None, None]
    assert as_texts(pa.array(["x", None]).dictionary_encode()).to_pylist() == ["x", None]
    assert as_texts(pa.array([True, None])).to_pylist() == ["true", None]
    assert as_texts(pa.chunked_array([["x"], [""]])).to_pylist() == ["x", None]
    assert str(as_numbers(pa.array([1, None, 2**60 + 1])).tolist()) == f"[1.0, nan, {2.0**60}]"
