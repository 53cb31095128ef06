r"""Spoken digits from raw samples at 8 kHz: windows, convolutions and dense attention, three seeds.

    PYTHONPATH=src python benchmarks/cases/digits.py --data FOLDER --out OUT --seconds 570
    python benchmarks/cases/digits.py --data FOLDER --out OUT --only sliding_window_0 \
        --minutes 60 --seconds 4200 --set training.batch=16 --set training.steps=2400 \
        --set training.precision=float32                                # one core, rows of a CPU

FOLDER/digits holds the Free Spoken Digit Dataset as `weft tasks digits` describes it. The usual
test, takes 0 to 4 of each speaker and digit, is scored by the weights that are best on 300 training
recordings held out. Rows go to OUT/rows.jsonl; the same command goes on where it was stopped:
a call of ten minutes is repeated until all rows are there. weft need not be installed.
--tiny trains a few updates on a CPU.
"""

from pathlib import Path
from typing import Any

from cells import parser, run

MIXERS = {
    "sliding_window": "sliding_window(window=16)",
    "longformer": "longformer(window=16, global_first=1)",
    "convolution": "light_convolution(kernel=15)",
    "dense": "full",
}
CHANGES = {"speed": 0.1, "shift": 0.1, "noise": 15.0, "gain": 6.0}


def cells(args: Any) -> dict[str, dict[str, Any]]:
    """Every contender with every seed: all seeds of the first one, then one of each other."""
    folder = str(Path(args.data or ".") / "digits")
    tiny = args.tiny
    found = {}
    first, *others = MIXERS
    wanted = [(seed, first) for seed in range(args.seeds)]
    wanted += [(seed, name) for seed in range(args.seeds) for name in others]
    for seed, name in wanted:
        # Frames of 28 ms, one each 10 ms: 102 of 8,192 samples.
        front = {"width": 16 if tiny else 128, "kernels": [10, 8, 4, 4], "strides": [5, 4, 2, 2]}
        found[f"{name}_{seed}"] = {
            "task": {"name": "digits", "folder": folder, "seed": 0, **CHANGES},
            "model": {
                "trunk": {
                    "name": "waveform",
                    "front": {**front, "norm": "layer", "bias": True},
                    "embedding": {"positions": "sinusoidal"},
                    "stack": {
                        "frame": {"dim": 16 if tiny else 128, "heads": 4},
                        "order": "sf" * (1 if tiny else 4),
                        "mixer": MIXERS[name],
                        "dropout": 0.1,
                    },
                }
            },
            "training": {
                "steps": 6 if tiny else 3000,
                "batch": 8 if tiny else 64,
                "lr": 1e-3,
                "warmup": 2 if tiny else 200,
                "weight_decay": 0.05,
                "precision": "float32" if tiny else "bfloat16",
                "prefetch": 4,
                "log_every": 50,
                "evaluate_every": 3 if tiny else 300,
                "seed": seed,
            },
        }
    return found


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    run(__file__, args, cells(args))


if __name__ == "__main__":
    main()
