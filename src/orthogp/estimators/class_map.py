"""The inputs of a classifier, mapped before anything else is learned from them."""

import math
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray

from orthogp.estimators.intake import FitData
from orthogp.estimators.near_fit import with_mapped_inputs
from orthogp.estimators.near_rows import learns_map
from orthogp.estimators.scaling import Ramps
from orthogp.estimators.score_map import score_map
from orthogp.estimators.site_rows import starting_kernel
from orthogp.execution.team import current_team
from orthogp.likelihoods import ClassificationLikelihood, Likelihood
from orthogp.training import Rows
from orthogp.training.curved_map import InputMap
from orthogp.training.input_map import densities_by_inputs, learn_input_map

# The share of the time of a fit that the map may take to learn.
MAP_SHARE = 0.2


def learns_class_map(settings: Mapping[str, Any], data: FitData, likelihood: Likelihood) -> bool:
    """Whether held-out rows can tell what a map of the inputs is worth for these classes."""
    if not (isinstance(likelihood, ClassificationLikelihood) and isinstance(data.train, Rows)):
        return False
    free = settings["residual_points"] is None and settings["train_hyperparameters"]
    corrects = data.held_out is not None and settings["n_neighbors"] != 0
    return bool(free and corrects and learns_map(settings, data.bound_rows))


def with_class_map(
    settings: Mapping[str, Any],
    data: FitData,
    likelihood: Likelihood,
    variance: float,
    device: torch.device,
    generator: torch.Generator,
) -> FitData:
    """The same rows with mapped inputs, where held-out rows gain by the map.

    `variance` is that of the parts of the default kernel.
    """
    train, held_out = data.train, data.held_out
    assert isinstance(train, Rows)
    assert held_out is not None
    kernel = starting_kernel(settings, train.x, variance, data.units.groups).to(device)
    # Where no map is taken all later draws are those of a fit without one.
    own = torch.Generator()
    own.set_state(generator.get_state())
    likelihood = deepcopy(likelihood).to(device)
    found = _best_map(settings, train, held_out, likelihood, kernel, own)
    found = current_team().agree(found)
    if found is None:
        return data
    linear_map, ramps = found
    units = replace(data.units, inputs=data.units.inputs.followed_by(linear_map, ramps))
    # Rows of one role may be those of another.
    mapped: dict[int, Rows] = {}
    for rows in (train, held_out, data.sample, data.bound_rows):
        if id(rows) not in mapped:
            mapped[id(rows)] = with_mapped_inputs(rows, linear_map, ramps)
    return replace(
        data,
        units=units,
        train=mapped[id(train)],
        held_out=mapped[id(held_out)],
        sample=mapped[id(data.sample)],
        bound_rows=mapped[id(data.bound_rows)],
    )


def _best_map(
    settings: Mapping[str, Any],
    train: Rows,
    held_out: Rows,
    likelihood: Likelihood,
    kernel: Kernel,
    generator: torch.Generator,
) -> tuple[NDArray[np.floating], Ramps] | None:
    """The map that is learned, or that to normal scores, whichever gains more, if any does.

    It is learned on the device of the kernel.
    """
    max_time, max_steps = settings["max_time"], settings["max_steps"]
    deadline = math.inf if max_time is None else time.monotonic() + MAP_SHARE * max_time
    device, dtype = next(kernel.parameters()).device, train.x.dtype
    limits = kernel, generator, deadline, max_steps

    def on_device(rows: Rows) -> Rows:
        return rows.map(lambda t: t.to(device))

    learned = learn_input_map(likelihood, on_device(train), on_device(held_out), *limits)
    if learned is None:
        return None
    best = None if learned.map is None else as_ramps(learned.map, dtype)
    scores = score_map(train.x.double().numpy()) if settings["input_transform"] == "auto" else None
    if scores is None:
        return best
    linear_map, ramps = torch.from_numpy(scores[0]).to(dtype).numpy(), scores[1]
    scored, others = (
        on_device(with_mapped_inputs(rows, linear_map, ramps)) for rows in (train, held_out)
    )
    density = densities_by_inputs(learned.plain, likelihood, scored, others, *limits)
    better = density is not None and density.mean() > learned.density.mean()
    return (linear_map, ramps) if better else best


def as_ramps(found: InputMap, dtype: torch.dtype) -> tuple[NDArray[np.floating], Ramps]:
    """The map as one of x and of ramps between its knots, without the constant that is left."""
    low, high = found.knots[:, :-1], found.knots[:, 1:]
    column, knot = (high > low).nonzero(as_tuple=True)
    rises = found.curves[column, knot + 1] - found.curves[column, knot]
    linear_map = torch.cat([found.linear, rises.mT], dim=1).to("cpu", dtype)
    parts = (t.cpu().numpy() for t in (column, low[column, knot], high[column, knot]))
    return linear_map.numpy(), Ramps(*parts)
