"""scikit-learn's own checks of an estimator, on small models."""

import pytest
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    parametrize_with_checks,
)

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor

SMALL = {"n_inducing": 20, "n_residual": 20, "max_steps": 15}


def expected_failures(estimator):
    return {
        "check_sample_weight_equivalence_on_dense_data": (
            "the bound is the same, but inducing points are k-means centres of the rows, where a "
            "repeated row pulls more often than a weighted one, and training rounds to float32"
        )
    }


@parametrize_with_checks(
    [OrthogonalGPRegressor(**SMALL), OrthogonalGPClassifier(**SMALL)],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", [OrthogonalGPRegressor, OrthogonalGPClassifier])
def test_weights_are_repeats_where_points_do_not_depend_on_them(kind):
    """The check that is expected to fail above, with every row a point, and in float64.

    A large jitter and few short steps keep rounding, which both amplify, below the check's 1e-7.
    """
    options = {"max_steps": 5, "learning_rate": 0.01, "dtype": "float64", "jitter": 1e-3}
    options |= {"n_neighbors": 0}
    check_sample_weight_equivalence_on_dense_data(kind.__name__, kind(n_inducing=100, **options))
