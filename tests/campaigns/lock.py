"""Write requirements-dev.lock: what the checks need, each package with its hashes.

    python tests/campaigns/lock.py [--frozen]      needs uv (pip install uv)

torch and triton are left out: their builds differ by machine (CPU, CUDA), come from indexes of
their own, and are pinned by constraints.txt. `--frozen` keeps the versions that are installed here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = ("torch", "triton")
HEAD = """\
# Written by tests/campaigns/lock.py. What the checks need beside torch and triton, with hashes:
#     pip install --no-deps --require-hashes --requirement requirements-dev.lock
"""


def wanted(project: dict[str, Any], extra: str) -> Iterator[str]:
    """What an extra names, and the extras that it names."""
    for text in project["optional-dependencies"][extra]:
        if text.startswith("weft["):
            for inner in text[len("weft[") : text.index("]")].split(","):
                yield from wanted(project, inner.strip())
        else:
            yield text


def main() -> int:
    """Write the lock file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frozen", action="store_true")
    given = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *wanted(project, "dev")]
    frozen = [f"{one.name}=={one.version}" for one in metadata.distributions()]
    with tempfile.TemporaryDirectory() as scratch:
        lists = {
            "wanted": [one for one in needed if not one.startswith(LEFT_OUT)],
            "left-out": [f"{name} ; python_version < '3'" for name in LEFT_OUT],
            "frozen": [f for f in frozen if "+" not in f and not f.startswith(LEFT_OUT)],
        }
        for name, lines in lists.items():
            Path(scratch, name).write_text("\n".join(lines))
        command = [sys.executable, "-m", "uv", "pip", "compile", f"{scratch}/wanted", "--quiet"]
        command += ["--override", f"{scratch}/left-out", "--python-version", "3.11", "--universal"]
        command += ["--constraint", f"{scratch}/frozen"] if given.frozen else []
        command += ["--generate-hashes", "--no-header", "--no-annotate"]
        command += ["--no-emit-index-url", "--no-emit-find-links", "-o", f"{scratch}/lock"]
        if status := subprocess.run(command).returncode:
            return status
        found = Path(scratch, "lock").read_text()
    assert "://" not in found, "the lock names no host"
    (ROOT / "requirements-dev.lock").write_text(HEAD + found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
