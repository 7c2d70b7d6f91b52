"""Several processes that train one model on torch.distributed: what they tell each other.

Every process draws the same batches and works on its share of their rows. The sums of the shares
are the same everywhere, so every process takes the same step; what one decides, the first decides.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# The group that is there when this is first imported becomes the default of its functions, which
# would keep the group's threads alive beyond its end, into an interpreter that is being taken down.
import torch.distributed.nn
from torch import Tensor

from orthogp.errors import OrthogpError, TeamError

T = TypeVar("T")
# How long the processes of a group wait for one of them.
PATIENCE = timedelta(minutes=30)


@dataclass(frozen=True)
class Team:
    """The processes of a run, this one's place among them, and their collectives."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process speaks for all: files, callbacks and decisions are its own."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This process's part of `count` things; the parts differ by one at most, or are empty."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor summed over the processes, in one all-reduce of float64."""
        if self.size == 1:
            return list(tensors)
        flat = torch.cat([t.detach().reshape(-1).double() for t in tensors])
        with _contact(self):
            dist.all_reduce(flat)
        parts = flat.split([t.numel() for t in tensors])
        return [part.reshape(t.shape).to(t.dtype) for part, t in zip(parts, tensors, strict=True)]

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, through which gradients find their way to every one."""
        return tensor if self.size == 1 else _Total.apply(tensor, self)  # pyright: ignore

    def gather(self, part: Tensor, count: int) -> Tensor:
        """Everyone's `share(count)` of some rows, one after the other; differentiable."""
        whole = part.new_zeros(count, *part.shape[1:])
        return self.total(whole.index_copy(0, self._positions(part, count), part))

    def _positions(self, part: Tensor, count: int) -> Tensor:
        own = self.share(count)
        return torch.arange(own.start, own.stop, device=part.device)

    @torch.no_grad()
    def align(self, tensors: Sequence[Tensor]) -> None:
        """Writes the first process's values into everyone's tensors."""
        if self.size == 1:
            return
        with _contact(self):
            for dtype in sorted({t.dtype for t in tensors}, key=str):
                same = [t for t in tensors if t.dtype == dtype]
                flat = torch.cat([t.reshape(-1) for t in same])
                dist.broadcast(flat, src=0)
                for part, t in zip(flat.split([t.numel() for t in same]), same, strict=True):
                    t.copy_(part.reshape(t.shape))

    def first_of(self, value: T | None) -> T | None:
        """The value of the first process that has one."""
        if self.size == 1:
            return value
        values: list[T | None] = [None] * self.size
        with _contact(self):
            dist.all_gather_object(values, value)
        return next((v for v in values if v is not None), None)

    def least(self, number: int) -> int:
        """The smallest of everyone's numbers."""
        if self.size == 1:
            return number
        numbers: list[int] = [0] * self.size
        with _contact(self):
            dist.all_gather_object(numbers, number)
        return min(numbers)

    def wait(self) -> None:
        """Returns when every process has called it."""
        if self.size > 1:
            with _contact(self):
                dist.barrier()

    def agree(self, value: T, rank: int = 0) -> T:
        """The value of the process of that rank, whatever the others have."""
        if self.size == 1:
            return value
        holder = [value]
        with _contact(self):
            dist.broadcast_object_list(holder, src=rank)
        return holder[0]

    def collect(self, value: T) -> list[T]:
        """Everyone's values, in the order of the ranks; they may differ in size."""
        # One after the other: gathered at once, each would take the memory of the largest.
        return [self.agree(value, rank) for rank in range(self.size)]

    def attempt(self, work: Callable[[], T]) -> T:
        """What `work` returns here; where it fails in one process, it fails in all of them.

        An error of orthogp is raised everywhere as it is, and any other where it happened.
        """
        if self.size == 1:
            return work()
        found, failure = None, None
        try:
            found = work()
        except Exception as error:
            failure = error
        name = f"process {self.rank} of {self.size}"
        kind, message = None, ""
        if isinstance(failure, OrthogpError):
            kind, message = type(failure), f"{name}: {failure}"
        elif failure is not None:
            kind, message = TeamError, f"{name} failed: {type(failure).__name__}: {failure!s:.200}"
        first = self.first_of(None if kind is None else (kind, message))
        if failure is not None and not isinstance(failure, OrthogpError):
            raise failure
        if first is not None:
            raise first[0](first[1]) from failure
        return found  # pyright: ignore[reportReturnType]


class _Total(torch.autograd.Function):
    """Every process's loss depends on the sum, so a part's gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, tensor, team):
        ctx.team = team
        return _all_reduced(tensor, team)

    @staticmethod
    def backward(ctx, *grad_outputs):
        return _all_reduced(grad_outputs[0], ctx.team), None


def _all_reduced(tensor: Tensor, team: Team) -> Tensor:
    summed = tensor.clone(memory_format=torch.contiguous_format)
    with _contact(team):
        dist.all_reduce(summed)
    return summed


def current_team() -> Team:
    """Everyone in the process group that is initialised, or this process alone."""
    if not dist.is_available() or not dist.is_initialized():
        return Team()
    return Team(dist.get_rank(), dist.get_world_size())


@contextlib.contextmanager
def joined_group(
    store: Any, rank: int, size: int, backend: str = "gloo", patience: timedelta = PATIENCE
) -> Iterator[Team]:
    """The group of the processes that meet at a store of torch.distributed, while the block lasts.

    For engines that start processes without torchrun's variables. A process that waits longer than
    `patience` for another gives up.
    """
    with _contact(Team(rank, size)):
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    try:
        team = current_team()
        yield team
        # One that leaves early would take the store that the others still talk to with it.
        team.wait()
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _contact(team: Team) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # Of gloo's text, neither the place in its source nor its advice.
        reason = re.sub(r"^\[\S+:\d+\] ", "", str(error).strip().split("\n")[0]).split(". ")[0]
        raise TeamError(
            f"process {team.rank} of {team.size} lost contact with the others ({reason}); "
            "start all of them again with the same checkpoint_dir to go on from the last checkpoint"
        ) from error
