"""Models of a table, fitted once for all tests of the command line."""

import pytest


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder: the regressor `numbers`, the classifier `classes`, and rows that neither has seen
    as `new.csv`, `new.parquet` and `new.tsv.gz`."""
    # Imported late: what is imported before the run begins escapes the check of shapes.
    from tabular_cases import fit, sample, write

    place = tmp_path_factory.mktemp("models")
    table = write(sample(), place / "train.parquet")
    fit(table, place / "numbers")
    fit(table, place / "classes", target="label")
    for name in ("new.csv", "new.parquet", "new.tsv.gz"):
        write(sample(seed=1), place / name)
    return place
