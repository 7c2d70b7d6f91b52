"""A zoo of tables as people export them: each fits at the first try, and predicts the same file."""

import numpy as np
import pyarrow.csv
import pytest

from orthogp.apps.tabular.dialect import sniff
from orthogp.apps.tabular.model import TableModel
from orthogp.apps.tabular.reading import open_table
from orthogp.errors import DataError, OrthogpError
from tabular_cases import SMALL, run

ROWS = 60
RNG = np.random.default_rng(0)
A = RNG.normal(size=ROWS).round(3)
POPULATION = RNG.integers(500, 3_000_000, size=ROWS)
CITY = RNG.choice(["Köln", "Orléans", "Łódź"], ROWS)
Y = (A + (CITY == "Köln") + 0.05 * RNG.normal(size=ROWS)).round(3) + 0.0005


def comma(value: float) -> str:
    return f"{value:.4f}".replace(".", ",")


def joined(header, rows, separator=","):
    lines = [separator.join(header), *(separator.join(row) for row in rows)]
    return "\n".join([*lines, ""])


PLAIN = [(f"{a}", c, f"{y}") for a, c, y in zip(A, CITY, Y, strict=True)]
GERMAN = [(comma(a), c, comma(y)) for a, c, y in zip(A, CITY, Y, strict=True)]
WESTERN = [(a, c.replace("Łódź", "Lodz"), y) for a, c, y in PLAIN]
THOUSANDS = [(a, f'"{p:,}"', y) for (a, _, y), p in zip(PLAIN, POPULATION.tolist(), strict=True)]
POINTS = [
    (a, f"{p:,}".replace(",", "."), y)
    for (a, _, y), p in zip(GERMAN, POPULATION.tolist(), strict=True)
]
NAMES = ("a", "city", "y")
ZOO = {
    "semicolons and decimal commas": (joined(NAMES, GERMAN, ";").encode(), "decimal commas"),
    "tabs in a .csv": (joined(NAMES, PLAIN, "\t").encode(), "separated by '\\t'"),
    "pipes": (joined(NAMES, PLAIN, "|").encode(), "separated by '|'"),
    "latin-1": (joined(NAMES, WESTERN).encode("latin-1"), "read as latin-1"),
    "a byte-order mark": (joined(NAMES, PLAIN).encode("utf-8-sig"), ""),
    "utf-16": (joined(NAMES, PLAIN).encode("utf-16"), "utf-16"),
    "thousands": (joined(("a", "people", "y"), THOUSANDS).encode(), "'people' (,)"),
    "thousands with points": (
        joined(("a", "people", "y"), POINTS, ";").encode(), "'people' (.)"
    ),
    "Windows line ends": (joined(NAMES, PLAIN).replace("\n", "\r\n").encode(), ""),
    "empty columns and rows at the end": (
        (joined((*NAMES, "", ""), [(*row, "", "") for row in PLAIN]) + ",,,,\n,,,,\n").encode(),
        "2 of 62 rows dropped",
    ),
    "row numbers": (
        joined(("", *NAMES), [(str(i), *row) for i, row in enumerate(PLAIN)]).encode(),
        "taken for identifiers, so left out: 'unnamed: 0'",
    ),
    "dates of text": (
        joined(
            ("when", *NAMES),
            [(f"{1 + i % 28:02}.{1 + i // 28:02}.2021", *row) for i, row in enumerate(PLAIN)],
        ).encode(),
        "dates taken apart: 'when'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ZOO)
def test_it_fits_at_the_first_try_and_predicts(name, tmp_path):
    content, note = ZOO[name]
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    printed = run("fit", path, "--target", "y", "--out", tmp_path / "m", "--task", "regression",
               "--n-neighbors", "0", *SMALL)  # fmt: skip
    assert note in " ".join(printed.split())
    run("predict", tmp_path / "m", path, "--out", tmp_path / "p.csv")
    found = pyarrow.csv.read_csv(tmp_path / "p.csv").column("mean").to_numpy()[:ROWS]
    assert np.isfinite(found).all()
    # What it learned it learned from the right numbers.
    assert np.corrcoef(found, Y)[0, 1] > 0.5


def test_numbers_are_those_that_are_meant(tmp_path):
    path = tmp_path / "t.csv"
    for name in ("thousands", "thousands with points"):
        path.write_bytes(ZOO[name][0])
        table = open_table(path).read(["people", "y"])
        assert table.column("people").to_pylist() == POPULATION.tolist()
        np.testing.assert_allclose(table.column("y").to_numpy(), Y, atol=1e-9)


def test_text_that_only_looks_like_numbers_stays_text(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("code;b\n1,2;x\nab;y\n")
    assert sniff(path, ",").decimal == "."
    path.write_text('version,b\n"1.234",2\n"1.5",3\n')
    assert sniff(path, ",").grouped == {}


def sentinels(tmp_path):
    rows = [(a if i % 6 else "-200", c, y) for i, (a, c, y) in enumerate(PLAIN)]
    path = tmp_path / "t.csv"
    path.write_bytes(joined(NAMES, rows).encode())
    return path


def test_numbers_for_missing_values_are_pointed_out_and_taken_as_said(tmp_path):
    path, out = sentinels(tmp_path), tmp_path / "m"
    command = ("fit", path, "--target", "y", "--out", out, "--n-neighbors", "0", *SMALL)
    printed = " ".join(run(*command).split())
    assert "'a' (-200 in 10 rows)" in printed
    assert "--missing=-200" in printed
    printed = " ".join(run(*command, "--missing", "-200").split())
    assert "far from all others" not in printed
    assert "missing numbers replaced by the median: 'a'" in printed
    model = TableModel.load(out)
    assert model.missing_values == (-200.0,)
    printed = " ".join(run("predict", out, path, "--out", tmp_path / "p.csv").split())
    assert "10 values of 'a' are missing" in printed
    with pytest.raises(OrthogpError, match="--missing"):
        run(*command, "--missing", "many")


@pytest.mark.parametrize("target", ["y", "label"])
def test_a_column_that_gives_the_target_away_is_pointed_out(tmp_path, target):
    path = tmp_path / "t.csv"
    rows = [
        (a, f"{2 * float(y) + 1:.6f}", "high" if float(y) > 0.5 else "low",
         "1" if float(y) > 0.5 else "0", y)
        for a, _, y in PLAIN
    ]  # fmt: skip
    path.write_text(joined(("a", "double", "label", "code", "y"), rows))
    drop = "label,code" if target == "y" else "y,double"
    printed = run("fit", path, "--target", target, "--drop", drop, "--out", tmp_path / "m",
               "--n-neighbors", "0", *SMALL)  # fmt: skip
    expected = "'double' (correlation 1.00000)" if target == "y" else "'code' (tells 100.00%"
    assert expected in " ".join(printed.split())


def test_missing_targets_are_refused_where_that_is_asked_for(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,y\n1,2.5\n2,\n3,4.5\n4,\n")
    with pytest.raises(DataError, match="missing in 2 of 4 rows"):
        run("fit", path, "--target", "y", "--out", tmp_path / "m", "--no-drop-missing-target")
