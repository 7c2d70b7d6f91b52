"""Functions of the posterior of the model for BoTorch, as BoTorch's sample paths."""

from typing import Any

import torch
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from torch import Size, Tensor

from orthogp.botorch.model import OrthogonalGPModel
from orthogp.errors import ConfigurationError
from orthogp.estimators.scaling import FARTHEST
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
        points, lead = self._points(x.squeeze(-3) if several else x)
        values = self.functions(points)[:, model._outputs]
        shift_y, scale_y = (t[model._outputs].unsqueeze(-1) for t in model._units[2:])
        values = values * scale_y + shift_y
        n, count = x.shape[-2], len(self.functions)
        values = values.reshape(count, len(model._outputs), -1, n).permute(2, 0, 3, 1)
        values = values.reshape(*lead, *self.shape, n, -1).to(x)
        if hasattr(model, "outcome_transform"):
            values = model.outcome_transform.untransform(values)[0]
        return values.mT if several else values.squeeze(-1)

    def given_rows_near(self, X: Tensor) -> "FunctionPath":
        """For points that start at X, `[*t, *shape, n, d]`, and keep the rows near it."""
        functions = self.functions.given_rows_near(self._points(X)[0])
        return FunctionPath(self.model, functions, self.shape)

    def _points(self, X: Tensor) -> tuple[Tensor, Size]:
        """X in the units of the functions, `[m, d]` or `[f, m, d]`; and the batches before f."""
        missing = max(0, len(self.shape) - (X.ndim - 2))
        X = X.reshape(*[1] * missing, *X.shape)
        place = X.ndim - 2 - len(self.shape)
        lead, own = X.shape[:place], X.shape[place:-2]
        transformed = self.model.transform_inputs(X)
        (n, d), count = transformed.shape[-2:], len(self.functions)
        shift, scale = self.model._units[:2]
        points = ((transformed.to(shift) - shift) / scale).clamp(-FARTHEST, FARTHEST)
        if own.numel() == 1:
            # The same points for all functions are conditioned on once.
            return points.reshape(-1, d), lead
        # Of every function all its points, one batch after the other.
        points = points.expand(*lead, *self.shape, n, d).reshape(-1, count, n, d)
        return points.movedim(1, 0).reshape(count, -1, d), lead


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
