"""Runs the examples of the documentation and builds the site, warnings as errors.

    python tools/build_docs.py [--site DIR] [--slow] [--outputs DIR]

Without `--slow` the examples that take minutes are not run: their stored results are shown. With it
they are, and what they give is stored anew.
"""

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "docs" / "examples"
STORED = EXAMPLES / "stored"
SLOW = ("flights", "large_table", "optimisation")
STYLE = {
    "figure.figsize": (7, 3.6), "figure.constrained_layout.use": True, "svg.fonttype": "none",
    "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "axes.grid": False, "savefig.transparent": True,
    "axes.prop_cycle": "cycler('color', ['#4c6ef5', '#f08c00', '#0ca678', '#e64980'])",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, default=ROOT / "site")
    parser.add_argument("--outputs", type=Path, default=ROOT / "build" / "examples")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--run", metavar="SCRIPT", type=Path, help="run one example and stop")
    options = parser.parse_args()
    if options.run is not None:
        run_cells(options.run, options.outputs)
        return
    for script in sorted(EXAMPLES.glob("*.py")):
        if script.stem in SLOW and not options.slow:
            continue
        folder = (STORED if script.stem in SLOW else options.outputs) / script.stem
        print(f"running {script.relative_to(ROOT)}", flush=True)
        run_apart(script, folder)
    build_site(options.site, options.outputs)


def run_apart(script: Path, folder: Path) -> None:
    """In a process of its own, in an empty working folder."""
    command = [sys.executable, __file__, "--run", str(script), "--outputs", str(folder)]
    with tempfile.TemporaryDirectory() as empty:
        environment = os.environ | {"MPLBACKEND": "svg"}
        subprocess.run(command, cwd=empty, env=environment, check=True)


def build_site(site: Path, outputs: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    command += ["--site-dir", str(site)]
    # The theme's makers print an advertisement unless told not to.
    environment = os.environ | {"ORTHOGP_EXAMPLES": str(outputs), "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    print(f"the site is in {site}")


def run_cells(script: Path, folder: Path, brief: bool = False) -> None:
    """Runs the cells in one namespace; writes `cells.json` and the figures into `folder`.

    In brief, as tests run them, they train by a few steps where they have hundreds.
    """
    import matplotlib
    from matplotlib import pyplot

    sys.path.insert(0, str(ROOT / "docs"))
    from hooks import fingerprint, split_cells  # pyright: ignore[reportMissingImports]

    matplotlib.rcParams.update(STYLE)  # pyright: ignore[reportCallIssue, reportArgumentType]
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    names: dict = {"__name__": "__main__"}
    cells = []
    for number, (kind, source) in enumerate(split_cells(script.read_text(encoding="utf-8"))):
        text, titles, figures = io.StringIO(), [], []
        if kind == "python":
            if brief:
                source = re.sub(r"(max_steps=|range\()\d\d+", r"\g<1>5", source)
            code = compile(source, f"{script.name}, cell {number}", "exec")
            with contextlib.redirect_stdout(text):
                exec(code, names)
            for figure_number in pyplot.get_fignums():
                figure = pyplot.figure(figure_number)
                titles.append(str(figure.get_label()))
                figures.append(f"{number}-{len(figures)}.svg")
                save_figure(figure, folder / figures[-1], salt=f"{script.stem}{number}")
            pyplot.close("all")
        cells.append({"text": text.getvalue(), "titles": titles, "figures": figures})
    found = {"code": fingerprint(script), "cells": cells}
    text = json.dumps(found, indent=1, ensure_ascii=False)
    (folder / "cells.json").write_text(text + "\n", encoding="utf-8")


def save_figure(figure, path: Path, salt: str) -> None:
    """As SVG, the same file for the same figure."""
    import matplotlib

    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    svg = re.sub(r"<metadata>.*?</metadata>", "", drawn.getvalue(), flags=re.DOTALL)
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
