"""`python -m orthogp` is the `orthogp` program."""

from orthogp.apps.cli import main

main()
