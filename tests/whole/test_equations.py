"""The paper's equations by name; every one cited in the source has its test somewhere in tests/."""

import re
from pathlib import Path

import numpy as np
import pytest

import reference
from orthogp.posterior.natural import BACKTRACK, BACKTRACKS
from orthogp.strategy import NaturalSteps
from problems import make_model, problem, reference_posteriors, to_numpy

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src"


def cited_equations() -> set[str]:
    source = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    citations = re.findall(r"\[OD18, (eq\. [^\]]+)\]", source)
    return {number for text in citations for number in re.findall(r"eq\. (\w+)", text)}


def test_every_cited_equation_has_a_test_of_its_name():
    tests = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    names = re.findall(r"def (test_eq_\w+)\(", tests)
    tested = {number for name in names for number in re.findall(r"eq_(\d+[a-c]?)_", name)}
    assert len(cited_equations()) >= 12
    assert cited_equations() <= tested


def test_notation_page_lists_every_cited_equation():
    page = (TESTS.parent / "docs" / "notation.md").read_text()
    rows = set(re.findall(r"^\| \(?(\d+[a-c]?)\)? \|", page, flags=re.MULTILINE))
    assert cited_equations() <= rows


def test_names_on_the_notation_page_are_in_the_files_it_names():
    page = (TESTS.parent / "docs" / "notation.md").read_text()
    rows = re.findall(r"^\|.+\| (.*`.+`.*) \| (.*`[\w/]+\.py`.*) \|$", page, flags=re.MULTILINE)
    assert len(rows) > 20
    for names, places in rows:
        files = re.findall(r"`([\w/]+\.py)`", places)
        text = "".join((SOURCE / "orthogp" / file).read_text() for file in files)
        for name in re.findall(r"`\.?([\w.]+)`", names):
            assert all(re.search(rf"\b{part}\b", text) for part in name.split(".")), name


def test_the_shorter_natural_steps_are_those_that_the_pages_tell():
    assert (BACKTRACKS, BACKTRACK) == (3, 1 / 16)
    for text in ((TESTS.parent / "docs" / "gpytorch.md").read_text(), NaturalSteps.__doc__ or ""):
        assert re.search(r"a sixteenth of it, or a 256th,\s+or stands still", text)


def check(kind: str, weights, covariance_root) -> None:
    """A basis's prediction against μ and Σ written from the basis's own parameters."""
    p = problem(seed=21)
    model = make_model(kind, p)
    r = reference_posteriors(model, p)[0]
    x = to_numpy(p.x)
    k_b = reference.kernel_block(r.terms, x, r.beta)
    k_g = reference.kernel_block(r.terms, x, r.gamma)
    basis = model.basis
    mean = weights(basis, r, k_b, k_g)
    A = covariance_root(basis, r)
    k = reference.kernel_block(r.terms, x, x)
    predictor = model.predictor()
    np.testing.assert_allclose(to_numpy(predictor.marginals(p.x)[0][0]), mean, atol=1e-8)
    np.testing.assert_allclose(
        to_numpy(predictor.full_covariance(p.x)[0]), k + k_b @ A @ k_b.T, atol=1e-8
    )


def whitened(basis, r):
    """(m_β, S) from the whitened parameters of a basis trained by Adam."""
    L = np.linalg.cholesky(r.K_b)
    F = L @ np.tril(to_numpy(basis.q.covariance.F[0]))
    return L @ to_numpy(basis.q.mean[0]), F @ F.T


def from_S(basis, r):
    K_inv = np.linalg.inv(r.K_b)
    return K_inv @ (whitened(basis, r)[1] - r.K_b) @ K_inv


def test_eq_7_coupled():
    """μ = Ψ K⁻¹ m, Σ = I + Ψ K⁻¹ (S − K) K⁻¹ Ψᵀ."""
    check("coupled", lambda b, r, k_b, k_g: k_b @ np.linalg.solve(r.K_b, whitened(b, r)[0]), from_S)


def test_eq_8_decoupled():
    """μ = Ψ_α a, Σ = (I + Ψ_β B Ψ_βᵀ)⁻¹, that is A = −K⁻¹ + (K B K + K)⁻¹."""

    def inverse(basis, r):
        F = np.tril(to_numpy(basis.F[0]))
        return -np.linalg.inv(r.K_b) + np.linalg.inv(r.K_b @ F @ F.T @ r.K_b + r.K_b)

    check(
        "decoupled",
        lambda b, r, k_b, k_g: k_b @ to_numpy(b.a_beta[0]) + k_g @ to_numpy(b.a_gamma[0]),
        inverse,
    )


def test_eq_9_decoupled_with_s():
    """The decoupled mean with the coupled covariance (the sign of the paper's posterior mended)."""

    def covariance(basis, r):
        L = np.linalg.cholesky(r.K_b)
        F = L @ np.tril(to_numpy(basis.S.F[0]))
        K_inv = np.linalg.inv(r.K_b)
        return K_inv @ (F @ F.T - r.K_b) @ K_inv

    check(
        "decoupled-S",
        lambda b, r, k_b, k_g: k_b @ to_numpy(b.a_beta[0]) + k_g @ to_numpy(b.a_gamma[0]),
        covariance,
    )


def test_eq_11_hybrid():
    """The hybrid basis: μ = Ψ_γ a_γ + Ψ_β K_β⁻¹ m_β."""
    check(
        "hybrid",
        lambda b, r, k_b, k_g: (
            k_g @ to_numpy(b.a_gamma[0]) + k_b @ np.linalg.solve(r.K_b, whitened(b, r)[0])
        ),
        from_S,
    )


def test_eq_12_orthogonal():
    """μ = (I − Ψ_β K_β⁻¹ Ψ_βᵀ) Ψ_γ a_γ + Ψ_β a_β with a_β = K_β⁻¹ m_β."""
    check(
        "orthogonal",
        lambda b, r, k_b, k_g: (
            (k_g - k_b @ np.linalg.solve(r.K_b, r.K_bg)) @ to_numpy(b.a_gamma[0])
            + k_b @ np.linalg.solve(r.K_b, whitened(b, r)[0])
        ),
        from_S,
    )


@pytest.mark.parametrize("jitter", [0.0, 1e-2])
def test_appendix_d_primal_construction(jitter):
    """q(f) = p(f | f_γ, f_β) q(f_γ | f_β) q(f_β) [OD18, app. D, corrected], built by conditioning.

    q(f_γ | f_β) keeps the prior's covariance and shifts its mean by m_γ⊥β = K_γ⊥β a_γ.
    """
    p = problem(seed=22, b=4, g=3)
    model = make_model("orthogonal", p, jitter=jitter)
    r = reference_posteriors(model, p)[0]
    m_beta, S = whitened(model.basis, r)
    K_b, K_bg, K_g = r.K_b, r.K_bg, r.K_g
    A = K_bg.T @ np.linalg.inv(K_b)
    K_perp = K_g - A @ K_bg
    m_perp = K_perp @ to_numpy(model.basis.a_gamma[0])
    # The joint q(f_γ, f_β), its blocks as the appendix states them.
    joint_mean = np.concatenate([m_perp + A @ m_beta, m_beta])
    joint = np.block([[K_g + A @ (S - K_b) @ A.T, A @ S], [S @ A.T, S]])
    # The same by forming q(f_γ | f_β) q(f_β).
    np.testing.assert_allclose(joint[:3, :3], K_perp + A @ S @ A.T, atol=1e-10)
    prior = np.block([[K_g, K_bg.T], [K_bg, K_b]])
    x = to_numpy(p.x)
    k = np.concatenate(
        [reference.kernel_block(r.terms, x, r.gamma), reference.kernel_block(r.terms, x, r.beta)],
        axis=1,
    )
    W = k @ np.linalg.inv(prior)
    mean = W @ joint_mean
    covariance = reference.kernel_block(r.terms, x, x) - W @ k.T + W @ joint @ W.T
    predictor = model.predictor()
    np.testing.assert_allclose(to_numpy(predictor.marginals(p.x)[0][0]), mean, atol=1e-8)
    np.testing.assert_allclose(to_numpy(predictor.full_covariance(p.x)[0]), covariance, atol=1e-8)
    # And the KL of the joint is the KL of the process.
    kl = reference.gaussian_kl(joint_mean, joint, np.zeros(len(prior)), prior)
    assert model.bound(p.x, p.y).kl.item() == pytest.approx(kl, rel=1e-8)


def test_posterior_covariance_in_place_of_the_prior_is_another_model():
    """What GPyTorch's strategy does: γ blocks of the posterior give a mean that is not m(x)."""
    p = problem(seed=23)
    model = make_model("orthogonal", p)
    r = reference_posteriors(model, p)[0]
    x = to_numpy(p.x)
    both = np.concatenate([x, r.gamma])
    posterior = r.covariance(both)[: len(x), len(x) :] @ to_numpy(model.basis.a_gamma[0])
    k_b = reference.kernel_block(r.terms, x, r.beta)
    wrong = posterior + k_b @ np.linalg.solve(r.K_b, whitened(model.basis, r)[0])
    assert np.abs(wrong - to_numpy(model.predict(p.x)[0][0])).max() > 1e-2
