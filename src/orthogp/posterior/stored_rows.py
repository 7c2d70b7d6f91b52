"""Near rows that are in a folder on the disk, for tables that no memory holds.

The prediction is that of `near_rows`: f_⊥ given the rows nearest to x, of all rows. They are found
by `cells` and read for some x at a time. With β, q(v) is that of a sample of the rows, which was
computed once; w of the near rows is computed as they are read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from orthogp.errors import ConfigurationError
from orthogp.kernel.covariance import Covariance
from orthogp.posterior.cells import Cells
from orthogp.posterior.induced import Features, InducedPosterior
from orthogp.posterior.near_rows import NearPredictor
from orthogp.posterior.observations import Observations
from orthogp.posterior.row_store import RowStore
from orthogp.posterior.rows_in_memory import SMALLEST_WEIGHT

# Queries whose near rows are in memory together.
READ_QUERIES = {"cpu": 2**10, "cuda": 2**14}


@dataclass(frozen=True)
class StoredPredictor:
    """m(x) and s(x) from the `count` rows of a folder nearest to x and, where there is one, q(v).

    `features` are those of no rows; `noise` is the variance of the noise of each output, or one for
    all; `prior_mean` is subtracted from the observations.
    """

    covariance: Covariance
    cells: Cells
    count: int
    noise: Float[Tensor, "s 1"]
    prior_mean: Callable[[Tensor], Tensor]
    features: Features | None
    induced: InducedPosterior | None
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        return self.cells.device

    @property
    def block_rows(self) -> int:
        """How many x are best predicted together."""
        return self.cells.queries

    def marginals(
        self, x: Float[Tensor, "m d"]
    ) -> tuple[Float[Tensor, "c m"], Float[Tensor, "c m"]]:
        """Mean and variance at x."""
        x = x.to(self.device)
        return self.marginals_given(x, self.cells.nearest(x, self.count))

    @torch.no_grad()
    def marginals_given(
        self, x: Float[Tensor, "m d"], near: Int[Tensor, "m k"]
    ) -> tuple[Float[Tensor, "c m"], Float[Tensor, "c m"]]:
        """Mean and variance at x given the rows at these places, the nearest of each first."""
        outputs = self.cells.store.outputs
        mean = torch.empty(outputs, len(x), dtype=torch.float64, device=self.device)
        variance = torch.empty_like(mean)
        height = READ_QUERIES.get(self.device.type, READ_QUERIES["cpu"])
        # Queries near each other share rows, and what is read of the disk.
        for part in near[:, 0].argsort().split(height):
            places, local = near[part].unique(return_inverse=True)
            mean[:, part], variance[:, part] = self._given(places).marginals_given(x[part], local)
        return mean, variance

    def full_covariance(self, x: Float[Tensor, "m d"]) -> Float[Tensor, "c m m"]:
        raise ConfigurationError(
            "the covariance between predictions needs near rows in memory; the rows of this model "
            "are in a folder"
        )

    def _given(self, places: Tensor) -> NearPredictor:
        """The predictor for the rows at these places."""
        store = self.cells.store
        x, y, weight = store.parts(self.cells.rows(places))
        y = y.double() - self.prior_mean(x.double())
        noise = self.noise.expand(-1, len(x))
        if weight is not None:
            noise = noise / weight.double().clamp_min(SMALLEST_WEIGHT)
        features = self.features
        if features is not None:
            features = Features.of(self.covariance, features.beta, features.R, x)
        rows = Observations(x.contiguous(), y, noise)
        found = NearPredictor(
            self.covariance, rows, self.count, None, features, self.induced, dtype=self.dtype
        )
        return found.computing_in(self.dtype)


class StoredRows(nn.Module):
    """The rows of a folder that predictions are conditioned on, as a part of a model.

    `S` and `b` are those of q(v), None where near rows alone predict. `probes` cells are searched
    for each x, which find the share `recall` of the `count` nearest rows. `narrow` says that
    predictions compute in float32. The rows themselves stay in the folder.
    """

    S: Tensor | None
    b: Tensor | None

    def __init__(
        self,
        store: RowStore,
        count: int,
        probes: int,
        recall: float,
        narrow: bool,
        S: Float[Tensor, "s b b"] | None = None,
        b: Float[Tensor, "c b"] | None = None,
    ):
        super().__init__()
        self.store, self.count, self.probes, self.recall = store, count, probes, recall
        self.narrow = narrow
        self.register_buffer("S", S)
        self.register_buffer("b", b)

    @property
    def on_beta(self) -> bool:
        return self.S is not None

    @property
    def folder(self) -> Path:
        return self.store.folder

    def extra_repr(self) -> str:
        return f"{len(self.store)} rows in {self.folder}, {self.count} near"

    def spaced_inputs(self, count: int) -> Float[Tensor, "n d"]:
        """x of at most so many rows, evenly spaced in the folder."""
        step = -(-len(self.store) // count)
        return self.store.parts(self.store.rows(torch.arange(0, len(self.store), step)))[0]

    @torch.no_grad()
    def predictor(
        self,
        covariance: Covariance,
        noise: Float[Tensor, "*c"],
        prior_mean: Callable[[Tensor], Tensor],
        features: Features | None,
    ) -> StoredPredictor:
        noise = noise.detach().double().reshape(-1, 1)
        noise = noise[:1] if bool((noise == noise[0]).all()) else noise
        like = torch.empty(0, self.store.inputs, device=noise.device)
        scale = covariance.relevance(like).sqrt().detach()
        induced = None
        if self.S is not None and self.b is not None:
            induced = InducedPosterior(self.S.double(), self.b.double())
        dtype = torch.float32 if self.narrow else torch.float64
        return StoredPredictor(
            covariance, Cells(self.store, scale.to(noise.device), self.probes), self.count, noise,
            prior_mean, features if induced is not None else None, induced, dtype,
        )  # fmt: skip

    def with_settings(self, **changes) -> "StoredRows":
        """The same rows with another count, dtype or q(v)."""
        names = ("store", "count", "probes", "recall", "narrow", "S", "b")
        return StoredRows(**{name: getattr(self, name) for name in names} | changes)
