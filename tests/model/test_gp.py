"""The model as a user builds it: pieces that fit, refusals that explain."""

import copy

import gpytorch
import pytest
import torch

from orthogp.errors import ConfigurationError, OrthogpError
from orthogp.likelihoods import Gaussian
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.posterior import Coupled, Decoupled, FactorGaussian, NaturalGaussian
from problems import make_basis, make_model, problem, randomise


@pytest.mark.parametrize(
    ("name", "optimizer", "kind"),
    [
        ("coupled", "adam", FactorGaussian),
        ("coupled", "natural", NaturalGaussian),
        ("orthogonal", "adam", FactorGaussian),
        ("orthogonal", "natural", NaturalGaussian),
        ("hybrid", "adam", FactorGaussian),
    ],
)
def test_the_papers_methods_are_pairs(name, optimizer, kind):
    p = problem(dtype=torch.float32)
    basis = build_basis(name, p.kernel, p.beta, p.gamma, 2, optimizer)
    assert type(basis).__name__.lower() == name
    assert type(basis.q) is kind
    assert basis.num_latents == 2


def test_decoupled_is_the_sixth():
    p = problem(dtype=torch.float32)
    assert type(build_basis("decoupled", p.kernel, p.beta, p.gamma, 1, "adam")) is Decoupled


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "circular"}, "expected coupled"),
        ({"optimizer": "sgd"}, "natural or adam"),
        ({"name": "hybrid", "optimizer": "natural"}, "no natural steps"),
        ({"hold_fixed": "everything"}, "expected one of"),
        ({"optimizer": "adam", "hold_fixed": "dual"}, "whitened or unwhitened"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    p = problem()
    arguments = {"name": "orthogonal", "optimizer": "natural"} | options
    with pytest.raises(ConfigurationError, match=message):
        build_basis(kernel=p.kernel, beta=p.beta, gamma=p.gamma, **arguments)


def test_refusals_are_value_errors():
    assert issubclass(OrthogpError, ValueError)
    p = problem()
    with pytest.raises(ValueError, match="3 latent"):
        VariationalGP(p.kernel, Gaussian(3), make_model("orthogonal", p).basis)
    with pytest.raises(ConfigurationError, match="β is empty"):
        Coupled(p.beta[:0], make_model("coupled", p).basis.q)


def test_default_kernel_is_the_papers():
    x, z = torch.zeros(1, 4), torch.tensor([[1.0, 0, 0, 0]])
    kernel = default_kernel(4, variance=5.0)
    r = 5**0.5 / 0.2
    rough = (1 + r + r * r / 3) * torch.tensor(-r).exp()
    smooth = torch.tensor(-0.5 / 4).exp()
    torch.testing.assert_close(kernel(x, z).to_dense()[0, 0], 5 * (rough + smooth))
    assert default_kernel(4, ard=True).kernels[0].base_kernel.lengthscale.shape == (1, 4)


def test_a_prior_mean_shifts_predictions_and_targets_alike():
    p = problem(seed=1)
    model = make_model("orthogonal-natural", p)
    shifted = VariationalGP(
        p.kernel, model.likelihood, model.basis, gpytorch.means.ConstantMean(), model.jitter
    )
    with torch.no_grad():
        shifted.mean.constant.fill_(2.5)
    torch.testing.assert_close(
        shifted.bound(p.x, p.y + 2.5).value, model.bound(p.x, p.y).value, rtol=1e-6, atol=0
    )
    torch.testing.assert_close(shifted.predict(p.x)[0], model.predict(p.x)[0] + 2.5)


def test_no_optimizer_finds_what_natural_steps_move():
    p = problem()
    names = {name for name, _ in make_model("orthogonal-natural", p).named_parameters()}
    assert not any("precision" in name for name in names)
    assert {"basis.beta", "basis.gamma", "basis.a_gamma"} <= names


def test_state_and_copies_carry_everything():
    p = problem(seed=2)
    model = make_model("orthogonal-natural", p, latents=2)
    twin = copy.deepcopy(model)
    other = make_model("orthogonal-natural", problem(seed=3), latents=2, random=False)
    other.load_state_dict(model.state_dict())
    for copied in (twin, other):
        for got, wanted in zip(copied.predict(p.x), model.predict(p.x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    # A copy follows its own kernel, not the original's.
    with torch.no_grad():
        next(model.covariance.parameters()).add_(1.0)
    assert not torch.equal(twin.predict(p.x)[0], model.predict(p.x)[0])


def test_a_predictor_is_reused():
    p = problem(seed=4)
    model = make_model("orthogonal", p)
    predictor = model.predictor()
    assert torch.equal(model.predict(p.x, predictor)[0], model.predict(p.x)[0])


def test_prediction_is_float64_and_does_not_depend_on_the_grouping_of_rows():
    p = problem(seed=5, n=40, dtype=torch.float32)
    model = make_model("orthogonal", p)
    predictor = model.predictor()
    together = model.predict(p.x, predictor)
    apart = [model.predict(p.x[i : i + 7], predictor) for i in range(0, 40, 7)]
    for k in range(2):
        assert together[k].dtype == torch.float64
        parts = torch.cat([part[k] for part in apart], dim=1)
        torch.testing.assert_close(parts, together[k], rtol=1e-10, atol=1e-12)


def test_any_gpytorch_kernel_trains():
    """The generic path carries gradients to a kernel's own parameters."""
    p = problem(seed=6, dtype=torch.float32)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RQKernel())
    kernel = kernel + gpytorch.kernels.LinearKernel()
    basis = randomise(build_basis("orthogonal", kernel, p.beta, p.gamma))
    model = VariationalGP(kernel, Gaussian(1), basis)
    bound = model.bound(p.x, p.y, columns=torch.tensor([0, 2]))
    grads = torch.autograd.grad(bound.value, list(kernel.parameters()))
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in grads)


def test_a_linear_mean_in_float32_predicts_in_float64():
    p = problem(dtype=torch.float32)
    mean = gpytorch.means.LinearMean(p.x.shape[1])
    model = VariationalGP(p.kernel, Gaussian(1), make_basis("coupled", p), mean)
    with torch.no_grad():
        without = VariationalGP(p.kernel, Gaussian(1), model.basis).predict(p.x)[0]
        got = (model.predict(p.x)[0] - without)[0]
        torch.testing.assert_close(got, mean(p.x).double(), rtol=1e-5, atol=1e-6)
