"""Every source reads a few lines of the format that its address serves."""

import gzip

import numpy as np
import pytest

from archives import compressed, zipped
from orthogp.apps.paper import published
from orthogp.apps.paper.fetching.readers import coded, fields, uncompress, zip_member
from orthogp.apps.paper.fetching.sources import OF_121_URL, SOURCES, UCI_URL, DataSource
from orthogp.errors import DataError

TASKS = ("regression", "classification")


def lines(*rows: str) -> bytes:
    return "\n".join(rows).encode() + b"\n"


def repeated(row: str, count: int, delimiter: str = ",") -> str:
    return delimiter.join([row] * count)


# A sample of every original's members, then its inputs and its target or labels.
ORIGINALS = {
    "3droad": (
        {"3D_spatial_network.txt": lines("144552912,9.35,56.74,17.05", "144552913,9.36,56.75,18")},
        [[144552912, 9.35, 56.74], [144552913, 9.36, 56.75]],
        [17.05, 18],
    ),
    "houseelectric": (
        {
            "household_power_consumption.txt": lines(
                "Date;Time;Global_active_power;Global_reactive_power;Voltage;Global_intensity;"
                "Sub_metering_1;Sub_metering_2;Sub_metering_3",
                "16/12/2006;17:24:00;4.216;0.418;234.840;18.400;0.000;1.000;17.000",
                "28/4/2007;00:21:00;?;?;?;?;?;?;",
                "1/1/2007;09:05:00;2.5;0.1;240.1;10.4;0.000;2.000;18.000",
            )
        },
        [
            [16, 12, 2006, 17, 24, 0.418, 234.84, 18.4, 0, 1, 17],
            [1, 1, 2007, 9, 5, 0.1, 240.1, 10.4, 0, 2, 18],
        ],
        [4.216, 2.5],
    ),
    "slice": (
        {
            "slice_localization_data.csv": lines(
                "patientId," + repeated("value", 384) + ",reference",
                "7," + repeated("0.5", 384) + ",21.8",
            )
        },
        [[7] + [0.5] * 384],
        [21.8],
    ),
    "bike": (
        {
            "readme.txt": b"a text",
            "hour.csv": lines(
                "instant,dteday,season,yr,mnth,hr,holiday,weekday,workingday,weathersit,temp,atemp,"
                "hum,windspeed,casual,registered,cnt",
                "1,2011-01-09,1,0,1,5,0,6,0,1,0.24,0.2879,0.81,0,3,13,16",
            ),
        },
        [[2011, 1, 9, 1, 0, 1, 5, 0, 6, 0, 1, 0.24, 0.2879, 0.81, 0, 3, 13]],
        [np.log(16)],
    ),
    "protein": (
        {"CASP.csv": lines("RMSD,F1,F2,F3,F4,F5,F6,F7,F8,F9", "17.5,1,2,3,4,5,6,7,8,9")},
        [[1, 2, 3, 4, 5, 6, 7, 8, 9]],
        [np.log(18.5)],
    ),
    "song": (
        {"YearPredictionMSD.txt": lines("2001," + repeated("1.5", 90), "99," + repeated("2", 90))},
        [[1.5] * 90, [2] * 90],
        [2001, 99],
    ),
    "adult": (
        {
            "adult.data": lines(
                "39, State-gov, 7, Bachelors, 13, Single, Clerk, Alone, White, Male, 21, 0, 40, "
                "United-States, <=50K",
                "",
            ),
            "adult.test": lines(
                "|1x3 Cross validator",
                "18, ?, 9, 11th, 7, Single, ?, Child, White, Female, 0, 0, 30, Peru, <=50K.",
                "44, Private, 8, 11th, 7, Single, Clerk, Alone, Black, Male, 0, 0, 30, Peru, >50K.",
            ),
        },
        [
            [39, 2, 7, 1, 13, 0, 1, 0, 1, 1, 21, 0, 40, 1],
            [18, 0, 9, 0, 7, 0, 0, 1, 1, 0, 0, 0, 30, 0],
            [44, 1, 8, 0, 7, 0, 1, 0, 0, 1, 0, 0, 30, 0],
        ],
        [0, 0, 1],
    ),
    "chess-krvk": (
        {"krkopt.data": lines("a,1,b,3,c,2,draw", "d,4,h,8,a,7,zero")},
        [[0, 1, 0, 3, 1, 2], [1, 4, 1, 8, 0, 7]],
        [0, 1],
    ),
    "connect-4": (
        {
            "connect-4.data.Z": compressed(
                lines(
                    repeated("b", 42) + ",win",
                    repeated("x", 42) + ",loss",
                    repeated("o", 42) + ",draw",
                )
            ),
        },
        [[0] * 42, [2] * 42, [1] * 42],
        [0, 1, 0],
    ),
    "letter": (
        {"letter-recognition.data": lines("T," + repeated("2", 16), "I," + repeated("5", 16))},
        [[2] * 16, [5] * 16],
        [1, 0],
    ),
    "magic": (
        {"magic04.data": lines(repeated("1.5", 10) + ",g", repeated("-2", 10) + ",h")},
        [[1.5] * 10, [-2] * 10],
        [0, 1],
    ),
    "miniboone": (
        {"MiniBooNE_PID.txt": lines("   1   2", *["  " + repeated(v, 50, "  ") for v in "312"])},
        [[3] * 50, [1] * 50, [2] * 50],
        [1, 0, 0],
    ),
    "mushroom": (
        {
            "agaricus-lepiota.data": lines(
                "p," + repeated("x", 15) + ",p," + repeated("k", 6),
                "e," + repeated("?", 15) + ",p," + repeated("n", 6),
            )
        },
        [[1] * 15 + [0] * 6, [0] * 15 + [1] * 6],
        [1, 0],
    ),
    "nursery": (
        {
            "nursery.data": lines(
                "usual,proper,complete,1,convenient,convenient,nonprob,recommended,recommend",
                "great_pret,very_crit,foster,more,critical,inconv,problematic,not_recom,not_recom",
                "",
            )
        },
        [[0] * 8, [2, 4, 3, 3, 2, 1, 2, 2]],
        [1, 0],
    ),
    "page-blocks": (
        {"page-blocks.data.Z": compressed(lines("   " + repeated("5", 10, "   ") + "   1"))},
        [[5] * 10],
        [0],
    ),
    "pendigits": (
        {
            "pendigits-orig.tra.Z": b"of another form",
            "pendigits.tra": lines(repeated(" 47", 16) + ", 8"),
            "pendigits.tes": lines(repeated(" 88", 16) + ", 2"),
        },
        [[47] * 16, [88] * 16],
        [1, 0],
    ),
    "statlog-landsat": (
        {
            "sat.trn": lines(repeated("92", 36, " ") + " 7"),
            "sat.tst": lines(repeated("80", 36, " ") + " 3"),
        },
        [[92] * 36, [80] * 36],
        [1, 0],
    ),
    "statlog-shuttle": (
        {
            "shuttle.trn.Z": compressed(lines(repeated("50", 9, " ") + " 2")),
            "shuttle.tst": lines(repeated("-5", 9, " ") + " 4"),
        },
        [[50] * 9, [-5] * 9],
        [0, 1],
    ),
    "thyroid": (
        {
            "ann-train.data": lines(repeated("0.73", 21, " ") + " 3  "),
            "ann-test.data": lines(repeated("0.5", 21, " ") + " 2  "),
        },
        [[0.73] * 21, [0.5] * 21],
        [1, 0],
    ),
    "wall-following": (
        {
            "sensor_readings_24.data": lines(
                repeated("0.4", 24) + ",Sharp-Right-Turn", repeated("5", 24) + ",Move-Forward"
            ),
            "sensor_readings_2.data": lines("0.4,0.5,Move-Forward"),
        },
        [[0.4] * 24, [5] * 24],
        [1, 0],
    ),
    "waveform": (
        {"waveform.data.Z": compressed(lines(repeated("-1.23", 21) + ",2"))},
        [[-1.23] * 21],
        [0],
    ),
    "waveform-noise": (
        {"waveform-+noise.data.Z": compressed(lines(repeated("0.38", 40) + ",0"))},
        [[0.38] * 40],
        [0],
    ),
    "wine-quality-white": (
        {
            "winequality-red.csv": b"not this one",
            "winequality-white.csv": lines(
                '"fixed acidity";"volatile acidity"', repeated("0.27", 11, ";") + ";6"
            ),
        },
        [[0.27] * 11],
        [0],
    ),
}
ARFF = lines(
    "@relation elevators",
    "",
    *[f"@attribute a{i} real" for i in range(18)],
    "@attribute Goal real",
    "@data",
    repeated("0.5", 18) + ",0.034",
)


def inputs_of(source: DataSource) -> int:
    """As many as the paper's set has; it counts one more where it classifies."""
    return published.sizes(source.task)[source.name].inputs - (source.task == "classification")


def sample(source: DataSource) -> tuple[bytes, list, list]:
    inputs = inputs_of(source)
    X = np.arange(3.0 * inputs).reshape(3, inputs) / 4
    if source.urls[0].endswith(".csv.gz"):
        rows = [repeated("{}", inputs + 1).format(*x, i + 0.5) for i, x in enumerate(X)]
        # In as many files as there are addresses.
        parts = [rows] if len(source.urls) == 1 else [rows[:1], rows[1:]]
        return b"".join(gzip.compress(lines(*p)) for p in parts), X.tolist(), [0.5, 1.5, 2.5]
    if source.urls == (OF_121_URL,):
        members = {
            f"data/{source.name}/{source.name}_py.dat": lines(*[",".join(map(str, x)) for x in X]),
            f"data/{source.name}/labels_py.dat": lines("2", "0", "1"),
            f"data/{source.name}/folds_py.dat": lines("0,0", "1,0", "0,1"),
            "data/wine/labels_py.dat": lines("0"),
        }
        return zipped(members), X.tolist(), [2, 0, 1]
    if source.name == "elevators":
        return ARFF, [[0.5] * 18], [np.log(0.034)]
    members, X, y = ORIGINALS[source.name]
    return zipped(members), X, y


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: f"{s.name} {s.urls[0].split('/')[2]}")
def test_a_source_reads_its_format_with_the_papers_inputs(source):
    content, X, y = sample(source)
    found_X, found_y = source.read(content)
    np.testing.assert_allclose(found_X, X, rtol=1e-15)
    np.testing.assert_allclose(found_y, y, rtol=1e-15)
    assert found_X.shape[1] == inputs_of(source)
    assert found_X.dtype == np.float64
    assert found_y.dtype == (np.int64 if source.task == "classification" else np.float64)


def test_every_set_of_the_paper_has_a_source_and_the_collections_come_first():
    for task in TASKS:
        named = [source for source in SOURCES if source.task == task]
        assert list(dict.fromkeys(s.name for s in named)) == list(published.sizes(task))
    first = {}
    for source in SOURCES:
        first.setdefault(source.name, source)
    assert not [s.name for s in first.values() if s.urls[0].startswith(UCI_URL)]


def test_a_page_instead_of_an_archive_is_named():
    for source in SOURCES:
        with pytest.raises((DataError, OSError), match=r"no zip|no ARFF|Not a gzipped"):
            source.read(b"<html>Not found</html>")


def test_the_counts_of_miniboone_must_hold():
    (source,) = [s for s in SOURCES if s.name == "miniboone" and s.urls[0].startswith(UCI_URL)]
    with pytest.raises(DataError, match="first line"):
        source.read(zipped({"MiniBooNE_PID.txt": lines(" 1 2", repeated("1", 50, " "))}))


def test_lines_of_unequal_length_are_refused():
    content = zipped({"a": lines("1,2", "1,2,3")})
    with pytest.raises(DataError, match="fields"):
        fields(zip_member(content, "a"))


def test_a_category_outside_a_given_order_is_refused():
    with pytest.raises(LookupError):
        coded([["a"], ["c"]], [{"a": 0, "b": 1}])


@pytest.mark.parametrize("max_bits", [10, 12, 16])
@pytest.mark.parametrize("clear", [False, True])
def test_z_files_of_every_width_and_with_cleared_tables(max_bits, clear):
    rng = np.random.default_rng(0)
    # As many codes as fill the tables of the first two widths.
    noise = bytes(rng.integers(0, 256, 8000, dtype=np.uint8))
    for content in (b"", b"a", b"a" * 30, noise, bytes(value & 3 for value in noise)):
        packed = compressed(content, max_bits, clear)
        assert uncompress(packed).read() == content


def test_a_damaged_z_file_is_refused():
    with pytest.raises(DataError, match=r"no \.Z file"):
        uncompress(b"\x1f\x8b\x08")
    # The first code must be a byte; this one is 511.
    with pytest.raises(DataError, match="damaged"):
        uncompress(b"\x1f\x9d\x90\xff\x01")
