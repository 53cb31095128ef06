"""Continued training of a converted model on long rows; killed at any moment, it goes on.

AdamW with a linear warm-up and a cosine down to a tenth. On a GPU the pass runs in bfloat16 and
the optimiser keeps float32 weights; on a CPU all is float32. Rows are taken in an order drawn from
the seed, so that a resumed run reads what the uninterrupted one would have read.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from weft.errors import WeftError, at_least
from weft.files import replacing
from weft.interop.hf.dense_to_long.losses import TokenLosses

STATE = "training.safetensors"
_TIMED = 3  # steps whose time says how many fit into the minutes; they are undone
_FIRST = 2  # of these, not counted: kernels are built in them


@dataclass(frozen=True)
class ContinuedTraining:
    """How a converted model goes on training."""

    rate: float = 3e-4  # the highest learning rate
    warmup: float = 0.1  # share of the steps
    last: float = 0.1  # share of the rate at the end
    batch: int = 1  # rows in a step
    micro: int = 1  # rows in a pass
    betas: tuple[float, float] = (0.9, 0.95)
    decay: float = 0.0
    clip: float = 1.0
    minutes: float | None = None  # instead of steps
    steps: int | None = None
    seed: int = 0
    shuffle: bool = True  # each epoch in an order drawn from the seed; else as given
    checkpointing: bool = False  # activations are computed again in the backward pass
    every: float = 60.0  # seconds between states on disk

    def __post_init__(self) -> None:
        at_least(1, batch=self.batch, micro=self.micro)
        if (self.minutes is None) == (self.steps is None):
            raise WeftError("training takes minutes or steps, one of the two")
        if self.batch % self.micro:
            raise WeftError(f"batch={self.batch} is not a multiple of micro={self.micro} rows")
        if not self.rate > 0 or (self.minutes is not None and not self.minutes > 0):
            raise WeftError(f"rate and minutes are above 0; got {self.rate} and {self.minutes}")

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        first = max(1, round(self.warmup * steps))
        if step < first:
            return self.rate * (step + 1) / first
        done = (step - first) / max(1, steps - first)
        return self.rate * (self.last + (1 - self.last) * (1 + math.cos(math.pi * done)) / 2)


@dataclass
class TrainingProgress:
    """Where a training stands; `show` gets it after each step."""

    step: int
    steps: int
    loss: float
    seconds: float  # of this process
    tokens: int


class MasterWeights:
    """Parameters in their own precision, and what the optimiser updates, in float32."""

    def __init__(self, model: nn.Module, settings: ContinuedTraining) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names, self.own = [n for n, _ in named], [p for _, p in named]
        wide = [p if p.dtype == torch.float32 else p.detach().float() for p in self.own]
        self.masters: list[Tensor] = [
            p if isinstance(p, nn.Parameter) else nn.Parameter(p) for p in wide
        ]
        fused = self.own[0].device.type == "cuda"
        self.optimiser = torch.optim.AdamW(
            self.masters, lr=0.0, betas=settings.betas, weight_decay=settings.decay, fused=fused
        )

    def step(self, rate: float, clip: float) -> None:
        """One update from the gradients of the parameters, which are cleared."""
        nn.utils.clip_grad_norm_(self.own, clip, foreach=True)
        for master, own in zip(self.masters, self.own, strict=True):
            if master is not own and own.grad is not None:
                master.grad = own.grad.float()
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        with torch.no_grad():
            if self.masters[0] is not self.own[0]:
                for own, master in zip(self.own, self.masters, strict=True):
                    own.copy_(master)
        for one in (*self.own, *self.masters):
            one.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments by name."""
        found = {}
        for name, master in zip(self.names, self.masters, strict=True):
            found[f"weight.{name}"] = master.detach()
            for key, value in self.optimiser.state.get(master, {}).items():
                found[f"{key}.{name}"] = value
        return {name: value.contiguous() for name, value in found.items()}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take weights and moments back."""
        for name, own, master in zip(self.names, self.own, self.masters, strict=True):
            master.copy_(tensors[f"weight.{name}"])
            if own is not master:
                own.copy_(master)
            state: dict[str, Tensor] = {}
            for key in ("step", "exp_avg", "exp_avg_sq"):
                if f"{key}.{name}" in tensors:
                    value = tensors[f"{key}.{name}"]
                    fused = self.optimiser.param_groups[0]["fused"]
                    state[key] = value.to(
                        master.device if key != "step" or fused else "cpu"
                    ).clone()
            if state:
                self.optimiser.state[master] = state


def continue_training(
    model: PreTrainedModel,
    rows: Tensor,
    losses: TokenLosses,
    settings: ContinuedTraining,
    folder: Path | None = None,
    show: Callable[[TrainingProgress], None] | None = None,
    trial: dict[str, Any] | None = None,
) -> dict[str, float]:
    """Train on rows (r, n); with a folder, go on from the state there. Returns what was seen.

    `trial` describes the training; a state of another one is refused.
    """
    described = json.loads(
        json.dumps({"rows": list(rows.shape), **asdict(settings), **(trial or {})})
    )
    weights = MasterWeights(model, settings)
    path = None if folder is None else folder / STATE
    held = None if path is None or not path.exists() else _load(path, weights, described)
    model.train()
    if settings.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if held is None:
        steps = settings.steps or _steps_in(model, rows, losses, settings)
        held = {"step": 0, "steps": steps, "loss": float("nan"), "seconds": 0.0}
        if path is not None:
            _save(path, weights, held, described)
    began = saved = time.monotonic()
    before = held["seconds"]
    while held["step"] < held["steps"]:
        at = held["step"]
        with _drawn_by(settings.seed, at, model.device):
            loss = _pass(model, rows, losses, settings, at)
        weights.step(settings.rate_at(at, held["steps"]), settings.clip)
        last = at + 1 == held["steps"]
        held |= {"step": at + 1}
        if show is not None or last or at % 10 == 0:  # reading the loss waits for the device
            held["loss"] = _finite(float(loss), at)
        held["seconds"] = before + time.monotonic() - began
        if show is not None:
            tokens = (at + 1) * settings.batch * rows.shape[1]
            show(TrainingProgress(at + 1, held["steps"], held["loss"], held["seconds"], tokens))
        if path is not None and (last or time.monotonic() - saved > settings.every):
            _save(path, weights, held, described)
            saved = time.monotonic()
    if settings.checkpointing:
        model.gradient_checkpointing_disable()
    model.eval()
    return held


@contextmanager
def _drawn_by(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """Dropout of a step is a function of the seed and the step, also after a kill."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed((seed << 32) + step)
        yield


def _pass(
    model: PreTrainedModel,
    rows: Tensor,
    losses: TokenLosses,
    settings: ContinuedTraining,
    step: int,
) -> Tensor:
    """Gradients of one step; returns its mean loss."""
    chosen = rows[_rows_of(step, len(rows), settings)]
    total = torch.zeros((), device=model.device)
    for at, part in enumerate(chosen.split(settings.micro)):
        found = losses(model, part.long().to(model.device), step * settings.batch + at)
        share = found.nanmean() * (len(part) / settings.batch)
        share.backward()
        total += share.detach()
    return total


def _rows_of(step: int, count: int, settings: ContinuedTraining) -> Tensor:
    """Which rows a step reads: each epoch is an order of its own."""
    places = torch.arange(step * settings.batch, (step + 1) * settings.batch)
    if not settings.shuffle:
        return places % count
    epochs = places // count
    orders = {
        epoch: torch.randperm(count, generator=torch.Generator().manual_seed(settings.seed + epoch))
        for epoch in set(epochs.tolist())
    }
    return torch.stack([orders[int(e)][p % count] for e, p in zip(epochs, places, strict=True)])


def _steps_in(
    model: PreTrainedModel, rows: Tensor, losses: TokenLosses, settings: ContinuedTraining
) -> int:
    """How many steps fit into the minutes: some are timed, without an update."""
    assert settings.minutes is not None
    began = time.monotonic()
    for step in range(_TIMED + _FIRST):
        if step == _FIRST:
            began = time.monotonic()
        float(_pass(model, rows, losses, settings, step))
        model.zero_grad(set_to_none=True)
    each = (time.monotonic() - began) / _TIMED
    return max(1, int(settings.minutes * 60 / each))


def _finite(loss: float, step: int) -> float:
    if not math.isfinite(loss):
        raise WeftError(
            f"the loss is {loss} at step {step + 1}; use a lower rate, and start from a new folder"
        )
    return loss


def _save(
    path: Path, weights: MasterWeights, held: dict[str, Any], described: dict[str, Any]
) -> None:
    note = {"held": json.dumps(held), "settings": json.dumps(described)}
    with replacing(path) as scratch:
        save_file({k: v.cpu() for k, v in weights.tensors().items()}, scratch, note)


def _load(path: Path, weights: MasterWeights, described: dict[str, Any]) -> dict[str, Any]:
    try:
        with safe_open(path, "pt") as file:
            note = file.metadata()
            held, before = json.loads(note["held"]), json.loads(note["settings"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as cause:
        raise WeftError(
            f"{path} is not the state of a training; remove it to start anew"
        ) from cause
    other = sorted(key for key in described if described[key] != before.get(key))
    if other:
        raise WeftError(
            f"{path} is the state of another training: it differs in {', '.join(other)}; give "
            "another folder, or the same settings to go on"
        )
    weights.load(tensors)
    return held
