"""Settings of kernels for tests: programs small enough for an interpreter."""

from weft.kernels.block_sparse import WIDTHS, Setting


def small_programs(*numbers, unroll=1):
    """The same setting for the three block-sparse kernels and every width."""
    setting = Setting(*numbers, unroll=unroll)
    return dict.fromkeys(("forward", "dq", "dkdv"), dict.fromkeys(WIDTHS, setting))
