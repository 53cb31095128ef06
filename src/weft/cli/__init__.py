"""The command line: one file per verb."""

from weft.cli.app import app, main

__all__ = ["app", "main"]
