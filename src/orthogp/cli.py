"""The `orthogp` program. Commands import what they need when they run: `--help` is quick."""

import sys

import typer

from orthogp.bench.commands import app as bench
from orthogp.errors import OrthogpError
from orthogp.paper.commands import app as paper

app = typer.Typer(
    help="Orthogonally decoupled variational Gaussian processes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(bench, name="bench")
app.add_typer(paper, name="paper")


@app.command()
def demo() -> None:
    """What residual points add, on built-in data."""
    from orthogp import demo

    demo.main()


def main() -> None:
    """A refusal is one sentence and exit status 2, not a traceback."""
    try:
        app()
    except OrthogpError as error:
        print(f"orthogp: {error}", file=sys.stderr)
        sys.exit(2)
