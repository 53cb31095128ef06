"""What the processes of one training agree on: rows, sums, decisions, and who writes.

`Alone` is a training in one process, where there is nothing to agree on; `Team` one on a mesh.
Rank 0 writes rows, checkpoints' values, models and the report; every rank takes part in sums.

Random numbers: all ranks build the same weights. Before each update torch's state is set from
(seed, update, data rank), so a resumed run draws what an undisturbed one does; ranks that differ in
tp or cp alone draw the same.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.errors import WeftError
from weft.mixers import Mixer
from weft.objectives import Batch, Objective
from weft.scale.data import Autocast, LossOf, Spread
from weft.scale.mesh import DATA, Mesh, processes

REORDERING = ("permuted_lm", "mpnet")  # objectives that call layers with masks of their own


class Alone:
    """One process."""

    main = True
    data_ranks = 1
    data_rank = 0
    copies = 1  # ranks that compute one loss together: each has a share of its gradient
    is_team = False

    def rows(self, batch: Batch, parts: int) -> Batch:
        """The rows of this rank, of a batch that is computed in parts."""
        return batch

    def some_rows(self, batch: Batch) -> tuple[Batch, bool]:
        """The rows of this rank to be scored, and whether they count here."""
        return batch, True

    def total(self, x: Tensor) -> Tensor:
        """The sum over ranks with different rows."""
        return x

    def together(self, values: list[Any]) -> list[Any]:
        """The lists of all ranks with different rows, one after another."""
        return values

    def agree(self, *facts: bool) -> tuple[bool, ...]:
        """Whether any rank says so, fact by fact."""
        return facts

    def told(self, value: Any) -> Any:
        """What rank 0 has."""
        return value

    def reseed(self, seed: int, made: int) -> None:
        """Set torch's random state before an update."""

    def split(self, model: nn.Module) -> nn.Module:
        """The model with the parts of this rank."""
        return model

    def spread(self, model: nn.Module, objective: Objective, autocast: Autocast) -> Any:
        """A batch to its loss over all ranks."""
        return LossOf(model, objective, autocast)

    def clip(self, parameters: Sequence[Tensor], most: float) -> Tensor:
        """Scale gradients down to a norm; returns what it was."""
        return nn.utils.clip_grad_norm_(parameters, most)

    def summing(self, loss_of: Any, last: bool) -> Any:
        """Surrounds a backward pass."""
        return nullcontext()

    def place(self, device: torch.device) -> torch.device:
        """The device of this process."""
        return device

    def check(self, batch: int, accumulate: int) -> None:
        """Refuse settings that the ranks cannot share out."""


class Team(Alone):
    """The processes of a mesh."""

    is_team = True

    def __init__(self, mesh: Mesh, device: torch.device) -> None:
        # torch notes there which of its collectives could be merged.
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        self.mesh = mesh.build(device.type)
        self.balance: Literal["auto", "none", "head_tail"] = mesh.balance
        self.sizes = dict(zip(self.mesh.mesh_dim_names or (), self.mesh.shape, strict=True))
        self.device = device
        self.main = dist.get_rank() == 0
        self.data = self.mesh[DATA]._flatten("data")
        self.data_ranks, self.data_rank = self.data.size(), self.data.get_local_rank()
        self.copies = self.sizes["cp"]
        # Ranks that hold different tokens of a batch.
        self.readers = (
            self.mesh[(*DATA, "cp")]._flatten("readers") if self.copies > 1 else self.data
        )

    def place(self, device: torch.device) -> torch.device:
        if device.type != "cuda":
            return device
        return torch.device("cuda", torch.cuda.current_device())

    def check(self, batch: int, accumulate: int) -> None:
        if batch % (accumulate * self.data_ranks):
            raise WeftError(
                f"each rank takes as many rows of each part of a batch: batch={batch} is not a "
                f"multiple of accumulate={accumulate} times the {self.data_ranks} ranks that read "
                "different rows (dp_replicate · dp_shard · ep); change training.batch"
            )

    def rows(self, batch: Batch, parts: int) -> Batch:
        """Of each part, the rows of this rank; parts keep the width they have on one device."""
        whole = len(batch) // parts
        own = whole // self.data_ranks
        starts = [part * whole + self.data_rank * own for part in range(parts)]
        index = torch.cat([torch.arange(start, start + own) for start in starts])
        reach = None
        if batch.reach is not None:
            ends = [max(batch.reach[p * whole : (p + 1) * whole]) for p in range(parts)]
            reach = tuple(end for end in ends for _ in range(own))
        cut = {name: tensor[index] for name, tensor in batch.tensors().items()}
        return batch.with_tensors(cut, reach=reach)

    def some_rows(self, batch: Batch) -> tuple[Batch, bool]:
        # With fewer rows than ranks all of them compute the batch, and one counts it.
        if len(batch) < self.data_ranks:
            return batch, self.data_rank == 0
        first, last = (len(batch) * (self.data_rank + i) // self.data_ranks for i in (0, 1))
        whole = batch.with_tensors(batch.tensors(), reach=None)
        return whole.part(first, last), True

    def total(self, x: Tensor) -> Tensor:
        if self.data_ranks == 1:
            return x
        total = x.clone()
        dist.all_reduce(total, group=self.data.get_group())
        return total

    def together(self, values: list[Any]) -> list[Any]:
        found: list[Any] = [None] * self.data_ranks
        dist.all_gather_object(found, values, group=self.data.get_group())
        return [value for each in found for value in each]

    def agree(self, *facts: bool) -> tuple[bool, ...]:
        said = torch.tensor([int(fact) for fact in facts])  # on the CPU, by gloo
        dist.all_reduce(said, op=dist.ReduceOp.MAX)
        return tuple(bool(fact) for fact in said.tolist())

    def told(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def reseed(self, seed: int, made: int) -> None:
        text = repr((seed, made, self.data_rank)).encode()
        torch.manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1)

    def split(self, model: nn.Module) -> nn.Module:
        from weft.scale.experts import split_experts
        from weft.scale.groups import Group
        from weft.scale.heads import split_heads

        if self.sizes["tp"] > 1:
            split_heads(model, self.mesh["tp"])
        if self.sizes["ep"] > 1:
            split_experts(model, self.mesh["ep"])
        if self.sizes["cp"] > 1:
            from weft.scale.context import split
            from weft.scale.context.balance import balance_for

            own = self.balance
            balance = balance_for(model, self.sizes["cp"]) if own == "auto" else own
            split(model, self.mesh["cp"].get_group(), balance=balance)
        if self.data_ranks * self.copies > 1:
            own, of_rows = Group(self.readers.get_group()), Group(self.data.get_group())
            for module in model.modules():
                if hasattr(module, "across"):
                    # A mixer reads whole sequences under cp, and each of its ranks other heads.
                    across = of_rows if isinstance(module, Mixer) else own
                    setattr(module, "across", across)  # noqa: B010  # modules are typed otherwise
        return model

    def spread(self, model: nn.Module, objective: Objective, autocast: Autocast) -> Spread:
        split = [f"{axis}={self.sizes[axis]}" for axis in ("dp_shard", "ep", "tp")]
        if objective.name in REORDERING and any(not each.endswith("=1") for each in split):
            raise WeftError(
                f"{objective.name} changes who reads whom from row to row, for which layers are "
                f"not split; got {', '.join(split)}; use dp_replicate, or another objective"
            )
        return Spread(LossOf(model, objective, autocast), self.mesh)

    def summing(self, loss_of: Spread, last: bool) -> Any:
        return loss_of.summing(last)

    def clip(self, parameters: Sequence[Tensor], most: float) -> Tensor:
        """By torch's functions; parameters are grouped by their mesh, and the norms combined."""
        from torch.distributed.tensor import DTensor

        groups: dict[Any, list[Tensor]] = {}
        for parameter in parameters:
            groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
        norms = []
        for own in groups.values():
            norm = nn.utils.get_total_norm([p.grad for p in own if p.grad is not None])
            norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        total = torch.stack(norms).norm()
        for own in groups.values():
            nn.utils.clip_grads_with_norm_(own, most, total)
        return total


def local(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The parts of this rank, where tensors are split; the same storage."""
    return [each.to_local() if hasattr(each, "to_local") else each for each in tensors]  # pyright: ignore


def team_of(mesh: Mesh | None, device: torch.device) -> Alone:
    """The team of a mesh; one process alone without one."""
    started = processes()
    if mesh is None:
        if started > 1:
            raise WeftError(
                f"torchrun started {started} processes, and the settings do not say what they "
                "share out; give [training.mesh], e.g. --set training.mesh.dp_replicate=-1"
            )
        return Alone()
    if started == 1 and not dist.is_initialized() and mesh.fitted(1).sizes == (1,) * 5:
        return Alone()
    return Team(mesh, device)
