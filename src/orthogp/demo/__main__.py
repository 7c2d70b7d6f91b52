import sys

import typer

from orthogp.demo.run import main
from orthogp.errors import OrthogpError

try:
    typer.run(main)
except OrthogpError as error:
    print(f"orthogp: {error}", file=sys.stderr)
    sys.exit(2)
