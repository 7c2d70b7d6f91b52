"""Rows at one input as one observation: beside the rows one by one."""

import numpy as np
import pytest
import torch

from orthogp.kernel.covariance import Covariance
from orthogp.linalg import factorise_robustly
from orthogp.posterior.induced import Features, induced_posterior
from orthogp.posterior.near_precision import near_predictor
from orthogp.posterior.neighbors import Neighbors, canonical_order
from orthogp.posterior.observations import MergedRows, Observations
from problems import default_sum

N, D, B = 48, 2, 5


def rows_with_copies(outputs: int = 2, shared: bool = False) -> Observations:
    """Rows on a small irregular grid, some of them alone."""
    rng = np.random.default_rng(1)
    x = torch.from_numpy(np.sort(rng.uniform(0, 4, size=(4, D)), axis=0))
    x = torch.stack([x[rng.integers(0, 4, size=N), d] for d in range(D)], dim=1)
    x[:4] += torch.arange(4).unsqueeze(1) / 7
    y = torch.from_numpy(rng.standard_normal((outputs, N))) + x[:, 0]
    noise = torch.from_numpy(rng.uniform(0.1, 0.5, size=(1 if shared else outputs, N)))
    return Observations(x, y, noise)


def covariance() -> Covariance:
    return Covariance(default_sum(D))


def features_of(k: Covariance, merged: MergedRows) -> Features:
    beta = torch.randn(B, D, generator=torch.Generator().manual_seed(5)).double()
    R = factorise_robustly(k.block(beta, beta).detach(), 1e-8).R
    return Features.of(k, beta, R, merged.distinct.x)


def copies_of(rows: Observations, row: int) -> np.ndarray:
    return np.flatnonzero((rows.x == rows.x[row]).all(1).numpy())


def mean_of(rows: Observations, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of these rows, weighted by precision, and its noise, output by output."""
    p = 1.0 / rows.noise[:, which].numpy() * np.ones((len(rows.y), 1))
    return (p * rows.y[:, which].numpy()).sum(1) / p.sum(1), 1.0 / p.sum(1)


def test_a_distinct_input_has_the_weighted_mean_of_its_rows():
    rows = rows_with_copies()
    merged = MergedRows.of(rows)
    assert len(merged.distinct) < N
    assert int(merged.size.sum()) == N
    assert len(merged.distinct.x.unique(dim=0)) == len(merged.distinct)
    for row in range(N):
        place = merged.place[row]
        assert torch.equal(merged.distinct.x[place], rows.x[row])
        mean, noise = mean_of(rows, copies_of(rows, row))
        np.testing.assert_allclose(merged.distinct.y[:, place], mean, rtol=1e-12)
        np.testing.assert_allclose(merged.distinct.noise[:, place], noise, rtol=1e-12)


def test_rows_without_copies_are_as_they_were():
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(0)).double()
    rows = Observations(x, x.mT.clone(), torch.ones(1, N).double())
    for merged in (MergedRows.of(rows), MergedRows.of_ordered(rows)):
        assert merged.distinct is rows
        assert torch.equal(merged.place, torch.arange(N))


def test_what_is_left_without_a_row_is_the_mean_of_its_copies():
    rows = rows_with_copies()
    removed = MergedRows.of(rows).removed(torch.arange(N))
    left = removed.left()
    assert bool(removed.alone.any())
    assert not bool(removed.alone.all())
    for row in range(N):
        others = copies_of(rows, row)
        others = others[others != row]
        assert bool(removed.alone[row]) == (len(others) == 0)
        if len(others):
            mean, noise = mean_of(rows, others)
            np.testing.assert_allclose(left.y[:, row], mean, rtol=1e-9)
            np.testing.assert_allclose(left.noise[:, row], noise, rtol=1e-9)


@pytest.mark.parametrize("count", [1, 3, 8, N])
def test_others_near_are_the_nearest_inputs_with_what_is_left_there(count):
    rows = rows_with_copies()
    merged = MergedRows.of(rows)
    found = merged.others_near(Neighbors(merged.distinct.x), torch.arange(N), count)
    for row in range(N):
        without = torch.arange(N) != row
        rest = MergedRows.of(rows[without])
        distance = (rest.distinct.x - rows.x[row]).square().sum(1)
        near = found.rows[found.near[row]]
        there = near.noise[0] < 1e20
        squares = (near.x - rows.x[row]).square().sum(1)[there].sort().values
        # Which of several inputs at one distance are the nearest is not said.
        torch.testing.assert_close(squares, distance.sort().values[: len(squares)])
        assert len(squares) == min(count, len(rest.distinct))
        own = (near.x == rows.x[row]).all(1) & there
        if bool(own.any()):
            (place,) = own.nonzero().squeeze(1).tolist()
            mean, noise = mean_of(rows, np.setdiff1d(copies_of(rows, row), [row]))
            np.testing.assert_allclose(near.y[:, place], mean, rtol=1e-9)
            np.testing.assert_allclose(near.noise[:, place], noise, rtol=1e-9)


def test_several_rows_are_left_out_together():
    rows = rows_with_copies()
    merged = MergedRows.of(rows)
    chosen = torch.arange(0, N, 2)
    left, empty = merged.without(chosen)
    present = np.setdiff1d(np.arange(N), chosen.numpy())
    for place in range(len(merged.distinct)):
        here = [i for i in present if merged.place[i] == place]
        assert (place in empty.tolist()) == (not here)
        if here:
            mean, noise = mean_of(rows, np.array(here))
            np.testing.assert_allclose(left.y[:, place], mean, rtol=1e-12)
            np.testing.assert_allclose(left.noise[:, place], noise, rtol=1e-12)


def exact(rows: Observations, output: int, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the exact process, every row an observation of its own."""
    k = covariance()
    noise = rows.noise.expand(len(rows.y), -1)[output]
    with torch.no_grad():
        A = (k.block(rows.x, rows.x) + noise.diag()).numpy()
        K, prior = k.block(rows.x, x).numpy(), k.block(x, x).numpy()
    c = np.linalg.solve(A, K)
    return c.T @ rows.y[output].numpy(), np.diag(prior - K.T @ c)


@pytest.mark.parametrize("inducing", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_with_all_inputs_near_it_is_the_exact_gp_of_all_rows(inducing, shared):
    rows, k = rows_with_copies(shared=shared), covariance()
    merged = MergedRows.of(rows)
    p = near_predictor(k, merged, N, features_of(k, merged) if inducing else None)
    new = torch.randn(6, D, generator=torch.Generator().manual_seed(2)).double()
    mean, variance = p.marginals(new)
    left_out = p.leave_one_out(torch.arange(N))
    for c in range(2):
        for found, expected in zip((mean, variance), exact(rows, c, new), strict=True):
            np.testing.assert_allclose(found[c], expected, rtol=0, atol=1e-7)
        for row in range(0, N, 5):
            expected = exact(rows[torch.arange(N) != row], c, rows.x[row : row + 1])
            for found, number in zip(left_out, expected, strict=True):
                np.testing.assert_allclose(found[c, row], number[0], rtol=0, atol=1e-7)


@pytest.mark.parametrize("count", [2, 5])
def test_leave_one_out_is_the_prediction_of_all_other_rows(count):
    """By q(v) of the same leaves, in which the input of the row has what is left there."""
    rows, k = rows_with_copies(), covariance()
    merged = MergedRows.of(rows)
    features = features_of(k, merged)
    mean, variance = near_predictor(k, merged, count, features).leave_one_out(torch.arange(N))
    for row in np.flatnonzero(merged.size[merged.place].numpy() > 1)[::4]:
        d, left = merged.distinct, merged.removed(torch.tensor([row])).left()
        place = merged.place[row]
        y, noise = d.y.clone(), d.noise.clone()
        y[:, place], noise[:, place] = left.y[:, 0], left.noise[:, 0]
        rest = Observations(d.x, y, noise)
        p = near_predictor(k, MergedRows.of_ordered(rest), count, features)
        expected = p.marginals(rows.x[row : row + 1])
        torch.testing.assert_close(mean[:, row], expected[0][:, 0], rtol=0, atol=1e-8)
        torch.testing.assert_close(variance[:, row], expected[1][:, 0], rtol=0, atol=1e-8)


def test_no_share_of_many_copies_is_chosen_by_their_targets():
    """A prediction at an input with more rows than are near is not drawn to their smallest."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(np.repeat(rng.standard_normal((20, D)), 50, axis=0))
    y = torch.from_numpy(rng.standard_normal((1, 1000)))
    order = canonical_order(x, y)
    rows = Observations(x[order], y[:, order], torch.full((1, 1000), 1.0).double())
    merged, k = MergedRows.of_ordered(rows), covariance()
    at = merged.distinct.x
    mean, _ = near_predictor(k, merged, 8, None).marginals(at)
    other = Observations(rows.x, -rows.y, rows.noise)
    negated, _ = near_predictor(k, MergedRows.of_ordered(other), 8, None).marginals(at)
    torch.testing.assert_close(negated, -mean)
    expected, _ = exact(rows, 0, at)
    np.testing.assert_allclose(mean[0], expected, rtol=0, atol=0.05)


def test_q_of_merged_rows_is_that_of_leaves_of_copies():
    """Where a leaf is an input: the copies of a row share their residual process."""
    rows, k = rows_with_copies(outputs=1), covariance()
    merged = MergedRows.of(rows)
    features = features_of(k, merged)
    with torch.no_grad():
        found = induced_posterior(k, features, merged.distinct, leaf=1)
    W = features.W[merged.place].numpy()
    with torch.no_grad():
        K = k.block(rows.x, rows.x).numpy() - W @ W.T
    precision, b = np.eye(B), np.zeros(B)
    for place in range(len(merged.distinct)):
        leaf = np.flatnonzero(merged.place.numpy() == place)
        P = np.linalg.inv(K[np.ix_(leaf, leaf)] + np.diag(rows.noise[0, leaf].numpy()))
        precision, b = (
            precision + W[leaf].T @ P @ W[leaf],
            b + W[leaf].T @ P @ rows.y[0, leaf].numpy(),
        )
    np.testing.assert_allclose(found.S[0], np.linalg.inv(precision), rtol=1e-8)
    np.testing.assert_allclose(found.b[0], b, rtol=1e-8)
