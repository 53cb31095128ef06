"""Tokens that leave early: decoding speed, agreement with the full model, and bits per byte.

    python benchmarks/cases/exit_decoding.py --out benchmarks/results/cpu_exit_decoding.jsonl

Trains a language model whose every layer predicts (`early_exit(of=causal_lm)`) on bytes, by
default those of this repository's documents. Then text of the test split is read byte by byte, with
the states that early exits leave behind, by the full model and by each rule in turn. `agreement`
is the share of bytes after which the rule's best byte is the full model's.
"""

import argparse
import math
import statistics
import tempfile
from pathlib import Path

import torch

from weft.arena.experiment.runs import run_of, split_of
from weft.arena.experiment.settings import experiment
from weft.bench.timing import measure
from weft.environment import environment
from weft.models import EXITS, leaving_early, load
from weft.models.exits.decoding import token_history
from weft.rows import append
from weft.training import train

POLICIES = [
    "never",
    *(f"confidence({t})" for t in (0.3, 0.5, 0.7, 0.9, 0.97)),
    *(f"patience({t})" for t in (1, 2, 3)),
    *(f"conformal({e})" for e in (0.2, 0.1, 0.05)),
]
ROOT = Path(__file__).resolve().parents[2]


def documents(folder: Path) -> str:
    """All documents of the repository in one file."""
    path = folder / "documents.txt"
    if not path.exists():  # a run goes on with the text it began with
        text = (page.read_bytes() for page in sorted((ROOT / "docs").rglob("*.md")))
        path.write_bytes(b"\n".join(text))
    return str(path)


def settings(args: argparse.Namespace, text: str) -> dict:
    """The tables of a settings file."""
    return {
        "task": f"language(length={args.length}, folder={text!r})",
        "model": {"layers": args.layers, "dim": args.dim, "heads": args.heads,
                  "embedding": {"positions": "none"}, "frame": {"positions": "rope"}},
        "training": {
            "steps": args.steps, "batch": 16, "lr": args.lr, "device": args.device,
            "evaluate_every": max(1, args.steps // 5),
        },
        "phase": [{"objective": "early_exit(of=causal_lm)"}],
    }  # fmt: skip


def read(model, ids: torch.Tensor) -> torch.Tensor:
    """Scores after each byte of ids (b, n), fed one by one: (b, n, vocab)."""
    state, found = model.start(len(ids)), []
    for t in range(ids.shape[1]):
        scores, state = model.step(ids[:, t : t + 1], state)
        found.append(scores)
    return torch.cat(found, dim=1)


def quality(model, rows: list[torch.Tensor], truth: list[torch.Tensor]) -> dict:
    """Agreement, layers and bits per byte over rows (1, n)."""
    model.trunk.layers_run.clear()
    same = bits = count = 0.0
    for ids, full in zip(rows, truth, strict=True):
        scores = read(model, ids)
        same += (scores.argmax(-1) == full.argmax(-1)).sum().item()
        chances = scores[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])
        bits -= chances.sum().item() / math.log(2) / (ids.shape[1] - 1) * ids.shape[1]
        count += ids.numel()
    layers = torch.stack(model.trunk.layers_run).double().mean().item()
    return {"agreement": same / count, "bits_per_byte": bits / count, "mean_layers": layers}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--run", help="folder of the training, which it goes on with")
    parser.add_argument("--text", help="a file to learn instead of the documents")
    parser.add_argument("--device", default="cpu")
    for name, value in (("layers", 8), ("dim", 256), ("heads", 4), ("steps", 1500)):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in (("length", 256), ("rows", 8), ("rounds", 5), ("known", 4000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    folder = Path(args.run or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    one = experiment(settings(args, args.text or documents(folder)))
    with torch.enable_grad():
        outcome = train(run_of(one), folder)
    model = load(folder / outcome.model, args.device)
    tokens = [batch.x for batch in split_of(one, "valid") if batch.valid is None]
    known = [token_history(model, x.to(args.device))[:, :-1].flatten(0, 1) for x in tokens]
    known, follows = torch.cat(known), torch.cat([x[:, 1:].flatten() for x in tokens])
    chosen = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[: args.known]
    known, follows = known[chosen], follows[chosen].to(args.device).long()
    test = next(iter(split_of(one, "test"))).x[: args.rows].to(args.device)
    rows = [row[None] for row in test]
    full = [read(model, row) for row in rows]
    early = {}
    for name in POLICIES:
        rule = EXITS.parse(name).fitted(known, follows)
        early[name] = leaving_early(model, rule)
    found = {name: quality(each, rows, full) for name, each in early.items()}
    if found["never"]["agreement"] != 1.0:
        raise SystemExit("the full model and a rule that never leaves differ: no numbers")
    calls = {name: lambda each=each: read(each, rows[0]) for name, each in early.items()}
    calls = {"full": lambda: read(model, rows[0]), **calls}
    timings = measure(calls, args.rounds, args.device)
    if timings.failed:
        raise SystemExit(f"these cases failed: {timings.failed}")
    base = statistics.median(timings.seconds["full"])
    for name, taken in timings.seconds.items():
        middle, got = statistics.median(taken), found.get(name, found["never"])
        row = {
            "case": name, "speedup": base / middle, "tokens_per_second": test.shape[1] / middle,
            "rounds": len(taken), **got, "layers": args.layers, "dim": args.dim,
            "length": args.length, "steps": args.steps, "batch": 1, "device": args.device,
            **environment(args.device),
        }  # fmt: skip
        append(args.out, [row])
        print(
            f"{name:18} {base / middle:5.2f}x  layers {got['mean_layers']:5.2f}  agreement "
            f"{got['agreement']:.4f}  bits {got['bits_per_byte']:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
