"""The settings of a training run: the only home of their defaults."""

from __future__ import annotations

from typing import Any, Literal

import torch

from weft.config import config
from weft.errors import WeftError
from weft.scale.mesh import Mesh

Schedule = Literal["constant", "rsqrt", "cosine", "linear"]
PrecisionName = Literal["float32", "bfloat16", "float16", "float64"]
Decay = Literal["matrices", "all"]
Keep = Literal["best", "last"]

# What may differ when a run is resumed: none of these changes what is learned from a batch.
FREE = (
    *("minutes", "device", "save_every", "save_minutes", "prefetch", "tensorboard", "trackers"),
    "mesh",
)


@config
class TrainingSettings:
    """How a model is trained. The run ends after `steps` or `minutes`, whichever comes first."""

    steps: int = 1000  # updates
    minutes: float | None = None  # of wall time, all resumptions together
    batch: int = 32  # rows per update
    accumulate: int = 1  # parts in which an update's rows are computed: less memory and padding
    lr: float = 1e-3
    schedule: Schedule = "cosine"
    warmup: int = 0  # updates in which the rate rises linearly
    hold: float = 0.0  # share of the updates after warm-up before cosine or linear begin to fall
    final: float = 0.0  # share of lr at which cosine and linear end
    cycles: int = 1  # how often cosine falls
    weight_decay: float = 0.01
    decay: Decay = "matrices"  # what decays: no norms, biases and embeddings, or all
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    clip: float | None = 1.0  # largest gradient norm; None: any
    frozen: tuple[str, ...] = ()  # parameters that stay as they are: "embedding", "*.norm.weight"
    precision: PrecisionName = "float32"
    compile: bool = False  # torch.compile, layer by layer: layers that are alike share a graph
    graph: bool = False  # GPU: record what an update does once and replay it, for small models
    device: str = "auto"  # "auto": a GPU if there is one
    seed: int = 0
    keep: Keep = "best"  # which weights count at the end: best by validation, or the last
    evaluate_every: int | None = None  # updates; None: ten times in a phase
    log_every: int = 10  # updates per row of metrics; a GPU is waited for no more often
    save_every: int = 500  # updates per checkpoint
    save_minutes: float = 10.0  # a checkpoint at the latest after this long
    prefetch: int = 2  # batches prepared ahead for a GPU
    trackers: tuple[str, ...] = ()  # also write to "tensorboard", "trackio", "wandb"
    tensorboard: bool = False  # short for trackers = ["tensorboard"]
    mesh: Mesh | None = None  # several devices, started by torchrun; None: one

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "cycles", "log_every", "save_every"):
            self._require(name, getattr(self, name) >= 1, "is at least 1")
        for name in ("warmup", "weight_decay", "prefetch", "seed"):
            self._require(name, getattr(self, name) >= 0, "is 0 or more")
        for name in ("lr", "eps", "save_minutes"):
            self._require(name, getattr(self, name) > 0, "is positive")
        for name in ("minutes", "clip", "evaluate_every"):
            value = getattr(self, name)
            self._require(name, value is None or value > 0, "is positive, or None")
        for name in ("hold", "final"):
            self._require(name, 0.0 <= getattr(self, name) <= 1.0, "is a share from 0 to 1")
        fits = all(0.0 <= beta < 1.0 for beta in self.betas)
        self._require("betas", fits, "are two numbers in [0, 1)")
        self._require("accumulate", self.accumulate <= self.batch, "is at most batch")
        scaled = self.graph and self.precision == "float16"
        self._require("graph", not scaled, "records no loss scaling: take precision='bfloat16'")
        if self.mesh is not None and self.mesh.several:
            self._require(
                "graph", not self.graph, "records the update of one device: leave mesh out"
            )
            half = self.precision == "float16"
            self._require("precision", not half, "has no loss scaling on a mesh: take bfloat16")

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise WeftError(f"{name} {rule}; got {name}={getattr(self, name)!r}")

    @property
    def evaluation_interval(self) -> int:
        """Updates between two evaluations."""
        return self.evaluate_every or max(1, self.steps // 10)

    @property
    def all_trackers(self) -> tuple[str, ...]:
        """Where numbers go besides the rows, each once."""
        short = ("tensorboard",) if self.tensorboard else ()
        return tuple(dict.fromkeys((*self.trackers, *short)))

    def torch_device(self) -> torch.device:
        """Where the model is trained."""
        return device_named(self.device)


def device_named(name: Any) -> torch.device:
    """The device of this name; "auto" is a GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as cause:
        raise WeftError(
            f"device is 'auto', 'cpu', 'cuda' or 'cuda:1', say; got device={name!r}"
        ) from cause
    if device.type == "cuda" and not torch.cuda.is_available():
        raise WeftError(f"there is no CUDA device here; got device={name!r}, try device='cpu'")
    return device
