"""What each rank of a mesh will hold, compute and send, before anything runs.

With P parameters, of which T are split by tp and E by ep, s = dp_shard, f bytes each, all counted
tensor by tensor (a rank holds ⌈rows / s⌉ rows of a matrix):

    kept        (P − T − E + T/tp + E/ep) / s numbers: weights, gradients, and two moments of AdamW
    FSDP2       all-gather of the weights of a unit for forward, and once more for backward;
                reduce-scatter of its gradients:             (s − 1)/s · bytes each
    copies      all-reduce of the gradients over r ranks:    2·(r − 1)/r · bytes
    tp          all-reduce of (rows, tokens, c) after each split layer, forward and backward
    ep          all-to-all of the routed tokens, there and back, forward and backward: k·tokens·c

A rank sends (k − 1)/k of a tensor to gather or scatter it over k ranks, as rings do. Rows are those
of a rank, and tokens those of a cp rank. What cp sends is the sum of the bills of its mixers, which
follow from their patterns (weft.scale.context), for the busiest rank. Activations fall to 1/cp, and
the keys that a rank fetches come on top. The model is built on the meta device: no memory is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from weft.errors import WeftError
from weft.feedforward.routing import RoutedFeedForward
from weft.scale.context.shards import Shards
from weft.scale.heads import _parts, share_of, split_shapes, splits_of
from weft.scale.mesh import Mesh

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 4, "float16": 4}  # of a weight: half is computed
_WIRE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}  # of an activation


@dataclass(frozen=True, kw_only=True)
class ScalePlan:
    """Numbers of one rank and one update; bytes on the wire are those that it sends."""

    ranks: int
    rows: int  # of a batch
    tokens: int  # of each row
    parameters: int  # of the whole model
    parameter_bytes: int
    gradient_bytes: int
    moment_bytes: int
    gathered_bytes: int  # the largest unit of FSDP2, whole, for as long as it computes
    activation_bytes: int | None  # kept for the backward pass of a part of a batch; None: unknown
    flops: float | None  # forward and backward; None: not counted
    wire: dict[str, int]  # by axis

    @property
    def kept_bytes(self) -> int:
        """Weights, gradients and moments."""
        return self.parameter_bytes + self.gradient_bytes + self.moment_bytes

    def rows_of_text(self) -> list[tuple[str, str]]:
        """What is shown, line by line."""
        found = [
            ("ranks", f"{self.ranks}"),
            ("rows and tokens of a rank", f"{self.rows:,} × {self.tokens:,}"),
            ("parameters of the model", f"{self.parameters:,}"),
            ("weights", sized(self.parameter_bytes)),
            ("gradients", sized(self.gradient_bytes)),
            ("moments", sized(self.moment_bytes)),
            ("largest unit gathered", sized(self.gathered_bytes)),
            ("activations", _or_not(self.activation_bytes, sized)),
            ("FLOPs of an update", _or_not(self.flops, "{:.3g}".format)),
        ]
        found += [(f"sent over {axis}", sized(count)) for axis, count in self.wire.items()]
        return [*found, ("sent in all", sized(sum(self.wire.values())))]


def _or_not(number: float | None, shown: Callable[[Any], str]) -> str:
    return "not counted" if number is None else shown(number)


def sized(count: int) -> str:
    """Bytes for people: 1.5 GiB."""
    power = min(4, int(math.log2(count) // 10)) if count else 0
    number = count / 1024**power
    return f"{number:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def plan(
    config: Any,
    mesh: Mesh,
    *,
    rows: int,
    length: int,
    precision: str = "float32",
    accumulate: int = 1,
    flops: float | None = None,
    activations: int | None = None,
) -> ScalePlan:
    """The plan of a model's config for batches of `rows` rows of `length` tokens.

    `flops` are those of the forward pass over one row (weft.arena.analysis.flops), `activations`
    the bytes that `cp` ranks keep of the rows of a part (weft.arena.analysis.activations).
    """
    data = mesh.readers
    if rows % (data * accumulate):
        raise WeftError(
            f"each rank takes as many rows: a batch of {rows} in {accumulate} parts is not a "
            f"multiple of dp_replicate · dp_shard · ep = {data}; change training.batch"
        )
    model = _built(config)
    number, wire = _BYTES[precision], _WIRE[precision]
    tensors = _tensors(model, mesh)
    own_rows, own_tokens = rows // data, -(-length // mesh.cp)
    numbers = sum(each.kept for each in tensors)
    trained = sum(each.kept for each in tensors if each.trained)
    copies = mesh.dp_replicate * mesh.cp
    sent = dict.fromkeys(("dp_shard", "copies", "tp", "ep", "cp"), 0)
    for each in tensors:
        held = each.before * number  # by the ranks of a dp_shard group together
        gathers = 2 if each.in_unit else 1
        if mesh.dp_shard > 1:
            sent["dp_shard"] += _part(mesh.dp_shard, held) * (gathers * accumulate + each.trained)
        if each.trained:
            same = copies if each.expert else copies * mesh.ep
            sent["copies"] += 2 * _part(same, each.kept * number)
    activation = own_rows * own_tokens * _dim(config) * wire
    if mesh.tp > 1:  # an all-reduce each way
        sent["tp"] = len(_parts(model)) * 2 * 2 * _part(mesh.tp, activation)
    for module in model.modules():
        if isinstance(module, RoutedFeedForward) and mesh.ep > 1:
            chosen = getattr(module.config, "top", 2 if module.config.name == "gshard" else 1)
            sent["ep"] += 4 * _part(mesh.ep, chosen * activation)
    if mesh.cp > 1:
        from weft.scale.context.balance import balance_for
        from weft.scale.context.split import costs_of

        if mesh.tp > 1:
            with torch.device("meta"):
                split_shapes(model, mesh.tp)
        balance = balance_for(model, mesh.cp) if mesh.balance == "auto" else mesh.balance
        bill, held = costs_of(model, Shards(length, mesh.cp, balance), own_rows, wire)
        sent["cp"] = int((bill.forward + bill.backward).max())
        if activations is not None:
            activations = -(-activations // mesh.cp) + held // accumulate
    return ScalePlan(
        ranks=data * mesh.cp * mesh.tp,
        rows=own_rows,
        tokens=own_tokens,
        parameters=sum(each.whole for each in tensors),
        parameter_bytes=numbers * number,
        gradient_bytes=trained * number,
        moment_bytes=2 * trained * number,
        gathered_bytes=_largest(tensors) * number if mesh.dp_shard > 1 else 0,
        activation_bytes=activations,
        flops=None if flops is None else 3 * flops * own_rows / (mesh.cp * mesh.tp),
        wire={axis: count for axis, count in sent.items() if count},
    )


@dataclass(frozen=True)
class _Tensor:
    """A parameter, in numbers."""

    whole: int
    before: int  # after tp and ep, before dp_shard
    kept: int  # by one rank
    expert: bool
    trained: bool
    unit: int  # which mixer or feed-forward it belongs to; -1: the rest

    @property
    def in_unit(self) -> bool:
        return self.unit >= 0


def _tensors(model: nn.Module, mesh: Mesh) -> list[_Tensor]:
    """Every parameter once."""
    split: dict[int, int] = {}
    if mesh.tp > 1:
        for _, _, module in _parts(model):
            with torch.device("meta"):
                share = share_of(module, mesh.tp)
            axes = splits_of(module, share, mesh.tp)
            split |= {id(p): mesh.tp for n, p in module.named_parameters() if axes[n] is not None}
    routed = [each for each in model.modules() if isinstance(each, RoutedFeedForward)]
    experts = {id(p) for each in routed for p in each.experts.parameters()}
    if mesh.ep > 1:
        if not routed:
            raise WeftError(f"ep={mesh.ep} splits experts, and this model has none; set ep = 1")
        for each in routed:
            if each.experts.count % mesh.ep:
                raise WeftError(
                    f"ep splits the experts evenly: experts={each.experts.count} is not a multiple "
                    f"of ep={mesh.ep}; change [training.mesh] ep, or the experts"
                )
    units = {}
    for number, (_, _, module) in enumerate(_units(model)):
        units |= {id(p): number for p in module.parameters()}
    found = []
    for parameter in model.parameters():
        expert = id(parameter) in experts
        ways = split.get(id(parameter), mesh.ep if expert else 1)
        before = parameter.numel() // ways
        first = parameter.shape[0] if parameter.dim() else 1
        kept = -(-first // mesh.dp_shard) * (before // first) if first <= before else before
        unit = units.get(id(parameter), -1)
        whole, trained = parameter.numel(), parameter.requires_grad
        found.append(_Tensor(whole, before, kept, expert, trained, unit))
    return found


def _units(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    from weft.scale.data import _units as modules

    return [(model, "", module) for module in modules(model)]


def _largest(tensors: list[_Tensor]) -> int:
    """Numbers of the unit that is largest, with those of the rest, which stay gathered."""
    sums: dict[int, int] = {}
    for each in tensors:
        sums[each.unit] = sums.get(each.unit, 0) + each.before
    rest = sums.pop(-1, 0)
    return rest + max(sums.values(), default=0)


def _part(ways: int, count: int) -> int:
    """What a rank of a ring sends of a tensor that is gathered or scattered."""
    return count * (ways - 1) // ways


def _dim(config: Any) -> int:
    trunk = getattr(config.trunk, "encoder", config.trunk)
    return (trunk.stack if hasattr(trunk, "stack") else trunk).frame.dim


def _built(config: Any) -> nn.Module:
    """The model without memory for its weights, where a mechanism allows it."""
    try:
        with torch.device("meta"):
            return config.build()
    except Exception:  # a mechanism that looks at numbers cannot be built without any
        return config.build()
