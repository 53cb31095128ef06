"""Bytes that a forward pass keeps for the backward pass, counted before anything is trained.

The model runs on the meta device, where tensors have shapes and no numbers; what autograd holds of
it is added up, each storage once and without the parameters. Attention under a pattern keeps what
fused kernels do: queries, keys, values, their result and its log-sum-exp. Temporaries are not
counted, nor what objectives other than the next token's make of a model's results.

In half precision all is counted in that type, and a copy of the weights in it beside them, as
autocast makes it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from weft.arena.analysis.flops import one_sequence, run_once
from weft.kernels.attend.parts import AttendOptions
from weft.kernels.planner.context import replaced
from weft.models import EncoderDecoder, LanguageModel
from weft.objectives.batch import ModelInputs
from weft.objectives.causal_lm import next_token_loss
from weft.patterns import Pattern
from weft.scale.heads import split_shapes

_TYPES = {"float64": torch.float64, "float32": torch.float32}


def activation_bytes(
    config: Any, length: int, rows: int, *, precision: str = "float32", tp: int = 1, cp: int = 1
) -> int | None:
    """Of `rows` rows of `length` tokens on each of `tp` ranks; None: a mechanism reads numbers.

    With cp ways it is what their ranks keep together, besides what they fetch of each other.
    """
    dtype = _TYPES.get(precision) or getattr(torch, precision)
    with torch.device("meta"):
        try:
            model = config.build().train()
            if tp > 1:
                split_shapes(model, tp)
            model = model.to(dtype)
            one = one_sequence(config, length)
            one = one.to(dtype) if one.is_floating_point() else one
            with replaced(_fused), _TorchAttention():
                kept = _kept(model, lambda: _run(model, config, torch.cat([one] * rows), cp > 1))
        except (RuntimeError, NotImplementedError):  # torch's word for numbers of a meta tensor
            return None
    copies = sum(p.numel() for p in model.parameters()) if dtype.itemsize < 4 else 0
    return kept + copies * dtype.itemsize


def _run(model: Any, config: Any, x: Tensor, split: bool) -> Any:
    if not isinstance(config, LanguageModel) or isinstance(config.trunk, EncoderDecoder):
        return run_once(model, config, x)
    if split:  # which scores the tokens of each rank there
        return model(x, targets=x)
    return next_token_loss(model, ModelInputs(x))


def _kept(model: nn.Module, run: Any) -> int:
    """Bytes of all storages that a run keeps for its backward pass, parameters left out."""
    parameters = {p.untyped_storage()._cdata for p in model.parameters()}
    held: dict[int, Tensor] = {}

    def pack(x: Tensor) -> Tensor:
        held[x.untyped_storage()._cdata] = x  # held, so that no number comes twice
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = run()
    assert result is not None
    found = (x for number, x in held.items() if number not in parameters)
    return sum(x.untyped_storage().nbytes() for x in found)


def _fused(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, options: AttendOptions) -> Any:
    out, lse = _FusedAttention.apply(q, k, v)
    return (out, lse) if options.lse else out


class _TorchAttention(TorchFunctionMode):
    """torch's own attention keeps the same, where it runs as one kernel."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _FusedAttention.apply(*args[:3])[0]
        return func(*args, **(kwargs or {}))


class _FusedAttention(torch.autograd.Function):
    """The shapes of attention, and what its backward pass reads."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        b, h, n, _ = q.shape
        out = q.new_empty(b, n, h, v.shape[3]).transpose(1, 2)
        lse = q.new_empty(b, h, n, dtype=torch.promote_types(q.dtype, torch.float32))
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("only what is kept is counted")
