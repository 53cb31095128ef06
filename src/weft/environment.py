"""Where and with what a number was measured: part of every row."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
_STATUS = Path("/proc/self/status")


def environment(device: str) -> dict[str, str | int | None]:
    """Versions, device, threads, commit and date."""
    cuda = device == "cuda"
    return {
        "weft": import_module("weft").__version__,
        "commit": commit(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device_name": torch.cuda.get_device_name() if cuda else processor(),
        "threads": torch.get_num_threads(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """The commit of the source tree, '+' where files differ from it; None outside a repository."""
    if not (ROOT / ".git").exists():
        return None
    try:
        found = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src")
    except (OSError, subprocess.CalledProcessError):
        return None
    return found + ("+" if changed else "")


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def processor() -> str:
    """The name of the CPU."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def process_peak() -> int:
    """The most memory this process ever held, in bytes."""
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
