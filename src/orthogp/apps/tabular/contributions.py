"""What each column contributes to the predictions of some test rows, for the report."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orthogp.apps.tabular.model import TableModel, class_names
from orthogp.estimators import OrthogonalGPClassifier
from orthogp.tables import Tally

# Predictions that the explanation of one report may cost, about, and its rows and draws.
MOST_PREDICTIONS, MOST_ROWS, DRAWS = 20_000, 100, 8
# Columns of an example; the others together are one more line.
MOST_PARTS = 8


@dataclass(frozen=True)
class Example:
    """One prediction, and what it is made of: (column, its value, its contribution), the largest
    first, the smallest summed up at the end; `label` is the class that it is about, if any."""

    label: str
    prediction: float
    parts: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True)
class Contributions:
    """Shapley values of columns, `(column, one value a row)`, the largest on average first.

    `of` says of what; `base` is the mean prediction of rows of training: a row's prediction less
    its contributions. Of a classifier both are averages over the rows, whose classes differ.
    """

    of: str
    base: float
    columns: tuple[tuple[str, tuple[float, ...]], ...]
    examples: tuple[Example, ...]


def contributions(model: TableModel, test: pa.Table, seed: int) -> Contributions:
    """Explains as many of the test rows as the number of columns allows."""
    estimator, used = model.estimator, set(model.plan.sources)
    count = min(MOST_ROWS, max(3, MOST_PREDICTIONS // (2 * DRAWS * (len(used) + 1))))
    chosen = np.random.default_rng(seed).permutation(test.num_rows)[:count]
    rows = test.take(pa.array(chosen))
    inputs = model.encode(rows, Tally())
    found = estimator.explain(inputs, n_samples=DRAWS, random_state=seed)
    values, base = found.values, np.full(len(chosen), found.base.mean())
    of, labels = "the prediction", [""] * len(chosen)
    if isinstance(estimator, OrthogonalGPClassifier):
        of = "the probability of the most probable class"
        places = estimator.predict_proba(inputs).argmax(axis=1)
        values = np.take_along_axis(values, places[:, None, None], axis=2)[:, :, 0]
        base, names = found.base[places], class_names(estimator.classes_)
        labels = [names[place] for place in places]
    order = np.argsort(-np.abs(values).mean(axis=0), kind="stable")
    order = [j for j in order if found.columns[j] in used]
    names, values = [found.columns[j] for j in order], values[:, order]
    predictions = base + values.sum(axis=1)
    ranked = np.argsort(predictions, kind="stable")
    ends = dict.fromkeys([ranked[0], ranked[len(ranked) // 2], ranked[-1]])
    return Contributions(
        of,
        float(base.mean()),
        tuple((name, tuple(column.tolist())) for name, column in zip(names, values.T, strict=True)),
        tuple(
            Example(labels[i], float(predictions[i]), _parts(names, rows, int(i), values[i]))
            for i in ends
        ),
    )


def _parts(
    names: list[str], rows: pa.Table, row: int, values: NDArray[Any]
) -> tuple[tuple[str, str, float], ...]:
    order = np.argsort(-np.abs(values), kind="stable")
    shown, rest = order[:MOST_PARTS], order[MOST_PARTS:]
    parts = [(names[j], _text(rows.column(names[j])[row]), float(values[j])) for j in shown]
    if len(rest):
        parts.append((f"{len(rest)} other columns", "", float(values[rest].sum())))
    return tuple(parts)


def _text(value: pa.Scalar) -> str:
    found = value.as_py()
    if found is None or found != found:
        return "missing"
    return f"{found:.6g}" if isinstance(found, float) else str(found)
