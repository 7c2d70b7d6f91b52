"""The demonstration in its quick form: its files, its tables, its page."""

import io
import math
import re
from contextlib import redirect_stdout

import numpy as np
import pytest
from rich.console import Console

from orthogp.apps.demo import contest, main, problems, tables
from orthogp.apps.demo.contest import FULL, QUICK, DemoResult, Method
from orthogp.plotting.pages import Page

PICTURES = ("calibration.png", "points.png", "surface.png", "table.png")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A quick run: its folder, and what it printed."""
    out = tmp_path_factory.mktemp("demo")
    printed = io.StringIO()
    with redirect_stdout(printed):
        main(out, quick=True)
    return out, printed.getvalue()


def test_it_writes_one_page_and_its_pictures(run):
    out, _ = run
    assert sorted(path.name for path in out.iterdir()) == sorted([*PICTURES, "demo.html"])
    for name in PICTURES:
        assert (out / name).read_bytes().startswith(b"\x89PNG")


def test_it_prints_all_methods_and_where_the_page_is(run):
    out, printed = run
    rows = {line.split("│")[1].strip(): line for line in printed.splitlines() if "│" in line}
    names = [method.name for method in contest.regression_methods(QUICK)]
    assert {*names, "only noise"} <= set(rows)
    for name in names:
        assert len(re.findall(r"\d\.\d", rows[name])) >= 3
    last = printed.strip().splitlines()[-1]
    assert str(out / "demo.html") in last
    assert "fit(X, y)" in last
    assert max(map(len, printed.splitlines()[:-1])) <= 80


def test_the_page_is_whole(run):
    out, _ = run
    page = (out / "demo.html").read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)|url\(["']?http|@import""", page)
    for method in contest.regression_methods(QUICK):
        assert f">{method.name}<" in page or method.name in re.sub("<wbr>", "", page)
    assert page.count("data:image/png;base64,") == 3
    assert page.count('<figure class="chart">') == 2
    assert "Nothing to draw" not in page


def test_a_folder_that_cannot_be_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is not a folder"):
        main(tmp_path / "file", quick=True)


def test_the_surface_is_rough_and_always_the_same():
    one, two = problems.rough_surface(2000, 500), problems.rough_surface(2000, 500)
    np.testing.assert_array_equal(one.y, two.y)
    assert (one.X.shape, one.X_test.shape) == ((2000, 2), (500, 2))
    noise = one.y - problems.surface(one.X)
    assert noise.std() == pytest.approx(problems.NOISE, rel=0.1)
    assert one.X.min() > 0
    assert one.X.max() < 1
    # Correlation at distance r is that of a Matérn-5/2 kernel with the stated lengthscale.
    rng = np.random.default_rng(3)
    start, angle = rng.random((20_000, 2)), rng.uniform(0, 2 * np.pi, 20_000)
    r = problems.LENGTHSCALE
    apart = start + r * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    found = np.corrcoef(problems.surface(start), problems.surface(apart))[0, 1]
    expected = (1 + math.sqrt(5) + 5 / 3) * math.exp(-math.sqrt(5))
    assert found == pytest.approx(expected, abs=0.1)


def test_the_noise_alone_is_the_best_log_likelihood():
    noise = problems.NOISE * np.random.default_rng(0).standard_normal(200_000)
    density = -0.5 * (noise / problems.NOISE) ** 2 - math.log(
        problems.NOISE * math.sqrt(2 * math.pi)
    )
    assert density.mean() == pytest.approx(problems.BEST_LOG_LIKELIHOOD, abs=0.01)


def test_digits_are_split_without_overlap():
    data = problems.digits(300, 200)
    assert (len(data.X), len(data.X_test)) == (300, 200)
    assert set(data.y) == set(range(10))
    rows = {row.tobytes() for row in data.X}
    assert sum(row.tobytes() in rows for row in data.X_test) <= 2


def test_patients_are_split_without_overlap():
    data = problems.diabetes(300)
    assert (len(data.X), len(data.X_test)) == (300, 142)
    rows = {row.tobytes() for row in data.X}
    assert not any(row.tobytes() in rows for row in data.X_test)


def test_methods_by_steps_differ_in_their_points_alone_and_the_default_has_no_options():
    for size in (FULL, QUICK):
        coupled, orthogonal, default = contest.regression_methods(size)
        differ = set(coupled.options.items()) ^ set(orthogonal.options.items())
        assert {name for name, _ in differ} == {"basis", "n_residual"}
        assert default.options == {}


def test_figures_are_those_of_the_test_rows():
    data = problems.rough_surface(QUICK.rows, QUICK.test_rows)
    coupled, *_ = contest.regression_methods(QUICK)
    outcome = contest.fit_regression(coupled, data, verbose=False)
    error = outcome.gp.predict(data.X_test) - data.y_test
    assert outcome.rmse == pytest.approx(np.sqrt(np.mean(error**2)))
    low, high = outcome.gp.predict_interval(data.X_test, coverage=0.9)
    assert outcome.coverage == np.mean((low <= data.y_test) & (data.y_test <= high))


def test_tables_say_the_same_on_the_terminal_and_on_the_page():
    method = Method("ORTHNAT", "5 β + 6 γ", "#000000", {})
    outcome = DemoResult(method, None, -0.1234, 7.0, rmse=0.2, coverage=0.875)
    rows = tables.regression_rows([outcome])
    expected = ["ORTHNAT", "5 β + 6 γ", "0.2", "−0.123", "87.5 %", "7.0"]
    assert rows[0] == expected
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(tables.rich_table("title", tables.REGRESSION, rows))
    page = Page("page")
    page.table(tables.page_table("title", tables.REGRESSION, rows))
    shown, written = console.export_text(), page.render()
    for text in expected:
        assert text in shown
        assert f">{text}<" in written
