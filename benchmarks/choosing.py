"""Cost and accuracy over a grid of |β| and |γ|, as JSON lines and as a chart.

    python benchmarks/choosing.py --data-dir DIR --dataset kin40k [--inducing 100,300,1000] \
        [--residual 0,700,7000] [--steps 5000] [--limit ROWS] [--device cuda] \
        [--out FILE.jsonl] [--chart FILE.svg]

Every pair is one `OrthogonalGPRegressor` on the same split, with the same seed and steps. Pairs
that FILE.jsonl already has are not fitted again.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from compare import load

from orthogp import OrthogonalGPRegressor

COLOURS = ("#4c6ef5", "#f08c00", "#0ca678", "#e64980", "#7048e8")
MARKERS = "osD^v"


def measure(data, num_inducing: int, num_residual: int, steps: int, device: str | None) -> dict:
    """Fits one pair of sizes; accuracy on the test rows in units of the standardised target."""
    x, y, x_test, y_test = data
    gp = OrthogonalGPRegressor(
        num_inducing, num_residual, n_neighbors=0, max_steps=steps, device=device, random_state=0
    ).fit(x, y)
    # The first report has the start-up in it: compilation, a captured graph.
    first, last = gp.history_[0], gp.history_[-1]
    error = gp.predict(x_test) - y_test
    low, high = gp.predict_interval(x_test, coverage=0.9)
    return {
        "seconds_a_step": (last["seconds"] - first["seconds"]) / (last["step"] - first["step"]),
        "log_density": float(gp.log_density(x_test, y_test).mean()),
        "rmse": float(np.sqrt(np.mean(error**2))),
        "coverage": float(np.mean((low <= y_test) & (y_test <= high))),
        "elbo_row": gp.elbo_ / len(y),
    }


def read(path: Path | None) -> list[dict]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def draw(records: list[dict], path: Path) -> None:
    """Log density and RMSE against milliseconds a step, a line for every |β|."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    style = {"svg.fonttype": "none", "svg.hashsalt": "choosing", "font.size": 9,
             "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip
    with pyplot.rc_context(style):  # pyright: ignore[reportArgumentType]
        figure, panels = pyplot.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
        sizes = sorted({r["n_inducing"] for r in records})
        for panel, key, name in zip(
            panels, ("log_density", "rmse"), ("test log density", "test RMSE"), strict=True
        ):
            for size, colour, marker in zip(sizes, COLOURS, MARKERS, strict=False):
                line = sorted(
                    (r for r in records if r["n_inducing"] == size), key=lambda r: r["n_residual"]
                )
                times = [1000 * r["seconds_a_step"] for r in line]
                values = [r[key] for r in line]
                label = f"|β| = {size:,}".replace(",", " ")
                panel.plot(times, values, color=colour, marker=marker, markersize=5, label=label)
                for time, value, r in zip(times, values, line, strict=True):
                    text = f"{r['n_residual']:,}".replace(",", " ")
                    panel.annotate(
                        text, (time, value), (0, 7), textcoords="offset points",
                        ha="center", fontsize=7.5, color=colour,
                    )  # fmt: skip
            panel.set(xscale="log", xlabel="milliseconds a step", ylabel=name)
            panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            panel.xaxis.set_minor_formatter(NullFormatter())
            panel.margins(0.08, 0.12)
        panels[0].legend(frameon=False, title="numbers at the dots: |γ|", title_fontsize=8)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--dataset", default="kin40k")
    parser.add_argument("--inducing", default="100,300,1000")
    parser.add_argument("--residual", default="0,700,7000")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--limit", type=int, help="training rows, all by default")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    x, y, x_test, y_test = load(options.data_dir, options.dataset, split=0)
    data = x[: options.limit], y[: options.limit], x_test, y_test
    records = read(options.out)
    for num_inducing in map(int, options.inducing.split(",")):
        for num_residual in map(int, options.residual.split(",")):
            key = {
                "dataset": options.dataset, "rows": len(data[0]), "steps": options.steps,
                "n_inducing": num_inducing, "n_residual": num_residual,
            }  # fmt: skip
            if any(key.items() <= record.items() for record in records):
                continue
            record = key | measure(data, num_inducing, num_residual, options.steps, options.device)
            records.append(record)
            print(json.dumps(record), flush=True)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    if options.chart is not None:
        draw(records, options.chart)


if __name__ == "__main__":
    main()
