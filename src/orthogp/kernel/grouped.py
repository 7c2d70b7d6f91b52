"""RBF and Matérn kernels in which groups of inputs share a lengthscale.

A column of categories is several inputs, one for each level, and the kernel should know it by one
lengthscale: |x − z|² / ℓ² then is Σ_g Σ_{d ∈ g} (x_d − z_d)² / ℓ_g². Everything that reads
`lengthscale` sees one number for every input, so these kernels take the fused path of `radial`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from jaxtyping import Int
from torch import Tensor, nn

from orthogp.errors import ConfigurationError


class _Grouped(Kernel):
    """What the two kernels share; `groups` has the number of every input's lengthscale."""

    groups: Tensor

    def __init__(self, groups: Sequence[int] | Tensor, **settings: Any):
        members = torch.as_tensor(groups, dtype=torch.long)
        count = int(members.max()) + 1 if members.ndim == 1 and len(members) else 0
        if not count or not torch.equal(members.unique(), torch.arange(count)):
            raise ConfigurationError(
                f"groups are {groups!s:.80}; expected the number of a group for every input, "
                "with no group from 0 to the last left out"
            )
        super().__init__(ard_num_dims=count, **settings)
        # GPyTorch compares it with the number of inputs.
        self.ard_num_dims = len(members)
        self.register_buffer("groups", members)

    @property
    def lengthscale(self) -> Tensor:
        """The lengthscale of every input, `[1, d]`."""
        constraint: Any = self.raw_lengthscale_constraint
        grouped = constraint.transform(self.raw_lengthscale)
        return grouped[..., self.groups]

    @lengthscale.setter
    def lengthscale(self, value: Tensor | float) -> None:
        """One for all groups, or one for each of them."""
        self._set_lengthscale(value)  # pyright: ignore


class GroupedMaternKernel(_Grouped, MaternKernel):
    """A Matérn kernel with one lengthscale for each group of inputs."""

    def __init__(self, groups: Sequence[int] | Tensor, nu: float = 2.5):
        super().__init__(groups, nu=nu)


class GroupedRBFKernel(_Grouped, RBFKernel):
    """A squared exponential kernel with one lengthscale for each group of inputs."""


def group_means(values: Tensor, groups: Tensor) -> Tensor:
    """The mean over each group of one number an input."""
    count = int(groups.max()) + 1
    sums = values.new_zeros(count).index_add_(0, groups, values)
    return sums / torch.bincount(groups, minlength=count)


@torch.no_grad()
def add_inputs(kernel: Kernel, like: Int[Tensor, " m"]) -> None:
    """Makes a sum of default kernels one of more inputs, which begin with the lengthscales of some
    that it has."""
    for part in kernel.modules():
        if isinstance(part, MaternKernel | RBFKernel):
            raw = part.raw_lengthscale
            assert isinstance(raw, Tensor)
            if isinstance(part, _Grouped):
                own = torch.arange(len(like), device=raw.device) + raw.shape[-1]
                added = raw[..., part.groups[like]]
                part.groups = torch.cat([part.groups, own])
            else:
                added = raw[..., like]
            assert part.ard_num_dims is not None
            part.ard_num_dims += len(like)
            part.raw_lengthscale = nn.Parameter(torch.cat([raw, added], dim=-1))
