"""Models by name: Terraformer-like decoders and dense twins with as many parameters.

    terraformer_0_8b          width 2,048, 16 layers, 32 heads, 32 modules        0.88 B parameters
    terraformer_17b           width 9,216, 17 layers, 96 heads, 64 modules       17.8 B parameters
    ..._dense                 the same widths and depth, dense everywhere

A sparse layer: attention around `multiplicative_conv` projections without an output matrix, and a
`sparse` feed-forward of 6·width units. A dense one: four matrices of width² around attention, and a
ReLU feed-forward of 4·width. Both have about 12·width² parameters; the twins differ by less than
2 % in all. Vocabulary 32,000, norms before the sublayers, sinusoids added to the embedding; the
output is the embedding's table ("linear"), or factored in 4 modules ("sparse") on both sides.

They differ from the paper's models, which are encoder-decoders: 0.8B has 24 + 24 layers of width
1,024 there (16 modules, 6,144 units in blocks of 64), 17B has 6 + 6 of width 9,216 (65,536 units in
blocks of 256, a controller of rank 32), and the encoder keeps dense projections. Here all layers
decode, all are sparse, and the controller has rank width / block. SRU branch and reversible
residuals are not switched on: `with_sru(...)` and `recompute="reversible"` do that.

Paper: Jaszczur et al. 2021, https://arxiv.org/abs/2111.12763
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, Literal, NamedTuple

from weft.errors import WeftError
from weft.feedforward import Dense, Sparse
from weft.layers.embedding import Embedding
from weft.layers.outputs import Linear, OutputConfig, SparseLinear
from weft.layers.projections.dense import DenseProjection
from weft.mixers import Frame, MultiplicativeConv
from weft.models.heads.language_model import LanguageModel
from weft.models.stack.stack import Stack
from weft.models.trunks.decoder import Decoder
from weft.registry import suggest

VOCAB = 32_000
OutputKind = Literal["linear", "sparse"]
_OUTPUTS: dict[str, tuple[OutputConfig, bool]] = {
    "linear": (Linear(), True),
    "sparse": (SparseLinear(modules=4), False),
}


class Shape(NamedTuple):
    """What the twins have in common, and the modules of the sparse one."""

    dim: int
    layers: int
    heads: int
    modules: int


_SMALL = Shape(dim=2048, layers=16, heads=32, modules=32)
_LARGE = Shape(dim=9216, layers=17, heads=96, modules=64)


def sparse_twin(
    shape: Shape,
    *,
    layers: int | None = None,
    block: int = 64,
    output: OutputKind = "linear",
    vocab: int = VOCAB,
) -> LanguageModel:
    """The sparse decoder of this shape; `block` units of which one is computed."""
    projection = MultiplicativeConv(modules=shape.modules)
    feedforward = Sparse(block=block, hidden=6 * shape.dim)
    return _model(shape, layers, projection, feedforward, output, vocab)


def dense_twin(
    shape: Shape,
    *,
    layers: int | None = None,
    output: OutputKind = "linear",
    vocab: int = VOCAB,
) -> LanguageModel:
    """The dense decoder of this shape."""
    feedforward = Dense(activation="relu", expansion=4)
    return _model(shape, layers, DenseProjection(), feedforward, output, vocab)


PRESETS: dict[str, Callable[..., LanguageModel]] = {
    "terraformer_0_8b": partial(sparse_twin, _SMALL),
    "terraformer_0_8b_dense": partial(dense_twin, _SMALL),
    "terraformer_17b": partial(sparse_twin, _LARGE),
    "terraformer_17b_dense": partial(dense_twin, _LARGE),
}


def preset(name: str, **options: Any) -> LanguageModel:
    """The config of a preset; `layers=2` for timing, `block=128`, `output="sparse"`, `vocab=256`.

    Nothing is allocated before `.build()`.
    """
    if name not in PRESETS:
        raise WeftError(f"no preset named {name!r}; {suggest(name, PRESETS)}")
    known = signature(PRESETS[name]).parameters
    for key in options:
        if key not in known:
            raise WeftError(f"{name} has no option {key!r}; {suggest(key, known)}")
    return PRESETS[name](**options)


def _model(
    shape: Shape,
    layers: int | None,
    projection: Any,
    feedforward: Any,
    output: str,
    vocab: int,
) -> LanguageModel:
    if output not in _OUTPUTS:
        raise WeftError(f"output is one of {', '.join(_OUTPUTS)}; got {output!r}")
    layers = shape.layers if layers is None else layers
    if layers < 1:
        raise WeftError(f"layers is at least 1; got layers={layers}")
    head, tied = _OUTPUTS[output]
    stack = Stack(
        frame=Frame(dim=shape.dim, heads=shape.heads, projection=projection),
        order="sf" * layers,
        mixer="full",
        feedforward=feedforward,
    )
    embedding = Embedding(vocab=vocab, positions="sinusoidal")
    trunk = Decoder(embedding=embedding, stack=stack)
    return LanguageModel(trunk=trunk, tied=tied, output=head)
