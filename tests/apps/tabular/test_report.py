"""The report of a fit: figures that are what they say, and pages that no name breaks."""

import html.parser
import json

import gpytorch
import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, mean_absolute_error, r2_score, root_mean_squared_error

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.apps.tabular.measures import measure
from orthogp.apps.tabular.model import TableModel
from orthogp.apps.tabular.report import printable
from orthogp.estimators.explaining import relevance
from orthogp.model import default_kernel
from orthogp.tables import Tally
from tabular_cases import NASTY, fit, sample, write

SMALL = {"n_inducing": 8, "n_residual": 8, "max_steps": 20, "device": "cpu", "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 2))
Y = 3 * X[:, 0] + RNG.normal(size=300)
LABELS = np.array(["low", "middle", "high"])[np.digitize(Y, [-1, 2])]


def test_figures_of_numbers():
    gp = OrthogonalGPRegressor(**SMALL).fit(X[:200], Y[:200])
    test, y = X[200:], Y[200:]
    found = measure(gp, test, y, Y[:200])
    mean, (low, high) = gp.predict(test), gp.predict_interval(test, 0.9)
    expected = {
        "rmse": root_mean_squared_error(y, mean),
        "mae": mean_absolute_error(y, mean),
        "r2": r2_score(y, mean),
        "log_density": gp.log_density(test, y).mean(),
        "coverage_90": ((y >= low) & (y <= high)).mean(),
        "width_90": (high - low).mean(),
        "rmse_of_the_mean": root_mean_squared_error(y, np.full(100, Y[:200].mean())),
    }
    assert found.figures == pytest.approx(expected)
    (row,) = [row for row in found.calibration if row["stated"] == 0.25]
    assert row["observed"] == (y <= gp.predict_quantiles(test, [0.25])[:, 0]).mean()
    assert sum(row["rows"] for row in found.residuals) == 100
    lowest = np.argsort(mean)[:10]
    assert found.residuals[0]["median"] == pytest.approx(np.median((y - mean)[lowest]))


def test_figures_of_classes():
    gp = OrthogonalGPClassifier(**SMALL).fit(X[:200], LABELS[:200])
    test, y = X[200:], LABELS[200:]
    found = measure(gp, test, y, LABELS[:200])
    shares = gp.predict_proba(test)
    names, counts = np.unique(LABELS[:200], return_counts=True)
    expected = {
        "accuracy": gp.score(test, y),
        "log_likelihood": gp.log_density(test, y).mean(),
        "brier": brier_score_loss(y, shares, labels=gp.classes_, scale_by_half=False),
        "accuracy_of_the_commonest_class": (y == names[counts.argmax()]).mean(),
    }
    assert found.figures == pytest.approx(expected)
    for row in found.classes:
        assert row["training"] == (LABELS[:200] == row["class"]).sum()
        assert row["test"] == (y == row["class"]).sum()
        assert row["predicted"] == (gp.predict(test) == row["class"]).sum()
    wrong = int((gp.predict(test) != y).sum())
    assert sum(row["rows"] for row in found.confusions) == wrong
    assert sum(row["rows"] for row in found.calibration) == 100
    right = sum(row["observed"] * row["rows"] for row in found.calibration)
    assert right == pytest.approx(100 - wrong)


def test_relevance_is_weighted_and_grouped_by_column():
    kernel = default_kernel(3, ard=True)
    rough, smooth = kernel.kernels
    rough.outputscale, smooth.outputscale = 3.0, 1.0
    rough.base_kernel.lengthscale = torch.tensor([1.0, 2.0, 4.0])
    smooth.base_kernel.lengthscale = torch.tensor([2.0, 0.5, 1.0])
    found = dict(relevance(kernel, ["a", "c", "c"]))
    # (3·1 + 1·½) / 4, and the larger of (3·½ + 1·2) / 4 and (3·¼ + 1·1) / 4.
    assert found == pytest.approx({"a": 0.875, "c": 0.875})
    assert relevance(default_kernel(3), ["a", "b", "c"]) == ()
    assert relevance(gpytorch.kernels.LinearKernel(), ["a"]) == ()


def test_a_terminal_is_sent_no_commands():
    assert "\x1b" not in printable("\x1b[31mred")
    assert printable("plain [bold]") == "plain [bold]"


class Reader(html.parser.HTMLParser):
    """The scripts of a page and its text."""

    def __init__(self):
        super().__init__()
        self.scripts, self.text, self.inside = 0, "", ""

    def handle_starttag(self, tag, attrs):
        self.inside = tag
        self.scripts += tag == "script"

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module", params=["y", "label"])
def reported(request, tmp_path_factory):
    """The folder of a fit with both reports, and what it said."""
    folder = tmp_path_factory.mktemp("report")
    table = write(sample(), folder / f"{NASTY.replace('/', '')}.csv")
    printed = fit(table, folder / "model", "--report", folder / "page.html", "--json",
               folder / "report.json", target=request.param)  # fmt: skip
    return folder, printed


def test_the_page_escapes_what_tables_hold(reported):
    page = (reported[0] / "page.html").read_text()
    assert NASTY not in page
    reader = Reader()
    reader.feed(page)
    # The page's own, and no other.
    assert reader.scripts == 1
    assert NASTY in reader.text
    assert "the very one that is judged here" in reader.text


def test_the_json_has_what_the_terminal_shows(reported):
    folder, printed = reported
    record = json.loads((folder / "report.json").read_text())
    assert record["rows"] == {"table": 240, "without_target": 0, "training": 216, "test": 24}
    assert record["interrupted"] is False
    assert record["steps"] == 20
    assert record["settings"]["n_inducing"] == 8
    assert f"task: {record['task']}, because {record['reason']}" in printed
    for value in record["measures"]["figures"].values():
        assert f"{value:.4g}" in printed
    names = {name for name, _ in record["relevance"]}
    assert names == {"a", "b", "count", "colour", "flag", NASTY}
    values = [value for _, value in record["relevance"]]
    assert values == sorted(values, reverse=True)


def test_the_report_explains_predictions(reported):
    """Contributions add up to what the model predicts; every column of the table is told of."""
    folder, _ = reported
    record = json.loads((folder / "report.json").read_text())
    kinds = {row["column"]: row["kind"] for row in record["column_rows"]}
    assert kinds["colour"] == "category"
    assert kinds["same"] == "constant"
    columns = dict(record["contributions"]["columns"])
    assert set(columns) == {"a", "b", "count", "colour", "flag", NASTY}
    sizes = [np.abs(values).mean() for values in columns.values()]
    assert sizes == sorted(sizes, reverse=True)
    # The same rows as the report has, by the split of its seed.
    model = TableModel.load(folder / "model")
    test = draw(240, 0.1, seed=0)
    rows = sample().take(test[np.random.default_rng(0).permutation(len(test))])
    inputs = model.encode(rows, Tally())
    if model.task == "regression":
        expected, base = model.estimator.predict(inputs), record["contributions"]["base"]
        np.testing.assert_allclose(base + sum(map(np.array, columns.values())), expected)
    else:
        expected = model.estimator.predict_proba(inputs).max(axis=1)
    found = [example["prediction"] for example in record["contributions"]["examples"]]
    np.testing.assert_allclose(found, np.sort(expected)[[0, len(expected) // 2, -1]])
    reader = Reader()
    reader.feed((folder / "page.html").read_text())
    for text in ("one-hot, one lengthscale", "3.5 in every row", "A row in parts"):
        assert text in reader.text


def draw(rows, share, seed):
    """Test rows, as the command draws them."""
    return np.sort(np.random.default_rng(seed).permutation(rows)[: round(share * rows)])


def test_one_test_row_is_enough_for_a_report(tmp_path):
    table = write(sample(40), tmp_path / "t.csv")
    fit(table, tmp_path / "model", "--test-size", "0.01", "--json", tmp_path / "r.json",
        "--report", tmp_path / "page.html")  # fmt: skip
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["rows"]["test"] == 1
    # One row has no variance to explain.
    assert record["measures"]["figures"]["r2"] is None
