"""What a fit in several processes of one group asks of its data."""

import hashlib

from orthogp.errors import DataError
from orthogp.execution.team import Team
from orthogp.training import Rows, Stream


def require_alike(rows: Rows | Stream, team: Team) -> None:
    """Refuses, in every process, rows that are not the same in all: each would fit its own."""
    if team.size == 1:
        return
    digest = hashlib.sha256(b"".join(rows.outline())).hexdigest()
    if not team.least(int(digest == team.agree(digest))):
        raise DataError(
            f"the {team.size} processes of the group were given different rows; pass the same X "
            "and y to fit in all of them: each works on its own share of every batch"
        )
