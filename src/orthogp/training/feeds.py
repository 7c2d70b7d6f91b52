"""Batches for every step, in buffers that stay where they are, without waiting for a device.

A feed fills its buffers, `batch`, once for every turn of `run(steps)`; `state()` says where it
stands in whole numbers and tensors, and `restore` goes back there.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from orthogp.errors import FileError
from orthogp.execution.cuda_streams import record
from orthogp.execution.team import Team
from orthogp.training.batches import Rows, Sampler
from orthogp.training.streams import Stream, Windows

# A data set that takes more than this share of the free device memory stays on the host.
DEVICE_SHARE = 0.5
PREFETCHED = 3
# With fewer blocks than this a process, all processes read every block.
BLOCKS_A_PROCESS = 4


class DeviceFeed:
    """Batches gathered where the data sit, which is where the step runs."""

    def __init__(self, rows: Rows, sampler: Sampler, share: slice):
        self.rows, self.sampler, self.share = rows, sampler, share
        self.state, self.restore = sampler.state, sampler.restore
        self.batch = _buffers(rows, share.stop - share.start, rows.x.device)

    def run(self, steps: int) -> Iterator[None]:
        for index in self.sampler.draw(steps)[:, self.share]:
            _gather(self.rows, index, self.batch)
            yield


class HostFeed:
    """Batches gathered on the host by a thread, a few steps ahead, and copied without waiting."""

    def __init__(self, rows: Rows, sampler: Sampler, share: slice, device: torch.device):
        self.rows, self.sampler, self.share = rows, sampler, share
        self.state, self.restore = sampler.state, sampler.restore
        self.batch = _buffers(rows, share.stop - share.start, device)
        self.slots = [
            [torch.empty_like(b, device="cpu").pin_memory() for b in self.batch]
            for _ in range(PREFETCHED)
        ]
        self.copied = [torch.cuda.Event() for _ in range(PREFETCHED)]

    def run(self, steps: int) -> Iterator[None]:
        indices = self.sampler.draw(steps)[:, self.share].cpu()

        def gather(step: int) -> int:
            slot = step % PREFETCHED
            # The copy that last read this slot was queued PREFETCHED steps ago.
            self.copied[slot].synchronize()
            _gather(self.rows, indices[step], self.slots[slot])
            return slot

        ahead = min(PREFETCHED - 1, steps)
        with ThreadPoolExecutor(1) as pool:
            waiting = [pool.submit(gather, step) for step in range(ahead)]
            for step in range(steps):
                slot = waiting.pop(0).result()
                for pinned, buffer in zip(self.slots[slot], self.batch, strict=True):
                    buffer.copy_(pinned, non_blocking=True)
                record(self.copied[slot], self.batch[0].device)
                if step + ahead < steps:
                    waiting.append(pool.submit(gather, step + ahead))
                yield


class StreamFeed:
    """Batches from a stream's windows, one after the other; a batch may span two of them."""

    def __init__(self, windows: Windows, batch_rows: int, share: slice):
        """Of every `batch_rows` rows of the windows, those of `share` are this process's."""
        self.windows, self.batch_rows, self.share = windows, batch_rows, share
        self._enter()
        self.batch = _buffers(self.window.rows, share.stop - share.start, windows.device)

    def run(self, steps: int) -> Iterator[None]:
        for _ in range(steps):
            self._pass(self.share.start)
            self._fill()
            self._pass(self.batch_rows - self.share.stop)
            yield

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "window": self.number, "position": self.position}

    def restore(self, state: dict[str, Any]) -> None:
        if (state["epoch"], state["window"]) != (self.epoch, self.number):
            self.windows.seek(state["epoch"], state["window"])
            self._enter()
        self.position = state["position"]
        if not 0 <= self.position <= len(self.window.rows):
            raise FileError(f"the checkpoint is at row {self.position} of {len(self.window.rows)}")

    def _enter(self) -> None:
        self.epoch, self.number = self.windows.epoch, self.windows.number
        self.window, self.position = self.windows.next(), 0

    def _next(self, most: int) -> Tensor:
        """Places in the window of the next rows, at most so many; at least one."""
        if self.position == len(self.window.rows):
            self._enter()
        found = self.window.order[self.position : self.position + most]
        self.position += len(found)
        return found

    def _pass(self, count: int) -> None:
        while count:
            count -= len(self._next(count))

    def _fill(self) -> None:
        filled, wanted = 0, len(self.batch[0])
        while filled < wanted:
            index = self._next(wanted - filled)
            stop = filled + len(index)
            _gather(self.window.rows, index, [b[filled:stop] for b in self.batch])
            filled = stop


Feed = DeviceFeed | HostFeed | StreamFeed


def make_feed(
    rows: Rows | Stream,
    batch_size: int,
    seed: int,
    team: Team,
    device: torch.device,
    dtype: torch.dtype,
) -> Feed:
    """The feed for data as large as these, of this process's share of every batch."""
    batch_rows = min(batch_size, len(rows))
    share = team.share(batch_rows)
    if isinstance(rows, Stream):
        filled = sum(size > 0 for size in rows.sizes)
        shares = rows.owners is not None or filled < BLOCKS_A_PROCESS * team.size
        if team.size == 1 or shares:
            return StreamFeed(Windows(rows, seed, device, dtype), batch_rows, share)
        own = share.stop - share.start
        windows = Windows(rows, seed, device, dtype, team.rank, team.size)
        return StreamFeed(windows, own, slice(0, own))
    sampler = Sampler(len(rows), batch_size, seed, device)
    if device.type == "cuda" and rows.x.device.type == "cpu":
        free, _ = torch.cuda.mem_get_info(device)
        size = sum(part.numel() * part.element_size() for part in rows.parts())
        if size > DEVICE_SHARE * free:
            return HostFeed(rows.to(torch.device("cpu"), dtype), sampler, share, device)
    return DeviceFeed(rows.to(device, dtype), sampler, share)


def _buffers(rows: Rows, count: int, device: torch.device) -> list[Tensor]:
    return [
        torch.empty(count, *part.shape[1:], dtype=part.dtype, device=device)
        for part in rows.parts()
    ]


def _gather(rows: Rows, index: Tensor, into: list[Tensor]) -> None:
    for part, buffer in zip(rows.parts(), into, strict=True):
        torch.index_select(part, 0, index, out=buffer)
