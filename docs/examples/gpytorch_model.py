# %% [markdown]
# # A GPyTorch model
#
# A rough function of one variable, a GPyTorch model with twenty-five inducing points, and the same
# model with residual points through `OrthogonalVariationalStrategy`. The table is small enough for
# the exact posterior and the exact log evidence, so that both can be judged.

# %%
import gpytorch
import matplotlib.pyplot as plt
import torch
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    VariationalStrategy,
)

from orthogp.kernel.covariance import Covariance
from orthogp.posterior.optimum import exact_regression
from orthogp.strategy import OrthogonalVariationalStrategy

torch.manual_seed(0)
NOISE = 0.02
x = torch.rand(400, 1).sort(dim=0).values
y = torch.sin(40 * x[:, 0] ** 2) + NOISE**0.5 * torch.randn(400)


class Model(gpytorch.models.ApproximateGP):
    def __init__(self, beta, gamma):
        strategy = VariationalStrategy(self, beta, CholeskyVariationalDistribution(len(beta)))
        if gamma is not None:
            strategy = OrthogonalVariationalStrategy(
                strategy, gamma, DeltaVariationalDistribution(len(gamma))
            )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5))
        self.covar_module.base_kernel.lengthscale = 0.08

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


# %% [markdown]
# Kernel and noise stay fixed: what is compared is the posterior alone.


# %%
def train(gamma):
    model = Model(torch.linspace(0, 1, 25)[:, None], gamma)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = NOISE
    elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    optimizer = torch.optim.Adam(model.variational_parameters(), lr=0.05)
    for _ in range(500):
        optimizer.zero_grad()
        (-elbo(model(x), y)).backward()
        optimizer.step()
    with torch.no_grad():
        bound = len(y) * elbo(model(x), y).item()
        return model.eval(), bound


plain, plain_bound = train(gamma=None)
orthogonal, orthogonal_bound = train(gamma=x[::5].clone())

places = torch.linspace(0, 1, 300)[:, None]
exact = exact_regression(Covariance(plain.covar_module), x, y, NOISE, places)
print(f"exact log evidence          {exact.log_evidence:9.1f} nats")
print(f"bound, 25 inducing points   {plain_bound:9.1f}")
print(f"bound, 80 residual points   {orthogonal_bound:9.1f}")

# %%
with torch.no_grad():
    means = {"25 inducing points": plain(places).mean, "and 80 residual": orthogonal(places).mean}
for name, mean in means.items():
    distance = (mean - exact.mean).square().mean().sqrt()
    print(f"{name:20} RMSE to the exact posterior mean {distance:.3f}")

figure, axes = plt.subplots(
    num="Posterior means with and without residual points, and the exact one"
)
axes.plot(x[:, 0], y, ".", color="gray", markersize=3, alpha=0.6)
axes.plot(places[:, 0], exact.mean, color="gray", linewidth=4, alpha=0.5, label="exact")
for (name, mean), style in zip(means.items(), ("--", "-"), strict=True):
    axes.plot(places[:, 0], mean, style, label=name)
axes.set(xlabel="x", ylabel="y", ylim=(-2.2, 1.7))
axes.legend(loc="lower left", ncols=3)
