"""The rows that predictions are conditioned on, as a part of a model; more may join them."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orthogp.posterior.growing import GrowingTable, Uncopied
from orthogp.posterior.observations import Observations

# Noise is divided by the weight, and must stay a number.
SMALLEST_WEIGHT = 1e-15


class NearRows(nn.Module):
    """The rows that predictions are conditioned on, as a part of a model.

    `y` is `[c, n]`, less the prior mean and, where they are `on_mean`, less what the mean of the
    basis explains. `weight` divides the variance of the noise, for all outputs alike or for each.
    With `on_beta` a prediction also uses q(v), which β has learned from all rows; without it the
    near rows alone. A `count` of zero is for models whose β are all rows. The last `added` rows
    have joined a model that was fitted to the others, or, `after_basis`, to rows that the basis
    alone stands for; y is then less what γ explains.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None

    def __init__(
        self,
        x: Float[Tensor, "n d"],
        y: Float[Tensor, "c n"],
        weight: Float[Tensor, "*c n"] | None,
        count: int,
        on_mean: bool = False,
        on_beta: bool = True,
        added: int = 0,
        after_basis: bool = False,
    ):
        super().__init__()
        self.register_buffer("x", x)
        self.register_buffer("y", y.to(x.dtype))
        if weight is not None:
            weight = weight.to(x.dtype).clamp_min(SMALLEST_WEIGHT)
        self.register_buffer("weight", weight)
        self.count, self.on_mean, self.on_beta = count, on_mean, on_beta
        self.added, self.after_basis = added, after_basis
        self._tables = _Tables()

    def extra_repr(self) -> str:
        return f"{len(self.x)} rows, {self.count} near"

    def observations(self, noise: Float[Tensor, "*c"]) -> Observations:
        noise = noise.detach().double().reshape(-1, 1)
        noise = noise[:1] if bool((noise == noise[0]).all()) else noise
        weight = torch.ones_like(self.x[:, 0]) if self.weight is None else self.weight
        return Observations(self.x, self.y.double(), noise / weight.double())

    @torch.no_grad()
    def joined(
        self,
        x: Float[Tensor, "m d"],
        y: Float[Tensor, "c m"],
        weight: Float[Tensor, "*c m"] | None,
    ) -> "NearRows":
        """These rows and others, which come last; what is shared is not copied."""
        weights = self.weight
        if weights is not None or weight is not None:
            weights = torch.ones_like(self.x[:, 0]) if weights is None else weights
            weight = torch.ones_like(x[:, 0]) if weight is None else weight
            weight = weight.to(weights).clamp_min(SMALLEST_WEIGHT)
            if weight.ndim != weights.ndim:
                # One for each output where either has that.
                weight, weights = weight.expand(len(y), -1), weights.expand(len(y), -1)
        tables = _Tables()
        tables.x = self._tables.up_to_date("x", self.x).appended(x)
        tables.y = self._tables.up_to_date("y", self.y.mT).appended(y.mT)
        if weights is not None and weight is not None:
            columns = self._tables.up_to_date("weight", torch.atleast_2d(weights).mT)
            tables.weight = columns.appended(torch.atleast_2d(weight).mT)
        found = NearRows(
            tables.x.rows, tables.y.rows.mT, None, self.count, self.on_mean, self.on_beta,
            self.added + len(x), self.after_basis,
        )  # fmt: skip
        if tables.weight is not None and weights is not None:
            columns = tables.weight.rows
            found.weight = columns[:, 0] if weights.ndim == 1 else columns.mT
        found._tables = tables
        return found


class _Tables(Uncopied):
    """Where the numbers of near rows have room for more."""

    x: GrowingTable | None = None
    y: GrowingTable | None = None
    weight: GrowingTable | None = None

    def up_to_date(self, name: str, rows: Tensor) -> GrowingTable:
        """The table of these rows, or one of its own where they have moved."""
        table: GrowingTable | None = getattr(self, name)
        if table is None or table.rows.shape != rows.shape:
            return GrowingTable(rows)
        return table if table.rows.data_ptr() == rows.data_ptr() else GrowingTable(rows)
