"""Stacks of sublayers: order, residuals, depth, recomputation."""
