"""ViT: an encoder over patches of a picture, with a learned first token.

Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929. The model reads `patches(pictures, p)`;
the first token is a register, whose position is added to it once and for all.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.feedforward import Dense
from weft.interop.hf.checkpoints.names import Names, Rows, Take, for_layers, under
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import activation
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.projections.dense import DenseProjection
from weft.mixers import Frame
from weft.models import Classifier, Encoder, Stack

# Present names and those of older files.
LAYER: Rows = {
    "stack.sublayers.{s}.norm": "layers.{i}.layernorm_before|encoder.layer.{i}.layernorm_before",
    "stack.sublayers.{f}.norm": "layers.{i}.layernorm_after|encoder.layer.{i}.layernorm_after",
    "stack.sublayers.{f}.body.to_hidden": (
        "layers.{i}.mlp.fc1|encoder.layer.{i}.intermediate.dense"
    ),
    "stack.sublayers.{f}.body.to_out": "layers.{i}.mlp.fc2|encoder.layer.{i}.output.dense",
}
LAYER |= {
    f"stack.sublayers.{{s}}.body.project.to_{mine}": (
        f"layers.{{i}}.attention.{new}_proj|encoder.layer.{{i}}.attention.{old}"
    )
    for mine, new, old in (
        ("q", "q", "attention.query"),
        ("k", "k", "attention.key"),
        ("v", "v", "attention.value"),
        ("out", "o", "output.dense"),
    )
}
_PLACES = "embeddings.position_embeddings"
BODY: Rows = {
    "embedding.linear.weight": Take(
        ("embeddings.patch_embeddings.projection.weight",), lambda kernel: kernel.flatten(1)
    ),
    "embedding.linear.bias": "embeddings.patch_embeddings.projection.bias",
    "embedding.positions": Take((_PLACES,), lambda table: table[0, 1:], partly=True),
    "embedding.registers": Take(
        ("embeddings.cls_token", _PLACES),
        lambda first, table: (first + table[:, :1])[0],
        partly=True,
    ),
    "stack.norm": "layernorm",
}


@reads(
    "vit",
    heads=("ImageClassification", "Model"),
    note="reads patches: weft.interop.hf.patches(pictures, size)",
)
def vit(c: Any, head: str) -> Import:
    """ViT."""
    size = c.patch_size if isinstance(c.patch_size, int) else c.patch_size[0]
    side = c.image_size if isinstance(c.image_size, int) else c.image_size[0]
    trunk = Encoder(
        embedding=Embedding(
            channels=c.num_channels * size * size, positions="learned", registers=1
        ),
        stack=Stack(
            frame=Frame(
                dim=c.hidden_size,
                heads=c.num_attention_heads,
                length=(side // size) ** 2,
                dropout=c.attention_probs_dropout_prob,
                projection=DenseProjection(biases="qkvo" if c.qkv_bias else "o"),
            ),
            order="sf",
            layers=c.num_hidden_layers,
            feedforward=Dense(activation=activation(c.hidden_act), hidden=c.intermediate_size),
            norm=Norm(eps=c.layer_norm_eps),
            dropout=c.hidden_dropout_prob,
        ),
    )
    rows = BODY | for_layers(range(c.num_hidden_layers), "sf", LAYER)
    left_out = {
        "pooler.*": "a layer over the first token, which no weft model of this head has",
        "embeddings.mask_token": "used in pre-training alone",
    }
    if head == "Model":
        return Import(trunk, Names(rows, "vit.", {}, left_out))
    model = Classifier(trunk=trunk, classes=c.num_labels, pool="first")
    names = Names(under("trunk.", rows) | {"head.0": "classifier"}, "vit.", {}, left_out)
    return Import(model, names)


def patches(pictures: Tensor, size: int) -> Tensor:
    """Pictures (b, channels, h, w) -> the patches that a ViT reads: (b, n, channels · size²)."""
    if pictures.dim() != 4 or pictures.shape[2] % size or pictures.shape[3] % size:
        raise WeftError(
            f"pictures are (b, channels, h, w) with sides that are multiples of {size}; got "
            f"{tuple(pictures.shape)}"
        )
    return F.unfold(pictures, size, stride=size).transpose(1, 2)
