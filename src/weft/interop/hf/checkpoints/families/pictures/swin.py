"""Swin: windows on patches of a picture, merged between stages.

Liu et al. 2021, https://arxiv.org/abs/2103.14030. The model reads `pixels(pictures)`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from weft.errors import Unsupported, WeftError
from weft.interop.hf.checkpoints.names import Names, Rows, Take, under, within
from weft.interop.hf.checkpoints.registry import Import, reads
from weft.interop.hf.checkpoints.settings import refuse_unless
from weft.layers.embedding import Embedding
from weft.models import Classifier, SwinTransformer

HEADS = ("ImageClassification", "MaskedImageModeling", "Model")
# Present names and those of older files.
BLOCK: Rows = {
    "norm": "layernorm_before",
    "mlp_norm": "layernorm_after",
    "feedforward.to_hidden": "mlp.fc1|intermediate.dense",
    "feedforward.to_out": "mlp.fc2|output.dense",
}
BLOCK |= {
    f"mixer.project.to_{mine}": f"attention.{mine}_proj|attention.{old}"
    for mine, old in (("q", "self.query"), ("k", "self.key"), ("v", "self.value"))
}
BLOCK["mixer.project.to_out"] = "attention.o_proj|attention.output.dense"
_NOW = "attention.relative_position_bias.relative_position_bias_table"
_OLD = "attention.self.relative_position_bias_table"
LEFT_OUT = {
    "*.relative_position_index": "numbers that follow from the size of a window",
    "embeddings.mask_token": "used in pre-training alone",
    "decoder.*": "the head of pre-training, which restores pictures",
}


def side_of(setting: Any, name: str) -> int:
    """A length of squares, given once or for both sides."""
    sides = (setting, setting) if isinstance(setting, int) else tuple(setting)
    if len(set(sides)) != 1:
        raise Unsupported(f"swin checkpoints are read with square {name}; this one has {sides}")
    return sides[0]


@reads(
    "swin",
    heads=HEADS,
    note="reads pixels: weft.interop.hf.pixels(pictures); of masked image modelling the body alone",
)
def swin(c: Any, head: str) -> Import:
    """Swin."""
    refuse_unless(c, qkv_bias=True, use_absolute_embeddings=False, hidden_act="gelu")
    image = (c.image_size,) * 2 if isinstance(c.image_size, int) else tuple(c.image_size)
    trunk = SwinTransformer(
        embedding=Embedding(channels=c.num_channels),
        height=image[0],
        width=image[1],
        colours=c.num_channels,
        patch=side_of(c.patch_size, "patches"),
        channels=c.embed_dim,
        depths=tuple(c.depths),
        heads=tuple(c.num_heads),
        window=c.window_size,
        expansion=float(c.mlp_ratio),
        edges="padded",
        dropout=c.hidden_dropout_prob,
        eps=c.layer_norm_eps,
    )
    _check_windows(trunk)
    rows = body(trunk)
    if head != "ImageClassification":
        return Import(trunk, Names(rows, "swin.", {}, LEFT_OUT))
    model = Classifier(trunk=trunk, classes=c.num_labels, pool="mean")
    rows = under("trunk.", rows) | {"head.0": "classifier"}
    return Import(model, Names(rows, "swin.", {}, LEFT_OUT))


def _check_windows(trunk: SwinTransformer) -> None:
    """Published tables are those of whole windows."""
    smallest = min(min(size) for size in trunk.sizes())
    if smallest < trunk.window:
        raise Unsupported(
            f"swin checkpoints are read where each stage holds a window of {trunk.window}; the "
            f"last one has {smallest} tokens on a side"
        )


def body(trunk: SwinTransformer) -> Rows:
    """The weights of the body."""
    rows: Rows = {
        "embedding.linear.weight": Take(
            ("embeddings.patch_embeddings.projection.weight",),
            lambda kernel: kernel.permute(0, 2, 3, 1).flatten(1),
        ),
        "embedding.linear.bias": "embeddings.patch_embeddings.projection.bias",
        "norm": "embeddings.norm",
        "last_norm": "layernorm",
    }
    for stage, depth in enumerate(trunk.depths):
        theirs = f"encoder.layers.{stage}"
        for block in range(depth):
            inner = BLOCK | {"mixer.table": Take((f"{_NOW}|{_OLD}",), _table)}
            inner = within(f"{theirs}.blocks.{block}.", inner)
            rows |= under(f"stages.{stage}.blocks.{block}.", inner)
        if stage:
            before = f"encoder.layers.{stage - 1}.downsample"
            rows |= {f"merges.{stage - 1}.{each}": f"{before}.{each}" for each in _MERGE}
    return rows


_MERGE = ("norm", "reduction")


def _table(table: Tensor) -> Tensor:
    """Biases (offsets, h) as (h, 2M − 1, 2M − 1)."""
    side = round(len(table) ** 0.5)
    return table.t().unflatten(1, (side, side))


def pixels(pictures: Tensor) -> Tensor:
    """Pictures (b, channels, h, w) -> the pixels that a Swin reads: (b, h · w, channels)."""
    if pictures.dim() != 4:
        raise WeftError(f"pictures are (b, channels, h, w); got {tuple(pictures.shape)}")
    return pictures.flatten(2).transpose(1, 2)
