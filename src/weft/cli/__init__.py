"""The command line: one file per verb, in rooms."""

from weft.cli.app import app, main

__all__ = ["app", "main"]
