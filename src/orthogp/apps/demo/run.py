"""The demonstration, top to bottom. What it needs is imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

PAGE = "demo.html"


def main(
    out: Annotated[Path, typer.Option(help="The folder for the page and the pictures.")] = Path(
        "orthogp-demo"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="A few hundred rows and steps: seconds, not minutes.")
    ] = False,
) -> None:
    """Fit, compare and draw on built-in data: what residual points and near rows add."""
    from rich.console import Console

    from orthogp.apps.demo import contest, pictures, problems, tables
    from orthogp.apps.demo.page import build_demo_page
    from orthogp.errors import FileError
    from orthogp.execution.files import write_atomically

    if out.exists() and not out.is_dir():
        raise FileError(f"{out} is not a folder; name another with --out")
    console = Console()
    size = contest.QUICK if quick else contest.FULL

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    data = problems.rough_surface(size.rows, size.test_rows)
    say(f"A rough surface: {size.rows} noisy points")
    outcomes = []
    for method in contest.regression_methods(size):
        say(f"  {method.name}, {method.points}")
        outcomes.append(contest.fit_regression(method, data, verbose=True))
    patients = problems.diabetes(size.table_rows)
    say(f"Diabetes: {size.table_rows} patients, a real table")
    table = contest.fit_regression(contest.default_method(), patients, verbose=True)
    digit_data = problems.digits(size.digit_rows, size.digit_test_rows)
    method = contest.classification_method(size)
    say(f"Handwritten digits: {size.digit_rows} rows, {size.digit_steps} steps")
    say(f"  {method.name}, {method.points}")
    digits = contest.fit_classification(method, digit_data, size, verbose=True)

    drawn = {
        "surface.png": pictures.draw_surface(outcomes, size.grid),
        "points.png": pictures.draw_points(outcomes[1], size.grid),
        "calibration.png": pictures.draw_calibration(outcomes, data, digits, digit_data),
        "table.png": pictures.draw_intervals(table, patients),
    }
    contents = {name: pictures.png(figure) for name, figure in drawn.items()}
    for name, content in contents.items():
        write_atomically(out / name, [content])
    page = build_demo_page(size, outcomes, data, table, digits, digit_data, contents)
    path = page.write(out / PAGE)

    console.print(
        tables.rich_table("Rough surface", tables.REGRESSION, tables.surface_rows(outcomes)),
        tables.rich_table("Diabetes", tables.REGRESSION, tables.regression_rows([table])),
        tables.rich_table("Digits", tables.CLASSIFICATION, tables.classification_rows([digits])),
    )
    say(
        f"Open {path} in a browser; next, OrthogonalGPRegressor().fit(X, y) on a table of your own."
    )
