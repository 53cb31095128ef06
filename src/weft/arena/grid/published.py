"""Published results on Long Range Arena, to compare with our own.

Accuracies are per cent on the test split; None is a model that failed (did not beat chance, or did
not fit) or was not tried. `checked` is True where the figure was read in the paper or its code, and
False where it is recalled: show the difference. Every author trained under a protocol of their own:
docs/lra.md lists what changes the figures.
"""

from __future__ import annotations

from dataclasses import dataclass

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
SPEED_LENGTHS = (1000, 2000, 3000, 4000)

LRA = "Tay et al. 2020, https://arxiv.org/abs/2011.04006"
TLB = "Didolkar et al. 2022, https://arxiv.org/abs/2205.14794"
S4 = "Gu et al. 2021, https://arxiv.org/abs/2111.00396"
S4D = "Gu et al. 2022, https://arxiv.org/abs/2206.11893"
DSS = "Gupta et al. 2022, https://arxiv.org/abs/2203.14343"
LRU = "Orvieto et al. 2023, https://arxiv.org/abs/2303.06349"
LIQUID = "Hasani et al. 2022, https://arxiv.org/abs/2209.12951"
S5 = "Smith et al. 2022, https://arxiv.org/abs/2208.04933"
MEGA = "Ma et al. 2022, https://arxiv.org/abs/2209.10655"
SPADE = "Zuo et al. 2022, https://arxiv.org/abs/2212.08136"
DFOUT = "S4D-DFouT, 2025"
SPT = "Amos et al. 2023, Never Train from Scratch, https://arxiv.org/abs/2310.02980"


@dataclass(frozen=True)
class Accuracy:
    """One row of a published table of accuracies."""

    model: str
    scores: tuple[float | None, ...]  # in the order of TASKS
    source: str
    average: float | None = None  # as printed
    mixer: str | None = None  # weft's mechanism of that name
    checked: bool = True

    def score(self, task: str) -> float | None:
        """Per cent on one task."""
        return self.scores[TASKS.index(task)]


@dataclass(frozen=True)
class PublishedSpeed:
    """One row of the published table of training speed and memory, at SPEED_LENGTHS."""

    model: str
    steps_per_second: tuple[float, ...]
    gigabytes: tuple[float, ...]
    mixer: str | None = None
    source: str = LRA


def _lra(model: str, mixer: str | None, *numbers: float) -> Accuracy:
    """Five scores and the average; Path-X failed for every model of that table."""
    return Accuracy(model, (*numbers[:5], None), LRA, numbers[5], mixer)


def _spt(model: str, *numbers: float, mixer: str | None = "full") -> Accuracy:
    """Six scores and the average, recalled."""
    return Accuracy(model, numbers[:6], SPT, numbers[6], mixer, checked=False)


# The table of the paper. Its average is over five tasks.
ACCURACY = (
    _lra("Transformer", "full", 36.37, 64.27, 57.46, 42.44, 71.40, 54.39),
    _lra("Local Attention", "block_local", 15.82, 52.98, 53.39, 41.46, 66.63, 46.06),
    _lra("Sparse Transformer", "sparse_transformer", 17.07, 63.58, 59.59, 44.24, 71.71, 51.24),
    _lra("Longformer", "longformer", 35.63, 62.85, 56.89, 42.22, 69.71, 53.46),
    _lra("Linformer", "linformer", 35.70, 53.94, 52.27, 38.56, 76.34, 51.36),
    _lra("Reformer", "reformer", 37.27, 56.10, 53.40, 38.07, 68.50, 50.67),
    # Printed as 51.29 and as 51.39; the five scores give 51.48.
    _lra("Sinkhorn Transformer", "sinkhorn", 33.67, 61.20, 53.83, 41.23, 67.45, 51.39),
    _lra("Synthesizer", "synthesizer", 36.99, 61.68, 54.67, 41.61, 69.45, 52.88),
    _lra("BigBird", "bigbird", 36.05, 64.02, 59.29, 40.83, 74.87, 55.01),
    _lra("Linear Transformer", "linear_transformer", 16.13, 65.90, 53.09, 42.34, 75.30, 50.55),
    _lra("Performer", "performer", 18.01, 65.40, 53.82, 42.77, 77.05, 51.41),
    Accuracy("TLB", (37.05, 81.88, 76.91, 57.51, 79.06, None), TLB, 66.48),
)

# Byte-level text, batch 32, training on a 4 × 4 TPU v3; memory per device. Longformer and the
# Sparse Transformer were emulated by dense masks and not timed.
SPEED = (
    PublishedSpeed("Transformer", (8.1, 4.9, 2.3, 1.4), (0.85, 2.65, 5.51, 9.48), "full"),
    PublishedSpeed(
        "Local Attention", (9.2, 8.4, 7.4, 7.4), (0.42, 0.76, 1.06, 1.37), "block_local"
    ),
    PublishedSpeed("Linformer", (9.3, 9.1, 8.5, 7.7), (0.37, 0.55, 0.99, 0.99), "linformer"),
    PublishedSpeed("Reformer", (4.4, 2.2, 1.5, 1.1), (0.48, 0.99, 1.53, 2.28), "reformer"),
    PublishedSpeed(
        "Sinkhorn Transformer", (9.1, 7.9, 6.6, 5.3), (0.47, 0.83, 1.13, 1.48), "sinkhorn"
    ),
    PublishedSpeed("Synthesizer", (8.7, 5.7, 6.6, 1.9), (0.65, 1.98, 4.09, 6.99), "synthesizer"),
    PublishedSpeed("BigBird", (7.4, 3.9, 2.7, 1.5), (0.77, 1.49, 2.18, 2.88), "bigbird"),
    PublishedSpeed(
        "Linear Transformer", (9.1, 9.3, 8.6, 7.8), (0.37, 0.57, 0.80, 1.03), "linear_transformer"
    ),
    PublishedSpeed("Performer", (9.5, 9.4, 8.7, 8.0), (0.37, 0.59, 0.82, 1.06), "performer"),
)

# State spaces and the like, each with its own code; averages are over six tasks.
LATER = (
    Accuracy("S4", (58.35, 76.02, 87.09, 87.26, 86.05, 88.10), S4, 80.48, checked=False),
    Accuracy("S4-LegS", (59.60, 86.82, 90.90, 88.65, 94.20, 96.35), S4D, 86.09),
    Accuracy("DSS-softmax", (60.6, 84.8, 87.8, 85.7, 84.6, 87.8), DSS, 81.88, checked=False),
    Accuracy("DSS-exp", (59.7, 84.6, 87.6, 84.9, 84.7, 85.6), DSS, 81.18, checked=False),
    Accuracy("S4D-LegS", (60.47, 86.18, 89.46, 88.19, 93.06, 91.95), S4D, 84.89),
    Accuracy("S4D-Inv", (60.18, 87.34, 91.09, 87.83, 93.78, 92.80), S4D, 85.50),
    Accuracy("S4D-Lin", (60.52, 86.97, 90.96, 87.93, 93.96, None), S4D),
    Accuracy("LRU", (60.2, 89.4, 89.9, 89.0, 95.1, 94.2), LRU, 86.3),
    Accuracy("Liquid-S4", (62.75, 89.02, 91.20, 89.50, 94.80, 96.66), LIQUID, 87.32, checked=False),
    Accuracy("S5", (62.15, 89.31, 91.40, 88.00, 95.33, 98.58), S5, 87.46),
    Accuracy("Mega", (63.14, 90.43, 91.25, 90.44, 96.01, 97.98), MEGA, 88.21),
    Accuracy("Mega-chunk", (58.76, 90.19, 90.97, 85.80, 94.41, 93.81), MEGA, 85.66),
    Accuracy("SPADE", (60.50, 90.69, 91.17, 88.22, 96.23, 97.60), SPADE, 87.40, checked=False),
    Accuracy("S4D-DFouT", (61.89, 87.41, 90.95, 88.48, 94.30, 94.17), DFOUT),
)

# Transformers that pre-train on the task's own inputs first; from scratch for comparison.
PRETRAINED = (
    _spt("Transformer, masked SPT", 59.75, 89.27, 88.64, 74.22, 88.45, 87.73, 81.34),
    _spt("Transformer, causal SPT", 59.15, 88.81, 90.38, 76.00, 88.49, 88.05, 81.81),
    _spt("Transformer, rotary, from scratch", 47.90, 79.08, 82.31, 75.04, 76.64, 84.72, 74.28),
    _spt("Transformer, rotary, masked SPT", 61.49, 91.02, 91.57, 86.04, 94.16, 92.98, 86.21),
    _spt("S4, masked SPT", 61.25, 90.34, 88.74, 89.36, 94.92, 96.94, 86.9, mixer=None),
)


def published_accuracy(task: str, mixer: str) -> float | None:
    """What the benchmark's paper reports for weft's mechanism of that name, per cent."""
    return next((row.score(task) for row in ACCURACY if row.mixer == mixer), None)


def accuracy_markdown(rows: tuple[Accuracy, ...]) -> str:
    """A table of accuracies; figures that are recalled, not read, are marked."""
    lines = [f"| model | {' | '.join(TASKS)} | average |", "|---|" + "---:|" * (len(TASKS) + 1)]
    for row in rows:
        name = row.model if row.checked else f"{row.model} ⁽ʳ⁾"
        cells = ["–" if score is None else f"{score:.2f}" for score in (*row.scores, row.average)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def speed_markdown() -> str:
    """Training steps per second, and gigabytes, by length."""
    lengths = [f"{length // 1000}K" for length in SPEED_LENGTHS]
    heads = [*(f"{n} steps/s" for n in lengths), *(f"{n} GB" for n in lengths)]
    lines = [f"| model | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for row in SPEED:
        cells = [f"{x:.1f}" for x in row.steps_per_second] + [f"{x:.2f}" for x in row.gigabytes]
        lines.append(f"| {row.model} | {' | '.join(cells)} |")
    return "\n".join(lines)
