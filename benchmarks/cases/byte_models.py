"""Decoding speed of trained byte models on this CPU, native and float32, in turns.

    python benchmarks/cases/byte_models.py dense=runs/dense sparse_64=runs/sparse_64 --out F

Each model reads 512 bytes, then decodes greedily; the first one named is the baseline. A model's
greedy bytes have to be torch's on the same prompt before it gets a number.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from weft import native
from weft.environment import environment
from weft.models import load
from weft.rows import append

CONTEXT, CHECKED = 512, 64


class Decoding:
    """A model that has read the prompt."""

    def __init__(self, folder: str, prompt: torch.Tensor) -> None:
        model = load(folder).eval()
        self.model = native.compile(model)
        with torch.no_grad():
            same = model.generate(prompt, CHECKED)[:, CONTEXT:]
        if not torch.equal(self.model.generate(prompt, CHECKED)[:, CONTEXT:], same):
            raise SystemExit(f"{folder}: native bytes are not torch's")
        scores, self.state = self.model.step(prompt, self.model.start(1))
        self.ids = scores[:, -1:].argmax(-1)

    def clock(self) -> float:
        """Seconds for one more byte."""
        begin = time.perf_counter()
        scores, self.state = self.model.step(self.ids, self.state)
        self.ids = scores[:, -1:].argmax(-1)
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+", help="label=folder")
    parser.add_argument("--text", help="file whose first bytes are the prompt")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out")
    args = parser.parse_args()
    text = Path(args.text).read_bytes()[:CONTEXT] if args.text else bytes(range(32, 96)) * 8
    prompt = torch.tensor([list(text)])
    cases = {}
    for item in args.models:
        label, _, folder = item.partition("=")
        cases[label] = Decoding(folder, prompt)
    times = {label: [] for label in cases}
    for _ in range(args.rounds):
        for label, one in cases.items():
            times[label].append(one.clock())
    base = statistics.median(next(iter(times.values())))
    for label, taken in times.items():
        low, middle, high = statistics.quantiles(taken, n=4)
        row = {
            "bench": "byte_models", "case": label, "ms": 1e3 * middle, "ratio": middle / base,
            "lower_quartile_ms": 1e3 * low, "upper_quartile_ms": 1e3 * high,
            "rounds": args.rounds, "context": CONTEXT, **environment("cpu"),
        }  # fmt: skip
        print(label, f"{row['ms']:.3f} ms", f"{row['ratio']:.2f} of the first")
        if args.out:
            append(args.out, [row])


if __name__ == "__main__":
    main()
