"""Rows in memory, and which of them a step sees: without replacement within an epoch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from orthogp.errors import DataError, FileError

# Of an outline.
SAMPLED_ROWS = 2**16


@dataclass(frozen=True)
class Rows:
    """Inputs, targets and weights, row by row.

    `noise_scale` multiplies the variance of the likelihood's noise in each row, for all targets
    alike or for each.
    """

    x: Float[Tensor, "n d"]
    y: Shaped[Tensor, "n *outputs"]
    weight: Float[Tensor, " n"] | None = None
    noise_scale: Float[Tensor, "n *scales"] | None = None

    def __post_init__(self) -> None:
        if self.x.shape[0] == 0:
            raise DataError("there are no rows to train on")
        parts = ("y", self.y), ("weight", self.weight), ("noise_scale", self.noise_scale)
        for name, part in parts:
            if part is not None and part.shape[0] != self.x.shape[0]:
                raise DataError(f"{name} has {part.shape[0]} rows and x has {self.x.shape[0]}")

    def __len__(self) -> int:
        return self.x.shape[0]

    def require_finite(self) -> None:
        """Refuses values that no model can learn from; reads all rows."""
        named = [("x", self.x), ("y", self.y), ("weight", self.weight)]
        for name, part in [*named, ("noise_scale", self.noise_scale)]:
            missing = 0 if part is None else int((~part.isfinite()).sum())
            if missing:
                raise DataError(
                    f"{name} has {missing} values that are not finite; drop those rows or impute "
                    "them before fit"
                )

    def parts(self) -> list[Tensor]:
        return [self.x, self.y] if self.weight is None else [self.x, self.y, self.weight]

    def map(self, change) -> "Rows":
        weight, scale = (
            None if part is None else change(part) for part in (self.weight, self.noise_scale)
        )
        return Rows(change(self.x), change(self.y), weight, scale)

    @property
    def noise_divisor(self) -> Float[Tensor, "*c n"] | None:
        """By what the variance of the likelihood's noise is divided: `[n]`, or `[c, n]`."""
        if self.noise_scale is None:
            return self.weight
        scale = self.noise_scale.mT if self.noise_scale.ndim > 1 else self.noise_scale
        return (1.0 if self.weight is None else self.weight) / scale

    def to(self, device: torch.device, dtype: torch.dtype) -> "Rows":
        """On `device`, floating parts in `dtype`; labels keep their dtype."""
        return self.map(lambda t: t.to(device, dtype) if t.is_floating_point() else t.to(device))

    def chunks(self, size: int) -> Iterator["Rows"]:
        for start in range(0, len(self), size):
            yield self.map(lambda t, start=start: t[start : start + size])

    def outline(self) -> Iterator[bytes]:
        """What tells these rows from others: evenly spaced ones of them."""
        # Rows, not sums: a sum depends on the number of threads.
        stride = math.ceil(len(self) / SAMPLED_ROWS)
        noise = [] if self.noise_scale is None else [self.noise_scale]
        for part in self.parts() + noise:
            yield str(tuple(part.shape)).encode()
            yield part[::stride].cpu().contiguous().numpy().tobytes()


class Sampler:
    """A stream of permutations of the rows, cut into batches of one size.

    Within an epoch every row comes once; a batch may span two epochs, so none is ragged and every
    row is equally likely in each. With fewer rows than a batch, every batch is all rows.
    """

    def __init__(self, num_rows: int, batch_size: int, seed: int, device: torch.device):
        self.num_rows, self.batch_size = num_rows, min(batch_size, num_rows)
        self.generator = torch.Generator(device).manual_seed(seed)
        self._start_epoch()

    def draw(self, steps: int) -> Int[Tensor, "steps b"]:
        """The rows of the next `steps` batches."""
        missing, pieces = steps * self.batch_size, []
        while missing > 0:
            if self.position == self.num_rows:
                self._start_epoch()
            piece = self.order[self.position : self.position + missing]
            self.position += len(piece)
            missing -= len(piece)
            pieces.append(piece)
        return torch.cat(pieces).reshape(steps, self.batch_size)

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch_state.clone(), "position": self.position}

    def restore(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["epoch"].cpu())
        self._start_epoch()
        self.position = int(state["position"])
        if not 0 <= self.position <= self.num_rows:
            raise FileError(f"the checkpoint is at row {self.position} of {self.num_rows}")

    def _start_epoch(self) -> None:
        self.epoch_state = self.generator.get_state()
        device = self.generator.device
        self.order = torch.randperm(self.num_rows, generator=self.generator, device=device)
        self.position = 0


class ColumnSampler:
    """The γ that estimate the KL: one from each of equal strata, from a generator of their own."""

    def __init__(self, num_residual: int, columns: int, seed: int, device: torch.device):
        self.num_residual, self.columns = num_residual, columns
        self.generator = torch.Generator(device).manual_seed(seed)

    def draw(self, steps: int) -> Int[Tensor, "steps k"]:
        device = self.generator.device
        shift = torch.rand(
            steps, self.columns, generator=self.generator, device=device, dtype=torch.float64
        )
        stratum = torch.arange(self.columns, device=device) + shift
        chosen = (stratum * (self.num_residual / self.columns)).long()
        return chosen.clamp_max(self.num_residual - 1)

    def state(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"].cpu())
