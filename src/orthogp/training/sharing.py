"""γ dealt out to the processes of a run before it, and collected after it."""

import torch
from torch import nn

from orthogp.errors import ConfigurationError
from orthogp.execution.team import Team
from orthogp.posterior import Basis
from orthogp.posterior.shards import Shards
from orthogp.training.config import TrainingConfig


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
