"""Where β and γ start: distinct by value, the same for the same seed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from orthogp.errors import DataError
from orthogp.posterior import points
from orthogp.posterior.points import choose_beta, choose_gamma


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distinct(x: torch.Tensor) -> bool:
    return torch.unique(x, dim=0).shape[0] == x.shape[0]


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 60),
    values=st.integers(1, 5),
    beta=st.integers(1, 30),
    gamma=st.integers(0, 60),
    seed=st.integers(0, 1000),
)
def test_points_are_distinct_by_value(rows, values, beta, gamma, seed):
    """On data with many duplicates, as many points as there are distinct rows, never a twin."""
    x = torch.randint(0, values, (rows, 2), generator=generator(seed)).float()
    available = torch.unique(x, dim=0).shape[0]
    b = choose_beta(x, beta, generator(seed))
    assert b.shape[0] == min(beta, available)
    g = choose_gamma(x, gamma, b, generator(seed))
    assert distinct(b)
    assert distinct(torch.cat([b, g]))
    rest = torch.unique(torch.cat([b, x]), dim=0).shape[0] - b.shape[0]
    assert g.shape[0] == min(gamma, rest)
    assert all((x == row).all(1).any() for row in g)


def test_the_same_seed_gives_the_same_points():
    x = torch.randn(500, 3, generator=generator(1))
    first, second = (choose_beta(x, 20, generator(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, choose_beta(x, 20, generator(6)))
    first, second = (choose_gamma(x, 50, first, generator(5)) for _ in range(2))
    assert torch.equal(first, second)


def test_beta_covers_the_data_better_than_a_random_sample():
    x = torch.cat([torch.randn(2000, 2, generator=generator(1)), torch.full((5, 2), 30.0)])

    def spread(p: torch.Tensor) -> float:
        return torch.cdist(x, p).min(1).values.square().mean().item()

    beta = choose_beta(x, 40, generator(2))
    assert spread(beta) < 0.8 * spread(choose_gamma(x, 40, beta, generator(3)))


def test_large_data_are_subsampled(monkeypatch):
    seen = []
    original = KMeans.fit
    monkeypatch.setattr(KMeans, "fit", lambda self, X: seen.append(len(X)) or original(self, X))
    x = torch.randn(50_000, 2, generator=generator(1))
    assert choose_beta(x, 10, generator(2)).shape == (10, 2)
    assert seen == [points.KMEANS_ROWS]


def test_dtype_follows_the_data():
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(100, 2, generator=generator(1)).to(dtype)
        beta = choose_beta(x, 5, generator(2))
        assert beta.dtype == choose_gamma(x, 5, beta, generator(2)).dtype == dtype


def test_no_rows_are_refused():
    with pytest.raises(DataError, match="no rows"):
        choose_beta(torch.zeros(0, 2), 3, generator())
