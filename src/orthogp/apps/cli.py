"""The `orthogp` program. Commands import what they need when they run: `--help` is quick."""

import sys
from typing import Annotated

import typer

from orthogp import __version__
from orthogp.apps.bench.commands import app as bench
from orthogp.apps.demo import main as demo
from orthogp.apps.paper.commands import app as paper
from orthogp.apps.tabular.commands import app as tabular
from orthogp.errors import OrthogpError

app = typer.Typer(
    help="Orthogonally decoupled variational Gaussian processes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo)
app.add_typer(bench, name="bench")
app.add_typer(paper, name="paper")
# Without a name: fit and predict are commands of the program itself.
app.add_typer(tabular)


def _show_version(wanted: bool) -> bool:
    if wanted:
        print(f"orthogp {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a refusal's traceback.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """`main` reads `debug`: a refusal is caught outside of any command."""


def main() -> None:
    """A refusal is one sentence and exit status 2, not a traceback."""
    try:
        app()
    except OrthogpError as error:
        if "--debug" in sys.argv:
            raise
        print(f"orthogp: {error}", file=sys.stderr)
        sys.exit(2)
