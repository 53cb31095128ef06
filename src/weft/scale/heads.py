"""Tensor parallel: each rank computes some of the heads, or of the hidden units.

    y = Σ over ranks r of f_r(x),    f_r: the module with heads / tp heads (or hidden / tp units)

The plan is derived: a mixer is built once more with its share of the heads; a parameter that is
smaller there is split on the axis that shrank, all others are copies. The output matrix has then a
share of its columns, so the sum over ranks is the whole (one all-reduce forward, one backward), and
its bias counts 1 / tp on each. Where the output is not such a sum, `traits.tensor` says why.

Paper: Shoeybi et al. 2019, Megatron-LM, section 3, https://arxiv.org/abs/1909.08053
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from weft.errors import Unsupported, WeftError
from weft.feedforward import FeedForward
from weft.layers.positions import LinearBias
from weft.mixers import Mixer
from weft.models.stack.weighted import WeightedHeads
from weft.scale.groups import enter, leave
from weft.scale.locally import RankParts, Splits, placed

HEADS, INSIDE, EXPERTS = "heads", "inside", "experts"  # of traits.tensor; else a reason


def split_heads(model: nn.Module, mesh: DeviceMesh) -> None:
    """Replace every mixer and feed-forward by its share for this rank of the `tp` mesh."""
    whole: dict[int, Any] = {}  # parameters that several modules share are split once
    done: dict[int, nn.Module] = {}
    for parent, name, module in _parts(model):
        if id(module) not in done:
            done[id(module)] = _split(module, mesh, whole)
        setattr(parent, name, done[id(module)])


def split_shapes(model: nn.Module, ways: int) -> None:
    """`split_heads` of a model that is not going to run on ranks: its shapes, without a mesh."""
    for parent, name, module in _parts(model):
        setattr(parent, name, share_of(module, ways))


def _parts(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Every mixer and feed-forward that is split, with the module that holds it and its name."""
    found: list[tuple[nn.Module, str, nn.Module]] = []
    for name, child in model.named_children():
        if isinstance(child, WeightedHeads):
            raise Unsupported("'w' sublayers weigh the heads one by one, so tp cannot split them")
        if not isinstance(child, Mixer | FeedForward) or _how(child) == INSIDE:
            found += _parts(child)
        elif _how(child) != EXPERTS:
            found.append((model, name, child))
    return found


def _how(module: Any) -> str:
    return module.config.traits.tensor


def share_of(module: Any, ways: int) -> Any:
    """A module like this one with its share of the heads or hidden units; refuses with a reason."""
    config, tokenwise = module.config, isinstance(module, FeedForward)
    if tokenwise:
        if not hasattr(config, "share"):
            raise _refused(config)
        dim = module.to_out.weight.shape[0 if isinstance(module.to_out, nn.Linear) else 1]
        linear = [each for each in module.modules() if isinstance(each, nn.Linear)]
        biased = any(each.bias is not None for each in linear)
        return config.share(dim, ways).build(dim, _dropout(module), biased)
    if config.traits.tensor != HEADS:
        raise _refused(config)
    frame = module.frame
    if frame.heads % ways or frame.kv_heads % ways:
        raise WeftError(
            f"tp splits the heads evenly: heads={frame.heads} and kv_heads={frame.kv_heads} are "
            f"multiples of tp; got tp={ways}; change [training.mesh] tp, or the heads"
        )
    share = {"heads": frame.heads // ways, "kv_heads": frame.kv_heads // ways}
    return config.build(dataclasses.replace(frame, head_dim=frame.head_dim, **share))


def _refused(config: Any) -> Unsupported:
    return Unsupported(
        f"{config.name} cannot be split by tp: {config.traits.tensor}; set tp = 1 and split the "
        "rows (dp_shard) or the tokens (cp) instead"
    )


def splits_of(module: nn.Module, share: nn.Module, ways: int) -> Splits:
    """The axis that shrank, for each parameter and buffer; None where none did."""
    mine = {**dict(share.named_parameters()), **dict(share.named_buffers())}
    found: Splits = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        pairs = list(zip(tensor.shape, mine[name].shape, strict=True))
        axes = [axis for axis, (a, b) in enumerate(pairs) if a != b]
        if len(axes) > 1 or any(pairs[axis][0] != ways * pairs[axis][1] for axis in axes):
            raise Unsupported(
                f"tp={ways} does not divide {name} {tuple(tensor.shape)} of {type(module).__name__}"
            )
        found[name] = axes[0] if axes else None
    return found


def _split(module: Any, mesh: DeviceMesh, whole: dict[int, Any]) -> nn.Module:
    ways = mesh.size()
    with torch.random.fork_rng():
        share = share_of(module, ways)
    _check_heads_alike(module, share, mesh)
    splits = splits_of(module, share, ways)
    tensor = next(module.parameters())
    share.to(tensor.device, tensor.dtype).train(module.training)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        path, _, key = name.rpartition(".")
        if id(parameter) not in whole:
            own = nn.Parameter(placed(parameter, mesh, splits.get(name)), parameter.requires_grad)
            whole[id(parameter)] = (own, parameter)  # the latter stays alive, so its id is its own
        share.get_submodule(path)._parameters[key] = whole[id(parameter)][0]
    for name, buffer in module.named_buffers():
        share.get_buffer(name).copy_(placed(buffer, mesh, splits[name]).to_local())
    if hasattr(module, "positions") and isinstance(module.positions, LinearBias):
        share.positions = _LaterHeads(module.positions, mesh.get_local_rank() * share.frame.heads)
    return hooked(share, RankParts(mesh, splits, _shared_biases(splits, ways)))


def _shared_biases(splits: Splits, ways: int) -> dict[str, float]:
    """Biases after a matrix of which each rank has some inputs: all ranks add them up."""
    rows = [name.removesuffix("weight") for name, axis in splits.items() if name.endswith("weight")]
    found = {}
    for stem in rows:
        own = splits[f"{stem}weight"], splits.get(f"{stem}bias", 0)
        if stem.rpartition("to_out")[1] and own[0] is not None and own[1] is None:
            found[f"{stem}bias"] = 1 / ways
    return found


def hooked(module: Any, split: RankParts) -> nn.Module:
    """The module, whose calls take whole inputs and give whole outputs."""
    group = split.mesh.get_group()

    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        split.put(module)
        args = tuple(_entering(value, group) for value in args)
        return args, {name: _entering(value, group) for name, value in kwargs.items()}

    def after(module: nn.Module, args: Any, kwargs: Any, y: Any) -> Any:
        split.restore()
        return leave(y, group) if isinstance(y, Tensor) else y

    module.split = split
    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after, with_kwargs=True, always_call=True)
    if isinstance(module, Mixer):  # a short cut of the mechanism's own would pass by the hooks
        module.first_rows = partial(Mixer.first_rows, module)
    return module


def _entering(value: Any, group: Any) -> Any:
    wanted = isinstance(value, Tensor) and value.is_floating_point() and value.requires_grad
    return enter(value, group) if wanted else value


def _dropout(module: nn.Module) -> float:
    rates = [each.p for each in module.modules() if isinstance(each, nn.Dropout)]
    return rates[0] if rates else 0.0


class _LaterHeads(LinearBias):
    """ALiBi of heads that are not the first ones."""

    def __init__(self, whole: LinearBias, first: int) -> None:
        super().__init__(whole.heads)
        self.first = first

    def at(self, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return super().at(head + self.first, i, j)


def _check_heads_alike(module: Any, share: Any, mesh: DeviceMesh) -> None:
    """Refuse patterns that differ from head to head, unless the share's heads have theirs."""
    pattern: Any = getattr(module, "pattern", None)
    if pattern is None or not hasattr(pattern, "head"):
        return
    heads, own = module.frame.heads, share.frame.heads
    head: Callable[..., Any] = share.pattern.head
    for rank in range(mesh.size()):
        for a in range(own):
            if pattern.head(rank * own + a, heads) != head(a, own):
                raise Unsupported(
                    f"{module.config} has heads with patterns of their own, which tp would hand to "
                    "other heads; give all heads one pattern, or set tp = 1"
                )
