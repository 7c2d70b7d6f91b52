"""Skewed columns as they are and with `input_transform="auto"`, on made tables and bundled ones.

    python benchmarks/input_transforms.py [--rows 600] [--only made] [--seed 0]

Every table is fitted twice to the same rows and judged by rows that were left out. Made tables have
one skewed column, which the target depends on as the name says. Needs the extra `peers-trees` for
the bundled ones; packages that are missing are left out. Changed columns are those that were
transformed, and as `column = value` those with an indicator of a frequent value.
"""

import argparse
import time
import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
from tables import Case, cases

from orthogp import OrthogonalGPClassifier, OrthogonalGPRegressor

NUMBERS = {
    "randhie": "mdvis", "ccard": "AVGEXP", "star98": "NABOVE", "statecrime": "murder",
    "engel": "foodexp", "cancer": "cancer", "grunfeld": "invest",
}  # fmt: skip


def made(count: int = 1200) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    wide, other, noise = np.exp(2 * rng.normal(size=count)), *rng.normal(size=(2, count))
    heavy = rng.standard_t(2, size=count)
    zeros = np.where(rng.random(count) < 0.7, 0.0, np.exp(1.5 * rng.normal(size=count)))
    targets = {
        "log": (wide, np.sin(2 * np.log(wide)) + 0.5 * other + 0.2 * noise),
        "root": (wide, np.sqrt(wide) + other + 0.3 * noise),
        "itself": (wide, wide / wide.std() + 0.5 * other + 0.2 * noise),
        "product": (wide, wide / wide.std() * other + 0.3 * noise),
        "nothing": (wide, np.sin(2 * other) + 0.2 * noise),
        "threshold": (wide, (wide > 1) + 0.5 * other + 0.3 * noise),
        "heavy tails": (heavy, np.tanh(heavy) + 0.3 * other + 0.2 * noise),
        "many zeros": (zeros, np.log1p(zeros) + other + 0.3 * noise),
    }
    for name, (skewed, y) in targets.items():
        X = pd.DataFrame({"skewed": skewed, "other": other})
        yield Case(f"made {name}", X, pd.Series(y), False)


def bundled() -> Iterator[Case]:
    yield from cases()
    try:
        import statsmodels.api as sm
    except ImportError:
        return
    for name, target in NUMBERS.items():
        frame = getattr(sm.datasets, name).load_pandas().data
        yield Case(f"statsmodels {name}", frame.drop(columns=target), frame[target], False)


def score(case: Case, train: np.ndarray, test: np.ndarray, transform: str | None) -> str:
    kind = OrthogonalGPClassifier if case.classes else OrthogonalGPRegressor
    gp = kind(random_state=0, input_transform=transform)
    X, y = case.X.iloc[test], case.y.iloc[test].to_numpy()
    started = time.process_time()
    gp.fit(case.X.iloc[train], case.y.iloc[train])
    seconds = time.process_time() - started
    wrong = gp.predict(X) != y if case.classes else (gp.predict(X) - y) ** 2
    error = np.mean(wrong) if case.classes else np.mean(wrong) ** 0.5
    changed = [row.column for row in gp.columns_ if row.treatment.startswith("skewed")]
    changed += [
        f"{column.name} = {column.frequent_value:g}"
        for column in gp.columns_.plan.with_frequent_value
    ]
    density = gp.log_density(X, y).mean()
    return f"{error:.4g} | {density:.3f} | {seconds:.1f} | {', '.join(changed)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=600, help="rows of training, at most")
    parser.add_argument("--only", default="", help="parts of names, comma-separated")
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    arguments = parser.parse_args()
    wanted = [part for part in arguments.only.split(",") if part]
    print("| table | rows | transform | RMSE or error | log density | CPU seconds | changed |")
    print("|---|---|---|---|---|---|---|")
    for case in (*made(), *bundled()):
        if wanted and not any(part in case.name for part in wanted):
            continue
        order = np.random.default_rng(arguments.seed).permutation(len(case.X))
        cut = min(arguments.rows, len(order) * 2 // 3)
        for transform in (None, "auto"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = score(case, order[:cut], order[cut : cut + 1000], transform)
            print(f"| {case.name} | {cut} | {transform} | {found} |", flush=True)


if __name__ == "__main__":
    main()
