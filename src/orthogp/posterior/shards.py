"""γ in parts, one a process: the products with a_γ are sums over the parts."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orthogp.execution.team import Team
from orthogp.kernel.covariance import Covariance


@dataclass(frozen=True)
class Shards:
    """Who holds γ, and how many γ, rows of a batch and sampled columns there are in all."""

    team: Team
    num_residual: int
    batch_rows: int
    num_columns: int

    def products(
        self,
        covariance: Covariance,
        x: Float[Tensor, "n d"],
        beta: Float[Tensor, "b d"],
        columns: Float[Tensor, "k d"],
        gamma: Float[Tensor, "g d"],
        a_gamma: Float[Tensor, "c g"],
    ) -> tuple[Float[Tensor, "c n"], Float[Tensor, "c b"], Float[Tensor, "c k"]]:
        """k_xγ a_γ, K_βγ a_γ and those of the columns, from everyone's part of γ.

        Every process works on all rows of the batch with its own γ; x and the columns are theirs.
        """
        team = self.team
        all_rows = team.gather(x, self.batch_rows)
        all_columns = team.gather(columns, self.num_columns)
        queries = torch.cat([all_rows, beta, all_columns])
        sums = team.total(covariance.matvec(queries, gamma, a_gamma))
        sizes = [self.batch_rows, beta.shape[0], self.num_columns]
        at_rows, at_beta, at_columns = sums.split(sizes, dim=1)
        own_rows, own_columns = team.share(self.batch_rows), team.share(self.num_columns)
        return at_rows[:, own_rows], at_beta, at_columns[:, own_columns]
