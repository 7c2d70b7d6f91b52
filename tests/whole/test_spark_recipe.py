"""The Spark function of the documentation, without Spark."""

import numpy as np
import pyarrow as pa

from orthogp import OrthogonalGPRegressor
from shard_fits import frame
from spark_recipe import task
from team import fork_context


def test_the_function_of_the_page_fits_all_partitions(tmp_path):
    table = frame()[["a", "town", "y"]].rename(columns={"y": "duration"})[:160]
    whole = pa.Table.from_pandas(table, preserve_index=False)
    # The second of three partitions has no rows.
    parts = [whole[:100].to_batches(max_chunksize=60), [], whole[100:].to_batches()]
    given = [(rank, len(parts), tmp_path, part) for rank, part in enumerate(parts)]
    processes = [fork_context().Process(target=task, args=args) for args in given]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
        assert process.exitcode == 0
    assert [path.name for path in tmp_path.glob("model-*")] == ["model-0-0"]
    found = OrthogonalGPRegressor.load(tmp_path / "model-0-0", device="cpu")
    X = table[["a", "town"]]
    alone = OrthogonalGPRegressor(random_state=0).fit(X, table.duration)
    np.testing.assert_allclose(found.predict(X), alone.predict(X), rtol=1e-5, atol=1e-6)
