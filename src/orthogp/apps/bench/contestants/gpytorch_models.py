"""GPyTorch: its orthogonally decoupled strategy, or the SVGP where there are no residual points,
by its usual strategy or by that for large batches, which works in float64.

The SVGP takes natural steps (NGD). With them the decoupled strategy stops with NotPSDError at the
third step of the default setup (gpytorch#1267), so there Adam moves everything.
"""

from functools import partial
from itertools import chain

import gpytorch
import numpy as np
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    LargeBatchVariationalStrategy,
    NaturalVariationalDistribution,
    OrthogonallyDecoupledVariationalStrategy,
    VariationalStrategy,
)

from .contract import Data, Setup


class Posterior(gpytorch.models.ApproximateGP):
    def __init__(
        self,
        setup: Setup,
        beta: torch.Tensor,
        gamma: torch.Tensor,
        svgp: type[VariationalStrategy],
    ):
        if setup.n_residual:
            inner = VariationalStrategy(self, beta, CholeskyVariationalDistribution(len(beta)))
            strategy = OrthogonallyDecoupledVariationalStrategy(
                inner, gamma, DeltaVariationalDistribution(len(gamma))
            )
        else:
            strategy = svgp(self, beta, NaturalVariationalDistribution(len(beta)))
        super().__init__(strategy)
        dims = setup.dims if setup.ard else None
        rough = ScaleKernel(MaternKernel(2.5, ard_num_dims=dims))
        smooth = ScaleKernel(RBFKernel(ard_num_dims=dims))
        for kernel, lengthscale in zip((rough, smooth), setup.lengthscales, strict=True):
            kernel.base_kernel.initialize(lengthscale=lengthscale)
            kernel.initialize(outputscale=1.0)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = rough + smooth

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        mean, covariance = self.mean_module(x), self.covar_module(x)
        return gpytorch.distributions.MultivariateNormal(mean, covariance)  # pyright: ignore


class GPyTorchModel:
    chunk_rows = None

    def __init__(
        self, setup: Setup, data: Data, svgp: type[VariationalStrategy] = VariationalStrategy
    ):
        self.versions = {"gpytorch": gpytorch.__version__, "torch": torch.__version__}

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(setup.device)

        self.batch = setup.batch
        self.x, self.y, self.test = tensor(data.x), tensor(data.y), tensor(data.test)
        dtype = self.x.dtype
        self.model = Posterior(setup, tensor(data.beta), tensor(data.gamma), svgp)
        self.model.to(setup.device, dtype)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(setup.device, dtype)
        likelihood.initialize(noise=setup.noise)
        self.bound = gpytorch.mlls.VariationalELBO(likelihood, self.model, setup.rows)
        natural = [] if setup.n_residual else list(self.model.variational_parameters())
        excluded = {id(p) for p in natural}
        rest = [
            p
            for p in chain(self.model.parameters(), likelihood.parameters())
            if id(p) not in excluded
        ]
        adam = torch.optim.Adam(rest, lr=setup.learning_rate, fused=True)
        self.optimizers: list[torch.optim.Optimizer] = [adam]
        if natural:
            self.optimizers.append(gpytorch.optim.NGD(natural, setup.rows, setup.natural_step))

    def train(self, steps: int) -> float:
        self.model.train()
        loss = torch.zeros(())
        drawn = torch.randint(len(self.x), (steps, self.batch), device=self.x.device)
        for index in drawn:
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)
            loss = -self.bound(self.model(self.x[index]), self.y[index])  # pyright: ignore
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()
        return -loss.item()

    @torch.no_grad()
    def predict(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        self.model.eval()
        with gpytorch.settings.fast_pred_var():
            latent = self.model(self.test[start:stop])
            return latent.mean.cpu().numpy(), latent.variance.cpu().numpy()

    def peak_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated() if self.x.is_cuda else None


LargeBatchModel = partial(GPyTorchModel, svgp=LargeBatchVariationalStrategy)
