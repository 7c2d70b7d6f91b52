"""Exact contributions of columns where the kernel is a sum over them."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from orthogp import OrthogonalGPRegressor
from orthogp.estimators.additive import additive_columns, component_means
from orthogp.tables import Encoded

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": RNG.normal(size=160),
        "kind": RNG.choice(["x", "y", "z"], 160),
        "b": RNG.normal(size=160),
        "same": 1.0,
    }
)
Y = np.column_stack([np.sin(2 * FRAME["a"]) + 2.0 * (FRAME["kind"] == "x"), FRAME["b"] ** 2])
Y += 0.1 * RNG.normal(size=Y.shape)
SMALL = {"random_state": 0, "device": "cpu", "max_steps": 3, "n_inducing": 20, "n_residual": 40,
         "train_hyperparameters": False}  # fmt: skip


def kernel():
    """Of the inputs a, b, and the three of the category."""
    return (
        ScaleKernel(RBFKernel(active_dims=[0]))
        + ScaleKernel(MaternKernel(nu=1.5, active_dims=[1]))
        + ScaleKernel(RBFKernel(active_dims=[2, 3, 4]))
    )


# All rows at once, by the points alone, and by the rows near x.
MODELS = {"exact": (60, {"n_neighbors": 60}), "points": (160, {"n_neighbors": 0}),
          "near": (160, {"n_neighbors": 16})}  # fmt: skip


@pytest.fixture(scope="module")
def models():
    return {
        name: OrthogonalGPRegressor(**SMALL, **settings, kernel=kernel()).fit(FRAME[:n], Y[:n])
        for name, (n, settings) in MODELS.items()
    }


def by_definition(gp, row, background):
    """Shapley values of one row by all orders of its columns and all rows of the background."""
    orders, mixed = list(permutations(range(4))) * len(background), []
    for i, order in enumerate(orders):
        now = background.iloc[i // 24].tolist()
        mixed.append(list(now))
        for j in order:
            now[j] = row.iloc[j]
            mixed.append(list(now))
    predictions = gp.predict(pd.DataFrame(mixed, columns=list(FRAME.columns)))
    found = np.zeros((4, 2))
    for order, part in zip(orders, predictions.reshape(len(orders), 5, 2), strict=True):
        found[list(order)] += np.diff(part, axis=0) / len(orders)
    return found


@pytest.mark.parametrize("name", ["exact", "points"])
def test_they_are_the_shapley_values_by_definition(models, name):
    gp, background = models[name], FRAME[20:22]
    found = gp.explain(FRAME[:1], background=background)
    expected = by_definition(gp, FRAME.iloc[0], background)
    np.testing.assert_allclose(found.values[0], expected, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_they_add_up_to_the_prediction(models, name):
    gp = models[name]
    found = gp.explain(FRAME[:9])
    assert found.columns == tuple(FRAME.columns)
    assert found.values.shape == (9, 4, 2)
    np.testing.assert_allclose(found.base + found.values.sum(1), gp.predict(FRAME[:9]), rtol=1e-9)
    assert not found.values[:, 3].any()
    # Another draw of one and the same background changes nothing.
    given = [gp.explain(FRAME[:9], FRAME[:5], random_state=seed).values for seed in (0, 1)]
    np.testing.assert_allclose(*given, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_the_means_of_the_columns_are_the_mean_of_the_process(models, name):
    gp = models[name]
    fitted, inputs = gp._prediction_inputs(FRAME[:9])
    sources = gp.columns_.plan.sources
    columns = additive_columns(fitted, sources)
    assert columns == ("a", "b", "kind")
    means = component_means(fitted, inputs, columns, sources)
    rest = gp.predict(Encoded(inputs)) - means.sum(axis=1)
    np.testing.assert_allclose(rest, rest[:1].repeat(9, axis=0), atol=2e-4)


def test_one_target_has_no_axis():
    X, y = FRAME[["a", "b"]][:40], Y[:40, 0]
    own = ScaleKernel(RBFKernel(active_dims=[0])) + RBFKernel(active_dims=[1])
    gp = OrthogonalGPRegressor(**SMALL, kernel=own).fit(X, y)
    found = gp.explain(X[:3], n_samples=4)
    assert (found.values.shape, found.base.shape) == ((3, 2), ())
    np.testing.assert_allclose(found.base + found.values.sum(1), gp.predict(X[:3]), rtol=1e-9)


def test_other_kernels_and_targets_are_no_such_sums():
    X, y = FRAME[["a", "b"]][:40], np.exp(Y[:40, 0])

    def columns(**settings):
        gp = OrthogonalGPRegressor(**SMALL, **settings).fit(X, y)
        return additive_columns(gp._fitted, gp.columns_.plan.sources)

    own = ScaleKernel(RBFKernel(active_dims=[0])) + RBFKernel(active_dims=[1])
    assert columns(kernel=own) == ("a", "b")
    assert columns(kernel=ScaleKernel(own)) == ("a", "b")
    assert columns(kernel=own + RBFKernel(ard_num_dims=2)) == ()
    assert columns(kernel=own, target_transform="log") == ()
    assert columns() == ()
