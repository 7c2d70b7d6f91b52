"""Predictive cdfs, quantiles and draws against SciPy's conditionals on a dense grid of f."""

import gpytorch.likelihoods as gl
import numpy as np
import pytest
import torch
from scipy import special, stats

import reference_likelihoods as reference
from orthogp.errors import ConfigurationError
from orthogp.likelihoods import (
    Beta,
    Conditional,
    Gaussian,
    Laplace,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from problems import with_parameters


class GammaLikelihood(gl._OneDimensionalLikelihood):
    """Positive targets: a conditional with a cdf whose support has one end."""

    def forward(self, function_samples, *args, **kwargs):
        rate = torch.nn.functional.softplus(function_samples) + 0.1
        return torch.distributions.Gamma(torch.full_like(rate, 3.0), rate)


class VonMisesLikelihood(gl._OneDimensionalLikelihood):
    """Angles: torch has no cdf for them."""

    def forward(self, function_samples, *args, **kwargs):
        return torch.distributions.VonMises(function_samples, torch.ones_like(function_samples))


def softplus(f):
    return np.logaddexp(0, f)


# The likelihood and its conditional cdf, with targets to ask about.
CASES = {
    "gaussian": (
        lambda: with_parameters(Gaussian(), noise=0.3),
        lambda y, f: stats.norm.cdf(y, f, np.sqrt(0.3)),
        (-2.0, 0.4, 5.0),
    ),
    "laplace": (
        lambda: with_parameters(Laplace(), noise=0.3),
        lambda y, f: stats.laplace.cdf(y, f, np.sqrt(0.3)),
        (-2.0, 0.4, 5.0),
    ),
    "student_t": (
        lambda: with_parameters(StudentT(), noise=0.3, deg_free=3.5),
        lambda y, f: stats.t.cdf(y, 3.5, f, np.sqrt(0.3)),
        (-20.0, 0.4, 5.0),
    ),
    "poisson": (
        lambda: Poisson().double(),
        lambda y, f: stats.poisson.cdf(y, softplus(f)),
        (0.0, 1.0, 7.0),
    ),
    "negative_binomial": (
        lambda: with_parameters(NegativeBinomial(), probs=0.3),
        lambda y, f: stats.nbinom.cdf(y, softplus(f) * 0.7 / 0.3, 0.7),
        (0.0, 1.0, 7.0),
    ),
    "beta": (
        lambda: with_parameters(Beta(), scale=4.0),
        lambda y, f: stats.beta.cdf(y, 1 + 4 * special.expit(f), 1 + 4 * special.expit(-f)),
        (0.02, 0.5, 0.9),
    ),
    "gamma": (
        lambda: Conditional(1, GammaLikelihood()),
        lambda y, f: stats.gamma.cdf(y, 3.0, scale=1 / (softplus(f) + 0.1)),
        (0.1, 1.0, 20.0),
    ),
}
MARGINALS = ((0.0, 0.5), (1.5, 2.0), (-1.0, 1e-3))


def true_cdf(conditional, y, mean, variance):
    f, weights = reference.weighted_grid(mean, variance, 20_001)
    return float(weights @ conditional(y, f))


def marginals(*pairs):
    mean, variance = torch.tensor(pairs, dtype=torch.float64).T
    return mean.unsqueeze(0), variance.unsqueeze(0)


@pytest.fixture(params=CASES)
def case(request):
    build, conditional, targets = CASES[request.param]
    return build(), conditional, targets


@torch.no_grad()
def test_cdf(case):
    likelihood, conditional, targets = case
    for y in targets:
        found = likelihood.cdf(torch.full((3,), y, dtype=torch.float64), *marginals(*MARGINALS))
        expected = [true_cdf(conditional, y, *pair) for pair in MARGINALS]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_quantiles_are_where_the_cdf_arrives(case):
    likelihood, conditional, _ = case
    levels = torch.tensor([0.01, 0.3, 0.95], dtype=torch.float64)
    found = likelihood.quantiles(levels, *marginals(*MARGINALS))
    assert found.shape == (3, 1, 3)
    for level, row in zip(levels.tolist(), found[:, 0].tolist(), strict=True):
        for y, pair in zip(row, MARGINALS, strict=True):
            reached = true_cdf(conditional, y, *pair)
            if likelihood.support().discrete:
                assert y == round(y)
                assert true_cdf(conditional, y - 1, *pair) < level <= reached + 1e-9
            else:
                assert reached == pytest.approx(level, abs=1e-7)


@torch.no_grad()
def test_draws_follow_the_conditional(case):
    likelihood, conditional, targets = case
    f = torch.tensor([[-0.5, 1.0]], dtype=torch.float64).expand(20_000, 1, 2)
    y = likelihood.sample(f, torch.Generator().manual_seed(0))
    assert y.shape == f.shape
    assert y.dtype == f.dtype
    for k, level in enumerate((-0.5, 1.0)):
        for target in targets:
            share = float((y[:, 0, k] <= target).double().mean())
            # Five standard errors of a share of 20 000.
            assert share == pytest.approx(float(conditional(target, level)), abs=0.018)


def test_draws_leave_the_global_generator_alone():
    state, f = torch.random.get_rng_state(), torch.zeros(2, 1, 3)
    first = Poisson().sample(f, torch.Generator().manual_seed(1))
    again = Poisson().sample(f, torch.Generator().manual_seed(1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, again)


@torch.no_grad()
@pytest.mark.parametrize("build", [Gaussian, StudentT, NegativeBinomial])
def test_outputs_have_levels_and_parameters_of_their_own(build):
    both = build(2).double()
    name = "probs" if build is NegativeBinomial else "noise"
    values = torch.tensor([[0.2], [0.7]], dtype=torch.float64)
    setattr(both.likelihood, name, values)
    mean = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=torch.float64)
    variance = torch.tensor([[0.1, 0.2], [0.3, 0.4]], dtype=torch.float64)
    levels = torch.tensor([[0.1, 0.6], [0.8, 0.9]], dtype=torch.float64)
    found = both.quantiles(levels, mean, variance)
    below = both.cdf(found[0].mT, mean, variance)
    for c in range(2):
        alone = build(1).double()
        setattr(alone.likelihood, name, values[c])
        expected = alone.quantiles(levels[:, c], mean[c : c + 1], variance[c : c + 1])
        torch.testing.assert_close(found[:, c], expected[:, 0])
        cdf = alone.cdf(found[0, c], mean[c : c + 1], variance[c : c + 1])
        torch.testing.assert_close(below[:, c], cdf)


@torch.no_grad()
def test_far_levels_stay_finite():
    levels = torch.tensor([1e-14, 1 - 1e-14], dtype=torch.float64)
    for build, _, _ in CASES.values():
        assert build().quantiles(levels, *marginals((0.3, 1.0))).isfinite().all()


def test_a_conditional_without_cdf_says_so():
    likelihood = Conditional(1, VonMisesLikelihood())
    with pytest.raises(ConfigurationError, match="VonMises without a cdf"):
        likelihood.cdf(torch.zeros(1), torch.zeros(1, 1), torch.ones(1, 1))


@torch.no_grad()
def test_the_starting_prior_gives_targets_like_y():
    rng = np.random.default_rng(0)
    for likelihood, y in (
        (Poisson(), rng.poisson(40.0, 500)),
        (Poisson(), rng.poisson(0.2, 500)),
        (NegativeBinomial(), rng.poisson(7.0, 500)),
        (Beta(), rng.beta(3.0, 1.5, 500)),
    ):
        y = torch.tensor(y, dtype=torch.float64)
        level, _ = likelihood.starting_prior(y)
        mean = torch.full((1, 1), level, dtype=torch.float64)
        centre = float(likelihood.predictive(mean, torch.zeros_like(mean)).mean)
        # A Beta conditional is drawn towards one half, whatever its latent.
        tolerance = 0.3 if isinstance(likelihood, Beta) else 0.01
        assert centre == pytest.approx(float(y.mean()), rel=tolerance)
