r"""Promoters: short real ones by organism, and long made-up ones, by several mechanisms.

    PYTHONPATH=src python benchmarks/cases/promoters.py --data FOLDER --out OUT --seconds 570
    python benchmarks/cases/promoters.py --data FOLDER --out OUT --only _sliding_window_0 \
        --jobs 1 --minutes 12 --seconds 900 --set training.steps=500 \
        --set training.precision=float32                                # one core, rows of a CPU

FOLDER/promoters holds promoters.jsonl as `weft tasks promoters` describes it; of each organism and
class 70 % are training, 10 % validation and 20 % test, by a hash that keeps equal sequences and
both strands of one together. The long ones are drawn: 4,096 bases, the same motifs in every
sequence, their order and distances alone tell (`weft.dna.grammar`). Rows, with sensitivity,
specificity and Matthews' correlation, go to OUT/rows.jsonl; the same command goes on where it was
stopped. weft need not be installed. --tiny trains a few updates on a CPU.
"""

from pathlib import Path
from typing import Any

from cells import parser, run

SHORT = {
    "ecoli": ("ecoli", []),
    "bacillus": ("bacillus", []),
    "arabidopsis_tata": ("arabidopsis", ["tata"]),
    "arabidopsis_nontata": ("arabidopsis", ["nontata"]),
    "mouse_tata": ("mouse", ["tata"]),
}
SHORT_MIXERS = {"sliding_window": "sliding_window(window=16)", "dense": "full"}
LONG_MIXERS = {
    "dense": "full",
    "sliding_window": "sliding_window(window=128)",
    "longformer": "longformer(window=128, global_first=1)",
    "linear_transformer": "linear_transformer",
}


def cells(args: Any) -> dict[str, dict[str, Any]]:
    """Every organism with one seed, the long ones, then every organism with the other seeds."""
    found = every_organism(0, args)
    found |= {f"long_{name}_0": long(mixer, args) for name, mixer in LONG_MIXERS.items()}
    for seed in range(1, args.seeds):
        found |= every_organism(seed, args)
    return found


def every_organism(seed: int, args: Any) -> dict[str, dict[str, Any]]:
    return {
        f"{name}_{label}_{seed}": short(organism, kinds, mixer, seed, args)
        for name, (organism, kinds) in SHORT.items()
        for label, mixer in SHORT_MIXERS.items()
    }


def short(
    organism: str, kinds: list[str], mixer: str, seed: int, args: Any
) -> dict[str, dict[str, Any]]:
    folder = str(Path(args.data or ".") / "promoters")
    return {
        "task": {
            "name": "promoters",
            "folder": folder,
            "organism": organism,
            "kinds": kinds,
            "k": 3,
            "seed": seed,  # each seed has a split of its own: test sets of 75 to 1,200 promoters
        },
        "model": model(mixer, args, positions="learned", dropout=0.3, pool="attention"),
        "training": training(args, seed, steps=1200, lr=1e-3),
    }


def long(mixer: str, args: Any) -> dict[str, Any]:
    """One group in 512 bases first, then four in 4,096; every batch is of fresh sequences."""
    task = {"name": "long_promoters", "k": 6, "fresh": True, "valid": 500, "test": 1000}
    short_first = {"bases": 512, "groups": 1}
    if args.tiny:
        task |= {"bases": 640, "groups": 2, "k": 3, "valid": 16, "test": 16}
        short_first["bases"] = 320
    made = model(mixer, args, positions="none", dropout=0.0, pool="max")
    made["trunk"]["stack"]["frame"]["positions"] = "rope"
    steps = (2, 2) if args.tiny else (2500, 1200)
    phases = [
        {"name": "short", "task": short_first, "steps": steps[0]},
        {"name": "long", "steps": steps[1], "lr": 5e-4},
    ]
    return {"task": task, "model": made, "training": training(args, 0, 1, 1e-3), "phase": phases}


def model(mixer: str, args: Any, positions: str, dropout: float, pool: str) -> dict[str, Any]:
    frame: dict[str, Any] = {"dim": 16 if args.tiny else 128, "heads": 4}
    stack = {"frame": frame, "mixer": mixer, "dropout": dropout}
    stack["order"] = "sf" * (1 if args.tiny else 3)
    trunk = {"name": "encoder", "embedding": {"positions": positions}, "stack": stack}
    return {"trunk": trunk, "head": {"pool": pool}}


def training(args: Any, seed: int, steps: int, lr: float) -> dict[str, Any]:
    return {
        "steps": 4 if args.tiny else steps,
        "batch": 4 if args.tiny else 64,
        "lr": lr,
        "warmup": 1 if args.tiny else 100,
        "weight_decay": 0.05,
        "precision": "float32" if args.tiny else "bfloat16",
        "prefetch": 4,
        "log_every": 20,
        "evaluate_every": 2 if args.tiny else 100,
        "seed": seed,
    }


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    run(__file__, args, cells(args))


if __name__ == "__main__":
    main()
