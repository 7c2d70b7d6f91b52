"""The rows nearest to a point: exact, by a tree on a CPU and by blocks of distances elsewhere."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

# With more columns than these a tree visits nearly all of its leaves.
MOST_COLUMNS = 40
LEAF_ROWS = 32
# Distances in memory at a time.
BLOCK_ELEMENTS = {"cpu": 2**22, "cuda": 2**27}


class Neighbors:
    """Finds the nearest of some points, by the Euclidean distance."""

    def __init__(self, points: Float[Tensor, "n d"]):
        self.points = points
        self.tree = None
        if points.device.type == "cpu" and points.shape[1] <= MOST_COLUMNS:
            # Imported here: SciPy's geometry takes a while, and changes the filters of warnings.
            from scipy.spatial import KDTree

            # Splits in the middle of a box are as good as those at medians, and sooner found.
            self.tree = KDTree(points.double().numpy(), LEAF_ROWS, balanced_tree=False)

    def __len__(self) -> int:
        return self.points.shape[0]

    def nearest(
        self, x: Float[Tensor, "m d"], count: int, without: Int[Tensor, " m"] | None = None
    ) -> Int[Tensor, "m k"]:
        """Which of the points are the `count` nearest to each x, the nearest first.

        `without` names for each x a point that does not count, as a row is none of its own
        neighbours. There are fewer than `count` where there are no more points.
        """
        left_out = 0 if without is None else 1
        count = min(count, len(self) - left_out)
        found = self._search(x, count + left_out)
        return found if without is None else _dropped(found, without)

    def _search(self, x: Float[Tensor, "m d"], count: int) -> Int[Tensor, "m k"]:
        if self.tree is not None:
            _, found = self.tree.query(x.double().numpy(), count, workers=-1)
            return torch.from_numpy(found).reshape(len(x), count).long()
        device = self.points.device
        budget = BLOCK_ELEMENTS.get(device.type, BLOCK_ELEMENTS["cpu"])
        height = max(1, budget // max(1, len(self)))
        centre = self.points.mean(0)
        points = self.points - centre
        norms = 0.5 * points.square().sum(1)
        parts = [
            (norms - part @ points.mT).topk(count, largest=False).indices
            for part in (x.to(points) - centre).split(height)
        ]
        return torch.cat(parts) if parts else torch.empty(0, count, dtype=torch.long, device=device)


def _dropped(found: Int[Tensor, "m k"], without: Int[Tensor, " m"]) -> Int[Tensor, "m l"]:
    """Without one of each row: the one named, or the last where that one was not found."""
    drop = found == without.unsqueeze(1)
    drop[:, -1] |= ~drop.any(1)
    return found[~drop].reshape(len(found), found.shape[1] - 1)


def canonical_order(x: Float[Tensor, "n d"], y: Float[Tensor, "c n"]) -> Int[Tensor, " n"]:
    """The order of rows by their values: the same for the same rows in any order.

    Which of several rows at one distance are the nearest then depends on nothing else.
    """
    order = torch.arange(x.shape[0], device=x.device)
    for key in (*y.flip(0), *x.mT.flip(0)):
        order = order[key[order].argsort(stable=True)]
    return order


def leaf_order(points: Float[Tensor, "n d"], leaf: int) -> Int[Tensor, " n"]:
    """An order of which each run of `leaf` points are neighbours: the leaves of a balanced tree."""
    values, leaves = points.double().cpu().numpy(), []
    waiting = [np.arange(len(values))]
    while waiting:
        rows = waiting.pop()
        if len(rows) <= leaf:
            leaves.append(rows)
            continue
        part = values[rows]
        column = part[:, np.ptp(part, axis=0).argmax()]
        middle = -(-len(rows) // leaf) // 2 * leaf
        halves = rows[np.argpartition(column, middle)]
        waiting += [halves[middle:], halves[:middle]]
    return torch.from_numpy(np.concatenate(leaves)).to(points.device)
