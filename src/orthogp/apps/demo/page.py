"""The demonstration as one HTML page."""

from collections.abc import Mapping, Sequence

from orthogp.apps.demo.contest import DemoResult, DemoSize
from orthogp.apps.demo.problems import NOISE, DemoData
from orthogp.apps.demo.tables import (
    CLASSIFICATION,
    REGRESSION,
    classification_rows,
    page_table,
    regression_rows,
)
from orthogp.plotting import coverage_curve, reliability_curve
from orthogp.plotting.pages import Chart, Page, Series

NEUTRAL = "#808080"
SKIP = 15.0


def build_demo_page(
    size: DemoSize,
    outcomes: Sequence[DemoResult],
    data: DemoData,
    digits: DemoResult,
    digit_data: DemoData,
    pictures: Mapping[str, bytes],
) -> Page:
    page = Page(
        "What residual points add",
        "Two Gaussian processes at much the same cost: one spends it on points that carry mean "
        "and covariance, the other takes fewer of those and adds points that carry the mean alone.",
    )
    coupled, orthogonal = outcomes
    page.section("A rough surface")
    page.text(
        f"{size.rows} noisy heights (standard deviation {NOISE}) at random places; {size.steps} "
        f"steps of {size.batch_size} rows, the same seed, the same defaults. {coupled.method.name} "
        f"has {coupled.method.points}; {orthogonal.method.name} has {orthogonal.method.points}. "
        f"Both are judged on {size.test_rows} rows that neither has seen. Rows are dense in "
        "the middle of the square and few in its corners.",
        "The surface is rougher than so few inducing points can follow, which is when residual "
        "points pay. On smoother surfaces, with as few steps, the coupled basis can be the better.",
    )
    page.table(page_table("Rough surface", REGRESSION, regression_rows(outcomes)))
    page.picture(
        pictures["surface.png"],
        "Six maps: the true surface, the mean of both models, the standard deviation of the "
        "orthogonal one, and how far each mean is from the truth.",
        "From the dense middle of the square (lower left) outwards. Both means have the scale of "
        "the surface, both distances have one scale. The standard deviation is that of a new "
        "observation, noise included.",
    )
    page.charts(_bound(outcomes), _coverage(outcomes, data))
    page.picture(
        pictures["points.png"],
        "The places of the two kinds of points over the surface.",
        "Where the orthogonal model's points ended: β carries mean and covariance, γ the mean.",
    )
    page.section("Handwritten digits")
    page.text(
        f"A classifier of ten classes on scikit-learn's digits: {size.digit_rows} rows of 64 "
        f"columns to fit, {size.digit_test_rows} to judge by, {size.digit_steps} steps."
    )
    page.table(page_table("Digits", CLASSIFICATION, classification_rows([digits])))
    page.charts(_reliability(digits, digit_data))
    page.section("What next")
    page.items(
        [
            "Your own table: OrthogonalGPRegressor().fit(X, y), then predict_interval(X_new); "
            "arrays and DataFrames alike.",
            "Pictures like these: orthogp.plotting draws any fitted estimator.",
            "More steps and more residual points: max_steps and n_residual; a step costs time "
            "linear in the latter.",
        ]
    )
    return page


def _bound(outcomes: Sequence[DemoResult]) -> Chart:
    series = [Series(o.method.name, o.bound, o.method.colour) for o in outcomes]
    return Chart("Bound against time", "seconds of training", "bound, nats", series, skip=SKIP)


def _coverage(outcomes: Sequence[DemoResult], data: DemoData) -> Chart:
    series = [
        Series(
            o.method.name,
            [
                (float(nominal), float(observed))
                for nominal, observed in zip(
                    *coverage_curve(o.gp, data.X_test, data.y_test), strict=True
                )
            ],
            o.method.colour,
        )
        for o in outcomes
    ]
    return Chart(
        "Calibration of the intervals", "coverage promised", "coverage observed",
        [*series, _perfect()],
    )  # fmt: skip


def _reliability(digits: DemoResult, data: DemoData) -> Chart:
    found = reliability_curve(digits.gp, data.X_test, data.y_test)
    points = [(float(p), float(o)) for p, o in zip(found.predicted, found.observed, strict=True)]
    series = [Series(digits.method.name, points, digits.method.colour), _perfect()]
    return Chart(
        "Calibration of the probabilities", "probability of the predicted label",
        "how often it is right", series,
    )  # fmt: skip


def _perfect() -> Series:
    return Series("perfect", [(0.0, 0.0), (1.0, 1.0)], NEUTRAL, dashed=True)
