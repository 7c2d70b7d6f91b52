"""Work that may run at the same time as other work on a CUDA device, each piece in its stream."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class SideStreams:
    """Runs pieces of work in streams of their own, which the current stream does not wait for.

    On a CPU, or where it is not `enabled`, a piece simply runs. A piece's kernels have a higher
    priority than those of the current stream unless it is asked for otherwise; its backward pass
    runs in its stream too. What a piece made may be used after `join` and dropped at any time:
    the next piece waits for everything before it.
    """

    def __init__(self, device: torch.device, enabled: bool = True):
        self._device = device
        self._enabled = enabled and device.type == "cuda"
        self._joined_together: list[torch.cuda.Stream] = []
        self._joined_alone = 0
        if self._enabled:
            _without_stream_warning()

    def run(
        self,
        work: Callable[[], T],
        *reads: Tensor,
        low_priority: bool = False,
        after: Sequence[torch.cuda.Event] = (),
    ) -> T:
        """What the work returns, complete after `join`.

        `reads` are those tensors made by the caller that the work or its backward pass reads. It
        starts when all before this call is done, or already after these events.
        """
        if not self._enabled:
            return work()
        stream = _stream(self._device, len(self._joined_together), low_priority)
        self._joined_together.append(stream)
        return self._launched(stream, work, reads, after)

    def start(
        self,
        work: Callable[[], T],
        *reads: Tensor,
        low_priority: bool = False,
        after: Sequence[torch.cuda.Event] = (),
    ) -> Callable[[], T]:
        """Like `run`; calling what comes back is the `join` of this piece alone."""
        if not self._enabled:
            made = work()
            return lambda: made
        self._joined_alone += 1
        stream = _stream(self._device, -self._joined_alone, low_priority)
        made = self._launched(stream, work, reads, after)

        def wait() -> T:
            torch.cuda.current_stream(self._device).wait_stream(stream)
            return made

        return wait

    def _launched(
        self,
        stream: torch.cuda.Stream,
        work: Callable[[], T],
        reads: tuple[Tensor, ...],
        after: Sequence[torch.cuda.Event],
    ) -> T:
        if not after:
            stream.wait_stream(torch.cuda.current_stream(self._device))
        for event in after:
            stream.wait_event(event)
        for tensor in reads:
            tensor.record_stream(stream)
        with torch.cuda.stream(stream):
            return work()

    def join(self) -> None:
        """Lets the current stream wait for everything that was `run`."""
        for stream in self._joined_together:
            torch.cuda.current_stream(self._device).wait_stream(stream)
        self._joined_together.clear()


@cache
@cache
def _without_stream_warning() -> None:
    """torch warns where a parameter gets gradients of several streams, as it is meant to here."""
    set_warning = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if set_warning is not None:
        set_warning(False)


def _stream(device: torch.device, index: int, low_priority: bool) -> torch.cuda.Stream:
    return torch.cuda.Stream(device) if low_priority else high_priority_stream(device)


def high_priority_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream whose kernels do not wait for those of a plain one."""
    return torch.cuda.Stream(device, priority=-1)


def record(event: torch.cuda.Event, device: torch.device) -> None:
    """Records in the current stream of this device, which need not be the current device."""
    event.record(torch.cuda.current_stream(device))


def recorded_event(device: torch.device) -> torch.cuda.Event:
    """An event that occurs when all work so far of the device's current stream is done."""
    event = torch.cuda.Event()
    record(event, device)
    return event


def gradient_ready_event(tensor: Tensor) -> torch.cuda.Event:
    """An event that occurs in the coming backward pass, when the tensor's gradient is complete."""
    event = torch.cuda.Event()
    # Of the device alone: a hook that holds its tensor would keep the graph alive.
    device = tensor.device
    tensor.register_hook(lambda _: record(event, device))
    return event
