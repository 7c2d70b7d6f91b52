"""Rows for every step: drawn without replacement within an epoch, moved without waiting."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from orthogp.errors import DataError

# A data set that takes more than this share of the free device memory stays on the host.
DEVICE_SHARE = 0.5
PREFETCHED = 3


@dataclass(frozen=True)
class Rows:
    """Inputs, targets and weights, row by row."""

    x: Float[Tensor, "n d"]
    y: Shaped[Tensor, "n *outputs"]
    weight: Float[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        if self.x.shape[0] == 0:
            raise DataError("there are no rows to train on")
        for name, part in (("y", self.y), ("weight", self.weight)):
            if part is not None and part.shape[0] != self.x.shape[0]:
                raise DataError(f"{name} has {part.shape[0]} rows and x has {self.x.shape[0]}")

    def __len__(self) -> int:
        return self.x.shape[0]

    def require_finite(self) -> None:
        """Refuses values that no model can learn from; reads all rows."""
        for name, part in (("x", self.x), ("y", self.y), ("weight", self.weight)):
            missing = 0 if part is None else int((~part.isfinite()).sum())
            if missing:
                raise DataError(
                    f"{name} has {missing} values that are not finite; drop those rows or impute "
                    "them before fit"
                )

    def parts(self) -> list[Tensor]:
        return [self.x, self.y] if self.weight is None else [self.x, self.y, self.weight]

    def map(self, change) -> "Rows":
        weight = None if self.weight is None else change(self.weight)
        return Rows(change(self.x), change(self.y), weight)

    def to(self, device: torch.device, dtype: torch.dtype) -> "Rows":
        """On `device`, floating parts in `dtype`; labels keep their dtype."""
        return self.map(lambda t: t.to(device, dtype) if t.is_floating_point() else t.to(device))

    def chunks(self, size: int) -> Iterator["Rows"]:
        for start in range(0, len(self), size):
            yield self.map(lambda t, start=start: t[start : start + size])


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


class DeviceFeed:
    """Batches gathered where the data sit, which is where the step runs."""

    def __init__(self, rows: Rows, batch_size: int):
        self.rows = rows
        self.batch = [part.new_empty(batch_size, *part.shape[1:]) for part in rows.parts()]

    def run(self, indices: Int[Tensor, "steps b"]) -> Iterator[list[Tensor]]:
        """Fills the same buffers with one batch after the other."""
        for index in indices:
            for part, buffer in zip(self.rows.parts(), self.batch, strict=True):
                torch.index_select(part, 0, index, out=buffer)
            yield self.batch


class HostFeed:
    """Batches gathered on the host by a thread, a few steps ahead, and copied without waiting."""

    def __init__(self, rows: Rows, batch_size: int, device: torch.device):
        self.rows, self.device = rows, device
        self.batch = [
            torch.empty(batch_size, *p.shape[1:], dtype=p.dtype, device=device)
            for p in rows.parts()
        ]
        self.slots = [
            [torch.empty_like(b, device="cpu").pin_memory() for b in self.batch]
            for _ in range(PREFETCHED)
        ]
        self.copied = [torch.cuda.Event() for _ in range(PREFETCHED)]

    def run(self, indices: Int[Tensor, "steps b"]) -> Iterator[list[Tensor]]:
        indices = indices.cpu()

        def gather(step: int) -> int:
            slot = step % PREFETCHED
            # The copy that last read this slot was queued PREFETCHED steps ago.
            self.copied[slot].synchronize()
            for part, pinned in zip(self.rows.parts(), self.slots[slot], strict=True):
                torch.index_select(part, 0, indices[step], out=pinned)
            return slot

        ahead = min(PREFETCHED - 1, len(indices))
        with ThreadPoolExecutor(1) as pool:
            waiting = [pool.submit(gather, step) for step in range(ahead)]
            for step in range(len(indices)):
                slot = waiting.pop(0).result()
                for pinned, buffer in zip(self.slots[slot], self.batch, strict=True):
                    buffer.copy_(pinned, non_blocking=True)
                self.copied[slot].record()
                if step + ahead < len(indices):
                    waiting.append(pool.submit(gather, step + ahead))
                yield self.batch


def make_feed(
    rows: Rows, batch_size: int, device: torch.device, dtype: torch.dtype
) -> DeviceFeed | HostFeed:
    """Rows on the device when they fit comfortably, else prefetched from the host."""
    if device.type == "cuda" and rows.x.device.type == "cpu":
        free, _ = torch.cuda.mem_get_info(device)
        size = sum(part.numel() * part.element_size() for part in rows.parts())
        if size > DEVICE_SHARE * free:
            return HostFeed(rows.to(torch.device("cpu"), dtype), batch_size, device)
    return DeviceFeed(rows.to(device, dtype), batch_size)
