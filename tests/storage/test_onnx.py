"""An exported graph computes in onnxruntime what the predictor computes here."""

import sys

import gpytorch.kernels as gk
import gpytorch.means as gm
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from orthogp.errors import ConfigurationError, FileError
from orthogp.kernel.covariance import Covariance
from orthogp.posterior import condense
from orthogp.storage.onnx import export_onnx
from problems import KINDS, default_sum, make_basis, problem, randomise

D = 3
X_SHIFT = torch.tensor([5.0, -300.0, 0.01], dtype=torch.float64)
X_SCALE = torch.tensor([2.0, 150.0, 0.003], dtype=torch.float64)


def scaled(base, outputscale=1.7, lengthscale=0.9):
    kernel = gk.ScaleKernel(base)
    kernel.outputscale = outputscale
    base.lengthscale = lengthscale
    return kernel


KERNELS = {
    "rbf": lambda: gk.RBFKernel(),
    "matern12": lambda: scaled(gk.MaternKernel(0.5)),
    "matern32": lambda: scaled(gk.MaternKernel(1.5)),
    "matern52 ard": lambda: scaled(
        gk.MaternKernel(2.5, ard_num_dims=D), lengthscale=torch.tensor([0.5, 1.0, 2.0])
    ),
    "default": lambda: default_sum(D),
    "default ard": lambda: default_sum(D, ard=True),
    "nested": lambda: gk.ScaleKernel(scaled(gk.RBFKernel()) + scaled(gk.MaternKernel(0.5))),
}


def predictor_of(kernel, latents=1, kind="orthogonal-natural"):
    p = problem(d=D, b=6, g=9)
    return condense(randomise(make_basis(kind, p, latents)), Covariance(kernel), 1e-3)


def export(path, predictor, latents=1, noise=None, **options):
    y_shift = torch.linspace(-1.0, 4.0, latents, dtype=torch.float64)
    y_scale = torch.linspace(0.5, 3.0, latents, dtype=torch.float64)
    export_onnx(path, predictor, X_SHIFT, X_SCALE, y_shift, y_scale, noise, **options)
    return y_shift, y_scale


def rows(n, seed=0):
    z = torch.randn(n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return z, (z * X_SCALE + X_SHIFT).numpy()


def run(path, x):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["mean", "variance"], {"x": x})


@pytest.mark.parametrize("n", [1, 1000])
@pytest.mark.parametrize("latents", [1, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_onnxruntime_agrees_with_the_predictor(name, latents, n, tmp_path):
    predictor = predictor_of(KERNELS[name](), latents)
    noise = torch.linspace(0.1, 0.2, latents)
    latent_scale = torch.linspace(1.2, 0.8, latents, dtype=torch.float64)
    shift, scale = export(tmp_path / "m.onnx", predictor, latents, noise, latent_scale=latent_scale)
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    z, x = rows(n)
    mean, variance = (part.mT for part in predictor.marginals(z))
    mean = mean * scale + shift
    variance = (variance * latent_scale + noise) * scale**2
    found_mean, found_variance = run(tmp_path / "m.onnx", x)
    shape = (n,) if latents == 1 else (n, latents)
    assert found_mean.shape == found_variance.shape == shape
    assert found_mean.dtype == found_variance.dtype == np.float64
    # In units of the prior: float64 leaves ten digits more than an exported model needs.
    unit = scale.numpy().max() * predictor.covariance.diagonal(z[:1]).sqrt().item()
    np.testing.assert_allclose(found_mean, mean.reshape(shape), rtol=0, atol=1e-11 * unit)
    np.testing.assert_allclose(
        found_variance, variance.reshape(shape), rtol=0, atol=1e-11 * unit**2
    )


def test_one_column_and_a_linear_mean_lose_no_digits(tmp_path):
    # Where every constant is a single number, a runtime may fold it into a product as a float32.
    p = problem(d=1, b=5, g=4)
    kernel = scaled(gk.MaternKernel(2.5))
    basis = randomise(make_basis("orthogonal-natural", p))
    predictor, mean = condense(basis, Covariance(kernel), 1e-3), gm.LinearMean(1).double()
    one = torch.ones(1, dtype=torch.float64)
    export_onnx(tmp_path / "m", predictor, one / 3, one / 7, one / 9, one / 11, one / 13, 1.1, mean)
    z = torch.linspace(-2, 2, 50, dtype=torch.float64)[:, None]
    expected, s = predictor.marginals(z)
    found, variance = run(tmp_path / "m", (z / 7 + 1 / 3).numpy())
    expected = (expected[0] + mean(z).detach()) / 11 + 1 / 9
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(variance, (1.1 * s[0] + 1 / 13) / 121, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_every_basis_is_exported(kind, tmp_path):
    predictor = predictor_of(default_sum(D), kind=kind)
    shift, scale = export(tmp_path / "m.onnx", predictor)
    z, x = rows(20)
    mean, variance = predictor.marginals(z)
    found_mean, found_variance = run(tmp_path / "m.onnx", x)
    np.testing.assert_allclose(found_mean, mean[0] * scale + shift, rtol=0, atol=1e-9)
    # Without noise the variance is that of the latent function.
    np.testing.assert_allclose(found_variance, variance[0] * scale**2, rtol=0, atol=1e-9)


def test_at_a_point_of_beta_the_variance_stays_positive(tmp_path):
    predictor = predictor_of(gk.RBFKernel())
    export(tmp_path / "m.onnx", predictor)
    beta = predictor.beta.detach() * X_SCALE + X_SHIFT
    _, variance = run(tmp_path / "m.onnx", beta.numpy())
    assert (variance > 0).all()


def constant_mean():
    mean = gm.ConstantMean()
    mean.constant = 2.5
    return mean


def linear_mean(bias):
    mean = gm.LinearMean(D, bias=bias).double()
    mean.weights.data = torch.tensor([[0.5], [-1.0], [2.0]], dtype=torch.float64)
    return mean


@pytest.mark.parametrize(
    "mean", [gm.ZeroMean(), constant_mean(), linear_mean(True), linear_mean(False)]
)
def test_the_prior_mean_is_added_before_the_units_change(mean, tmp_path):
    predictor = predictor_of(default_sum(D), latents=2)
    shift, scale = export(tmp_path / "m.onnx", predictor, 2, mean=mean)
    z, x = rows(7)
    expected = (predictor.marginals(z)[0] + mean(z)).mT * scale + shift
    found, _ = run(tmp_path / "m.onnx", x)
    np.testing.assert_allclose(found, expected.detach(), rtol=0, atol=1e-9)


class Bent(gk.RBFKernel):
    pass


@pytest.mark.parametrize("kernel", [gk.LinearKernel(), Bent(), gk.RBFKernel(active_dims=(0,))])
def test_other_kernels_are_refused(kernel, tmp_path):
    with pytest.raises(ConfigurationError, match=type(kernel).__name__):
        export(tmp_path / "m.onnx", predictor_of(kernel))
    assert not (tmp_path / "m.onnx").exists()


def test_other_means_are_refused(tmp_path):
    class Tilted(gm.Mean):
        def forward(self, x):
            return x[:, 0]

    with pytest.raises(ConfigurationError, match="not Tilted"):
        export(tmp_path / "m.onnx", predictor_of(gk.RBFKernel()), mean=Tilted())


def test_without_onnx_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    predictor = predictor_of(gk.RBFKernel())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigurationError, match=r"orthogp\[export\]"):
        export(tmp_path / "m.onnx", predictor)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="could not be written"):
        export(tmp_path / "file" / "m.onnx", predictor_of(gk.RBFKernel()))
