"""The paper's figures: what is drawn, from what, and in which colour."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import same_color

from orthogp.apps.paper.experiments import COLOURS, DASHED, colour_of
from orthogp.apps.paper.figures import _draw_panels, _panels, draw_figures, sensible_limits
from orthogp.apps.paper.figures.dots import clipped_range, draw_dots
from orthogp.apps.paper.published import REGRESSION_COLUMNS
from orthogp.apps.paper.records import Job, Record
from orthogp.apps.paper.tables.grid import build_grid
from orthogp.errors import ConfigurationError
from paper_records import changed, papers, record

SIX = ("Coupled", "CoupledNat", "Orth", "OrthNat", "Hybrid", "Decoupled")


def run(experiment, dataset, method, second="rmse"):
    history = [
        {
            "step": float(n),
            "seconds": n / 50,
            "bound": -2 / n,
            "log_likelihood": -1 / n,
            second: 1 / n,
        }
        for n in range(100, 1001, 100)
    ]
    metrics = {key: history[-1][key] for key in ("bound", "log_likelihood", second)}
    return Record(Job(experiment, dataset, method, 0), "done", metrics=metrics, history=history)


@pytest.fixture
def curves():
    records = [run("illustration", "kin40k", method) for method in SIX]
    records += [run("illustration", "ringnorm", method, "accuracy") for method in SIX]
    records += [run("wall-clock", "terrain", method) for method in SIX]
    optimum = Job("illustration", "kin40k", "Optimum", 0)
    return [*records, Record(optimum, "done", metrics={"rmse": 0.0005, "log_likelihood": 1.0})]


def drawn(records, experiment):
    figure = _draw_panels(_panels(records, experiment), log_x=experiment == "illustration")
    assert figure is not None
    return figure.axes


def lines(axes):
    return {str(line.get_label()): line for line in axes.lines}


def xs(line):
    return np.asarray(line.get_xdata(), dtype=float).tolist()


def ys(line):
    return np.asarray(line.get_ydata(), dtype=float).tolist()


def test_the_illustration_has_rmse_and_the_optimum_beside_log_likelihood(curves):
    regression, classification = drawn(curves, "illustration")
    assert regression.get_ylabel() == "test RMSE"
    assert classification.get_ylabel() == "test log-likelihood, nats a row"
    assert set(lines(regression)) == {*SIX, "Optimum"}
    assert set(lines(classification)) == set(SIX)
    optimum = lines(regression)["Optimum"]
    assert set(ys(optimum)) == {0.0005}
    assert optimum.get_linestyle() == "--"
    assert ys(lines(regression)["Orth"]) == [1 / n for n in range(100, 1001, 100)]


def test_wall_clock_has_three_panels_against_seconds(curves):
    panels = drawn(curves, "wall-clock")
    assert [a.get_xlabel() for a in panels] == ["seconds of training"] * 3
    labels = ["bound, nats a row", "test log-likelihood, nats a row", "test RMSE"]
    assert [a.get_ylabel() for a in panels] == labels
    assert xs(lines(panels[0])["OrthNat"])[-1] == 20.0


def test_a_run_that_failed_is_not_drawn():
    failed = replace(run("wall-clock", "terrain", "Hybrid"), status="failed")
    records = [run("wall-clock", "terrain", "Orth"), failed]
    assert set(lines(drawn(records, "wall-clock")[0])) == {"Orth"}


def test_a_basis_has_one_colour_and_adam_is_dashed(curves):
    for axes in drawn(curves, "illustration"):
        for method, line in lines(axes).items():
            assert same_color(line.get_color(), colour_of(method))
            assert (line.get_linestyle() == "--") == (method in DASHED)
    for name, natural in (
        ("Coupled", "CoupledNat"),
        ("Orth", "OrthNat"),
        ("OrthARD", "OrthNatARD"),
    ):
        assert COLOURS[name] == COLOURS[natural]
        assert name in DASHED
        assert natural not in DASHED
    others = [m for m in COLOURS if "Nat" not in m]
    assert len({COLOURS[m] for m in others}) == len(others)
    assert colour_of("A new one") == colour_of("A new one")


def test_ours_are_dots_and_the_papers_are_rings():
    records = changed(papers(datasets=["pol", "houseelectric"]), "pol", "OrthNat", rmse=0.18)
    figure = draw_dots(build_grid(records, "regression"))
    assert figure is not None
    assert [a.get_ylabel() for a in figure.axes[::2]] == ["houseelectric", "pol"]
    rmse = figure.axes[3]
    marks = [x for x in rmse.lines if x.get_markeredgecolor() == COLOURS["OrthNat"]]
    found = {(value, x.get_markerfacecolor()) for x in marks for value in xs(x)}
    assert (0.18, COLOURS["OrthNat"]) in found
    assert (0.1906, "white") in found
    # Its targets may not be the paper's.
    assert not any(x.get_markerfacecolor() == "white" for x in figure.axes[1].lines)


def test_a_method_that_squashes_the_scale_becomes_an_arrow():
    points = {m: [0.1 + place / 100] for place, m in enumerate(SIX)}
    assert clipped_range(points) == (0.1, pytest.approx(0.15))
    assert clipped_range(points | {"Far": [-3.0], "Farther": [9.0, 9.5]}) == clipped_range(points)
    near = points | {"Near": [0.2]}
    assert clipped_range(near) == (0.1, 0.2)
    records = changed(papers(datasets=["pol"]), "pol", "Decoupled", log_likelihood=-7.25)
    figure = draw_dots(build_grid(records, "regression"))
    assert figure is not None
    axes = figure.axes[0]
    assert axes.get_xlim()[0] > -0.3
    assert "-7.250 (paper -0.250)" in {text.get_text() for text in axes.texts}
    assert "<" in [line.get_marker() for line in axes.lines]


def test_limits_leave_out_a_wild_start_but_no_end():
    tame = [[-1.0, -0.5, -0.4], [-1.1, -0.9, -0.8]]
    assert sensible_limits(tame) is None
    assert sensible_limits([]) is None
    wild = [[-1000.0, *[-1 + n / 100 for n in range(60)]], [-5.0]]
    limits = sensible_limits(wild)
    assert limits is not None
    assert -6 < limits[0] < -5
    assert -0.41 < limits[1] < 0


@pytest.mark.parametrize("experiment", ["illustration", "wall-clock", "regression"])
def test_a_figure_is_written_twice_the_same(experiment, curves, tmp_path):
    records = [*curves, *papers(datasets=["pol"])]
    svg, png = draw_figures(records, experiment, tmp_path / "figures")
    assert (svg.name, png.name) == (f"{experiment}.svg", f"{experiment}.png")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    before = svg.read_bytes()
    draw_figures(records, experiment, tmp_path / "figures")
    assert svg.read_bytes() == before
    assert len(list((tmp_path / "figures").iterdir())) == 2


def test_nothing_to_draw_writes_nothing(tmp_path):
    short = [Record(Job("regression", "pol", "Orth", 0), "failed", "no")]
    no_history = run("illustration", "kin40k", "Orth").without_history()
    for experiment in ("illustration", "wall-clock", "regression", "classification"):
        assert draw_figures([*short, no_history], experiment, tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match="speed"):
        draw_figures([], "speed", tmp_path)


def test_a_figure_of_classification_has_accuracy(tmp_path):
    records = papers("classification", ["adult", "nursery"])
    records += [record("adult", "Default", "classification", log_likelihood=-0.2, accuracy=88.0)]
    figure = draw_dots(build_grid(records, "classification"))
    assert figure is not None
    assert figure.axes[1].get_title() == "test accuracy, percent (right is better)"
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [*(m for m in REGRESSION_COLUMNS if m in SIX), "Default", "the paper's"]
