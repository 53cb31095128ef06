"""The contract of token mixing as a suite: which checks a mechanism has to pass, by its traits.

    from weft.testing import contract
    for name, check in contract.checks_for(MyMechanism(window=8)):
        check()                       # raises AssertionError that says what broke, and where

Each check is also a function of its own, `check_<rule>(config, **options)`. A check that a trait
rules out is not run; `exempt(config)` says which, and why. The config needs a registered name.
`weft.testing.check` runs them all, and knows the checks of other families (`families.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from weft.mixers.base import Traits
from weft.testing.equality import (
    check_cross,
    check_first_rows,
    check_gradients,
    check_half_precision,
    check_lengths,
    check_reference,
)
from weft.testing.invariance import (
    check_batch_composition,
    check_batch_history,
    check_causality,
    check_padding,
)
from weft.testing.long_sequences import check_long_sequences
from weft.testing.marking import check_marks
from weft.testing.mixer_shapes import check_shapes
from weft.testing.promises import (
    check_compile,
    check_positions,
    check_refusals,
    check_reproducibility,
    check_round_trip,
)
from weft.testing.scale import check_scale
from weft.testing.state_formula import check_state_formula
from weft.testing.streaming import check_state_size, check_streaming

__all__ = [
    "CHECKS",
    "check_batch_composition",
    "check_batch_history",
    "check_causality",
    "check_compile",
    "check_cross",
    "check_first_rows",
    "check_gradients",
    "check_half_precision",
    "check_lengths",
    "check_long_sequences",
    "check_marks",
    "check_padding",
    "check_positions",
    "check_reference",
    "check_refusals",
    "check_reproducibility",
    "check_round_trip",
    "check_scale",
    "check_shapes",
    "check_state_formula",
    "check_state_size",
    "check_streaming",
    "checks_for",
    "exempt",
]

CHECKS: dict[str, Callable[..., None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_reference,
        check_gradients,
        check_lengths,
        check_long_sequences,
        check_half_precision,
        check_scale,
        check_causality,
        check_streaming,
        check_state_size,
        check_state_formula,
        check_cross,
        check_first_rows,
        check_padding,
        check_batch_composition,
        check_batch_history,
        check_marks,
        check_positions,
        check_reproducibility,
        check_compile,
        check_round_trip,
        check_refusals,
        check_shapes,
    )
}


def checks_for(config: Any) -> Iterator[tuple[str, Callable[..., None]]]:
    """The checks that apply to this config, by name and ready to call (options may follow)."""
    left_out = exempt(config)
    for name, check in CHECKS.items():
        if name not in left_out:
            yield name, partial(check, config)


def exempt(config: Any) -> dict[str, str]:
    """The checks that do not apply, each with the reason its traits give."""
    traits: Traits = config.traits
    note = f": {traits.note}" if traits.note else ""
    left_out = {}
    if not traits.causal:
        left_out["causality"] = f"{config.name} is not causal{note}"
    if traits.state is None:
        for name in ("streaming", "state_size", "state_formula"):
            left_out[name] = f"{config.name} does not stream{note}"
    if not traits.cross:
        left_out["cross"] = f"{config.name} reads no context{note}; `refusals` checks that"
    if not traits.marks:
        left_out["marks"] = f"{config.name} takes no marks"
    if not traits.compiles:
        left_out["compile"] = f"{config.name} does not compile as one graph{note}"
    return left_out
