"""Which mechanisms `weft export onnx` writes: `python benchmarks/cases/onnx_survey.py`.

A classifier of one layer with each mechanism at its default settings is exported for any length,
and where that is refused for `--length` tokens; each attempt is a process of its own that ends
after `--seconds`. A file that is written has been compared with its model by onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from weft.environment import environment
from weft.mixers import MIXERS
from weft.rows import append

RESULTS = Path(__file__).resolve().parents[1] / "results" / "onnx_survey.jsonl"
ONE = """
import json, sys, torch, weft
from weft.errors import WeftError
from weft.use.export import export_onnx
name, length, path = sys.argv[1], int(sys.argv[2]) or None, sys.argv[3]
config = weft.mixer(name)
causal = not config.traits.bidirectional
frame = weft.Frame(dim=16, heads=2, length=length or 300)
stack = weft.Stack(frame=frame, order="sf", mixer=config)
trunk = (weft.Decoder if causal else weft.Encoder)(embedding=weft.Embedding(vocab=256), stack=stack)
torch.manual_seed(0)
try:
    done = export_onnx(weft.Classifier(trunk=trunk, classes=3).build().eval(), path, length)
    print(json.dumps({"difference": done.difference, "dense_patterns": done.dense_patterns}))
except WeftError as error:
    print(json.dumps({"reason": str(error)}))
"""


def attempt(name: str, length: int, seconds: float) -> dict[str, object]:
    """What one export gave; `reason` where there is no file."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", ONE, name, str(length), f"{folder}/a.onnx"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return {"reason": f"not finished after {seconds:g} s"}
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def surveyed(name: str, length: int, seconds: float) -> dict[str, object]:
    """One row: for any length, else for one length, else why not."""
    found = attempt(name, 0, seconds)
    kind = "any length"
    if "reason" in found:
        found = attempt(name, length, seconds)
        kind = "one length" if "reason" not in found else "none"
    row = {"bench": "onnx", "mixer": name, "exports": kind, "length": length, "seconds": seconds}
    return {**row, **found, **environment("cpu")}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--mixers", default=",".join(sorted(MIXERS)))
    options.add_argument("--length", type=int, default=256)
    options.add_argument("--seconds", type=float, default=120, help="Longest time of one export.")
    options.add_argument("--out", type=Path, default=RESULTS)
    args = options.parse_args()
    for name in args.mixers.split(","):
        row = surveyed(name, args.length, args.seconds)
        append(args.out, [row])
        print(name, row["exports"], row.get("reason", ""), flush=True)


if __name__ == "__main__":
    main()
