"""A process of a mesh that ends: what the others say, and what torchrun is told.

A process that loses another one sees a broken connection, or (gloo) none in time. That is not the
reason: the process that ended first has it, and torchrun's summary names that one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from weft.errors import WeftError
from weft.scale.mesh import processes, rank

_SIGNS = (
    "connection closed",
    "connection reset",
    "connection refused",
    "broken pipe",
    "timed out",
    "remote process exited",
    "nccl communicator was aborted",
    "connection was likely closed",
)


class LostProcess(WeftError):
    """Another process of the mesh ended."""


@contextmanager
def noticed() -> Iterator[None]:
    """Inside, an error of torch's that means a lost process says so."""
    try:
        yield
    except WeftError:
        raise
    except RuntimeError as cause:
        text = str(cause).lower()
        if processes() == 1 or not any(sign in text for sign in _SIGNS):
            raise
        raise LostProcess(
            f"rank {rank()} of {processes()} lost another process of the mesh, so it ends as well; "
            "that one's own reason is printed by itself or stands in torchrun's summary "
            "(exitcode -9: killed, often for want of memory). The same command goes on from the "
            "last checkpoint; torchrun --max-restarts 3 gives it by itself"
        ) from cause


def tell_torchrun(error: Exception) -> None:
    """Put the reason of this process's end into torchrun's summary; a lost process is none."""
    if "TORCHELASTIC_ERROR_FILE" not in os.environ or isinstance(error, LostProcess):
        return
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    get_error_handler().record_exception(error)
