"""What the processes of a run have in parts: rows before it, γ during it."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from orthogp.errors import ConfigurationError, DataError
from orthogp.execution.team import Team, current_team
from orthogp.posterior import Basis
from orthogp.posterior.shards import Shards
from orthogp.training.batches import Rows
from orthogp.training.config import TrainingConfig


def gather_rows(
    x: Float[Tensor, "n d"],
    y: Shaped[Tensor, "n *outputs"],
    weight: Float[Tensor, " n"] | None = None,
    noise_scale: Float[Tensor, "n *scales"] | None = None,
) -> Rows:
    """The rows of all processes in every one, in the order of ranks, for `fit`.

    Every process of the group passes its own, as tensors of no rows where it has none.
    """
    shards = current_team().collect((x, y, weight, noise_scale))
    # What each part looks like, without the number of rows.
    alike = [[None if t is None else (t.shape[1:], t.dtype) for t in shard] for shard in shards]
    if any(shard != alike[0] for shard in alike):
        raise DataError(
            "the processes of the group have rows of different shapes or dtypes, or weights in "
            "some of them alone; pass the same columns in all of them"
        )
    parts = [None if t[0] is None else torch.cat(t).to(x.device) for t in zip(*shards, strict=True)]
    return Rows(*parts)  # pyright: ignore[reportArgumentType]


def make_shards(
    basis: Basis, config: TrainingConfig, team: Team, batch_rows: int, validated: bool
) -> Shards | None:
    """How γ is divided among the processes; None where every process has all of it."""
    count = basis.gamma.shape[0]
    # A process without any would have no part in the sums that carry gradients back.
    if team.size == 1 or not config.shard_residual or count < team.size:
        return None
    unfit = {
        "clip_norm": config.clip_norm is not None,
        "residual_rule='exact'": config.residual_rule == "exact",
        "validation rows": validated,
    }
    found = [name for name, there in unfit.items() if there]
    if found:
        raise ConfigurationError(
            f"shard_residual does not go with {', '.join(found)}, which need all of γ in one place"
        )
    # A process without a column would leave its γ out of the KL.
    columns = max(config.columns(count) or count, team.size)
    return Shards(team, count, batch_rows, columns)


def deal(basis: Basis, shards: Shards) -> None:
    """Leaves this process its part of γ and a_γ."""
    own = shards.team.share(shards.num_residual)
    basis.gamma = nn.Parameter(basis.gamma.detach()[own].clone())
    basis.a_gamma = nn.Parameter(basis.a_gamma.detach()[:, own].clone())
    basis.shards = shards


@torch.no_grad()
def collect(basis: Basis) -> None:
    """Gives every process all of γ and a_γ back."""
    shards = basis.shards
    if shards is None:
        return
    gamma = shards.team.gather(basis.gamma, shards.num_residual)
    a_gamma = shards.team.gather(basis.a_gamma.mT.contiguous(), shards.num_residual).mT
    basis.gamma, basis.a_gamma = nn.Parameter(gamma), nn.Parameter(a_gamma.contiguous())
    basis.shards = None
