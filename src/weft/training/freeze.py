"""Frozen parameters: those that training leaves as they are, chosen by patterns of their names.

    "embedding"                     all of every part of this name
    "stack.sublayers.0"             the first sublayer
    "stack.sublayers.[01].norm.*"   as file names are matched: *, ? and [...]

A pattern begins and ends at dots of a name such as `trunk.stack.sublayers.0.norm.weight`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from weft.errors import WeftError, suggest


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Take the parameters that fit out of training; a pattern that fits none is refused."""
    parameters = dict(model.named_parameters())
    for pattern in patterns:
        found = [name for name in parameters if fits(name, pattern)]
        if not found:
            parts = {part for name in parameters for part in name.split(".")}
            raise WeftError(
                f"frozen names parameters, and {pattern!r} fits none of the {len(parameters)}; "
                f"{suggest(pattern, parts)}; the first are {', '.join(list(parameters)[:8])}"
            )
        for name in found:
            parameters[name].requires_grad_(False)
    if parameters and not any(p.requires_grad for p in parameters.values()):
        raise WeftError(f"nothing is left to train: frozen={tuple(patterns)} fits every parameter")


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern fits a name, from one of its dots to another."""
    forms = (pattern, f"*.{pattern}", f"{pattern}.*", f"*.{pattern}.*")
    return any(fnmatchcase(name, form) for form in forms)
