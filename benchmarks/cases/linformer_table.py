"""Linformer's published efficiency table, measured again: time and memory over length and rank.

    python benchmarks/cases/linformer_table.py --out benchmarks/results/h200_linformer.jsonl

One self-attention layer, 4 heads of 64, bfloat16, as many rows as make 65,536 tokens; projections
shared by all layers as in the paper. Two baselines: attention whose score matrix is written down,
as in the paper, and torch's fused kernel. The paper's memory ratio is that of the largest batches
that fit; ours is that of peak bytes, which is the same where activations dominate.
"""

import argparse
import gc
import statistics

import torch
from torch import Tensor, nn

from weft.bench.memory import cuda_peak
from weft.bench.timing import attempt, forward, forward_backward, measure
from weft.environment import environment
from weft.mixers import MIXERS, Frame
from weft.rows import append

TOKENS, HEADS, WIDTH = 65_536, 4, 256
LENGTHS = tuple(2**power for power in range(9, 17))
RANKS = (128, 256, 512, 1024, 2048)
WAYS = {"forward": forward, "forward+backward": forward_backward}


class Unfused(nn.Module):
    """Attention whose n × n scores are written down."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mixer.heads(x)
        scores = (q * q.shape[-1] ** -0.5) @ k.mT  # (b, h, n, n)
        return self.mixer.project.out(scores.softmax(-1) @ v)


def cases(n: int, device: str) -> dict[str, nn.Module]:
    """The two baselines and each rank below n."""
    frame = Frame(dim=WIDTH, heads=HEADS, length=n)
    found = {"unfused": Unfused(MIXERS.parse("full").build(frame))}
    found["sdpa"] = MIXERS.parse("full").build(frame)
    for rank in (k for k in RANKS if k < n):
        found[f"k={rank}"] = MIXERS.parse(f'linformer(rank={rank}, sharing="layers")').build(frame)
    return {name: module.to(device, torch.bfloat16) for name, module in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    stamp = environment(args.device)
    for n in map(int, args.lengths.split(",")):
        modules = cases(n, args.device)
        x = torch.randn(args.tokens // n, n, WIDTH).to(args.device, torch.bfloat16).requires_grad_()
        for way, make in WAYS.items():
            calls = {name: make(module, (x,)) for name, module in modules.items()}
            timed = measure(calls, args.rounds, args.device, graph=args.device == "cuda")
            rows = []
            for name, call in calls.items():
                peak = None
                if args.device == "cuda" and name not in timed.failed:
                    peak, _ = attempt(lambda call=call: cuda_peak(call), args.device)
                seconds = timed.seconds.get(name)
                rows.append({
                    "bench": "linformer", "case": name, "length": n, "measure": way,
                    "batch": len(x), "heads": HEADS, "dim": WIDTH, "dtype": "bfloat16",
                    "median_s": statistics.median(seconds) if seconds else None,
                    "peak_bytes": peak, "error": timed.failed.get(name),
                    "graph": name not in timed.uncaptured and args.device == "cuda", **stamp,
                })  # fmt: skip
            append(args.out, rows)
            print(n, way, {r["case"]: (r["median_s"], r["peak_bytes"]) for r in rows}, flush=True)
        del modules, calls
        gc.collect()


if __name__ == "__main__":
    main()
