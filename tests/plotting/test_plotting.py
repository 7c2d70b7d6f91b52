"""Pictures show what the estimators say: curves, images, counts and points in the data's units."""

from inspect import unwrap
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.errors import ConfigurationError, DataError
from orthogp.plotting import (
    coverage_curve,
    plot_calibration,
    plot_history,
    plot_points,
    plot_posterior_1d,
    plot_posterior_2d,
    points_in_units,
    reliability_curve,
)

RNG = np.random.default_rng(0)
SMALL: dict[str, Any] = {
    "n_neighbors": 0,
    "n_inducing": 12,
    "n_residual": 20,
    "max_steps": 50,
    # So that in so few steps no point leaves the rows far behind.
    "adam_beta2": 0.999,
    "batch_size": 64,
    "random_state": 0,
}
BRIEF: dict[str, Any] = {**SMALL, "max_steps": 1}
X1 = 10 + 4 * RNG.random((1500, 1))
Y1 = 100 + np.sin(X1[:, 0]) + 0.2 * RNG.standard_normal(1500)
X2 = RNG.random((300, 2)) * [1.0, 50.0] + [5.0, -20.0]
Y2 = X2[:, 0] - 0.1 * X2[:, 1] + 0.1 * RNG.standard_normal(300)


@pytest.fixture(scope="module")
def curve():
    return OrthogonalGPRegressor(**SMALL).fit(X1, Y1)


@pytest.fixture(scope="module")
def surface():
    return OrthogonalGPRegressor(**SMALL).fit(X2, Y2)


@pytest.fixture(scope="module")
def pair():
    return OrthogonalGPClassifier(**SMALL).fit(X2, np.where(Y2 > 6.0, "high", "low"))


@pytest.fixture(scope="module")
def triple():
    return OrthogonalGPClassifier(**SMALL).fit(X2, np.digitize(Y2, [5.0, 7.0]))


def lines(ax):
    return {str(line.get_label()): line for line in ax.lines}


def xy(line):
    return np.asarray(line.get_xydata())


def test_the_curve_and_the_band_are_the_predictions(curve):
    ax = plot_posterior_1d(curve, X1, coverage=0.5)
    x, mean = xy(lines(ax)["mean"]).T
    assert (x[0], x[-1]) == (X1.min(), X1.max())
    np.testing.assert_allclose(mean, curve.predict(x[:, None]))
    (band,) = ax.collections
    outline = np.asarray(band.get_paths()[0].vertices)
    low, high = curve.predict_interval(x[:, None], coverage=0.5)
    np.testing.assert_allclose(outline[:, 1].min(), low.min())
    np.testing.assert_allclose(outline[:, 1].max(), high.max())
    assert "data" not in lines(ax)


def test_the_data_are_thinned_and_points_are_ticks_in_units(curve):
    ax = plot_posterior_1d(curve, X1[:, 0], Y1)
    np.testing.assert_array_equal(xy(lines(ax)["data"]), np.column_stack([X1[::2, 0], Y1[::2]]))
    for name, points in zip("βγ", points_in_units(curve), strict=True):
        np.testing.assert_array_equal(xy(lines(ax)[name])[:, 0], points[:, 0])
        assert points.min() > 8
        assert points.max() < 16


@pytest.mark.parametrize(("what", "place"), [("mean", 0), ("std", 1)])
def test_the_image_is_the_prediction_at_the_middle_of_every_cell(surface, what, place):
    ax = plot_posterior_2d(surface, what=what, bounds=((5.0, 6.0), (-20.0, 30.0)), grid=5)
    (image,) = ax.images
    assert tuple(image.get_extent()) == (5.0, 6.0, -20.0, 30.0)
    # Row 3, column 1 of the image: x = 5.3, y = 15.
    there = surface.predict([[5.3, 15.0]], return_std=True)[place]
    assert np.asarray(image.get_array())[3, 1] == pytest.approx(there[0])
    assert image.origin == "lower"


def test_without_bounds_the_image_spans_the_points(surface):
    points = np.concatenate(points_in_units(surface))
    extent = plot_posterior_2d(surface, grid=3).images[0].get_extent()
    np.testing.assert_allclose(extent[::2], points.min(axis=0))
    np.testing.assert_allclose(extent[1::2], points.max(axis=0))


def test_coverage_is_counted(curve):
    ax = plot_calibration(curve, X1[:200], Y1[:200])
    nominal, observed = xy(lines(ax)["observed"]).T
    assert nominal[-2] == pytest.approx(0.9)
    for level, share in zip(nominal, observed, strict=True):
        low, high = curve.predict_interval(X1[:200], coverage=level)
        assert share == np.mean((low <= Y1[:200]) & (Y1[:200] <= high))
    np.testing.assert_array_equal(xy(lines(ax)["perfect"]), [[0, 0], [1, 1]])


def test_coverage_of_several_targets_is_that_of_all_together():
    targets = np.column_stack([Y2, -Y2 + 0.2 * RNG.standard_normal(300)])
    gp = OrthogonalGPRegressor(**SMALL).fit(X2, targets)
    low, high = gp.predict_interval(X2, coverage=0.5)
    nominal, observed = coverage_curve(gp, X2, targets)
    assert observed[np.isclose(nominal, 0.5)] == np.mean((low <= targets) & (targets <= high))


def test_reliability_of_two_classes_is_that_of_the_second(pair):
    labels = np.where(Y2 > 6.0, "high", "low")
    ax = plot_calibration(pair, X2, labels)
    probability = pair.predict_proba(X2)[:, 1]
    predicted, observed, counts = [], [], []
    for low in np.arange(10) / 10:
        inside = (probability >= low) & (probability < low + 0.1 + (low == 0.9))
        if inside.any():
            predicted.append(probability[inside].mean())
            observed.append(np.mean(labels[inside] == "low"))
            counts.append(str(inside.sum()))
    np.testing.assert_allclose(xy(lines(ax)["observed"]), np.column_stack([predicted, observed]))
    assert [text.get_text() for text in ax.texts] == counts
    assert "label is low" in ax.get_xlabel()


def test_reliability_of_more_classes_is_that_of_the_label_predicted(triple):
    labels = np.digitize(Y2, [5.0, 7.0])
    found = reliability_curve(triple, X2, labels)
    assert found.counts.sum() == 300
    right = np.mean(triple.predict(X2) == labels)
    assert found.observed @ found.counts / 300 == pytest.approx(right)
    assert found.predicted @ found.counts / 300 == pytest.approx(
        triple.predict_proba(X2).max(axis=1).mean()
    )


def test_the_history_is_drawn_against_seconds_or_steps(surface):
    for x in ("seconds", "step"):
        ax = plot_history(surface, x=x)
        expected = [[row[x], row["bound"]] for row in surface.history_]
        np.testing.assert_array_equal(xy(lines(ax)["bound"]), expected)
        assert len(ax.figure.axes) == 1


def test_held_out_reports_have_an_axis_of_their_own():
    rows = [{"step": s, "seconds": s / 9, "bound": -9.0 / s, "held_out": -1.0 / s} for s in (1, 2)]
    ax = plot_history(rows, x="step")
    right = next(other for other in ax.figure.axes if other is not ax)
    np.testing.assert_array_equal(xy(right.lines[0]), [[1, -1.0], [2, -0.5]])


def test_points_are_in_the_units_of_the_data(surface):
    given = X2[:7]
    gp = OrthogonalGPRegressor(**BRIEF, inducing_points=given, train_points=False).fit(X2, Y2)
    ax = plot_points(gp, dims=(1, 0))
    beta = next(line for name, line in lines(ax).items() if name.startswith("β, 7"))
    np.testing.assert_allclose(xy(beta), given[:, ::-1], rtol=1e-5)
    gamma = next(line for name, line in lines(ax).items() if name.startswith("γ, 20"))
    # γ starts on rows.
    distance = np.abs(xy(gamma)[:, None] - X2[None, :, ::-1]).max(axis=-1).min(axis=1)
    assert distance.max() < 1e-4
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$x_{2}$", "$x_{1}$")


def test_a_coupled_model_has_no_gamma_to_draw():
    gp = OrthogonalGPRegressor(**BRIEF, basis="coupled").fit(X1, Y1)
    assert points_in_units(gp)[1].shape == (0, 1)
    assert "γ" not in lines(plot_posterior_1d(gp, X1))


def test_columns_keep_their_names_and_grids_do_not_warn(recwarn):
    table = pd.DataFrame(X2, columns=["west", "north"])
    gp = OrthogonalGPRegressor(**BRIEF).fit(table, Y2)
    ax = plot_posterior_2d(gp, grid=2)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("west", "north")
    assert not [w for w in recwarn if "feature names" in str(w.message)]


def test_axes_given_are_drawn_on_and_returned(curve, surface, pair):
    labels = np.where(Y2 > 6.0, "high", "low")
    draws = (
        lambda ax: plot_posterior_1d(curve, X1, Y1, ax=ax),
        lambda ax: plot_posterior_2d(surface, ax=ax, grid=2),
        lambda ax: plot_calibration(pair, X2, labels, ax=ax),
        lambda ax: plot_history(surface, ax=ax),
        lambda ax: plot_points(surface, ax=ax),
    )
    for draw in draws:
        ax = Figure().add_subplot()
        assert draw(ax) is ax
        assert ax.figure.axes == [ax]


@pytest.mark.parametrize(
    ("error", "says", "draw"),
    [
        (DataError, "1 input", lambda g, c: plot_posterior_1d(g, X2, Y2)),
        (ConfigurationError, "draws a regressor", lambda g, c: plot_posterior_1d(c, X2)),
        (ConfigurationError, "draws a regressor", lambda g, c: plot_posterior_2d(c)),
        (ConfigurationError, "at least 2", lambda g, c: plot_posterior_2d(g, grid=1)),
        (
            ConfigurationError,
            "low, high",
            lambda g, c: plot_posterior_2d(g, bounds=((1.0, 0.0), (0.0, 1.0))),
        ),
        (ConfigurationError, "two of the columns", lambda g, c: plot_points(g, dims=(0, 2))),
        (DataError, "no report", lambda g, c: plot_history([])),
        (DataError, "y has shape", lambda g, c: plot_calibration(g, X2, Y2[:5])),
        (DataError, "y has shape", lambda g, c: plot_calibration(c, X2, Y2[:5])),
        (ConfigurationError, "no classes", lambda g, c: reliability_curve(g, X2, Y2)),
        (ConfigurationError, "no intervals", lambda g, c: coverage_curve(c, X2, Y2)),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_sentence(error, says, draw, surface, pair):
    with pytest.raises(error, match=says):
        draw(surface, pair)


def test_unknown_names_are_refused_past_the_suites_own_type_checks(surface):
    draw_2d, draw_history = unwrap(plot_posterior_2d), unwrap(plot_history)
    with pytest.raises(ConfigurationError, match="median"):
        draw_2d(surface, what="median")
    with pytest.raises(ConfigurationError, match="hours"):
        draw_history(surface, x="hours")


def test_wrong_columns_and_rows_are_refused(curve):
    with pytest.raises(DataError, match="2 input"):
        plot_posterior_2d(curve)
    with pytest.raises(DataError, match="X has shape"):
        plot_posterior_1d(curve, X2)
    with pytest.raises(DataError, match="y has shape"):
        plot_posterior_1d(curve, X1, Y1[:3])
    several = OrthogonalGPRegressor(**BRIEF).fit(X1, np.column_stack([Y1, Y1]))
    with pytest.raises(ConfigurationError, match="this model has 2"):
        plot_posterior_1d(several, X1)
    with pytest.raises(NotFittedError):
        plot_points(OrthogonalGPRegressor())


def test_figures_are_not_pyplots(surface):
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    plot_points(surface)
    plot_posterior_2d(surface, grid=2)
    assert plt.get_fignums() == before
