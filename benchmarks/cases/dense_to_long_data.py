"""The model and the novels of dense_to_long.py, in files small enough to be sent one at a time.

    python benchmarks/cases/dense_to_long_data.py --model MODEL --novels FILE.jsonl --out FOLDER

MODEL is a Transformers folder or a .gguf file, whose weights are written in bfloat16. A line of
FILE is a novel, {"text": "..."}. FOLDER gets novels.npz, and the model as model.tar.00,
model.tar.01, ... of 40 MB each, joined by `cat model.tar.* | tar x`. Whole novels are held out: the
start of each, `--length` tokens.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import torch

from weft.errors import WeftError
from weft.interop.hf.dense_to_long.source import read_original
from weft.interop.hf.dense_to_long.text import read_documents, tokens_of

PART = 40_000_000  # bytes


def write_model(folder: Path, out: Path) -> int:
    """The files of a folder as parts of one tar file; returns how many."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder, arcname="model")
    data = packed.getvalue()
    starts = range(0, len(data), PART)
    for number, start in enumerate(starts):
        (out / f"model.tar.{number:02}").write_bytes(data[start : start + PART])
    return len(starts)


def write_novels(tokens: list[torch.Tensor], out: Path, held: int, length: int, seed: int) -> None:
    """`train`, whole novels end to end, `ends`, where each ends, and `held` (held, length)."""
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen = [at for at in order if len(tokens[at]) >= length][:held]
    if len(chosen) < held:
        raise WeftError(f"{held} novels of {length:,} tokens are held out; found {len(chosen)}")
    rest = [tokens[at] for at in range(len(tokens)) if at not in set(chosen)]
    small = np.uint16 if max(int(t.max()) for t in tokens) < 2**16 else np.uint32
    np.savez_compressed(
        out / "novels.npz",
        train=torch.cat(rest).numpy().astype(small),
        ends=np.cumsum([len(t) for t in rest]),
        held=torch.stack([tokens[at][:length] for at in chosen]).numpy().astype(small),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--novels", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--held", type=int, default=24, help="novels held out")
    parser.add_argument("--length", type=int, default=32_768)
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    original = read_original(told.model, None, torch.bfloat16)
    tokens = tokens_of(read_documents(told.novels), original.tokenizer)
    write_novels(tokens, told.out, told.held, told.length, told.seed)
    with tempfile.TemporaryDirectory() as scratch:
        original.model.save_pretrained(scratch)
        parts = write_model(Path(scratch), told.out)
    print(f"{told.out}: novels.npz and {parts} parts of the model")
    return 0


if __name__ == "__main__":
    sys.exit(main())
