"""How well near rows predict labels given a map, and what they are told."""

import math

import pytest
import torch

from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Bernoulli
from orthogp.training import Rows, map_search
from orthogp.training.map_search import Candidate, MapSearch
from problems import default_sum, thresholds

D = 3


def a_candidate(rows: Rows) -> Candidate:
    c = Candidate(default_sum(D, ard=True), torch.zeros(1).double(), rows.x.double())
    c.begin_map(rows.x.double())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for values in c.map.parameters():
            values.add_(torch.randn(values.shape, generator=generator))
    return c


def a_search(train: Rows, held_out: Rows) -> MapSearch:
    return MapSearch(Bernoulli(), train, held_out, torch.Generator().manual_seed(0))


def test_outputs_begin_with_the_lengthscales_of_their_inputs():
    rows = thresholds(200)
    x, c = rows.x.double(), a_candidate(rows)
    expected = Covariance(default_sum(D, ard=True)).relevance(x)[[0, 1, 2, 2]]
    torch.testing.assert_close(c.covariance.relevance(c.mapped(x)), expected)


def test_held_out_rows_are_told_nothing_of_their_labels():
    """The labels of held-out rows move no prediction, neither of others nor of themselves."""
    train, held_out = thresholds(300), thresholds(50, seed=1)
    other = Rows(held_out.x, 1 - held_out.y)
    means = []
    for judged in (held_out, other):
        search = a_search(train, judged)
        c = a_candidate(train)
        x = search.held_out.x.double()
        near = search._neighbors(c).nearest(search._seen(c, x), 2 * map_search.NEAR)
        means.append(search._mean(c, x, search.merged.distinct, near))
    assert torch.equal(*means)


def test_rows_are_predicted_without_themselves():
    search = a_search(thresholds(300), thresholds(50, seed=1))
    c, rows = a_candidate(search.train), torch.arange(40)
    near = search._others_near(c, rows).near
    assert near.shape == (40, 2 * map_search.NEAR)
    assert not (near == rows.unsqueeze(1)).any()
    z = c.mapped(search.x).detach()
    z = z * c.covariance.relevance(z).sqrt()
    distance = torch.cdist(z[rows], z).detach()
    distance[rows, rows] = math.inf
    nearest = distance.topk(2 * map_search.NEAR, largest=False).values
    torch.testing.assert_close(distance.gather(1, near).sort(1).values, nearest)


def test_a_mean_is_that_of_gaussian_regression_on_the_gradients():
    search = a_search(thresholds(300), thresholds(50, seed=1))
    c = a_candidate(search.train)
    x = search.held_out.x.double()[:5]
    near = search._neighbors(c).nearest(search._seen(c, x), 2 * map_search.NEAR)
    kernel = c.covariance
    noise, weight = c.logs.exp().tolist()
    for i, found in enumerate(search._mean(c, x, search.merged.distinct, near)[0].tolist()):
        z, z_near = c.mapped(x[i : i + 1]), c.mapped(search.x[near[i]])
        K = kernel.block(z_near, z_near) + noise * torch.eye(len(z_near)).double()
        k, g = kernel.block(z, z_near)[0], search.gradient[0, near[i]]
        expected = weight * (k @ torch.linalg.solve(K, g)).item()
        assert found == pytest.approx(expected, rel=1e-6)
