"""GPyTorch's orthogonally decoupled strategy, on a problem where our bound is one."""

import gpytorch
import pytest
import torch
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    OrthogonallyDecoupledVariationalStrategy,
    VariationalStrategy,
)

from orthogp.kernel.covariance import Covariance
from orthogp.likelihoods import Gaussian
from orthogp.model import VariationalGP, build_basis
from orthogp.posterior.optimum import exact_regression
from strategies import TOY_NOISE, toy

pytestmark = [
    pytest.mark.peer,
]

STEPS = 300


class Peer(gpytorch.models.ApproximateGP):
    def __init__(self, kernel, beta, gamma):
        covariance = VariationalStrategy(
            self, beta, CholeskyVariationalDistribution(len(beta)), learn_inducing_locations=False
        )
        super().__init__(
            OrthogonallyDecoupledVariationalStrategy(
                covariance, gamma, DeltaVariationalDistribution(len(gamma))
            )
        )
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_the_peers_bound_exceeds_the_evidence_and_ours_does_not(record_property):
    kernel, x, y, beta, gamma = toy()
    kernel.requires_grad_(False)
    evidence = exact_regression(Covariance(kernel), x, y, TOY_NOISE, x[:1]).log_evidence.item()

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = TOY_NOISE
    likelihood.requires_grad_(False)
    peer = Peer(kernel, beta, gamma)
    elbo = gpytorch.mlls.VariationalELBO(likelihood, peer, len(y))
    trained = [
        t for n, t in peer.named_parameters() if "inducing_points" not in n and t.requires_grad
    ]
    optimizer = torch.optim.Adam(trained, lr=0.03)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = -elbo(peer(x), y)
        loss.backward()
        optimizer.step()
    theirs = -loss.item() * len(y)

    basis = build_basis("orthogonal", kernel, beta, gamma, optimizer="adam")
    ours_likelihood = Gaussian(1)
    ours_likelihood.likelihood.noise = TOY_NOISE
    model = VariationalGP(kernel, ours_likelihood, basis)
    variational = [t for n, t in basis.named_parameters() if n not in ("beta", "gamma")]
    optimizer = torch.optim.Adam(variational, lr=0.03)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = -model.bound(x, y).value
        loss.backward()
        optimizer.step()
    ours = -loss.item()
    record_property(
        "figure",
        f"log evidence {evidence:.2f}, GPyTorch's bound {theirs:.2f}, ours {ours:.2f}",
    )
    assert theirs > evidence + 0.5
    assert ours < evidence
