"""What a layer stores for its backward pass, reduced to what cannot be computed again for free.

Between the products of matrices a layer holds results of elementwise functions: a norm of z, an
activation of h, values put in another order. Each is computed again from what its own gradient
stores anyway, in one pass over memory, when the gradient of the product that read it needs it:

    y = W · LayerNorm(z)      stores z                instead of z and LayerNorm(z)
    y = W · gelu(h)           stores h                instead of h and gelu(h)
    x + dropout(y)            stores a seed           instead of a mask

No product of matrices is computed twice: this is not activation checkpointing. Outputs and
gradients are the same numbers. Of a layer of width c, with 4 c in the feedforward, 10 c remain of
about 18 c for each token, besides attention.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from weft.kernels.dropout_add import dropout_add

Again = Callable[[], Tensor]
# What Transformers calls an activation, and how it is called here: torch's names, "quick", "relu".
_KINDS = {
    "GELUActivation": "none",
    "NewGELUActivation": "tanh",
    "GELUTanh": "tanh",
    "QuickGELUActivation": "quick",
    "ReLU": "relu",
}
_QUICK = 1.702


class Recomputed:
    """Tensors that are computed again instead of stored, while a model runs forward."""

    def __init__(self) -> None:
        # The tensors stay alive while they are known, so an address means one of them.
        self.known: dict[int, tuple[Tensor, Again]] = {}
        self.active = False

    def note(self, x: Tensor, again: Again) -> Tensor:
        """x, which `again` gives without a graph; whoever stores it, stores `again`."""
        if self.active and x.requires_grad and x.is_contiguous():
            self.known[x.data_ptr()] = x, again
        return x

    def forget(self, last: Tensor | None = None) -> None:
        """A layer ends: only its result is read by the next one."""
        place = None if last is None else last.data_ptr()
        self.known = {key: value for key, value in self.known.items() if key == place}

    def during(self) -> AbstractContextManager[Any]:
        """The forward pass in which tensors are noted."""
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return nullcontext()
        return _Forward(self)

    def _pack(self, x: Tensor) -> Tensor | tuple[Again, torch.Size]:
        known = self.known.get(x.data_ptr()) if self.known else None
        if known is None or known[0].shape.numel() != x.shape.numel() or not x.is_contiguous():
            return x
        return known[1], x.shape

    @staticmethod
    def _unpack(packed: Tensor | tuple[Again, torch.Size]) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        with torch.no_grad():
            return packed[0]().view(packed[1])


class _Forward:
    """Notes are taken, and what is stored passes through them."""

    def __init__(self, notes: Recomputed) -> None:
        self.notes = notes
        self.hooks = saved_tensors_hooks(notes._pack, notes._unpack)

    def __enter__(self) -> None:
        self.notes.active = True
        self.hooks.__enter__()

    def __exit__(self, *problem: Any) -> None:
        self.hooks.__exit__(*problem)
        self.notes.active = False
        self.notes.forget()


def norm(notes: Recomputed, module: nn.Module, z: Tensor) -> Tensor:
    """LayerNorm(z), noted."""
    out = module(z)
    if type(module) is not nn.LayerNorm or module._forward_hooks or out.dtype != z.dtype:
        return out
    stored, size, eps = z.detach(), module.normalized_shape, module.eps
    weight, bias = module.weight, module.bias
    return notes.note(out, lambda: F.layer_norm(stored, size, weight, bias, eps))


def activated(h: Tensor, activation: Any, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W · activation(h) + b, W (out, in), which stores h alone where it knows the activation."""
    kind = "none" if activation is F.gelu else _KINDS.get(type(activation).__name__)
    if kind is None or not torch.is_grad_enabled() or torch.is_autocast_enabled(h.device.type):
        return F.linear(activation(h), weight, bias)
    return _ActivatedLinear.apply(h, weight, bias, kind)


def _act(h: Tensor, kind: str) -> Tensor:
    if kind == "quick":
        return h * torch.sigmoid(_QUICK * h)
    return F.relu(h) if kind == "relu" else F.gelu(h, approximate=kind)


def _act_back_(grad: Tensor, h: Tensor, kind: str) -> None:
    """grad, times the slope of the activation at h, in place."""
    if kind == "quick":
        gate = torch.sigmoid(_QUICK * h)
        grad.mul_(gate.addcmul_(h * gate, 1 - gate, value=_QUICK))
    elif kind == "relu":
        grad.masked_fill_(h <= 0, 0.0)
    else:
        torch.ops.aten.gelu_backward.grad_input(grad, h, approximate=kind, grad_input=grad)


class _ActivatedLinear(torch.autograd.Function):
    """The activation is computed again, and its gradient is written in place."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor:
        ctx.save_for_backward(h, weight)
        ctx.kind, ctx.biased = kind, bias is not None
        return F.linear(_act(h, kind), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        h, weight = ctx.saved_tensors
        dy = dy.flatten(0, -2)  # (tokens, c)
        dweight = dy.t() @ _act(h, ctx.kind).flatten(0, -2)
        dh = (dy @ weight).view_as(h)
        _act_back_(dh, h, ctx.kind)
        return dh, dweight, dy.sum(0) if ctx.biased else None, None


class Twin:
    """What stands in the place of a method of a module, until it is undone."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        """As the method that it replaces."""
        raise NotImplementedError


class ResidualTwin(Twin):
    """dense, dropout, residual and norm of a layer in the manner of BERT."""

    def __init__(self, theirs: Any, notes: Recomputed) -> None:
        self.theirs, self.notes = theirs, notes

    def __call__(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """(b, n, width), (b, n, c) -> (b, n, c)."""
        return self.close(self.theirs.dense(hidden_states), input_tensor)

    def close(self, y: Tensor, x: Tensor) -> Tensor:
        """LayerNorm(x + dropout(y))."""
        drop = self.theirs.dropout
        return norm(self.notes, self.theirs.LayerNorm, dropout_add(y, x, drop.p, drop.training))


class FeedForwardTwin(Twin):
    """The feedforward sublayer of a layer in the manner of BERT."""

    def __init__(self, layer: Any, notes: Recomputed) -> None:
        self.layer, self.end = layer, ResidualTwin(layer.output, notes)

    def __call__(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        inner = self.layer.intermediate
        h, last = inner.dense(x), self.layer.output.dense  # (b, n, 4 c)
        y = activated(h, inner.intermediate_act_fn, last.weight, last.bias)
        return self.end.close(y, x)


class LayerTwin(Twin):
    """A layer as it is; what it noted is forgotten at its end, but its result."""

    def __init__(self, theirs: Any, notes: Recomputed) -> None:
        self.theirs, self.notes = theirs, notes

    def __call__(self, *given: Any, **named: Any) -> Any:
        """As the layer's own forward."""
        out = type(self.theirs).forward(self.theirs, *given, **named)
        self.notes.forget(out[0] if isinstance(out, tuple) else out)
        return out


class EncoderTwin(Twin):
    """A stack of layers as it is, with notes taken."""

    def __init__(self, theirs: Any, notes: Recomputed) -> None:
        self.theirs, self.notes = theirs, notes

    def __call__(self, *given: Any, **named: Any) -> Any:
        """As the encoder's own forward."""
        with self.notes.during():
            return type(self.theirs).forward(self.theirs, *given, **named)


class BartLayerTwin(LayerTwin):
    """An encoder layer in the manner of BART; `pre`: its norms come first."""

    pre = False

    def __call__(self, hidden_states: Tensor, *given: Any, **named: Any) -> Any:
        """(b, n, c) -> (b, n, c), alone or in a tuple as the layer answers."""
        layer, notes, x = self.theirs, self.notes, hidden_states
        drop, training = layer.dropout, layer.training

        def normed(y: Tensor, module: nn.Module, wanted: bool) -> Tensor:
            return norm(notes, module, y) if wanted else y

        read = normed(x, layer.self_attn_layer_norm, self.pre)
        found = layer.self_attn(read, *given, **named)
        x = dropout_add(found[0], x, drop, training)
        x = normed(x, layer.self_attn_layer_norm, not self.pre)
        y = self._feed_forward(normed(x, layer.final_layer_norm, self.pre))
        x = normed(dropout_add(y, x, drop, training), layer.final_layer_norm, not self.pre)
        if x.dtype == torch.float16:
            most = torch.finfo(x.dtype).max - 1000
            x = torch.where(torch.isfinite(x).all(), x, x.clamp(-most, most))
        notes.forget(x)
        return x if self.pre else (x, *found[1:])

    def _feed_forward(self, x: Tensor) -> Tensor:
        layer = self.theirs
        h, last = layer.fc1(x), layer.fc2
        if layer.training and layer.activation_dropout:
            return last(F.dropout(layer.activation_fn(h), layer.activation_dropout))
        return activated(h, layer.activation_fn, last.weight, last.bias)


class PreNormBartLayerTwin(BartLayerTwin):
    """Its norms come first, and it answers with a tensor."""

    pre = True
