"""Public checks, so that a part of your own can be tested like weft's; `check(config)` runs all."""

from weft.testing.cases import small, variants
from weft.testing.contract import CHECKS
from weft.testing.families import FAMILIES, check, checks_for, exempt, family_of
from weft.testing.mixer_shapes import check_shapes
from weft.testing.shapes import checked_shapes
from weft.testing.tolerance import (
    assert_close,
    assert_finite,
    assert_identical,
    assert_within_rounding,
)

__all__ = [
    "CHECKS",
    "FAMILIES",
    "assert_close",
    "assert_finite",
    "assert_identical",
    "assert_within_rounding",
    "check",
    "check_shapes",
    "checked_shapes",
    "checks_for",
    "exempt",
    "family_of",
    "small",
    "variants",
]
