"""orthogp: the step, the batches and the capture are those of its training engine."""

import numpy as np
import torch

import orthogp
from orthogp.likelihoods import Gaussian
from orthogp.model import VariationalGP, build_basis, default_kernel
from orthogp.training import Rows, TrainingConfig, predict_in_chunks
from orthogp.training.run import Run

from .contract import Data, Setup


class OrthogpModel:
    def __init__(self, setup: Setup, data: Data):
        self.versions = {"orthogp": orthogp.__version__, "torch": torch.__version__}
        kernel = default_kernel(setup.dims, setup.ard)
        likelihood = Gaussian(1)
        likelihood.likelihood.initialize(noise=setup.noise)
        basis = build_basis(
            "orthogonal" if setup.n_residual else "coupled",
            kernel,
            torch.from_numpy(data.beta),
            torch.from_numpy(data.gamma),
        )
        dtype = getattr(torch, setup.dtype)
        self.model = VariationalGP(kernel, likelihood, basis).to(setup.device, dtype)
        config = TrainingConfig(
            max_steps=10**9,
            batch_size=setup.batch,
            learning_rate=setup.learning_rate,
            natural_step=setup.natural_step,
            schedule="constant",
            kl_columns=setup.kl_columns,
        )
        rows = Rows(torch.from_numpy(data.x), torch.from_numpy(data.y))
        self.run = Run(self.model, rows, config, None, (), None, 0.0)
        self.test = torch.from_numpy(data.test).to(setup.device)
        self.chunk_rows = max(1, setup.test_rows)

    def train(self, steps: int) -> float:
        bound, fault = self.run.chunk(steps)
        if fault is not None:
            raise RuntimeError(fault)
        self.run.progress.step += steps
        return bound / len(self.run.rows)

    def predict(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        pieces = list(predict_in_chunks(self.model, self.test[start:stop]))
        mean, variance = (torch.cat(p, dim=1)[0].cpu().numpy() for p in zip(*pieces, strict=True))
        return mean, variance

    def peak_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated() if self.test.is_cuda else None
