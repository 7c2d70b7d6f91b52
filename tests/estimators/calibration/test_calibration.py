"""Variance scales recover what the residuals say, and quantile maps what their ranks say."""

import numpy as np
import pytest
import torch
from gpytorch.likelihoods import SoftmaxLikelihood
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize
from torch.special import ndtr, ndtri

from orthogp.estimators.calibration import (
    SMALLEST_SAMPLE,
    Calibration,
    LatentScales,
    QuantileMap,
    Tails,
    VarianceScales,
    calibrate,
    fit_latent_scales,
    fit_quantile_map,
    fit_tails,
    fit_variance_scales,
    is_tail,
    student_log_density,
)
from orthogp.estimators.calibration.losses import Residuals
from orthogp.likelihoods import Bernoulli, Gaussian, Laplace, Poisson, RobustMax, Softmax


def residuals(latent, noise, scales, seed=0):
    rng = torch.Generator().manual_seed(seed)
    variance = scales[0] * latent + scales[1] * noise
    return variance.sqrt() * torch.randn(len(latent), generator=rng).double()


def test_scales_are_recovered():
    latent = torch.linspace(0.0, 2.0, 20_000).double()
    noise = torch.full_like(latent, 0.3)
    found = fit_variance_scales(residuals(latent, noise, (0.2, 1.5)), latent, noise)
    assert abs(found.latent - 0.2) < 0.02
    assert abs(found.noise - 1.5) < 0.1


def test_the_density_never_falls_and_coverage_comes_right():
    latent = torch.rand(5000, generator=torch.Generator().manual_seed(1)).double()
    noise = torch.full_like(latent, 0.1)
    error = residuals(latent, noise, (0.1, 0.5))
    found = fit_variance_scales(error, latent, noise)
    variance = found.latent * latent + found.noise * noise

    def density(v):
        return -0.5 * (v.log() + error.square() / v).mean()

    assert density(variance) > density(latent + noise)
    inside = (error.abs() <= 1.6449 * variance.sqrt()).double().mean()
    assert 0.88 < inside < 0.92


def test_a_scale_without_evidence_stays_at_one():
    noise = torch.full((1000,), 0.4).double()
    error = residuals(torch.zeros(1000).double(), noise, (1.0, 1.0))
    found = fit_variance_scales(error, torch.zeros(1000).double(), noise)
    assert abs(found.latent - 1.0) < 1e-6


def test_small_samples_change_nothing():
    few = torch.ones(SMALLEST_SAMPLE - 1).double()
    assert fit_variance_scales(5 * few, few, few) == VarianceScales(1.0, 1.0)


def test_the_density_of_student_is_scipys():
    residual = torch.linspace(-30, 30, 61).double()
    for tail in (1.0, 0.4, 0.05, 1e-3):
        found = student_log_density(residual, *torch.tensor([0.7, tail], dtype=torch.float64))
        expected = stats.t.logpdf(residual, 1 / tail, scale=0.7**0.5)
        torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tail", [None, 1.0, 0.3, 2e-3])
def test_losses_and_their_gradients_are_those_of_the_densities(tail):
    rng = np.random.default_rng(0)
    r, s, noise = rng.normal(size=50), rng.uniform(0.1, 2.0, 50), rng.uniform(0.1, 0.5, 50)
    rows = Residuals.of(*map(torch.from_numpy, (r, s, noise)))

    def loss(at):
        return rows.gaussian_loss(at) if tail is None else rows.student_loss(at[:2], at[2])

    at = np.array([0.7, 1.3] if tail is None else [0.7, 1.3, tail])
    value, gradient = loss(at)
    deviation = np.sqrt(0.7 * s + 1.3 * noise)
    density = stats.norm(0, deviation) if tail is None else stats.t(1 / tail, 0, deviation)
    assert value == pytest.approx(-density.logpdf(r).mean(), rel=1e-9)
    for i, found in enumerate(gradient):
        step = np.zeros_like(at)
        step[i] = 1e-4 * at[i]
        difference = (loss(at + step)[0] - loss(at - step)[0]) / (2 * step[i])
        assert found == pytest.approx(difference, rel=1e-4, abs=1e-7)


def test_scales_and_tails_are_at_the_optimum():
    """Of the density less the pull to the start, by a search without gradients."""
    r, s, noise = (t[::20] for t in heavy_residuals(3.0))
    r, s, noise = r + 0.1, s.square(), noise * torch.linspace(0.5, 2.0, len(s)).double()

    def searched(log_density, start):
        def loss(logs):
            scales = np.exp(logs)
            deviation = np.sqrt(scales[0] * s.numpy() + scales[1] * noise.numpy())
            pull = 1e-4 * np.square(logs - np.log(start)).sum()
            return pull - log_density(deviation, scales).mean()

        options = {"xatol": 1e-8, "fatol": 1e-14, "maxiter": 5000}
        return np.exp(minimize(loss, np.log(start), method="Nelder-Mead", options=options).x)

    gaussian = fit_variance_scales(r, s, noise)
    expected = searched(lambda d, _: stats.norm.logpdf(r, 0, d), [1.0, 1.0])
    np.testing.assert_allclose(gaussian, expected, rtol=1e-5)
    expected = searched(lambda d, k: stats.t.logpdf(r, 1 / k[2], 0, d), [*gaussian, 0.2])
    np.testing.assert_allclose(fit_tails(r, s, noise, gaussian), expected, rtol=1e-5)


def test_the_lightest_and_the_heaviest_tail_are_tails():
    rng = np.random.default_rng(0)
    for r in (rng.standard_cauchy(2000) ** 3, stats.t.rvs(300, size=2000, random_state=1)):
        parts = torch.from_numpy(r), torch.zeros(2000).double(), torch.ones(2000).double()
        tail = fit_tails(*parts, fit_variance_scales(*parts)).tail
        assert is_tail(torch.tensor(tail, dtype=torch.float64))


def heavy_residuals(freedom, count=20_000):
    latent = torch.linspace(0.0, 2.0, count).double()
    noise = torch.full_like(latent, 0.3)
    drawn = stats.t.rvs(freedom, size=count, random_state=0)
    return (0.2 * latent + 1.5 * noise).sqrt() * torch.from_numpy(drawn), latent, noise


def test_tails_are_recovered():
    parts = heavy_residuals(3.0)
    found = fit_tails(*parts, fit_variance_scales(*parts))
    assert abs(1 / found.tail - 3.0) < 0.2
    assert abs(found.latent - 0.2) < 0.03
    assert abs(found.noise - 1.5) < 0.15


def test_light_tails_stay_gaussian():
    latent = torch.linspace(0.0, 2.0, 5000).double()
    noise = torch.full_like(latent, 0.3)
    scales = VarianceScales(0.2, 1.5)
    bounded = torch.rand(5000, generator=torch.Generator().manual_seed(0)).double() - 0.5
    error = (0.2 * latent + 1.5 * noise).sqrt() * bounded * 12**0.5
    assert fit_tails(error, latent, noise, scales) == Tails(*scales, tail=0.0)
    few = heavy_residuals(2.0, SMALLEST_SAMPLE - 1)
    assert fit_tails(*few, scales) == Tails(*scales, tail=0.0)


@torch.no_grad()
def test_densities_have_the_tails_and_sum_over_outputs():
    scales = torch.tensor([[0.5, 2.0], [3.0, 0.3]]).double()
    tails = torch.tensor([[0.4, 1.1, 0.25], [3.0, 0.3, 0.0]]).double()
    likelihood = Gaussian(2).double()
    likelihood.likelihood.noise = torch.tensor([[0.1], [0.4]]).double()
    rng = np.random.default_rng(0)
    y, mean, variance = rng.normal(size=(3, 2, 7))
    variance = variance**2
    calibration = Calibration(scales, tails, QuantileMap.identity(2))
    found = calibration.log_density(
        likelihood, *map(torch.from_numpy, (y.T.copy(), mean, variance))
    )
    first = stats.t.logpdf(y[0], 4, mean[0], np.sqrt(0.4 * variance[0] + 1.1 * 0.1))
    second = stats.norm.logpdf(y[1], mean[1], np.sqrt(3.0 * variance[1] + 0.3 * 0.4))
    torch.testing.assert_close(found, torch.from_numpy(first + second))


def student_scores(count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    uniform = torch.rand(1, count, generator=rng, dtype=torch.float64)
    return torch.from_numpy(stats.t.ppf(uniform, df=3))


def test_the_map_is_the_scores_own_quantile_function():
    scores = student_scores(20_000)
    levels = torch.tensor([0.005, 0.05, 0.5, 0.9, 0.995], dtype=torch.float64)
    found = fit_quantile_map(scores)(levels)[:, 0]
    torch.testing.assert_close(found, scores[0].quantile(levels), atol=2e-3, rtol=2e-3)


def test_a_future_row_lies_in_the_interval_as_often_as_it_says():
    # Exact for exchangeable rows: of 199 order statistics the 10th and 190th stand for 5 and 95 %.
    inside = []
    for seed in range(400):
        scores = student_scores(239, seed)
        tails = torch.tensor([0.05, 0.95], dtype=torch.float64)
        low, high = fit_quantile_map(scores[:, :199])(tails)[:, 0]
        inside.append(((scores[0, 199:] > low) & (scores[0, 199:] < high)).double().mean())
    assert abs(float(torch.stack(inside).mean()) - 0.9) < 0.005


@given(st.integers(SMALLEST_SAMPLE, 600), st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_the_map_is_monotone_and_leaves_its_range_with_slope_one(count, seed):
    scores = student_scores(count, seed)
    # Ties, as repeated rows make them.
    scores[:, : count // 3] = scores[:, :1]
    found = fit_quantile_map(scores)
    z = torch.linspace(-6, 6, 301, dtype=torch.float64)
    moved = found(ndtr(z))[:, 0]
    assert (moved.diff() >= 0).all()
    beyond = (z[:-1] > found.scores[-1]) | (z[1:] < found.scores[0])
    torch.testing.assert_close(moved.diff()[beyond], z.diff()[beyond], atol=1e-6, rtol=1e-6)


def test_few_scores_map_to_themselves():
    levels = torch.linspace(0.01, 0.99, 9).double()
    few = fit_quantile_map(student_scores(SMALLEST_SAMPLE - 1))
    torch.testing.assert_close(few(levels)[:, 0], ndtri(levels))


def test_outputs_are_calibrated_one_by_one():
    rng = torch.Generator().manual_seed(3)
    mean = torch.randn(2, 4000, generator=rng).double()
    variance = torch.rand(2, 4000, generator=rng).double() + 0.05
    likelihood = Gaussian(2).double()
    likelihood.likelihood.noise = torch.tensor([[0.1], [0.4]]).double()
    noise = likelihood.likelihood.noise.detach()
    spread = torch.stack([0.5 * variance[0] + 2.0 * noise[0], 3.0 * variance[1] + 0.3 * noise[1]])
    y = (mean + spread.sqrt() * torch.randn(2, 4000, generator=rng).double()).mT
    found = calibrate(likelihood, y, mean, variance)
    expected = torch.tensor([[0.5, 2.0], [3.0, 0.3]]).double()
    torch.testing.assert_close(found.scales.log(), expected.log(), atol=0.35, rtol=0.0)
    total = likelihood.predictive(mean, found.variance(likelihood, variance)).variance.detach()
    torch.testing.assert_close(total, spread, rtol=0.15, atol=0.0)
    # The draws have that variance too: noise alone, at one latent.
    f = torch.zeros(20_000, 2, 1).double()
    drawn = found.sample(likelihood, f, rng).var(dim=0)
    torch.testing.assert_close(drawn, found.scales[:, 1:] * noise, rtol=0.05, atol=0.0)


@torch.no_grad()
def test_heavy_tails_are_mended_for_any_likelihood():
    """A Laplace likelihood with twice the right scale, told the truth by held-out rows."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.laplace(size=8000))
    likelihood = Laplace().double()
    likelihood.likelihood.noise = torch.tensor(4.0).double()
    mean, variance = torch.zeros(1, 4000).double(), torch.full((1, 4000), 1e-6).double()
    found = calibrate(likelihood, y[:4000], mean, variance)
    tails = torch.tensor([0.05, 0.95]).double()
    low, high = found.quantiles(likelihood, tails, mean, variance)[:, 0]
    inside = ((y[4000:] > low) & (y[4000:] < high)).double().mean()
    assert 0.88 < inside < 0.92
    assert torch.equal(found.scales, torch.ones(1, 2).double())


def test_counts_are_left_alone():
    y, zero = torch.ones(500), torch.zeros(1, 500).double()
    found = calibrate(Poisson(), y, zero, zero + 1)
    levels = torch.tensor([0.1, 0.9]).double()
    torch.testing.assert_close(found.quantile_map(levels)[:, 0], ndtri(levels))


def labels_of(likelihood, mean, variance, seed=0):
    p = likelihood.probabilities(mean, variance)
    return torch.multinomial(p, 1, generator=torch.Generator().manual_seed(seed))[:, 0]


@pytest.mark.parametrize("likelihood", [Bernoulli(1), Softmax(3)], ids=["bernoulli", "softmax"])
def test_latents_are_made_as_sure_as_labels_say(likelihood):
    rng = torch.Generator().manual_seed(0)
    shape = likelihood.num_latents, 20_000
    mean = 2 * torch.randn(shape, generator=rng).double()
    variance = 3 * torch.rand(shape, generator=rng).double()
    y = labels_of(likelihood, 1.5 * mean, 0.2 * variance)
    found = fit_latent_scales(likelihood, y, mean, variance)
    assert abs(found.mean - 1.5) < 0.2
    assert abs(found.variance - 0.2) < 0.2
    # It is the sample's optimum, but for a pull towards one: not even the truth is better there.
    truth = likelihood.log_density(y, 1.5 * mean, 0.2 * variance).mean()
    assert likelihood.log_density(y, *found(mean, variance)).mean() > truth - 3e-4
    # What the sample gains, the rows to come gain too.
    test = labels_of(likelihood, 1.5 * mean, 0.2 * variance, seed=1)
    before = likelihood.log_density(test, mean, variance).mean()
    assert likelihood.log_density(test, *found(mean, variance)).mean() > before


def test_latents_that_are_right_stay_as_they_are():
    rng = torch.Generator().manual_seed(0)
    mean = torch.randn(4, 600, generator=rng).double()
    variance = torch.rand(4, 600, generator=rng).double()
    for likelihood in (Softmax(4), RobustMax(4)):
        y = labels_of(likelihood, mean, variance)
        assert fit_latent_scales(likelihood, y, mean, variance)[:2] == (1.0, 1.0)
    few = slice(0, SMALLEST_SAMPLE - 1)
    wrong = labels_of(Softmax(4), -9 * mean, variance)[few]
    assert fit_latent_scales(Softmax(4), wrong, mean[:, few], variance[:, few]) == LatentScales()


def test_a_few_labels_without_a_mistake_do_not_ask_for_certainty():
    rng = torch.Generator().manual_seed(0)
    mean = 2.0 * torch.randn(1, SMALLEST_SAMPLE, generator=rng).double().sign()
    variance = torch.full_like(mean, 0.5)
    right = (mean[0] > 0).long()
    found = fit_latent_scales(Bernoulli(1), right, mean, variance)
    assert 1.0 < found.mean < 3.0
    assert 0.5 < found.variance < 1.0
    # A hundred times as many ask for more.
    many = fit_latent_scales(
        Bernoulli(1), right.repeat(100), mean.repeat(1, 100), variance.repeat(1, 100)
    )
    assert many.mean > 1.2 * found.mean


def test_no_gradient_is_left_with_the_likelihood():
    mixing = Softmax(2, SoftmaxLikelihood(num_features=2, num_classes=3))
    mean = torch.randn(2, 200, generator=torch.Generator().manual_seed(0)).double()
    fit_latent_scales(mixing, torch.arange(200) % 3, 4 * mean, mean.square())
    assert all(p.grad is None for p in mixing.parameters())
