"""Likelihoods against dense-grid integrals, limits, finite differences and extreme inputs."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import gpytorch.likelihoods as gl
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from torch import Tensor
from torch.distributions import Categorical, Gumbel
from torch.utils._python_dispatch import TorchDispatchMode

import reference_likelihoods as reference
from orthogp.errors import ConfigurationError, DataError
from orthogp.likelihoods import (
    LIKELIHOODS,
    Bernoulli,
    Beta,
    ClassificationLikelihood,
    Conditional,
    Gaussian,
    Laplace,
    Likelihood,
    NegativeBinomial,
    Poisson,
    RegressionLikelihood,
    RobustMax,
    Softmax,
    StudentT,
    as_likelihood,
)
from orthogp.likelihoods.quadrature import GaussHermite, floored, log_ndtr
from problems import with_parameters


@dataclass(frozen=True)
class Case:
    """A one-latent likelihood with parameters away from their defaults, and its truth."""

    build: Callable[[], Likelihood]
    reference: reference.LogDensity
    targets: tuple[float, ...]
    tolerance: float


# Twenty nodes: the tolerances are what was measured for the variances below, up to 4.
CASES = {
    "gaussian": Case(
        lambda: with_parameters(Gaussian(), noise=0.3),
        reference.gaussian(0.3),
        (-1.0, 0.5, 4.0),
        1e-9,
    ),
    "laplace": Case(
        lambda: with_parameters(Laplace(), noise=0.3),
        reference.laplace(0.3),
        (-1.0, 0.5, 4.0),
        1e-7,
    ),
    "student_t": Case(
        lambda: with_parameters(StudentT(), noise=0.3, deg_free=3.5),
        reference.student_t(3.5, 0.3),
        (-1.0, 0.5, 9.0),
        1e-8,
    ),
    "bernoulli": Case(lambda: Bernoulli().double(), reference.bernoulli(), (0.0, 1.0), 1e-5),
    "poisson": Case(lambda: Poisson().double(), reference.poisson(), (0.0, 2.0, 15.0), 1e-4),
    "negative_binomial": Case(
        lambda: with_parameters(NegativeBinomial(), probs=0.3),
        reference.negative_binomial(0.3),
        (0.0, 2.0, 15.0),
        1e-4,
    ),
    "beta": Case(
        lambda: with_parameters(Beta(), scale=4.0), reference.beta(4.0), (0.02, 0.5, 0.9), 1e-4
    ),
}
MARGINALS = [(m, s) for m in (-2.0, 0.3, 3.0) for s in (0.01, 0.5, 4.0)]
LOG_CONCAVE = ("gaussian", "laplace", "bernoulli", "poisson")
CLASSIFIERS = ("bernoulli", "robustmax", "softmax")


def _f64(values: object) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def _rows(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Every target with every marginal: y [n], mean [1 n], variance [1 n]."""
    rows = _f64([(y, m, s) for y, (m, s) in itertools.product(case.targets, MARGINALS)])
    return rows[:, 0], rows[:, 1].unsqueeze(0), rows[:, 2].unsqueeze(0)


def _example(name: str, dtype: torch.dtype = torch.float64, n: int = 5) -> tuple:
    """A likelihood by its name with n rows of valid targets and plausible marginals."""
    c = 3 if name in ("robustmax", "softmax") else 1
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(c, n, generator=generator, dtype=dtype)
    variance = torch.rand(c, n, generator=generator, dtype=dtype) + 0.1
    y = torch.arange(n).remainder(2).to(dtype)
    y = 0.1 + 0.8 * y if name == "beta" else y
    return LIKELIHOODS[name](c).to(dtype), y, mean, variance


# Integrals


@pytest.mark.parametrize("name", CASES)
def test_expected_log_prob_is_the_integral(name: str) -> None:
    case = CASES[name]
    y, mean, variance = _rows(case)
    truth = [
        reference.expected_log_prob(case.reference, *row)
        for row in zip(y.tolist(), mean[0].tolist(), variance[0].tolist(), strict=True)
    ]
    value = case.build().expected_log_prob(y, mean, variance)
    torch.testing.assert_close(value, _f64(truth), atol=case.tolerance, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_log_density_is_the_integral(name: str) -> None:
    case = CASES[name]
    y, mean, variance = _rows(case)
    truth = [
        reference.log_density(case.reference, *row)
        for row in zip(y.tolist(), mean[0].tolist(), variance[0].tolist(), strict=True)
    ]
    value = case.build().log_density(y, mean, variance)
    torch.testing.assert_close(value, _f64(truth), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "ys"),
    [
        ("gaussian", np.linspace(-25, 25, 501)),
        ("laplace", np.linspace(-30, 30, 1501)),
        ("poisson", np.arange(80.0)),
        ("negative_binomial", np.arange(120.0)),
        ("beta", (np.arange(800) + 0.5) / 800),
    ],
)
def test_moments_are_those_of_the_predictive_density(name: str, ys: np.ndarray) -> None:
    case = CASES[name]
    marginals = _f64(MARGINALS).mT
    predicted = case.build().predictive(marginals[:1], marginals[1:])
    for i, (m, s) in enumerate(MARGINALS):
        centre, spread = reference.moments(case.reference, ys, m, s)
        assert predicted.mean[0, i].item() == pytest.approx(centre, abs=1e-4)
        assert predicted.variance[0, i].item() == pytest.approx(spread, rel=1e-3)


def test_student_t_moments_add_the_noise_variance() -> None:
    # Its tails are too heavy for a grid in y: Var[y] = s + σ² ν/(ν − 2).
    predicted = with_parameters(StudentT(), noise=0.3, deg_free=3.5).predictive(
        _f64([[2.0]]), _f64([[0.7]])
    )
    assert predicted.mean.item() == 2.0
    assert predicted.variance.item() == pytest.approx(0.7 + 0.3 * 3.5 / 1.5)


@pytest.mark.parametrize("ratio", [0.03, 1.0, 30.0])
@pytest.mark.parametrize("residual", [0.0, 2.0, 6.0])
@pytest.mark.parametrize("name", ["student_t", "laplace"])
def test_noise_far_narrower_or_wider_than_q(name: str, ratio: float, residual: float) -> None:
    # Twenty Gauss–Hermite nodes are wrong here by 0.6 nats for a noise 30 times narrower.
    noise = ratio**-2
    if name == "student_t":
        likelihood = with_parameters(StudentT(), noise=noise, deg_free=4.0)
        log_p = reference.student_t(4.0, noise)
    else:
        likelihood, log_p = with_parameters(Laplace(), noise=noise), reference.laplace(noise)
    row = (_f64([residual]), _f64([[0.0]]), _f64([[1.0]]))
    truth = reference.expected_log_prob(log_p, residual, 0.0, 1.0)
    assert likelihood.expected_log_prob(*row).item() == pytest.approx(truth, abs=1e-5)
    truth = reference.log_density(log_p, residual, 0.0, 1.0)
    assert likelihood.log_density(*row).item() == pytest.approx(truth, abs=1e-5)


# Limits and identities


@pytest.mark.parametrize("name", CASES)
def test_no_variance_gives_the_conditional(name: str) -> None:
    case = CASES[name]
    y, mean, _ = _rows(case)
    truth = [
        case.reference(t, np.array(m)) for t, m in zip(y.tolist(), mean[0].tolist(), strict=True)
    ]
    truth = _f64(np.array(truth, dtype=float))
    likelihood, variance = case.build(), torch.full_like(mean, 1e-12)
    # The kink of Laplace costs √s, not s.
    close = {"atol": 1e-6, "rtol": 0.0}
    torch.testing.assert_close(likelihood.expected_log_prob(y, mean, variance), truth, **close)
    torch.testing.assert_close(likelihood.log_density(y, mean, variance), truth, **close)


@pytest.mark.parametrize("name", ["student_t", "laplace", "poisson", "negative_binomial", "beta"])
def test_conditional_is_gpytorch_s_own(name: str) -> None:
    case = CASES[name]
    likelihood = case.build()
    y, mean, _ = _rows(case)
    truth = likelihood.likelihood(mean).log_prob(y)[0]
    value = likelihood.log_density(y, mean, torch.full_like(mean, 1e-12))
    torch.testing.assert_close(value, truth, atol=1e-6, rtol=0)


def test_gauss_hermite_agrees_with_the_gaussian_closed_form() -> None:
    y, mean, variance = _rows(CASES["gaussian"])
    gaussian = with_parameters(Gaussian(), noise=0.3)
    rule = GaussHermite(20)
    log_p = -0.5 * ((y - rule.points(mean, variance)) ** 2 / 0.3 + math.log(2 * math.pi * 0.3))
    closed = gaussian.expected_log_prob(y, mean, variance)
    torch.testing.assert_close(rule.expectation(log_p)[0], closed)


def test_two_class_robust_max_is_a_probit() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = 2 * torch.randn(2, 50, generator=generator, dtype=torch.float64)
    variance = 0.5 + torch.rand(2, 50, generator=generator, dtype=torch.float64)
    p_one = torch.special.ndtr((mean[1] - mean[0]) / variance.sum(0).sqrt())
    likelihood, y = RobustMax(2, epsilon=0.01), torch.ones(50)
    expected = p_one * math.log(0.99) + (1 - p_one) * math.log(0.01)
    close = {"atol": 1e-4, "rtol": 0.0}
    torch.testing.assert_close(likelihood.expected_log_prob(y, mean, variance), expected, **close)
    truth = torch.stack([0.99 - 0.98 * p_one, 0.01 + 0.98 * p_one], dim=-1)
    torch.testing.assert_close(likelihood.probabilities(mean, variance), truth, **close)
    density = likelihood.log_density(y, mean, variance)
    torch.testing.assert_close(density, truth[:, 1].log(), atol=1e-3, rtol=0)


def test_robust_max_is_the_integral() -> None:
    generator = torch.Generator().manual_seed(2)
    mean = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    variance = 0.5 + torch.rand(5, 6, generator=generator, dtype=torch.float64)
    largest = _f64(
        [
            [
                reference.prob_largest(k, mean[:, i].numpy(), variance[:, i].numpy())
                for k in range(5)
            ]
            for i in range(6)
        ]
    )
    truth = (1 - 1e-3) * largest + 1e-3 / 4 * (1 - largest)
    likelihood = RobustMax(5)
    probabilities = likelihood.probabilities(mean, variance)
    torch.testing.assert_close(probabilities, truth, atol=1e-5, rtol=0)
    for k in range(5):
        y = torch.full((6,), k)
        density = likelihood.log_density(y, mean, variance)
        torch.testing.assert_close(density, truth[:, k].log(), atol=1e-3, rtol=0)
        expected = largest[:, k] * math.log(1 - 1e-3) + (1 - largest[:, k]) * math.log(1e-3 / 4)
        value = likelihood.expected_log_prob(y, mean, variance)
        torch.testing.assert_close(value, expected, atol=1e-4, rtol=0)


def test_robust_max_probabilities_are_frequencies() -> None:
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    variance = 0.3 + torch.rand(4, 3, generator=generator, dtype=torch.float64)
    draws = 200_000
    noise = torch.randn(draws, 4, 3, generator=generator, dtype=torch.float64)
    winner = (mean + variance.sqrt() * noise).argmax(1)
    largest = torch.stack([(winner == k).double().mean(0) for k in range(4)], dim=-1)
    truth = (1 - 1e-3) * largest + 1e-3 / 3 * (1 - largest)
    error = RobustMax(4).probabilities(mean, variance) - truth
    standard_error = (truth * (1 - truth) / draws).sqrt()
    assert (error.abs() < 4 * standard_error).all()


def test_softmax_is_the_integral() -> None:
    mean = _f64([[0.5, -2.0, 1.0], [0.0, 1.0, 1.0], [-1.0, 0.0, 1.0]])
    variance = _f64([[0.1, 1.0, 0.5], [0.4, 2.0, 0.5], [0.2, 0.5, 0.5]])
    pairs = [reference.softmax(mean[:, i].numpy(), variance[:, i].numpy()) for i in range(3)]
    expected, probabilities = (_f64(np.array(part)) for part in zip(*pairs, strict=True))
    likelihood = Softmax(3)
    value = likelihood.probabilities(mean, variance)
    torch.testing.assert_close(value, probabilities, atol=6e-3, rtol=0)
    many = Softmax(3, num_draws=4096)
    for k in range(3):
        y = torch.full((3,), k)
        value = likelihood.expected_log_prob(y, mean, variance)
        torch.testing.assert_close(value, expected[:, k], atol=2e-2, rtol=0)
        value = many.expected_log_prob(y, mean, variance)
        torch.testing.assert_close(value, expected[:, k], atol=5e-4, rtol=0)
        value = many.log_density(y, mean, variance)
        torch.testing.assert_close(value, probabilities[:, k].log(), atol=1e-2, rtol=0)


def test_softmax_mixes_latents_into_classes() -> None:
    mixed = gl.SoftmaxLikelihood(num_features=2, num_classes=4)
    likelihood = as_likelihood(mixed, 2).double()
    mean, variance = torch.randn(2, 2, dtype=torch.float64), torch.full((2, 2), 1e-14).double()
    # Two rows of two latents: the shape that GPyTorch's own forward would transpose.
    truth = (mean.mT @ mixed.mixing_weights.mT).softmax(-1)
    assert isinstance(likelihood, Softmax)
    torch.testing.assert_close(likelihood.probabilities(mean, variance), truth, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "name", ["gaussian", "student_t", "laplace", "poisson", "beta", "negative_binomial"]
)
def test_outputs_are_independent(name: str) -> None:
    _, y, mean, variance = _example(name, n=6)
    several = LIKELIHOODS[name](3).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in several.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator))
    singles = [LIKELIHOODS[name](1).double() for _ in range(3)]
    shifts = [(mean + i, variance * (i + 1), y.roll(i)) for i in range(3)]
    for i, single in enumerate(singles):
        for parameter, many in zip(single.parameters(), several.parameters(), strict=True):
            parameter.data.copy_(many.data[i])
    means, variances, ys = (torch.cat([s[j].reshape(1, -1) for s in shifts]) for j in range(3))
    for method in ("expected_log_prob", "log_density"):
        truth = sum(
            getattr(single, method)(ys[i], means[i : i + 1], variances[i : i + 1])
            for i, single in enumerate(singles)
        )
        torch.testing.assert_close(getattr(several, method)(ys.mT, means, variances), truth)
    predicted = several.predictive(means, variances)
    for i, single in enumerate(singles):
        alone = single.predictive(means[i : i + 1], variances[i : i + 1])
        torch.testing.assert_close(predicted.mean[i], alone.mean[0])
        torch.testing.assert_close(predicted.variance[i], alone.variance[0])


# Gradients


@pytest.mark.parametrize("method", ["expected_log_prob", "log_density"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradients_match_finite_differences(name: str, method: str) -> None:
    likelihood, y, mean, variance = _example(name)
    parameters = dict(likelihood.named_parameters())

    def value(mean: Tensor, variance: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(parameters, values, strict=True))
        call = _Call(likelihood, method)
        names = {f"likelihood.{key}": tensor for key, tensor in named.items()}
        return torch.func.functional_call(call, names, (y, mean, variance))

    inputs = (mean, variance, *(p.detach() for p in parameters.values()))
    assert torch.autograd.gradcheck(value, tuple(x.clone().requires_grad_() for x in inputs))


class _Call(torch.nn.Module):
    """A method of a likelihood as a module's forward, so that its parameters can be swapped."""

    def __init__(self, likelihood: Likelihood, method: str) -> None:
        super().__init__()
        self.likelihood, self.method = likelihood, method

    def forward(self, *arguments: Tensor) -> Tensor:
        return getattr(self.likelihood, self.method)(*arguments)


def _variance_gradient(likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    variance = variance.clone().requires_grad_()
    loss = -likelihood.expected_log_prob(y, mean, variance).sum()
    return torch.autograd.grad(loss, variance)[0]


@pytest.mark.parametrize("name", LOG_CONCAVE)
@settings(max_examples=60, deadline=None)
@given(
    mean=st.floats(-20, 20),
    log_variance=st.floats(-12, 4),
    target=st.floats(-10, 10),
    kind=st.sampled_from([torch.float64, torch.float32]),
)
def test_log_concave_never_gains_from_variance(
    name: str, mean: float, log_variance: float, target: float, kind: torch.dtype
) -> None:
    likelihood = LIKELIHOODS[name](1).to(kind)
    target = {"bernoulli": float(target > 0), "poisson": float(round(abs(target)))}.get(
        name, target
    )
    assert likelihood.log_concave
    y = torch.tensor([target], dtype=kind)
    m, s = torch.full((1, 1), mean, dtype=kind), torch.full((1, 1), 10**log_variance, dtype=kind)
    slope = _variance_gradient(likelihood, y, m, s)
    slack = 1e-9 if kind is torch.float64 else 1e-2
    assert slope.item() >= -slack


@pytest.mark.parametrize(
    ("name", "y", "mean", "variance"),
    [
        ("robustmax", 0, [[-1.0], [1.0]], [[0.5], [0.5]]),
        ("student_t", 5.0, [[0.0]], [[0.1]]),
        ("beta", 0.99, [[-2.0]], [[0.1]]),
        ("negative_binomial", 50.0, [[-1.0]], [[0.1]]),
        ("softmax", 0, [[3.2], [-10.4], [3.9]], [[49.0], [0.1], [0.1]]),
    ],
)
def test_others_can_gain_from_variance(
    name: str, y: float, mean: list[list[float]], variance: list[list[float]]
) -> None:
    likelihood = LIKELIHOODS[name](len(mean)).double()
    assert not likelihood.log_concave
    slope = _variance_gradient(likelihood, torch.tensor([y]), _f64(mean), _f64(variance))
    assert slope.min().item() < -1e-3


def test_only_the_gaussian_is_gaussian() -> None:
    built = {
        name: LIKELIHOODS[name](2 if name in ("robustmax", "softmax") else 1)
        for name in LIKELIHOODS
    }
    assert [name for name, likelihood in built.items() if likelihood.gaussian] == ["gaussian"]
    concave = {name for name, likelihood in built.items() if likelihood.log_concave}
    assert concave == set(LOG_CONCAVE)


# Extremes


@pytest.mark.parametrize("variance", [0.0, 1e-12, 1.0, 1e4])
@pytest.mark.parametrize("mean", [-1e3, -40.0, 0.0, 40.0, 1e3])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_extremes_are_finite_in_single_precision(name: str, mean: float, variance: float) -> None:
    likelihood, y, m, s = _example(name, torch.float32)
    m, s = torch.zeros_like(m), torch.full_like(s, variance)
    m[0] = mean
    m.requires_grad_()
    s.requires_grad_()
    for method in ("expected_log_prob", "log_density"):
        value = getattr(likelihood, method)(y, m, s)
        assert value.dtype == torch.float32
        assert value.isfinite().all()
        leaves = [m, s, *likelihood.parameters()]
        gradients = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
        assert all(g is None or bool(g.isfinite().all()) for g in gradients)
    if isinstance(likelihood, ClassificationLikelihood):
        probabilities = likelihood.probabilities(m, s)
        assert (probabilities >= 0).all()
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(y.shape[0]))
    else:
        predicted = likelihood.predictive(m, s)
        assert predicted.mean.isfinite().all()
        # A rate of exp(−1000) underflows to the zero it almost is.
        assert predicted.variance.isfinite().all()
        assert (predicted.variance >= 0).all()


@pytest.mark.parametrize("name", ["bernoulli", "poisson", "student_t"])
def test_curvature_survives_a_vanishing_variance_in_single_precision(name: str) -> None:
    _, y, mean, variance = _example(name)
    likelihood = LIKELIHOODS[name](1)
    truth = _variance_gradient(likelihood.double(), y, mean, torch.full_like(variance, 1e-8))
    arguments = (y.float(), mean.float(), torch.full((1, 5), 1e-12))
    slope = _variance_gradient(likelihood.float(), *arguments)
    torch.testing.assert_close(slope, truth.float(), rtol=0.02, atol=1e-3)


def test_laplace_density_keeps_its_digits_in_single_precision() -> None:
    # s/2b² and log Φ are both near 5·10³ here: their sum would keep three decimals.
    y, mean, variance = _f64([0.0, 1.0, 3.0]), torch.zeros(1, 3).double(), torch.ones(1, 3).double()
    likelihood = with_parameters(Laplace(), noise=1e-4)
    truth = likelihood.log_density(y, mean, variance)
    single = likelihood.float().log_density(y.float(), mean.float(), variance.float())
    torch.testing.assert_close(single, truth.float(), atol=1e-5, rtol=0)


def test_softmax_draws_average_a_quadratic_exactly() -> None:
    draws = Softmax(3).get_buffer("draws")[:, :, 0]
    torch.testing.assert_close(draws.mean(0), torch.zeros(3).double(), atol=1e-14, rtol=0)
    torch.testing.assert_close(draws.square().mean(0), torch.ones(3).double())
    assert not torch.equal(draws, Softmax(3, seed=1).get_buffer("draws")[:, :, 0])


def test_bernoulli_log_density_in_the_tail() -> None:
    # log Φ(−40/√2): Φ itself is zero in double precision.
    value = Bernoulli().log_density(torch.ones(1), _f64([[-40.0]]), _f64([[1.0]]))
    assert value.item() == pytest.approx(-404.2621, abs=1e-3)


def test_log_ndtr_keeps_its_derivative_in_the_tail() -> None:
    x = torch.tensor([-1e3, -40.0, -1.0, 0.0, 5.0, 50.0], requires_grad=True)
    log_ndtr(x).sum().backward()
    # φ/Φ by its continued fraction in the tail, from double precision elsewhere.
    truth = torch.tensor([1000.001, 40.02497, 1.5251353, 0.7978846, 1.4867200e-06, 0.0])
    assert x.grad is not None
    torch.testing.assert_close(x.grad, truth, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-5), (torch.float64, 1e-9)])
def test_the_derivative_of_log_ndtr_is_the_inverse_mills_ratio(dtype, rtol) -> None:
    # On both sides of where its tail begins.
    x = torch.linspace(-30.0, 10.0, 401, dtype=dtype, requires_grad=True)
    log_ndtr(x).sum().backward()
    t = -x.detach().double().numpy() / math.sqrt(2)
    truth = torch.from_numpy(math.sqrt(2 / math.pi) / special.erfcx(t))
    assert x.grad is not None
    torch.testing.assert_close(x.grad.double(), truth, rtol=rtol, atol=0)


def test_floor_changes_small_variances_only_and_no_gradient() -> None:
    variance = _f64([0.0, 1e-30, 1e-3, 2.0]).requires_grad_()
    value = floored(variance)
    assert (value[:2] > 0).all()
    assert torch.equal(value[2:], variance[2:])
    assert torch.equal(torch.autograd.grad(value.sum(), variance)[0], torch.ones(4).double())


def test_many_classes_fit_in_memory() -> None:
    # All at once would hold q K² n numbers: 33 GB for 20 nodes, 100 classes and 4096 rows.
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(100, 64, generator=generator)
    with torch.no_grad(), _LargestTensor() as seen:
        RobustMax(100, num_nodes=4).probabilities(mean, torch.ones_like(mean))
    assert seen.numel <= 4 * 100 * 64


class _LargestTensor(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numel = max(self.numel, result.numel())
        return result


class _NoHostSync(TorchDispatchMode):
    """Refuses what would wait for a device, or copy to it from the host."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "is_nonzero", "item", "lift_fresh", "equal")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        assert name not in self.FORBIDDEN, f"{name} synchronises"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_expectation_and_its_gradient_never_wait_for_the_device(name: str) -> None:
    likelihood, y, mean, variance = _example(name)
    leaves = [mean.requires_grad_(), variance.requires_grad_(), *likelihood.parameters()]
    with _NoHostSync():
        value = likelihood.expected_log_prob(y, mean, variance).sum()
        torch.autograd.grad(value, leaves)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_cuda_graph_holds_the_expectation(name: str) -> None:
    likelihood, y, mean, variance = _example(name)
    expected = likelihood.expected_log_prob(y, mean, variance)
    likelihood, y, variance = likelihood.cuda(), y.cuda(), variance.cuda()
    static = torch.zeros_like(mean, device="cuda").requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        value = likelihood.expected_log_prob(y, static, variance)
        return value, torch.autograd.grad(value.sum(), static)[0]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value, gradient = step()
    with torch.no_grad():
        static.copy_(mean)
    graph.replay()
    torch.testing.assert_close(value.cpu(), expected)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_global_randomness_is_untouched(name: str) -> None:
    before = torch.get_rng_state()
    likelihood, y, mean, variance = _example(name)
    first = likelihood.expected_log_prob(y, mean, variance)
    likelihood.log_density(y, mean, variance)
    assert torch.equal(torch.get_rng_state(), before)
    again = _example(name)[0].expected_log_prob(y, mean, variance)
    assert torch.equal(first, again)


# Targets


@pytest.mark.parametrize(
    ("name", "y", "says"),
    [
        ("gaussian", [0.0, math.nan], "missing"),
        ("student_t", [0.0, math.inf], "infinite"),
        ("laplace", [[0.0, 1.0]], "shape"),
        ("poisson", [0.0, -1.0], "negative or fractional"),
        ("negative_binomial", [0.0, 1.5], "negative or fractional"),
        ("beta", [0.5, 1.0], "outside"),
        ("beta", [0.0, 0.5], "outside"),
        ("bernoulli", [0.0, 2.0], "0 to 1"),
        ("bernoulli", [-1.0, 1.0], "0 to 1"),
        ("robustmax", [0, 3], "0 to 2"),
        ("robustmax", [[0, 1, 2]], "one label a row"),
        ("softmax", [0.0, 0.5], "whole numbers"),
        ("softmax", [0.0, math.nan], "missing"),
    ],
)
def test_impossible_targets_are_refused(name: str, y: list, says: str) -> None:
    likelihood, good, _, _ = _example(name)
    likelihood.check_targets(good)
    with pytest.raises(DataError, match=says):
        likelihood.check_targets(torch.tensor(y))


def test_one_target_an_output() -> None:
    with pytest.raises(DataError, match=r"pass \[n, 2\]"):
        Gaussian(2).check_targets(torch.zeros(4))
    Gaussian(2).check_targets(torch.zeros(4, 2))


# The registry


class _GumbelLikelihood(gl._OneDimensionalLikelihood):
    def forward(self, function_samples: Tensor, *args: object, **kwargs: object) -> Gumbel:
        return Gumbel(function_samples, torch.ones((), dtype=function_samples.dtype))


class _LogitLikelihood(gl.BernoulliLikelihood):
    """A subclass with a conditional of its own."""

    def forward(self, function_samples, *args, **kwargs):
        return torch.distributions.Bernoulli(logits=function_samples)


def test_unknown_one_dimensional_likelihood_goes_through_its_conditional() -> None:
    likelihood = as_likelihood(_GumbelLikelihood(), 1)
    assert isinstance(likelihood, Conditional)
    assert not likelihood.log_concave
    m, s, y = _f64([[0.3]]), _f64([[0.4]]), _f64([1.0])
    # −log p = z + e⁻ᶻ with z = y − f, so E log p = −(y − m) − exp(−(y − m) + s/2).
    assert likelihood.expected_log_prob(y, m, s).item() == pytest.approx(-0.7 - math.exp(-0.5))
    predicted = likelihood.predictive(m, s)
    assert predicted.mean.item() == pytest.approx(0.3 + np.euler_gamma)
    assert predicted.variance.item() == pytest.approx(0.4 + math.pi**2 / 6)


def test_subclass_with_another_link_is_not_taken_for_its_parent() -> None:
    likelihood = as_likelihood(_LogitLikelihood(), 1)
    value = likelihood.expected_log_prob(_f64([1.0]), _f64([[0.5]]), _f64([[1e-12]]))
    assert value.item() == pytest.approx(-math.log1p(math.exp(-0.5)))
    with pytest.raises(DataError, match="cannot produce"):
        likelihood.check_targets(_f64([0.5]))


def test_names_and_gpytorch_likelihoods_become_the_same_adaptors() -> None:
    instances = {
        "gaussian": gl.GaussianLikelihood(),
        "bernoulli": gl.BernoulliLikelihood(),
        "student_t": gl.StudentTLikelihood(),
        "poisson": gl.PoissonLikelihood(),
        "laplace": gl.LaplaceLikelihood(),
        "beta": gl.BetaLikelihood(),
        "negative_binomial": gl.NegativeBinomialLikelihood(),
    }
    for name, instance in instances.items():
        adaptor = as_likelihood(instance, 1)
        assert type(adaptor) is type(as_likelihood(name, 1))
        assert adaptor.likelihood is instance
        assert as_likelihood(adaptor, 1) is adaptor
        assert isinstance(adaptor, ClassificationLikelihood | RegressionLikelihood)
    assert as_likelihood("robustmax", 4).num_latents == 4
    assert as_likelihood("softmax", 4).probabilities(torch.zeros(4, 2), torch.ones(4, 2)).shape == (
        2,
        4,
    )


def test_shared_and_separate_noise_both_fit_several_outputs() -> None:
    shared = as_likelihood(gl.GaussianLikelihood(), 2)
    assert isinstance(shared, Gaussian)
    assert shared.predictive(torch.zeros(2, 3), torch.zeros(2, 3)).variance.shape == (2, 3)
    assert sum(p.numel() for p in Gaussian(2).parameters()) == 2


@pytest.mark.parametrize(
    ("spec", "num_latents", "says"),
    [
        ("gausian", 1, "one of gaussian"),
        (Categorical(torch.ones(2)), 1, "one of gaussian"),
        (gl.FixedNoiseGaussianLikelihood(torch.ones(3)), 1, "one of gaussian"),
        (gl.GaussianLikelihood(batch_shape=torch.Size([3])), 2, "batch_shape"),
        (gl.SoftmaxLikelihood(num_classes=3, mixing_weights=False), 2, "must agree"),
        ("bernoulli", 2, "one latent"),
        ("robustmax", 1, "two classes"),
        ("softmax", 1, "two classes"),
        (Gaussian(2), 1, "latent"),
    ],
)
def test_impossible_likelihoods_are_refused(spec: object, num_latents: int, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        as_likelihood(spec, num_latents)
