"""Variance scales recover what the residuals say."""

import torch

from orthogp.calibration import SMALLEST_SAMPLE, VarianceScales, fit_variance_scales


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
