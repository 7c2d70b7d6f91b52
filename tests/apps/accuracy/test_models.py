"""The models that are compared: each gives a distribution that fits what it was shown."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

import accuracy_cases as cases
from orthogp.apps.accuracy.metrics import INTERVAL_LEVELS, predictive_metrics
from orthogp.apps.accuracy.models import MODELS, find_models, gpytorch_models, trees
from orthogp.apps.accuracy.models.contract import Problem, hold_out
from orthogp.apps.accuracy.models.search import Trial, draw_settings, random_search
from orthogp.apps.paper.metrics import classification_metrics
from orthogp.errors import ConfigurationError


def fit_to_numbers(name, problem):
    """The metrics on the training rows."""
    found = MODELS[name].fit(problem).predict(problem.x)
    return predictive_metrics(found, problem.y)


def fit_to_classes(name, problem):
    found = MODELS[name].fit(problem).predict(problem.x)
    np.testing.assert_array_equal(found.classes, [0, 1, 3])
    np.testing.assert_allclose(found.probabilities.sum(1), 1, rtol=1e-5)
    return classification_metrics(problem.y, found.classes, found.probabilities)


def test_held_out_rows_are_a_tenth_and_leave_a_row_of_every_class() -> None:
    problem = cases.regression_problem(200)
    split = hold_out(problem)
    assert (len(split.y), len(split.y_held)) == (180, 20)
    np.testing.assert_allclose(np.sort([*split.y, *split.y_held]), np.sort(problem.y))
    rare = np.array([0] * 15 + [1] * 4 + [2])
    for seed in range(20):
        split = hold_out(Problem(np.zeros((20, 1)), rare, 3, seed))
        assert set(split.y) == {0, 1, 2}
        assert len(split.y_held) == 2


def test_a_search_keeps_the_best_trial_and_begins_without_settings() -> None:
    tried = []

    def attempt(settings):
        tried.append(settings)
        loss = abs(settings["learning_rate"] - 0.1) if settings else float("nan")
        return Trial(loss, None, settings)

    best = random_search(attempt, trees.SPACES["lightgbm"], 20, seed=3)
    assert len(tried) == 20
    assert tried[0] == {}
    assert best.loss == min(abs(s["learning_rate"] - 0.1) for s in tried[1:])
    again = random_search(attempt, trees.SPACES["lightgbm"], 20, seed=3)
    assert again.settings == best.settings


def test_spaces_are_drawn_within_their_ends() -> None:
    rng = np.random.default_rng(0)
    drawn = [draw_settings(trees.SPACES["lightgbm"], rng) for _ in range(200)]
    leaves = [d["num_leaves"] for d in drawn]
    assert 8 <= min(leaves) < 12
    assert 350 < max(leaves) <= 512
    # Uniform in the logarithm: the median is the geometric mean of the ends.
    assert np.median(leaves) == pytest.approx(64, rel=0.3)
    assert all(isinstance(n, int) for n in leaves)


def test_every_model_is_named_with_what_installs_it() -> None:
    assert list(find_models(["tabm", "orthogp"])) == ["tabm", "orthogp"]
    assert find_models(None) == MODELS
    with pytest.raises(ConfigurationError, match="no model 'forest'; the models are orthogp"):
        find_models(["forest"])
    assert "orthogp[peers-gpboost]" in MODELS["gpboost"].how_to_install


def test_the_exact_gp_is_the_formula(monkeypatch) -> None:
    """Its mean and variance from NumPy, at the hyperparameters it found."""
    monkeypatch.setattr(gpytorch_models, "SUBSET_ROWS", 40)
    problem = cases.regression_problem(80)
    fitted = MODELS["exact-gp"].fit(problem)
    assert fitted.settings["adam_steps"] > 0
    new = problem.x[:5] + 0.1
    found = fitted.predict(new)
    settings = fitted.settings
    scale, amount = np.array(settings["lengthscales"]), settings["outputscale"]
    shift, noise = settings["mean"], settings["noise"]

    def cov(a, b):
        r = np.sqrt(5) * np.linalg.norm((a[:, None] - b) / scale, axis=-1)
        return amount * (1 + r + r**2 / 3) * np.exp(-r)

    K, cross = cov(problem.x, problem.x) + noise * np.eye(80), cov(new, problem.x)
    mean = shift + cross @ np.linalg.solve(K, problem.y - shift)
    variance = amount + noise - np.sum(cross * np.linalg.solve(K, cross.T).T, axis=1)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(found.deviation**2, variance, rtol=1e-4)


def test_an_exact_gp_with_room_for_a_step_of_fewer_rows_predicts_with_all(monkeypatch) -> None:
    problem = cases.regression_problem()
    monkeypatch.setattr(gpytorch_models, "SUBSET_ROWS", 20)
    monkeypatch.setattr(gpytorch_models, "rows_of_adam", lambda rows, device: 30)
    fitted = MODELS["exact-gp"].fit(problem)
    assert (fitted.settings["subset_rows"], fitted.settings["adam_rows"]) == (20, 30)
    noise = np.sqrt(fitted.settings["noise"])
    # Next to a row that it has been given, a prediction is almost as certain as the noise allows.
    assert (fitted.predict(problem.x).deviation < 1.5 * noise).all()


def test_an_exact_gp_without_room_is_refused(monkeypatch) -> None:
    with pytest.raises(ConfigurationError, match="hours without a GPU"):
        gpytorch_models.rows_of_adam(100_000, "cpu")
    monkeypatch.setattr(gpytorch_models, "free_bytes", lambda device: 2**30)
    assert gpytorch_models.rows_of_adam(2000, "cpu") == 2000
    assert gpytorch_models.rows_of_adam(4000, "cuda") == 2962
    with pytest.raises(ConfigurationError, match=r"5,000 rows needs about 1 GiB, and 1 GiB"):
        gpytorch_models.rows_of_adam(5000, "cuda")


def test_the_svgp_learns(monkeypatch) -> None:
    monkeypatch.setattr(gpytorch_models, "INDUCING_POINTS", 20)
    monkeypatch.setattr(gpytorch_models, "FEWEST_STEPS", 150)
    monkeypatch.setattr(gpytorch_models, "SVGP_RATE", 0.05)
    monkeypatch.setattr(gpytorch_models, "BATCH_ROWS", 64)
    monkeypatch.setattr(gpytorch_models, "EPOCHS", 10)
    found = fit_to_numbers("svgp", cases.regression_problem())
    assert found["rmse"] < 0.4
    assert found["log_likelihood"] > norm.logpdf(1.0, 0, 1)


def test_gpboost_through_its_interface(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gpboost", SimpleNamespace(GPModel=cases.GPModel))
    found = fit_to_numbers("gpboost", cases.regression_problem())
    assert found["rmse"] == pytest.approx(1.0)
    assert found["width"] == pytest.approx(2 * 1.6448536, rel=1e-6)


@pytest.fixture
def tabpfn(monkeypatch):
    package = SimpleNamespace(
        TabPFNRegressor=cases.TabPFNRegressor, TabPFNClassifier=cases.TabPFNClassifier
    )
    monkeypatch.setitem(sys.modules, "tabpfn", package)


def test_tabpfn_through_its_interface(tabpfn) -> None:
    problem = cases.regression_problem()
    found = MODELS["tabpfn"].fit(problem).predict(problem.x)
    np.testing.assert_allclose(found.log_density(problem.y), norm.logpdf(problem.y), rtol=1e-4)
    np.testing.assert_allclose(found.quantiles(INTERVAL_LEVELS)[0], [-1.64485, 1.64485], rtol=1e-4)
    metrics = fit_to_classes("tabpfn", cases.classification_problem())
    shares = np.unique(cases.classification_problem().y, return_counts=True)[1] / 200
    assert metrics["log_likelihood"] == pytest.approx(float(shares @ np.log(shares)))


def test_tabpfn_without_weights_says_so(tabpfn, monkeypatch) -> None:
    monkeypatch.setattr(cases.TabPFNRegressor, "weights", False)
    with pytest.raises(ConfigurationError, match="weights are not on this machine"):
        MODELS["tabpfn"].fit(cases.regression_problem())


def test_tabpfns_other_errors_are_its_own(tabpfn, monkeypatch) -> None:
    def fit(self, X, y):
        raise ValueError("too many rows")

    monkeypatch.setattr(cases.TabPFNRegressor, "fit", fit)
    with pytest.raises(ValueError, match="too many rows"):
        MODELS["tabpfn"].fit(cases.regression_problem())


@pytest.mark.peer
@pytest.mark.parametrize("name", ["lightgbm", "xgboost", "catboost"])
def test_boosted_trees(name, monkeypatch) -> None:
    pytest.importorskip(name)
    monkeypatch.setattr(trees, "MOST_TREES", 60)
    found = fit_to_numbers(name, cases.regression_problem())
    assert found["rmse"] < 0.6
    assert 75 < found["coverage"] <= 100
    assert fit_to_classes(name, cases.classification_problem())["accuracy"] > 70


@pytest.mark.peer
@pytest.mark.parametrize("name", ["lightgbm", "xgboost", "catboost"])
def test_tuned_trees(name, monkeypatch) -> None:
    """A library takes every setting of its space, and a search is no worse than its first trial."""
    pytest.importorskip(name)
    monkeypatch.setattr(trees, "MOST_TREES", 20)
    problem = cases.regression_problem()
    (booster,) = (b for b in (trees.LIGHTGBM, trees.XGBOOST, trees.CATBOOST) if b.name == name)
    drawn = draw_settings(trees.SPACES[name], np.random.default_rng(0))
    trial = booster.train(problem, hold_out(problem), drawn)
    taken = trial.fitted.get_params()
    assert drawn == {setting: taken[setting] for setting in drawn}
    plain, tuned = (trees.fit_trees(booster, trials, problem).settings for trials in (1, 6))
    assert tuned["held_out_loss"] <= plain["held_out_loss"]
    assert tuned["trials"] == 6


@pytest.mark.peer
def test_ngboost(monkeypatch) -> None:
    pytest.importorskip("ngboost")
    monkeypatch.setattr(trees, "NGBOOST_TREES", 60)
    assert fit_to_numbers("ngboost", cases.regression_problem())["rmse"] < 0.6
    monkeypatch.setattr(trees, "NGBOOST_ROWS", 100)
    with pytest.raises(ConfigurationError, match="beyond 100 training rows"):
        fit_to_numbers("ngboost", cases.regression_problem())


@pytest.mark.peer
def test_networks(monkeypatch) -> None:
    pytabkit = pytest.importorskip("pytabkit")
    for kind in ("Regressor", "Classifier"):
        shorter = _with_epochs(getattr(pytabkit, f"RealMLP_TD_{kind}"), 40)
        monkeypatch.setattr(pytabkit, f"RealMLP_TD_{kind}", shorter)
    assert fit_to_numbers("realmlp", cases.regression_problem())["rmse"] < 0.8
    assert fit_to_classes("realmlp", cases.classification_problem())["accuracy"] > 50


def _with_epochs(kind, epochs):
    return lambda **options: kind(n_epochs=epochs, **options)
