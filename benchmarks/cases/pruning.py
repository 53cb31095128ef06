"""Pruned models: how much faster they run, beside how much smaller they are.

    python benchmarks/cases/pruning.py --out benchmarks/results/cpu_pruning.jsonl

One classifier with full attention, its heads or its layers left out. Time depends on shapes alone,
so weights are random. Before a number is taken, each pruned model is compared with the whole one,
gated: heads with zeros in their columns of W_o, layers skipped. The cases take turns; `expected` is
the ratio of matrix operations.
"""

import argparse
import statistics

import torch

from weft.arena.analysis.flops import forward_flops, parameters
from weft.bench.timing import forward, measure
from weft.environment import environment
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Classifier, Encoder, Stack, keep_heads, prune_layers
from weft.models.stack.sublayer import StackInputs
from weft.rows import append


def whole(args: argparse.Namespace) -> Classifier:
    """The config of the model that is pruned."""
    frame = Frame(dim=args.dim, heads=args.heads, length=args.length)
    stack = Stack(frame=frame, order="sf" * args.layers, mixer="full")
    trunk = Encoder(embedding=Embedding(vocab=256, positions="sinusoidal"), stack=stack)
    return Classifier(trunk=trunk, classes=10)


def evenly(count: int, kept: int) -> tuple[int, ...]:
    """`kept` numbers out of 0 to count − 1, evenly spread."""
    return tuple(i * count // kept for i in range(kept))


def cases(model, args: argparse.Namespace) -> dict[str, tuple]:
    """Label -> the pruned model, and what it should give for ids x."""
    found = {}
    for kept in sorted({args.heads * k // 4 for k in (1, 2, 3)} - {0}):
        units = evenly(args.heads, kept)
        small = keep_heads(model, [units] * args.layers)
        found[f"{kept} of {args.heads} heads"] = (
            small,
            lambda x, units=units: gated(model, units, x),
        )
    for kept in sorted({args.layers * k // 4 for k in (1, 2, 3)} - {0}):
        layers = tuple(1 + i for i in evenly(args.layers, kept))
        small = prune_layers(model, layers)
        label = f"{kept} of {args.layers} layers"
        found[label] = small, lambda x, layers=layers: skipping(model, layers, x)
    return found


def gated(model, units: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    """The whole model with zeros for the other heads."""

    def gate(module, inputs):
        split = inputs[0].unflatten(-1, (model.config.trunk.stack.frame.heads, -1)).clone()
        split[:, :, [h for h in range(split.shape[2]) if h not in units]] = 0.0
        return split.flatten(2)

    handles = [
        mixer.project.to_out.register_forward_pre_hook(gate) for mixer in model.trunk.stack.mixers
    ]
    try:
        return model(x)
    finally:
        for handle in handles:
            handle.remove()


def skipping(model, layers: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    """The whole model with its other layers skipped."""
    stack = model.trunk.stack
    h, _ = model.trunk.begin(x, None)
    for layer in layers:
        for place in stack.layers[layer - 1]:
            h = stack.running[place](h, StackInputs())
    return model.head(model.pool.of(*model.trunk.end(stack.norm(h), None), None))


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cpu")
    for name, value in (("dim", 512), ("heads", 8), ("layers", 8), ("length", 512), ("batch", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = whole(args).build().to(args.device).eval()
    x = torch.randint(256, (args.batch, args.length), device=args.device)
    models = {}
    for label, (small, truth) in cases(model, args).items():
        error = (small(x) - truth(x)).abs().max().item()
        if error > 1e-3:
            raise SystemExit(f"{label}: differs from the gated model by {error}, no numbers")
        models[label] = small
    calls = {label: forward(small, (x,)) for label, small in models.items()}
    found = measure({"whole": forward(model, (x,)), **calls}, args.rounds, args.device)
    if found.failed:
        raise SystemExit(f"these cases failed: {found.failed}")
    base, work = statistics.median(found.seconds["whole"]), forward_flops(model.config, args.length)
    stamp = environment(args.device)
    for label, taken in found.seconds.items():
        config = models.get(label, model).config
        middle, flops = statistics.median(taken), forward_flops(config, args.length)
        row = {
            "case": label, "seconds": middle, "rounds": len(taken), "speedup": base / middle,
            "expected": work / flops, "parameters": parameters(config), "flops": flops,
            "dim": args.dim, "heads": args.heads, "layers": args.layers, "length": args.length,
            "batch": args.batch, "device": args.device, **stamp,
        }  # fmt: skip
        append(args.out, [row])
        print(f"{label:16} {base / middle:5.2f}x, by operations {work / flops:5.2f}x", flush=True)


if __name__ == "__main__":
    main()
