"""SwitchTransformers: T5 whose every other feed-forward is one of several experts.

Fedus et al. 2021, https://arxiv.org/abs/2101.03961. In training and evaluation an expert takes the
first `expert_capacity` tokens of a row that choose it; the others pass by it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.feedforward import Dense, Switch
from weft.interop.hf.checkpoints.families.seq2seq.t5 import (
    HEADS,
    attention,
    of_layers,
    reading,
    side,
    sides,
    trunk_of,
)
from weft.interop.hf.checkpoints.names import Rows, Take
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import activation, refuse_unless


@reads(
    "switch_transformers",
    heads=HEADS,
    note="padding in front of a text takes no expert's room, as it does in Transformers",
)
def switch_transformers(c: Any, head: str) -> Import:
    """SwitchTransformers."""
    refuse_unless(c, router_bias=False)
    steps = c.encoder_sparse_step, c.decoder_sparse_step
    counts = c.num_layers, c.num_decoder_layers
    sparse = [
        [_is_sparse(i, step) for i in range(n)] for n, step in zip(counts, steps, strict=True)
    ]
    encoder, decoder = (
        side(c, causal=causal, layers=len(each), feedforward=tuple(_body(c, one) for one in each))
        for causal, each in zip((False, True), sparse, strict=True)
    )
    own = attention("SelfAttention", "s", 0)
    layers = of_layers(c, own, own | attention("EncDecAttention", "c", 1))
    for rows, each, letters in zip(layers, sparse, ("sf", "scf"), strict=True):
        for i, experts in enumerate(each):
            place = i * len(letters) + len(letters) - 1
            rows |= _names(c, place, f"block.{i}.layer.{len(letters) - 1}", experts)
    return reading(c, head, trunk_of(encoder, decoder), sides(*layers))


def _is_sparse(layer: int, step: int) -> bool:
    return step > 0 and (step == 1 or layer % step == 1)


def _body(c: Any, sparse: bool) -> Any:
    """The feed-forward of a layer."""
    if not sparse:
        return Dense(activation=activation(c.dense_act_fn), hidden=c.d_ff)
    return Switch(
        experts=c.num_experts,
        activation=activation(c.dense_act_fn),
        hidden=c.d_ff,
        capacity=None,
        row_capacity=c.expert_capacity,
        jitter=c.router_jitter_noise,
        balance=c.router_aux_loss_coef,
        z_loss=c.router_z_loss_coef,
    )


def _names(c: Any, place: int, theirs: str, sparse: bool) -> Rows:
    """The weights of one feed-forward sublayer."""
    inside = f"stack.sublayers.{place}"
    rows: Rows = {f"{inside}.norm": f"{theirs}.layer_norm"}
    if not sparse:
        return rows | {
            f"{inside}.body.to_hidden": f"{theirs}.mlp.wi",
            f"{inside}.body.to_out": f"{theirs}.mlp.wo",
        }
    rows[f"{inside}.body.router.weight"] = f"{theirs}.mlp.router.classifier.weight"
    for mine, name in (("to_hidden", "wi"), ("to_out", "wo")):
        experts = [f"{theirs}.mlp.experts.expert_{e}.{name}.weight" for e in range(c.num_experts)]
        rows[f"{inside}.body.experts.{mine}.weight"] = Take(tuple(experts), _stacked)
    return rows


def _stacked(*matrices: Tensor) -> Tensor:
    """Matrices (outputs, inputs) as (experts, inputs, outputs)."""
    return torch.stack(matrices).transpose(1, 2)
