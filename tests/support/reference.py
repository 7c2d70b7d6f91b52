"""Slow NumPy versions of the paper's equations, written from the paper, with loops where they help.

The bases are written in the RKHS form they share [OD18, eq. 5]:
m(x) = k_xα a and s(x, x') = k_xx' + k_xβ A k_βx', with K_β = k(β, β) + εI as the prior of f_β.
"""

import math
from dataclasses import dataclass

import numpy as np


def kappa(family: str, q: float) -> float:
    if family == "rbf":
        return math.exp(-0.5 * q)
    if family == "matern12":
        return math.exp(-math.sqrt(q))
    if family == "matern32":
        r = math.sqrt(3.0 * q)
        return (1.0 + r) * math.exp(-r)
    if family == "matern52":
        r = math.sqrt(5.0 * q)
        return (1.0 + r + r * r / 3.0) * math.exp(-r)
    raise ValueError(family)


@dataclass(frozen=True)
class Term:
    family: str
    lengthscale: np.ndarray  # one number, or one a dimension
    scale: float


def kernel_block(terms: list[Term], x: np.ndarray, z: np.ndarray) -> np.ndarray:
    out = np.zeros((len(x), len(z)))
    for i, xi in enumerate(x):
        for j, zj in enumerate(z):
            for term in terms:
                q = float(np.sum(((xi - zj) / term.lengthscale) ** 2))
                out[i, j] += term.scale * kappa(term.family, q)
    return out


@dataclass(frozen=True)
class Posterior:
    """One latent function: weights a on α = (β, γ), and S of q(f_β)."""

    terms: list[Term]
    beta: np.ndarray
    gamma: np.ndarray
    a_beta: np.ndarray
    a_gamma: np.ndarray
    S: np.ndarray
    epsilon: float

    @property
    def K_b(self) -> np.ndarray:
        return kernel_block(self.terms, self.beta, self.beta) + self.epsilon * np.eye(
            len(self.beta)
        )

    @property
    def K_bg(self) -> np.ndarray:
        return kernel_block(self.terms, self.beta, self.gamma)

    @property
    def K_g(self) -> np.ndarray:
        return kernel_block(self.terms, self.gamma, self.gamma)

    def mean(self, x: np.ndarray) -> np.ndarray:
        # m(x) = k_xα a
        return (
            kernel_block(self.terms, x, self.beta) @ self.a_beta
            + kernel_block(self.terms, x, self.gamma) @ self.a_gamma
        )

    def covariance(self, x: np.ndarray) -> np.ndarray:
        # s(x, x') = k_xx' + k_xβ A k_βx',  A = K_β⁻¹ (S − K_β) K_β⁻¹
        K_inv = np.linalg.inv(self.K_b)
        A = K_inv @ (self.S - self.K_b) @ K_inv
        k_xb = kernel_block(self.terms, x, self.beta)
        return kernel_block(self.terms, x, x) + k_xb @ A @ k_xb.T

    def kl(self) -> float:
        # ½ (aᵀ K_α a + tr(S K_β⁻¹) − log|S| + log|K_β| − |β|)
        K_alpha = np.block([[self.K_b, self.K_bg], [self.K_bg.T, self.K_g]])
        a = np.concatenate([self.a_beta, self.a_gamma])
        return 0.5 * float(
            a @ K_alpha @ a
            + np.trace(self.S @ np.linalg.inv(self.K_b))
            - np.linalg.slogdet(self.S)[1]
            + np.linalg.slogdet(self.K_b)[1]
            - len(self.beta)
        )

    def expected_gaussian(self, x: np.ndarray, y: np.ndarray, noise: float) -> float:
        m, s = self.mean(x), np.diag(self.covariance(x))
        terms = np.log(2 * math.pi * noise) + ((y - m) ** 2 + s) / noise
        return float(-0.5 * terms.sum())


def orthogonal_weights(
    K_b: np.ndarray, K_bg: np.ndarray, a_beta: np.ndarray, a_gamma: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weights on (β, γ) of μ = (I − Ψ_β K_β⁻¹ Ψ_βᵀ) Ψ_γ a_γ + Ψ_β a_β."""
    return a_beta - np.linalg.inv(K_b) @ K_bg @ a_gamma, a_gamma


def gaussian_kl(m0: np.ndarray, S0: np.ndarray, m1: np.ndarray, S1: np.ndarray) -> float:
    """KL(N(m0, S0) ‖ N(m1, S1))."""
    inv, d = np.linalg.inv(S1), m1 - m0
    return 0.5 * float(
        np.trace(inv @ S0) + d @ inv @ d - len(m0)
        + np.linalg.slogdet(S1)[1] - np.linalg.slogdet(S0)[1]
    )  # fmt: skip


def log_evidence(K: np.ndarray, y: np.ndarray, noise: float) -> float:
    C = K + noise * np.eye(len(y))
    return -0.5 * float(
        y @ np.linalg.solve(C, y) + np.linalg.slogdet(C)[1] + len(y) * math.log(2 * math.pi)
    )
