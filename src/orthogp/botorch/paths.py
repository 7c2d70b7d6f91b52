"""Functions of the posterior of the model for BoTorch, as BoTorch's sample paths."""

from typing import Any

import torch
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from torch import Size, Tensor

from orthogp.botorch.model import OrthogonalGPModel
from orthogp.errors import ConfigurationError
from orthogp.estimators.fitted import FARTHEST
from orthogp.model.gp import LatentFunctions


class FunctionPath(SamplePath):
    """Functions of the posterior as BoTorch's sample paths: of inputs and outcomes of the user."""

    def __init__(self, model: OrthogonalGPModel, functions: LatentFunctions, shape: Size):
        super().__init__()
        self.model, self.functions, self.shape = model, functions, shape

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Nothing: the model is no ensemble."""

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """`[*t, *shape, n]` at `[*t, *shape, n, d]`; of several outcomes `[*t, *shape, m, n]` at
        `[*t, *shape, 1, n, d]`. What x lacks of the shape is broadcast."""
        model, several = self.model, self.model.num_outputs > 1
        X = x.squeeze(-3) if several else x
        missing = max(0, len(self.shape) - (X.ndim - 2))
        X = X.reshape(*[1] * missing, *X.shape)
        lead, own = (
            X.shape[: X.ndim - 2 - len(self.shape)],
            X.shape[X.ndim - 2 - len(self.shape) : -2],
        )
        transformed = model.transform_inputs(X)
        n, d, count = X.shape[-2], transformed.shape[-1], len(self.functions)
        shift_x, scale_x, shift_y, scale_y = model._units
        points = ((transformed.to(shift_x) - shift_x) / scale_x).clamp(-FARTHEST, FARTHEST)
        if own.numel() == 1:
            # The same points for all functions are conditioned on once.
            points = points.reshape(-1, d)
        else:
            # Of every function all its points, one batch after the other.
            points = points.expand(*lead, *self.shape, n, d).reshape(-1, count, n, d)
            points = points.movedim(1, 0).reshape(count, -1, d)
        values = self.functions(points)[:, model._outputs]
        shift_y, scale_y = (t[model._outputs].unsqueeze(-1) for t in (shift_y, scale_y))
        values = values * scale_y + shift_y
        values = values.reshape(count, len(model._outputs), -1, n).permute(2, 0, 3, 1)
        values = values.reshape(*lead, *self.shape, n, -1).to(x)
        if hasattr(model, "outcome_transform"):
            values = model.outcome_transform.untransform(values)[0]
        return values.mT if several else values.squeeze(-1)


@DrawMatheronPaths.register(OrthogonalGPModel)
def _draw_paths(model: OrthogonalGPModel, *, sample_shape: Size, **strategies: Any) -> FunctionPath:
    """In place of BoTorch's own strategies, which are for other models."""
    if model._fantasies is not None:
        raise ConfigurationError("functions are drawn from a model without fantasies")
    seed = int(torch.randint(2**62, ()))
    generator = torch.Generator().manual_seed(seed)
    number = max(1, sample_shape.numel())
    functions = model.estimator.model_.sample_functions(number, generator)
    return FunctionPath(model, functions, sample_shape)
