"""Packages of rivals, which weft does not require."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from weft.errors import WeftError


def optional(module: str, package: str) -> Any:
    """The imported module; says what to install where that fails."""
    try:
        return import_module(module)
    except ImportError as cause:
        raise WeftError(
            f"this rival is timed through {package}, which cannot be imported here ({cause}); "
            f"pip install {package}"
        ) from cause
