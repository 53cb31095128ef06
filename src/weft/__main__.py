"""`python -m weft`: the command line without installing it."""

from weft.cli import main

main()
