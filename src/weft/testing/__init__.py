"""Public checks of the contract, so that a mechanism of your own can be tested like weft's."""

from weft.testing.cases import small, variants
from weft.testing.contract import CHECKS, checks_for, exempt
from weft.testing.shapes import checked_shapes
from weft.testing.tolerance import (
    assert_close,
    assert_finite,
    assert_identical,
    assert_within_rounding,
)

__all__ = [
    "CHECKS",
    "assert_close",
    "assert_finite",
    "assert_identical",
    "assert_within_rounding",
    "checked_shapes",
    "checks_for",
    "exempt",
    "small",
    "variants",
]
