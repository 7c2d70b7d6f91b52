"""`python -m orthogp` is the `orthogp` program."""

from orthogp.cli import main

main()
