"""Heads that judge whole documents: classify one, or match two.

    classify:  W pool(trunk(x)) + b
    match:     MLP([x1, x2, x1·x2, x1 − x2]),  x1, x2 pooled from one shared trunk
               (the dual encoder of Long Range Arena, Tay et al. 2020, https://arxiv.org/abs/2011.04006)

Pooling reads real tokens only: their "mean" or "max", the "last" one, or the "first": that is the
first register if the embedding has any (a CLS token), else the first real token. "sqrtn" is their
sum divided by √n (TensorFlow's combiner of that name): the mean of thousands of tokens hardly
differs from document to document, and a head needs many updates to grow weights that tell; what
differs between sums over √n is as large as what differs between tokens. "attention" lets
four learned queries attend to the tokens: each takes their mean, weighted by the softmax of its
scores, and the four means are concatenated. A document without a single real token pools to 0.
Matrices of heads start as N(0, 0.02), biases as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.feedforward.activations import activation_of
from weft.layers.marks import Marks
from weft.layers.norm import Norm
from weft.layers.padding import real_tokens, refuse_mask
from weft.models.registry import MODELS, TrunkModel
from weft.models.stack.order import CROSSING, count
from weft.models.trunks.decoder import Decoder
from weft.models.trunks.encoder import Encoder
from weft.models.trunks.perceiver_io import PerceiverIO
from weft.models.trunks.swin_transformer import SwinTransformer
from weft.models.usage.predict import Predicts, is_text

Pool = Literal["mean", "max", "sqrtn", "first", "last", "attention"]
QUERIES = 4  # of the pooling by attention
INITIAL_STD = 0.02


@MODELS.register("classifier")
@dataclass(frozen=True, kw_only=True)
class Classifier:
    """One of `classes` for each document."""

    trunk: Encoder | Decoder | PerceiverIO | SwinTransformer
    classes: int
    pool: Pool = "mean"
    hidden: int | None = None  # units of a hidden layer before the classes; None: no such layer
    trimmed: bool = False  # pool="first": the last layer computes the register that is read alone
    between: str = "gelu"  # the activation of the hidden layer
    hidden_bias: bool = True  # of the hidden layer
    hidden_norm: Norm | None = None  # behind its activation; its place says nothing

    def __post_init__(self) -> None:
        check_head(self, self.trunk)
        check_trimmed(self, self.trunk)
        activation_of(self.between)

    def build(self) -> ClassifierModule:
        return ClassifierModule(self)


@MODELS.register("matcher")
@dataclass(frozen=True, kw_only=True)
class Matcher:
    """One of `classes` for each pair of documents, both read by the same trunk."""

    trunk: Encoder | Decoder | PerceiverIO | SwinTransformer
    classes: int = 2
    pool: Pool = "mean"
    hidden: int | None = None  # units of the hidden layer; None: as wide as the trunk
    trimmed: bool = False  # pool="first": the last layer computes the register that is read alone

    def __post_init__(self) -> None:
        check_head(self, self.trunk)
        check_trimmed(self, self.trunk)

    def build(self) -> MatcherModule:
        return MatcherModule(self)


class ClassifierModule(Predicts, TrunkModel):
    """Documents (b, n) or (b, n, channels) -> scores (b, classes)."""

    def __init__(self, config: Classifier) -> None:
        super().__init__()
        self.config = config
        self.trunk = config.trunk.build()
        self.pool = build_pool(config, config.trimmed)
        self.head = scoring_head(self.pool.width, config.hidden, config.classes, config)

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        marks: Marks | None = None,
    ) -> Tensor:
        """Scores (b, classes); of a text or a list of texts their labels (`predict`).

        `valid` or `attention_mask` (b, n) marks the real tokens.

        `marks` (b, n each) are what mixers of the trunk take: `marks={"is_global": mask}`.
        """
        if is_text(x):
            return self.predict(x)
        valid = real_tokens(x, valid, attention_mask)
        return self.head(self.pool(self.trunk, x, valid, marks))


class MatcherModule(Predicts, TrunkModel):
    """Two documents for each row -> scores (b, classes)."""

    def __init__(self, config: Matcher) -> None:
        super().__init__()
        self.config = config
        self.trunk = config.trunk.build()
        self.pool = build_pool(config, config.trimmed)
        hidden = config.hidden or config.trunk.dim
        self.head = scoring_head(4 * self.pool.width, hidden, config.classes)

    def forward(
        self,
        first: Tensor,
        second: Tensor | None = None,
        *,
        first_valid: Tensor | None = None,
        second_valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        first_marks: Marks | None = None,
        second_marks: Marks | None = None,
    ) -> Tensor:
        """(b, n) and (b, m) -> (b, classes), before any softmax."""
        if is_text(first):
            return self.predict(first if second is None else (first, second))
        refuse_mask(attention_mask, "first_valid and second_valid")
        if second is None:
            raise WeftError("a matcher reads two documents for each row; got one")
        if len(first) != len(second):
            raise WeftError(f"documents come in pairs; got {len(first)} and {len(second)}")
        one = self.pool(self.trunk, first, first_valid, first_marks)  # (b, c)
        two = self.pool(self.trunk, second, second_valid, second_marks)  # (b, c)
        return self.head(torch.cat((one, two, one * two, one - two), dim=-1))


def pooled(tokens: Tensor, valid: Tensor | None, pool: Pool) -> Tensor:
    """Tokens (b, n, c), valid (b, n) -> (b, c)."""
    if valid is None:
        valid = tokens.new_ones(tokens.shape[:2], dtype=torch.bool)
    real = valid[..., None]  # (b, n, 1)
    if pool in ("mean", "sqrtn"):
        work = torch.promote_types(tokens.dtype, torch.float32)
        total = tokens.masked_fill(~real, 0.0).sum(1, dtype=work)  # (b, c)
        count = real.sum(1).clamp(min=1)  # (b, 1)
        return (total / (count if pool == "mean" else count.to(work).sqrt())).to(tokens.dtype)
    if pool == "max":
        highest = tokens.masked_fill(~real, float("-inf")).amax(1)  # (b, c)
        return highest.masked_fill(~valid.any(1, keepdim=True), 0.0)
    index = torch.arange(1, valid.shape[1] + 1, device=valid.device)
    order = index if pool == "last" else index.flip(0)
    chosen = (valid * order).argmax(1)  # (b,)
    picked = tokens[torch.arange(len(tokens), device=tokens.device), chosen]  # (b, c)
    return picked.masked_fill(~valid.any(1, keepdim=True), 0.0)


class Pooling(nn.Module):
    """A document, read by a trunk, as one vector (b, width)."""

    def __init__(self, pool: Pool, dim: int) -> None:
        super().__init__()
        self.pool: Pool = pool
        self.width = dim

    def forward(
        self, trunk: Any, x: Tensor, valid: Tensor | None, marks: Marks | None = None
    ) -> Tensor:
        """Read and pool."""
        check_tokens(x)
        registers, rows = trunk.read(x, valid=valid, marks=marks)
        if hasattr(trunk, "rows_valid"):  # its rows are not the tokens one by one
            valid = trunk.rows_valid(valid)
        return self.of(registers, rows, valid)

    def of(self, registers: Tensor, tokens: Tensor, valid: Tensor | None) -> Tensor:
        """Registers (b, g, c), tokens (b, n, c), valid (b, n) -> (b, width)."""
        if self.pool == "first" and registers.shape[1]:
            return registers[:, 0]
        return self.pooled(tokens, valid)

    def pooled(self, tokens: Tensor, valid: Tensor | None) -> Tensor:
        """Tokens (b, n, c), valid (b, n) -> (b, width)."""
        return pooled(tokens, valid, self.pool)


class FirstPooling(Pooling):
    """The first register alone: what only other rows of the last layer need is left out."""

    def forward(
        self, trunk: Any, x: Tensor, valid: Tensor | None, marks: Marks | None = None
    ) -> Tensor:
        check_tokens(x)
        return trunk.read_first(x, valid=valid, marks=marks)


class AttentionPooling(Pooling):
    """Learned queries q (4, c): means of the tokens weighted by softmax(x · q / √c), joined."""

    def __init__(self, dim: int) -> None:
        super().__init__("attention", QUERIES * dim)
        self.queries = nn.Parameter(torch.randn(QUERIES, dim) * INITIAL_STD)

    def pooled(self, tokens: Tensor, valid: Tensor | None) -> Tensor:
        work = torch.promote_types(tokens.dtype, torch.float32)
        scores = (tokens @ self.queries.to(tokens.dtype).mT).to(work)  # (b, n, 4)
        scores = scores * tokens.shape[-1] ** -0.5
        if valid is not None:
            some = valid.any(1)[:, None, None]  # (b, 1, 1)
            scores = scores.masked_fill(~valid[..., None] & some, float("-inf"))
            tokens = tokens.masked_fill(~valid[..., None], 0.0)
        weights = scores.softmax(1).to(tokens.dtype)  # (b, n, 4)
        return (weights.mT @ tokens).flatten(1)  # (b, 4 c)


def build_pool(config: Any, trimmed: bool = False) -> Pooling:
    """The pooling that the config of a head asks for."""
    dim = config.trunk.dim
    if config.pool == "attention":
        return AttentionPooling(dim)
    return (FirstPooling if trimmed else Pooling)(config.pool, dim)


def check_tokens(x: Tensor) -> None:
    """Refuse documents without a place for a token."""
    if x.shape[1] == 0:
        raise WeftError(f"a document has at least one token; got {tuple(x.shape)}")


class Between(nn.Module):
    """The activation of a hidden layer, by its name, and a norm where there is one."""

    def __init__(self, name: str, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.activation = activation_of(name)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """(...) -> (...)."""
        y = self.activation(x)
        return y if self.norm is None else self.norm(y)


def scoring_head(
    inputs: int, hidden: int | None, classes: int, told: Classifier | None = None
) -> nn.Module:
    """(b, inputs) -> (b, classes), with a hidden layer, as a classifier's config has it, or not."""
    layers: list[Any]
    if hidden is None:
        layers = [nn.Linear(inputs, classes)]
    else:
        norm = None if told is None or told.hidden_norm is None else told.hidden_norm.build(hidden)
        between = Between("gelu" if told is None else told.between, norm)
        first = nn.Linear(inputs, hidden, bias=told is None or told.hidden_bias)
        layers = [first, between, nn.Linear(hidden, classes)]
    for layer in layers[::2]:
        nn.init.normal_(layer.weight, std=INITIAL_STD)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def check_head(config: Any, trunk: Any) -> None:
    """Refuse what a head cannot stand on."""
    if hasattr(trunk, "stack") and count(trunk.stack.order, CROSSING):
        raise WeftError(
            f"this head has no context for 'c' sublayers; got order {trunk.stack.order!r}"
        )
    if config.pool == "first" and isinstance(trunk, Decoder):
        raise WeftError(
            "the first position of a decoder has read nothing else; use pool='last' or 'mean'"
        )
    if config.classes < 1 or (config.hidden is not None and config.hidden < 1):
        raise WeftError(
            f"classes and hidden are at least 1; got {config.classes} and {config.hidden}"
        )


def check_trimmed(config: Any, trunk: Any) -> None:
    """Refuse to leave out rows that the head reads, or that others need."""
    if not config.trimmed:
        return
    if type(trunk) is not Encoder or config.pool != "first" or not trunk.embedding.registers:
        raise WeftError(
            "trimmed leaves out all rows of an encoder's last layer but a register, so it needs "
            f"pool='first' and registers; got pool={config.pool!r}, "
            f"registers={trunk.embedding.registers} in {type(trunk).__name__}"
        )
    trunk.stack.check_first_rows()
