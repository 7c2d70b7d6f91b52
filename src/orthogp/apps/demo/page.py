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
    surface_rows,
)
from orthogp.plotting import coverage_curve, reliability_curve
from orthogp.plotting.pages import Chart, Page, Series

NEUTRAL = "#808080"


def build_demo_page(
    size: DemoSize,
    outcomes: Sequence[DemoResult],
    data: DemoData,
    table: DemoResult,
    digits: DemoResult,
    digit_data: DemoData,
    pictures: Mapping[str, bytes],
) -> Page:
    page = Page(
        "A Gaussian process in which every row counts",
        "Inducing points blur what is rough, residual points sharpen it, and the rows near a "
        "prediction say the rest.",
    )
    coupled, orthogonal, default = outcomes
    page.section("A rough surface")
    page.text(
        f"{size.rows} noisy heights (standard deviation {NOISE}) at random places, dense in the "
        f"middle of the square and few in its corners. {coupled.method.name} has "
        f"{coupled.method.points}, points that carry mean and covariance; {orthogonal.method.name} "
        f"has {orthogonal.method.points}, as many of those and points that carry the mean alone. "
        f"Both take {size.steps} steps of {size.batch_size} rows. {default.method.name} is "
        "OrthogonalGPRegressor() as it is: every prediction also looks at the rows near it. All "
        f"are judged on {size.test_rows} rows that none has seen.",
        f"The noise alone has an error of {NOISE}: no model can have less.",
    )
    page.table(page_table("Rough surface", REGRESSION, surface_rows(outcomes)))
    page.picture(
        pictures["surface.png"],
        "Eight maps: the true surface, the mean of the three models, the standard deviation of the "
        "default one, and how far each mean is from the truth.",
        "From the dense middle of the square (lower left) outwards. All means have the scale of "
        "the surface, all distances have one scale. The standard deviation is that of a new "
        "observation, noise included.",
    )
    page.charts(_coverage(outcomes, data))
    page.picture(
        pictures["points.png"],
        "The places of the two kinds of points over the surface.",
        f"Where the points of {orthogonal.method.name} ended: β carries mean and covariance, γ the "
        "mean.",
    )
    page.section("A real table")
    page.text(
        f"How far the disease of diabetics has progressed within a year: {size.table_rows} "
        "patients to fit, ten figures of each; the others to judge by. A table of a few thousand "
        "rows or less gets the exact Gaussian process."
    )
    page.table(page_table("Diabetes", REGRESSION, regression_rows([table])))
    page.picture(
        pictures["table.png"],
        "Intervals of every patient not seen, and what came to be.",
        "Each bar is the 90 % interval of a patient, each dot what came to be.",
    )
    page.section("Handwritten digits")
    page.text(
        f"A classifier of ten classes on scikit-learn's digits: {size.digit_rows} rows of 64 "
        f"columns to fit, {size.digit_test_rows} to judge by, {size.digit_steps} steps, and near "
        "rows."
    )
    page.table(page_table("Digits", CLASSIFICATION, classification_rows([digits])))
    page.charts(_reliability(digits, digit_data))
    page.section("What next")
    page.items(
        [
            "Your own table: OrthogonalGPRegressor().fit(X, y), then predict_interval(X_new); "
            "arrays and DataFrames alike, with text, dates and gaps.",
            "From a terminal: orthogp fit table.csv --target column --out model.orthogp --report "
            "report.html writes a model and a page like this one.",
            "Pictures like these: orthogp.plotting draws any fitted estimator.",
        ]
    )
    return page


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
