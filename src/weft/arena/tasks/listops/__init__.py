"""ListOps: nested lists of operators and digits."""
