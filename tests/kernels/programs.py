"""Programs of kernels for tests, small enough for an interpreter."""

from weft.kernels.block_sparse.triton import WIDTHS
from weft.kernels.launch import Program


def small_programs(*numbers, unroll=1):
    """The same program for the three block-sparse kernels and every width."""
    program = Program(*numbers, unroll=unroll)
    return dict.fromkeys(("forward", "dq", "dkdv"), dict.fromkeys(WIDTHS, program))
