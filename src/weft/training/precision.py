"""Half precision: autocast around the forward, and loss scaling for float16.

    float32    nothing
    bfloat16   products in bfloat16; its range is float32's, so gradients need no scaling
    float16    products in float16; the loss is scaled up so that small gradients do not vanish.
               A step whose gradients overflow is left out and the scale halved; after 2,000 good
               steps it doubles (Micikevicius et al. 2017, https://arxiv.org/abs/1710.03740)
    float64    the whole model in float64, for checks

Weights, softmax statistics, norms and losses stay in float32 throughout.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path

import torch

from weft.errors import WeftError
from weft.training.settings import PrecisionName

_HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"


class Precision:
    """A precision on a device."""

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self.name, self.device = name, device
        if name in _HALF and device.type == "cpu":
            check_processor()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return torch.float64 if self.name == "float64" else torch.float32

    def autocast(self) -> AbstractContextManager[object]:
        """Surrounds a forward."""
        if self.name not in _HALF:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_HALF[self.name])

    def scaler(self) -> torch.amp.GradScaler:
        """Scales losses if the precision needs it, else does nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "float16")


def check_processor() -> None:
    """Refuse half precision where the processor announces AMX and then kills who uses it."""
    if "ONEDNN_MAX_CPU_ISA" in os.environ or not _announces_amx():
        return
    if not _survives():
        raise WeftError(
            "this processor announces AMX instructions and refuses them, so half precision would "
            "end the program; set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 before Python starts, or "
            "use precision='float32'"
        )


def _announces_amx() -> bool:
    try:
        return "amx" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@cache
def _survives() -> bool:
    return subprocess.run([sys.executable, "-c", _PROBE], capture_output=True).returncode == 0
