"""Early exit: speed, agreement with the full model and accuracy, for each rule and threshold.

    python benchmarks/cases/early_exit.py --out benchmarks/results/cpu_early_exit.jsonl

Trains one model with a classifier after every layer on a task (ListOps by default), fits the rules
on its validation split and lets rows of its test split leave by them, in batches and one by one.
The cases take turns, the full model among them; a row's speed-up is to the median of that. A rule
is timed only if `never` gave the full model's scores, bit by bit.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import torch

from weft.arena.analysis.exits import exit_score
from weft.arena.experiment.runs import run_of, split_of
from weft.arena.experiment.settings import experiment
from weft.bench.timing import measure
from weft.environment import environment
from weft.models import EXITS, load
from weft.models.exits.early_exit import held_out
from weft.rows import append
from weft.training import train

POLICIES = [
    "never",
    *(f"confidence({t})" for t in (0.5, 0.7, 0.9, 0.95, 0.99)),
    *(f"patience({t})" for t in (1, 2, 3, 4)),
    *(f"conformal({e})" for e in (0.2, 0.1, 0.05, 0.02)),
    *(f"conformal({e}, variant='independent')" for e in (0.2, 0.1, 0.05)),
]


def settings(args: argparse.Namespace) -> dict:
    """The tables of a settings file."""
    return {
        "task": args.task,
        "model": {"layers": args.layers, "dim": args.dim, "heads": args.heads},
        "training": {
            "steps": args.steps, "batch": 32, "lr": args.lr, "device": args.device,
            "evaluate_every": max(1, args.steps // 10),
        },
        "phase": [{"objective": f"early_exit(reads={args.reads!r}, weights={args.weights!r})"}],
    }  # fmt: skip


def some(one, split: str, rows: int, size: int, device: str) -> list:
    """The first rows of a split, on the device, in batches of this size."""
    found = []
    for batch in split_of(one, split):
        batch = batch.to(device)
        found += [batch.part(i, i + size) for i in range(0, len(batch), size)]
        if len(found) * size >= rows:
            break
    return found[: max(1, rows // size)]


def timed(model, rules: dict, batches: list, rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds over all batches; the full model is the case "full"."""

    def full() -> None:
        for batch in batches:
            model(batch.x, valid=batch.valid)

    def leaving(rule):
        return lambda: [model.leave(batch.x, rule, valid=batch.valid) for batch in batches]

    calls = {"full": full, **{name: leaving(rule) for name, rule in rules.items()}}
    with torch.no_grad():
        for batch in batches:
            same = model.leave(batch.x, EXITS.parse("never"), valid=batch.valid).scores
            if not torch.equal(same, model(batch.x, valid=batch.valid)):
                raise SystemExit("the full model and a rule that never leaves differ: no numbers")
        found = measure(calls, rounds, device)
    if found.failed:
        raise SystemExit(f"these cases failed: {found.failed}")
    return found.seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--run", help="folder of the training, which it goes on with")
    parser.add_argument("--task", default="listops(length=100, train=20000, valid=2000, test=2000)")
    parser.add_argument("--device", default="cpu")
    for name, value in (("layers", 6), ("dim", 128), ("heads", 4), ("steps", 2000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--reads", default="layer")
    parser.add_argument("--weights", default="equal")
    parser.add_argument("--rows", type=int, default=256, help="of the test split, to time")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    one = experiment(settings(args))
    folder = Path(args.run or tempfile.mkdtemp())
    outcome = train(run_of(one), folder)
    model = load(folder / outcome.model, args.device)
    known = held_out(model, split_of(one, "valid"))
    rules = {name: EXITS.parse(name).fitted(*known) for name in POLICIES}
    quality = {
        name: exit_score(model, name, split_of(one, "valid"), split_of(one, "test"))
        for name in rules
    }
    shape = {"task": args.task, "layers": args.layers, "dim": args.dim, "steps": args.steps}
    shape |= {"reads": args.reads, "weights": args.weights, "device": args.device}
    for size in (32, 1):
        batches = some(one, "test", args.rows, size, args.device)
        seconds = timed(model, rules, batches, args.rounds, args.device)
        base = statistics.median(seconds["full"])
        for name, taken in seconds.items():
            found = quality.get(name, quality["never"])
            speed = base / statistics.median(taken)
            row = {
                "case": name, "batch": size, "seconds": statistics.median(taken),
                "rounds": len(taken), "speedup": speed, "agreement": found.agreement,
                "accuracy": found.score, "full_accuracy": found.full, "mean_layers": found.layers,
                **shape, **environment(args.device),
            }  # fmt: skip
            append(args.out, [row])
            print(
                f"batch {size:2}  {name:40} {speed:5.2f}x  layers {found.layers:5.2f}  "
                f"agreement {found.agreement:.4f}  accuracy {found.score:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
