"""Pieces of work that do not wait for each other: on a CUDA device each has a stream of its own."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Branches:
    """Runs work beside what follows it, until `join`; on a CPU it simply runs.

    Of what waits for a place on the device, branches come first unless they are `patient`. The
    backward pass of a branch runs in its stream too. What a branch made may be used after
    `join` and dropped at any time: the next branch waits for everything before it.
    """

    def __init__(self, device: torch.device, beside: bool = True):
        self._device = device
        self._beside = beside and device.type == "cuda"
        self._open: list[torch.cuda.Stream] = []
        self._apart = 0

    def run(
        self,
        work: Callable[[], T],
        *reads: Tensor,
        patient: bool = False,
        after: Sequence[torch.cuda.Event] = (),
    ) -> T:
        """`reads` are those tensors made by the caller that the work or its backward pass reads.

        It begins with what follows this call, or already `after` events.
        """
        if not self._beside:
            return work()
        stream = _stream(self._device, len(self._open), patient)
        self._open.append(stream)
        return self._started(stream, work, reads, after)

    def begin(
        self,
        work: Callable[[], T],
        *reads: Tensor,
        patient: bool = False,
        after: Sequence[torch.cuda.Event] = (),
    ) -> Callable[[], T]:
        """Like `run`; calling what comes back is the `join` of this work alone."""
        if not self._beside:
            made = work()
            return lambda: made
        self._apart += 1
        stream = _stream(self._device, -self._apart, patient)
        made = self._started(stream, work, reads, after)

        def wait() -> T:
            torch.cuda.current_stream(self._device).wait_stream(stream)
            return made

        return wait

    def _started(
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
        for stream in self._open:
            torch.cuda.current_stream(self._device).wait_stream(stream)
        self._open.clear()


@cache
def _stream(device: torch.device, index: int, patient: bool) -> torch.cuda.Stream:
    return urgent_stream(device) if not patient else torch.cuda.Stream(device)


def urgent_stream(device: torch.device) -> torch.cuda.Stream:
    """One whose kernels are not kept waiting by those of a plain stream."""
    return torch.cuda.Stream(device, priority=-1)


def apart(parameter: Tensor) -> Tensor:
    """A view on a CUDA device: what gathers the gradient then runs in the caller's stream."""
    return parameter.view_as(parameter) if parameter.is_cuda else parameter


def now(device: torch.device) -> torch.cuda.Event:
    """What the current stream of a device has done so far."""
    event = torch.cuda.Event()
    record(event, device)
    return event


def record(event: torch.cuda.Event, device: torch.device) -> None:
    """Records in the current stream of this device, which need not be the current device."""
    event.record(torch.cuda.current_stream(device))


def known(tensor: Tensor) -> torch.cuda.Event:
    """That the gradient of a tensor is known, in the backward pass to come."""
    event = torch.cuda.Event()
    # Of the device alone: a hook that holds its tensor would keep the graph alive.
    device = tensor.device
    tensor.register_hook(lambda _: record(event, device))
    return event
