"""Where lengthscales start: at what the values of a column typically differ by."""

import numpy as np
import pytest
import torch

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor
from orthogp.estimators.start import MOST_CODES, SPREAD_ROWS, typical_spread

COLUMNS = ("normal", "uniform", "mostly zero", "codes", "rare code", "constant", "one far away")


def table(rows: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    money = np.where(rng.random(rows) < 0.05, rng.lognormal(8, 1, rows), 0.0)
    rare = (rng.random(rows) < 0.02).astype(float)
    far = np.where(np.arange(rows) == rows // 2, 1e8, rng.normal(size=rows))
    codes = rng.integers(MOST_CODES, size=rows) ** 3
    return np.stack(
        [rng.normal(size=rows), rng.random(rows), money, codes, rare, np.ones(rows), far], 1
    )


def test_only_what_is_bunched_counts_as_narrow():
    spread = dict(zip(COLUMNS, typical_spread(torch.from_numpy(table(5000))).tolist(), strict=True))
    assert spread["normal"] == pytest.approx(1.0, abs=0.03)
    # A uniform column is wider than a normal one of its deviation.
    assert all(spread[name] == 1.0 for name in ("uniform", "codes", "rare code", "constant"))
    assert 0.1 < spread["mostly zero"] < 0.4
    assert spread["one far away"] == pytest.approx(0.018, rel=0.1)


def test_the_unit_of_a_column_does_not_matter():
    x = torch.from_numpy(table(5000))
    torch.testing.assert_close(typical_spread(1e3 * x - 5.0), typical_spread(x))


def test_a_long_table_is_looked_at_here_and_there():
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(10 * SPREAD_ROWS, 1)))
    # Sorted rows must not be taken for their first ones.
    spread = typical_spread(x.sort(0).values)
    torch.testing.assert_close(spread, torch.ones(1).double(), rtol=0.01, atol=0)


@pytest.mark.parametrize(
    ("rows", "given", "shortened"),
    [
        (4000, {}, True),
        (4000, {"ard": False}, False),
        (4000, {"train_hyperparameters": False}, False),
        # A tenth of the rows is held out: 2 970 are left.
        (3300, {}, False),
    ],
)
@pytest.mark.parametrize("kind", [OrthogonalGPClassifier, OrthogonalGPRegressor])
def test_lengthscales_of_a_large_table_start_where_values_are(kind, rows, given, shortened):
    x = table(rows)[:, [0, 2]]
    y = np.sin(x[:, 0])
    y = y > 0 if kind is OrthogonalGPClassifier else y
    # So small a rate that they end where they start.
    settings = {"learning_rate": 1e-9, "noise_variance": 0.1, "n_inducing": 10, "n_residual": 10}
    settings["n_neighbors"] = 0
    if kind is OrthogonalGPClassifier:
        del settings["noise_variance"]
    gp = kind(**settings, max_steps=1, random_state=0, **given).fit(x, y)
    rough, smooth = gp.model_.covariance.kernel.kernels
    usual = 0.1 * 2**0.5
    found = rough.base_kernel.lengthscale.detach().flatten().tolist()
    assert found[0] == pytest.approx(usual, rel=0.05)
    assert (found[-1] < 0.4 * usual) == shortened
    far = smooth.base_kernel.lengthscale.detach().flatten().tolist()
    assert far == pytest.approx([2**0.5] * len(far))
