"""Cholesky factors: values, gradients, escalation, refusals."""

import pytest
import torch

from orthogp.errors import NumericalError
from orthogp.linalg import (
    add_jitter,
    cholesky,
    cholesky_inverse,
    condition_gaussian,
    factorise,
    factorise_robustly,
    log_diagonal,
)
from orthogp.posterior import NaturalGaussian
from orthogp.posterior.natural import safe_step_size


def definite(size: int, batch: tuple[int, ...] = ()) -> torch.Tensor:
    A = torch.randn(*batch, size, size, generator=torch.Generator().manual_seed(0)).double()
    return A @ A.mT + torch.eye(size)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_factor_values(batch):
    K = definite(5, batch)
    factor = factorise(K, jitter=1e-3)
    epsilon = 1e-3 * K.diagonal(dim1=-2, dim2=-1).mean(-1)
    jittered = K + epsilon[..., None, None] * torch.eye(5)
    torch.testing.assert_close(factor.L @ factor.L.mT, jittered)
    torch.testing.assert_close(factor.K, jittered)
    torch.testing.assert_close(factor.R @ factor.L, torch.eye(5).double().expand_as(K))
    torch.testing.assert_close(-2 * log_diagonal(factor.R), torch.logdet(jittered))
    assert not factor.failed.any()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("size", [40, 2500])
def test_the_inverse_of_a_matrix_by_its_factor(size, device):
    K = definite(size).to(device)
    inverse = cholesky_inverse(cholesky(K))
    torch.testing.assert_close(inverse @ K, torch.eye(size, device=device).double())
    torch.testing.assert_close(inverse, inverse.mT)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_gradient_of_the_inverse_factor(batch):
    K = definite(4, batch).requires_grad_()
    assert torch.autograd.gradcheck(lambda K: factorise(0.5 * (K + K.mT), 1e-2).R, (K,))


def test_gradient_equals_the_one_through_cholesky_and_solve():
    K, b = definite(6), torch.randn(6, 3).double()
    weight = torch.randn(6, 3).double()
    grads = []
    for solve in (
        lambda K: factorise(K, 0.0).R @ b,
        lambda K: torch.linalg.solve_triangular(torch.linalg.cholesky(K), b, upper=False),
    ):
        leaf = K.clone().requires_grad_()
        (grad,) = torch.autograd.grad((solve(leaf) * weight).sum(), leaf)
        grads.append(0.5 * (grad + grad.mT))
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("jitter", [1e-1, 1e-3, 1e-5])
def test_what_is_gathered_in_float32_loses_about_what_its_own_rounding_does(jitter):
    """The gradient of tr Ω W, whose W has the rounding of float32 already."""
    x = torch.linspace(0, 1, 80).double()
    K = torch.exp(-0.5 * ((x[:, None] - x[None, :]) / 0.3).square())
    weight = torch.randn(80, 80, generator=torch.Generator().manual_seed(0))
    grads = {}
    for name, dtype, w in (
        ("exact", torch.float64, weight.double()),
        ("rounded", torch.float64, weight.double() * (1 + 2**-24 * weight.sign())),
        ("float32", torch.float32, weight),
    ):
        leaf = K.clone().requires_grad_()
        omega = factorise(leaf, jitter, dtype).omega
        assert omega.dtype == dtype
        (grads[name],) = torch.autograd.grad((omega * w).sum(), leaf)
        assert grads[name].dtype == torch.float64
    own, found = (
        (grads[name] - grads["exact"]).abs().max().item() for name in ("rounded", "float32")
    )
    assert own > 0
    assert found < 30 * own


def test_float32_matrices_are_factorised_in_float64():
    """A matrix whose float32 factorisation fails, as coincident inducing points give."""
    x = torch.linspace(0, 1, 60)
    K = torch.exp(-0.5 * (x[:, None] - x[None, :]).square())
    jittered = add_jitter(K, 1e-7)
    assert torch.linalg.cholesky_ex(jittered)[1] != 0
    factor = factorise_robustly(K, 1e-5)
    assert factor.R.dtype == torch.float64
    assert factor.attempts == 1


def test_escalation_reports_what_it_did():
    K = torch.eye(4).double()
    K[0, 0] = -1e-4
    factor = factorise_robustly(K, jitter=1e-8)
    assert factor.attempts > 1
    # The first of 1e-8, 1e-7, … at which −1e-4 + ε > 0.
    assert factor.jitter == pytest.approx(1e-3)
    assert not factor.failed.any()
    assert factorise(K, jitter=1e-8).failed


def test_definite_matrices_need_one_attempt():
    factor = factorise_robustly(definite(5), jitter=1e-6)
    assert (factor.attempts, factor.jitter) == (1, 1e-6)


def test_refusals_name_the_cause():
    K = torch.eye(3).double()
    with pytest.raises(NumericalError, match="not finite"):
        factorise_robustly(K * torch.nan, 1e-6)
    K[0, 0] = -5.0
    with pytest.raises(NumericalError, match="not positive definite"):
        factorise_robustly(K, 1e-6)


def lapack_that_reports_success(monkeypatch):
    """LAPACK as OpenBLAS has it: a matrix with NaN is factorised into NaN, and all is well."""
    honest = torch.linalg.cholesky_ex

    def reporting(A, *, out=None, **kwargs):
        L, info = honest(torch.where(A.isnan(), 0.0, A), **kwargs)
        L, info = torch.where(A.isnan().any(), torch.nan, L), torch.zeros_like(info)
        if out is None:
            return L, info
        return out[0].copy_(L), out[1].copy_(info)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", reporting)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_factor_is_judged_by_what_it_holds(monkeypatch, batch):
    lapack_that_reports_success(monkeypatch)
    K = definite(4, batch)
    assert not factorise(K, 0.0).failed.any()
    K[..., 1, 1] = torch.nan
    factor = factorise(K, 0.0)
    assert not factor.info.any()
    assert factor.failed.all()
    for refuse in (lambda: factorise_robustly(K, 1e-6), lambda: cholesky(K)):
        with pytest.raises(NumericalError):
            refuse()


def test_one_bad_latent_is_told_from_good_ones(monkeypatch):
    lapack_that_reports_success(monkeypatch)
    failed = [factorise(K, 0.0).failed.item() for K in (definite(3), definite(3) * torch.nan)]
    assert failed == [False, True]


def test_no_step_is_taken_towards_nan(monkeypatch):
    lapack_that_reports_success(monkeypatch)
    precision = torch.eye(3).double()[None]
    tau = torch.tensor(0.5)
    assert safe_step_size(precision, 0.5 * precision, tau) > 0
    assert safe_step_size(precision, precision * torch.nan, tau) == 0


def test_q_is_judged_by_its_determinant(monkeypatch):
    lapack_that_reports_success(monkeypatch)
    factor = factorise(definite(3), 0.0)
    q = NaturalGaussian(factor, 2, "whitened")
    q.precision[1, 0, 0] = torch.nan
    assert q.whitened(factor).failed.any()
    q.precision[1, 0, 0] = 1.0
    assert not q.whitened(factor).failed.any()


def test_a_gaussian_given_noisy_observations_of_its_first_numbers():
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(6, 6, generator=generator).double()
    mean, covariance = torch.randn(6, generator=generator).double(), A @ A.mT
    y, noise = torch.randn(3, 2, generator=generator).double(), torch.tensor([0.1, 0.4]).double()
    found, left = condition_gaussian(mean, covariance, y, noise)
    # By the information form: precisions add.
    observed = torch.zeros(6).double()
    observed[:2] = 1.0 / noise
    precision = torch.linalg.inv(covariance)
    together = torch.linalg.inv(precision + observed.diag())
    pulls = torch.cat([y / noise, torch.zeros(3, 4).double()], -1)
    expected = (precision @ mean + pulls) @ together
    torch.testing.assert_close(found, expected[:, 2:])
    torch.testing.assert_close(left, together[2:, 2:].expand(3, 4, 4))
