"""One update: forward and backward over the parts of a batch, and a step of AdamW.

    gradient = ∇ (Σ totals of the parts / Σ items of the parts + penalties)

Items weigh alike, however they fall into parts, so `accumulate` changes memory and not the update
(but for rounding, and what is drawn at random). Rows of like length share a part, and what is
padding to all of them is left off. Nothing in here waits for a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

from weft.mixers.base import Mixer
from weft.models.stack.depth import LayerDropPassage
from weft.objectives import Batch, Loss
from weft.scale.locally import split_buffers
from weft.scale.team import Alone, local
from weft.training.checkpoints import parts
from weft.training.checkpoints.checkpoint import Checkpoint
from weft.training.checkpoints.tensors import named_tensors
from weft.training.cuda_graphs import CudaGraphs, compile_layers
from weft.training.data.seeds import derive
from weft.training.freeze import freeze
from weft.training.health import Health, NonFinite, diagnosis
from weft.training.optimiser import build_optimiser, load_state, set_rate, state_tensors
from weft.training.precision import Precision
from weft.training.run import Stage
from weft.training.schedule import learning_rate


class Learner:
    """The model of a stage, its optimiser, and all else that an update changes."""

    def __init__(
        self, stage: Stage, seed: int, device: torch.device, team: Alone | None = None
    ) -> None:
        self.stage, self.settings, self.seed, self.device = stage, stage.settings, seed, device
        self.team = team or Alone()
        torch.manual_seed(seed)
        self.precision = Precision(self.settings.precision, device)
        built = stage.model.build()
        if stage.usage is not None:
            built.usage = stage.usage
        self.model: nn.Module = built.to(device, self.precision.dtype).train()
        if initialise := getattr(stage.objective, "initialise", None):
            initialise(self.model)
        freeze(self.model, self.settings.frozen)
        self.team.split(self.model)
        if self.settings.compile:
            compile_layers(self.model)
        self.loss_of = self.team.spread(self.model, stage.objective, self.precision.autocast)
        self.mixers = [m for m in self.model.modules() if isinstance(m, Mixer)]
        self.drawing = [m for m in self.model.modules() if isinstance(m, LayerDropPassage)]
        self.optimiser = build_optimiser(self.model, self.settings)
        self.scaler = self.precision.scaler()
        self.health = Health(device, self.settings)
        self.generator = torch.Generator(device)
        # Of the parts of an update so far: items of the first one, items, and mean of the loss.
        self.unit, self.items, self.mean = torch.zeros(3, dtype=torch.float64, device=device)
        self.keeps_gradients = False  # their memory, from update to update
        self.recorder = CudaGraphs(self) if self.settings.graph and device.type == "cuda" else None
        # Since the last row of metrics: total, count, right, gradient norms, updates.
        self.window = torch.zeros(5, dtype=torch.float64, device=device)

    def step(self, batch: Batch, number: int, made: int) -> None:
        """Learn from a batch: update `number` of the stage, from 0, after `made` of the run."""
        # What an objective draws depends on the step alone; what layers draw, on torch's state.
        self.generator.manual_seed(self._drawn(number))
        self.team.reseed(self.seed, made)
        for passage in self.drawing:
            passage.draw(made)
        set_rate(self.optimiser, learning_rate(self.settings, number + 1))
        if self.recorder is None:
            self.learn(batch, made)
        else:
            self.recorder.learn(batch, made)
        for mixer in self.mixers:
            mixer.advance(made + 1)

    def learn(self, batch: Batch, made: int | Tensor) -> None:
        """The update itself; `made`, the updates before it, may be a number on the device."""
        parts = list(batch.parts(self.settings.accumulate))
        for number, part in enumerate(parts):
            self.micro_step(part, first=number == 0, last=number + 1 == len(parts))
        self.update(made)

    def micro_step(self, batch: Batch, *, first: bool, last: bool = True) -> Loss:
        """Add the gradients of these rows: the first of an update, or some more of it."""
        if first and self.device.type == "cpu":
            self.random_before = torch.get_rng_state()
        with self.team.summing(self.loss_of, last):
            return self._backward(batch, first)

    def _backward(self, batch: Batch, first: bool) -> Loss:
        loss, penalty = self.loss_of(batch, self.generator)
        # Gradients are of total / (items of the first part), so that float16 has no larger numbers
        # to hold than the mean's; `update` makes that total / (items of all parts).
        if first:
            self.unit.copy_(self.team.total(loss.count).clamp(min=1))
            self.items.zero_()
            self.mean.zero_()
        objective = loss.total / self.unit.to(loss.total.dtype)
        if penalty is not None:
            objective = objective + penalty * (loss.count / self.unit).to(penalty.dtype)
        if self.team.copies > 1:  # ranks that compute one loss add up their gradients
            self.scaler.scale(objective / self.team.copies).backward()
        else:
            self.scaler.scale(objective).backward()
        self.items += loss.count
        self.mean += objective.detach()
        self.window[:3] += torch.stack([value.detach().double() for value in loss[:3]])
        return loss

    def update(self, made: int | Tensor) -> None:
        """Clip the gradients and change the weights, unless something is not finite."""
        self.scaler.unscale_(self.optimiser)
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        share = self.unit / self.team.total(self.items).clamp(min=1)
        if self.settings.accumulate > 1:
            gradients = [p.grad for p in parameters if p.grad is not None]
            rate = share.to(self.precision.dtype)
            # torch has no public name for it
            torch._foreach_mul_(local(gradients), rate)  # pyright: ignore[reportPrivateImportUsage]
        norm = self.team.clip(parameters, self.settings.clip or torch.inf)
        self.health.watch(made, self.team.total(self.mean) * share, norm)
        if not self.scaler.is_enabled():  # else the scaler says itself what is left out
            setattr(self.optimiser, "found_inf", self.health.broken)  # noqa: B010  # read by AdamW
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=not self.keeps_gradients)
        self.window[3:] += torch.stack([norm.double(), torch.ones_like(norm).double()])

    def check(self, batch_of: Callable[[int], Batch], began: int) -> None:
        """Raise a diagnosis if an update was not finite; `batch_of(number)` gives its batch."""
        step = self.health.first_bad_step()
        if step is None:
            return
        if self.device.type == "cpu":
            torch.set_rng_state(self.random_before)
        number = step - began
        self.generator.manual_seed(self._drawn(number))
        part = next(batch_of(number).to(self.device).parts(self.settings.accumulate))

        def again() -> Tensor:
            loss, _ = self.loss_of(part, self.generator)
            return self.scaler.scale(loss.total / loss.count.clamp(min=1))

        lr = learning_rate(self.settings, number + 1)
        raise NonFinite(diagnosis(step, lr, self.settings, self.model, again))

    def _drawn(self, number: int) -> int:
        """The seed of what the objective draws for update `number`; of each rank its own."""
        rank = ("rank", self.team.data_rank) if self.team.data_ranks > 1 else ()
        return derive(self.seed, "step", number, *rank)

    def averages(self) -> dict[str, float | None]:
        """Loss, accuracy and gradient norm since the last call."""
        norm, updates = self.window[3:].tolist()
        total, count, right = self.team.total(self.window[:3]).tolist()
        self.window.zero_()
        means = {
            "loss": total / max(count, 1),
            "accuracy": right / max(count, 1),
            "grad_norm": norm / max(updates, 1),
        }
        # JSON has no infinity: a float16 overflow has no norm.
        return {name: v if abs(v) < float("inf") else None for name, v in means.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the next update depends on, for a checkpoint."""
        weights = {**named_tensors(self.model), **split_buffers(self.model)}
        window = torch.cat((self.team.total(self.window[:3]), self.window[3:]))
        state = {
            **{f"model/{name}": t for name, t in weights.items()},
            **{f"optimiser/{k}": t for k, t in state_tensors(self.optimiser, self.model).items()},
            "window": window,
            "overflows": self.health.overflows,
        }
        if self.team.is_team:  # whose random state is a function of the update
            return state
        state["random/cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            state["random/cuda"] = torch.cuda.get_rng_state(self.device)
        return state

    @torch.no_grad()
    def restore(self, found: Checkpoint) -> None:
        """Put back what `tensors` and the scaler gave."""
        self.scaler.load_state_dict(found.values["scaler"])
        if self.team.is_team:
            self._fill(found)
            return
        if found.parts is not None:  # of several processes
            found = dataclasses.replace(found, tensors=parts.whole(found.parts))
        weights = found.under("model")
        for name, tensor in named_tensors(self.model).items():
            tensor.copy_(weights[name])
        load_state(self.optimiser, self.model, found.under("optimiser"))
        self.window.copy_(found.tensors["window"])
        self.health.overflows.copy_(found.tensors["overflows"])
        if "random/cpu" in found.tensors:
            torch.set_rng_state(found.tensors["random/cpu"])
        else:
            torch.manual_seed(derive(self.seed, "resumed", found.step))
        if self.device.type == "cuda" and "random/cuda" in found.tensors:
            torch.cuda.set_rng_state(found.tensors["random/cuda"], self.device)

    def _fill(self, found: Checkpoint) -> None:
        """`restore` on a team: every process reads its parts."""
        assert found.parts is not None
        state = self.tensors()
        names = dict(self.model.named_parameters())
        moments = {}
        for name in parts.shapes(found.parts):
            kind, _, path = name.partition("/")
            if kind == "optimiser":
                owner, _, key = path.rpartition("/")
                like = names[owner].data
                moments[path] = torch.zeros(()) if key == "step" else torch.zeros_like(like)
        state |= {f"optimiser/{path}": tensor for path, tensor in moments.items()}
        parts.fill(found.parts, state)
        load_state(self.optimiser, self.model, moments)
        self.window.copy_(state["window"])
        if self.team.data_rank:
            self.window[:3] = 0
