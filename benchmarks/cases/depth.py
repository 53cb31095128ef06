"""What depth rules save: time and parameters relative to a plain stack of twelve layers.

    python benchmarks/cases/depth.py --out benchmarks/results/cpu_depth.jsonl [--rounds 15]

`expected` is the share of layers that run, `ratio` the time relative to the plain stack, which
takes its turn in every round. Times are those of the processor on one thread, so that other
programs do not count. Training steps (forward and backward) with LayerDrop draw other layers in
every round, so their ratio is of mean times and their share that of the layers that ran. Halting
is set by the bias of the halting unit: every token stops after the stated number of steps.
"""

import argparse
import math
import statistics
import time

import torch

from weft.environment import environment
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Classifier, Encoder, Stack
from weft.models.pruning.layers import every_other, prune_layers
from weft.rows import append

LAYERS = 12


def model(dim: int, order: str = "sf" * LAYERS, **settings) -> torch.nn.Module:
    torch.manual_seed(0)
    stack = Stack(frame=Frame(dim=dim, heads=4), order=order, **settings)
    trunk = Encoder(embedding=Embedding(vocab=256, positions="sinusoidal"), stack=stack)
    return Classifier(trunk=trunk, classes=2).build()


def universal(dim: int, steps: int) -> torch.nn.Module:
    """Twelve steps at most, of which every token takes `steps`."""
    made = model(dim, "sf", depth=f"universal(steps={LAYERS})").eval()
    halt = made.trunk.stack.depth.to_halt
    with torch.no_grad():
        halt.weight.zero_()
        p = 1 / (steps - 0.5)  # reaches 0.99 at step number `steps`, not before
        halt.bias.fill_(math.log(p / (1 - p)) if p < 1 else 20.0)
    return made


def evaluations(dim: int, x: torch.Tensor) -> dict[str, tuple[torch.nn.Module, float]]:
    """Models that only read, and the share of layers that each runs."""
    plain = model(dim).eval()
    found = {
        "plain": (plain, 1.0),
        "every other layer pruned": (prune_layers(plain, every_other(LAYERS)).eval(), 0.5),
        "every fourth layer pruned": (prune_layers(plain, every_other(LAYERS, 0.25)).eval(), 0.75),
        "shared=1": (model(dim, shared=1).eval(), 1.0),
    }
    for steps in (3, 6, 12):
        found[f"universal, halts after {steps} of {LAYERS}"] = universal(dim, steps), steps / LAYERS
    with torch.no_grad():
        for name, (made, share) in found.items():
            if not made(x).isfinite().all():
                raise SystemExit(f"{name}: not finite")
            taken = getattr(made.trunk.stack.depth, "taken", None)
            if taken is not None and not (taken == share * LAYERS).all():
                raise SystemExit(f"{name}: tokens took {taken.unique().tolist()} steps")
    return found


def reading(made: torch.nn.Module, x: torch.Tensor):
    def call() -> None:
        with torch.no_grad():
            made(x)

    return call


def learning(made: torch.nn.Module, x: torch.Tensor, ran: list[float]):
    def call() -> None:
        rule = made.trunk.stack.depth
        if hasattr(rule, "draw"):
            rule.draw(len(ran))
            ran.append(sum(rule.kept) / LAYERS)
        made.zero_grad()
        made(x).square().sum().backward()

    return call


def measure(calls: dict, rounds: int) -> dict:
    """Processor seconds of each call; cases take turns."""
    seconds = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if turn:  # the first warms up
                seconds[name].append(time.process_time() - start)
    return seconds


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", required=True)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--dim", type=int, default=256)
    options.add_argument("--batch", type=int, default=4)
    options.add_argument("--length", type=int, default=256)
    given = options.parse_args()
    torch.set_num_threads(1)
    x = torch.randint(256, (given.batch, given.length))
    shared = {
        "bench": "depth",
        "layers": LAYERS,
        "dim": given.dim,
        "batch": given.batch,
        "length": given.length,
        "rounds": given.rounds,
        **environment("cpu"),
    }
    read = evaluations(given.dim, x)
    seconds = measure({k: reading(m, x) for k, (m, _) in read.items()}, given.rounds)
    rows = []
    base = statistics.median(seconds["plain"])
    size = sum(p.numel() for p in read["plain"][0].trunk.stack.parameters())
    for name, (made, share) in read.items():
        own = sum(p.numel() for p in made.trunk.stack.parameters())
        ratio = statistics.median(seconds[name]) / base
        kind = {"case": name, "measure": "forward", "expected": share, "parameters": own / size}
        rows.append({**shared, **kind, "ratio": ratio})
    ran = {rate: [] for rate in (0.0, 0.2, 0.5)}
    calls = {
        rate: learning(model(given.dim, depth=f"layer_drop(rate={rate})").train(), x, ran[rate])
        for rate in ran
    }
    seconds = measure(calls, given.rounds)
    base = statistics.fmean(seconds[0.0])
    for rate in ran:
        share = statistics.fmean(ran[rate][-given.rounds :])
        kind = {"case": f"layer_drop(rate={rate})", "measure": "forward+backward"}
        ratio = statistics.fmean(seconds[rate]) / base
        rows.append({**shared, **kind, "expected": share, "parameters": 1.0, "ratio": ratio})
    append(given.out, rows)
    for row in rows:
        print(f"{row['case']:36} {row['measure']:17} {row['expected']:.2f} {row['ratio']:.2f}")


if __name__ == "__main__":
    main()
