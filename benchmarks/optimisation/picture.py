"""Draws what `run.py` has written: best values and seconds a round against evaluations.

    python benchmarks/optimisation/picture.py records.jsonl docs/assets/optimisation.png

A line is the median of the seeds, the area around it is from the worst to the best of them. Seconds
are drawn of models whose records all have them. Also prints the medians at some numbers of
evaluations.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NAMES = {
    "orthogp": "OrthogonalGPModel", "exact": "SingleTaskGP",
    "variational": "SingleTaskVariationalGP", "local": "local SingleTaskGP (TuRBO)",
    "random": "random points",
}  # fmt: skip
COLOURS = dict(zip(NAMES, ("#3949ab", "#e08214", "#7b3294", "#1b7837", "#888888"), strict=True))
TITLES = {
    "hartmann6": "Hartmann, 6 inputs", "ackley20": "Ackley, 20 inputs",
    "rover60": "A path between obstacles, 60 inputs",
}  # fmt: skip
PRINTED = (40, 80, 500, 1000, 1500, 2000, 5000, 10_000, 20_000)

Rounds = dict[int, dict[str, float]]


def read(path: Path) -> dict[str, dict[str, dict[int, Rounds]]]:
    """By problem, model, seed and number of evaluations; of a round twice the last line counts."""
    found: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for line in path.read_text().splitlines():
        record = json.loads(line)
        runs = found[record["problem"]][record["model"]]
        runs[record["seed"]][record["evaluations"]] = record
    return found


def seeds_at(runs: dict[int, Rounds], name: str) -> tuple[list[int], list[list[float]]]:
    """Numbers of evaluations that all seeds have reached, and the values of all seeds there."""
    last = min(max(rounds) for rounds in runs.values())
    places = sorted({n for rounds in runs.values() for n in rounds if n <= last})
    first = max(min(rounds) for rounds in runs.values())
    places = [n for n in places if n >= first]
    values = [
        [rounds[max(m for m in rounds if m <= n)][name] for rounds in runs.values()] for n in places
    ]
    return places, values


def draw(axes: Axes, models: dict[str, dict[int, Rounds]], name: str) -> None:
    for model in NAMES:
        if model not in models or (name == "seconds" and model == "random"):
            continue
        places, values = seeds_at(models[model], name)
        if any(value is None for seeds in values for value in seeds):
            continue
        middle = [median(v) for v in values]
        axes.plot(places, middle, color=COLOURS[model], label=NAMES[model], linewidth=1.6)
        ends = np.array([[min(v), max(v)] for v in values])
        axes.fill_between(places, *ends.T, color=COLOURS[model], alpha=0.15, linewidth=0)
    axes.grid(alpha=0.3)


def main() -> None:
    found = read(Path(sys.argv[1]))
    problems = [name for name in TITLES if name in found]
    figure = Figure(figsize=(4.2 * len(problems), 6.4), layout="constrained")
    panels = figure.subplots(2, len(problems), squeeze=False)
    for column, problem in zip(panels.T, problems, strict=True):
        draw(column[0], found[problem], "best")
        column[0].set_title(TITLES[problem], fontsize=11)
        column[1].set_xlabel("evaluations")
        column[1].set_yscale("log")
        draw(column[1], found[problem], "seconds")
        column[1].set_ylabel("seconds a round")
        column[1].set_visible(bool(column[1].lines))
        for model, runs in found[problem].items():
            places, values = seeds_at(runs, "best")
            at = {n: round(median(v), 3) for n, v in zip(places, values, strict=True)}
            print(problem, model, len(runs), "seeds:", {n: at[n] for n in PRINTED if n in at})
    panels[0, 0].set_ylabel("best value so far")
    handles, labels = max(
        (a.get_legend_handles_labels() for a in panels[0]), key=lambda h: len(h[0])
    )
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(sys.argv[2], dpi=130)


if __name__ == "__main__":
    main()
