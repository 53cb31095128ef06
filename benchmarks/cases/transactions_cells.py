"""The trainings of transactions.py: each table of the authors, the most important ones first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

CONVOLUTION = "linformer(compress='convolution', width={width})"
LONGFORMER = "longformer(window={reach}, global_first=0, global_projections=false)"
MATRIX = "linformer(rank={rank})"
ROLL = ["objective.roll=0.5"]
SLOTS = 128  # K of the main table


@dataclass(frozen=True)
class Cell:
    """One training: a recipe, and what differs from it."""

    table: str
    label: str
    seed: int = 0
    recipe: str = "transactions"
    mixer: str | None = None  # of the recipe, by its name, or a spec
    changes: list[str] = field(default_factory=list)
    phases: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Unique, fit for a file."""
        text = f"{self.table}-{self.label}-{self.seed}"
        return "".join(each if each.isalnum() else "-" for each in text)


def cells(steps: int, seeds: int, length: int) -> list[Cell]:
    """All of them, the most important first."""
    main = {
        "Convolution Linformer": CONVOLUTION.format(width=-(-length // SLOTS)),
        "Longformer": "longformer",
        "LSTM": "lstm",
        "Linformer (matrix)": MATRIX.format(rank=min(SLOTS, length)),
    }
    own = [f"task.length={length}", f"training.steps={steps}"]
    found = [
        Cell("main", label, seed, mixer=mixer, changes=own)
        for seed in range(seeds)
        for label, mixer in main.items()
    ]
    rolled = [
        replace(cell, table="shift", label=f"{cell.label}, rolled", changes=[*cell.changes, *ROLL])
        for cell in found
        if "Linformer" in cell.label
    ]
    long = long_cells(steps)
    pairs = [replace(cell, seed=seed) for seed in range(seeds) for cell in long[:2]]
    searches = [*longformer_search(steps), *convolution_search(steps)]
    return [*found, *pairs[:2], *rolled, *pairs[2:], *long[2:], *searches]


def long_cells(steps: int) -> list[Cell]:
    """The authors' seven rows, one more, and LSTM: as many tokens in all, from scratch or not."""
    short = steps  # steps on 350 transactions
    both = max(1, steps // 4)  # steps on 1,500 after them
    alone = both + short * SHORT // LONG  # steps on 1,500 from scratch
    scratch = [f"task.length={LONG}", f"training.steps={alone}", "training.accumulate=4"]
    first = [f"task.length={SHORT}", f"training.steps={steps}", "training.accumulate=1"]

    def once(label: str, mixer: str, changes: list[str]) -> Cell:
        return Cell("long", label, mixer=mixer, changes=changes)

    def twice(label: str, recipe: str, width: int) -> Cell:
        phases = {0: {"steps": short}, 1: {"steps": both, "mixer": {"width": width}}}
        return Cell("long", label, recipe=recipe, phases=phases)

    def width(k: int, length: int = LONG) -> str:
        return CONVOLUTION.format(width=-(-length // k))

    return [
        once("1,500, K 400, from scratch", width(400), scratch),
        twice("1,500, K 400, pretrained", "transactions_long", 4),
        twice("1,500, K 500, pretrained", "transactions_long", 3),
        once("1,500, K 500, from scratch", width(500), scratch),
        twice("1,500, K 400, convolutions alone", "transactions_convolutions", 4),
        once("350, K 128, from scratch", width(128, SHORT), first),
        once("1,500, K 128, from scratch", width(128), scratch),
        once("1,500, K 256, from scratch", width(256), scratch),
        twice("1,500, K 256, pretrained", "transactions_long", 6),
        once("350, LSTM", "lstm", first),
        once("1,500, LSTM", "lstm", scratch),
        once("1,500, Linformer (matrix), from scratch", MATRIX.format(rank=400), scratch),
    ]


SHORT, LONG = 350, 1500
# Heads, width, window (both sides), layers, dropout: the authors' table, row by row.
LONGFORMERS = [
    *((8, 512, 128, 1, 0.1), (8, 256, 128, 1, 0.1), (8, 64, 128, 1, 0.1), (8, 64, 128, 2, 0.1)),
    *((8, 64, 256, 2, 0.1), (8, 64, 64, 2, 0.1), (4, 64, 128, 8, 0.3), (4, 32, 128, 8, 0.3)),
    *((4, 64, 128, 8, 0.5), (4, 64, 128, 12, 0.3), (2, 64, 128, 8, 0.5), (4, 64, 128, 12, 0.6)),
]
# K, heads, width, layers, feed-forward, and a setting where the authors do not say what differed.
CONVOLUTIONS = [
    *((128, 8, 64, 4, 2048, ""), (32, 8, 64, 4, 2048, ""), (64, 8, 64, 4, 2048, "")),
    *((128, 4, 64, 4, 2048, ""), (128, 8, 64, 2, 2048, ""), (128, 8, 64, 4, 2048, "depthwise")),
    *((128, 8, 32, 4, 2048, ""), (128, 8, 64, 4, 2048, "one for keys and values")),
    *((128, 8, 64, 3, 2048, ""), (128, 8, 64, 2, 512, ""), (128, 8, 64, 2, 256, "")),
    (128, 8, 128, 2, 512, ""),
]


def longformer_search(steps: int) -> list[Cell]:
    """Twelve rows, on 350 transactions as theirs, with half the updates."""
    found = []
    for row, (heads, dim, window, layers, dropout) in enumerate(LONGFORMERS, start=1):
        changes = [f"model.heads={heads}", f"model.dim={dim}", f"model.layers={layers}"]
        changes += [f"model.stack.dropout={dropout}", *searched(steps)]
        changes += ["training.lr=1e-3"] if layers > 4 or dim > 128 else []
        mixer = LONGFORMER.format(reach=window // 2 + 1)
        found.append(Cell("search Longformer", f"row {row:02}", mixer=mixer, changes=changes))
    return found


def convolution_search(steps: int) -> list[Cell]:
    """Twelve rows; where theirs say nothing that differs, `more` does."""
    found = []
    for row, (k, heads, dim, layers, inner, more) in enumerate(CONVOLUTIONS, start=1):
        mixer = CONVOLUTION.format(width=-(-SHORT // k))
        if more == "depthwise":
            mixer = mixer.replace("convolution", more)
        elif more:
            mixer = mixer.replace(")", ", sharing='kv')")
        changes = [f"model.heads={heads}", f"model.dim={dim}", f"model.layers={layers}"]
        changes += [f"model.expansion={inner // dim}", "model.stack.dropout=0.2", *searched(steps)]
        found.append(Cell("search Convolution", f"row {row:02}", mixer=mixer, changes=changes))
    return found


def searched(steps: int) -> list[str]:
    return [f"task.length={SHORT}", f"training.steps={steps // 2}", "training.accumulate=1"]
