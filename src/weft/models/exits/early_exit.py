"""Early exit: classifiers after chosen layers, and rows that leave when a rule says so.

    v_j = pool(norm_j(h_j)),  h_j the stream after layer j          what an exit reads of a layer
    reads="layer":  scores_j = head_j(v_j)                          PABEE
    reads="below":  scores_j = head_j(Σ_{i≤j} softmax(w_j)_i v_i)   Sledgehammer, w_j learned

All exits are trained at once (objective `early_exit`). At inference a policy (`exit_policy`) looks
at the scores after each exit; rows that leave are taken out of the batch, so the layers above
cost less. The last exit is the full model: `forward` gives its scores, so a model with exits is
scored, compared and saved as a classifier is.

Papers: Schwartz et al. 2020, section 3 (Sledgehammer), https://arxiv.org/abs/2004.07453;
Zhou et al. 2020, section 3 (PABEE), https://arxiv.org/abs/2006.04152
Differs from them: layers are pooled before they are mixed, which is the same for the papers' [CLS]
and for means; where norms stand before sublayers, each layer that is read has a last norm of
its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.marks import Marks, rows_of
from weft.layers.padding import real_tokens
from weft.models.exits.policy import ExitPolicy
from weft.models.heads.document import Pool, Pooling, build_pool, check_head, scoring_head
from weft.models.registry import MODELS, TrunkModel
from weft.models.stack.layerwise import check_walkable, exits_after, layers_of, walk
from weft.models.stack.order import split
from weft.models.stack.sublayer import StackInputs
from weft.models.trunks.decoder import Decoder
from weft.models.trunks.encoder import Encoder
from weft.models.usage.predict import Predicts, is_text


@MODELS.register("early_exit")
@dataclass(frozen=True, kw_only=True)
class EarlyExit:
    """One of `classes` for each document, from a classifier after each of some layers."""

    trunk: Encoder | Decoder
    classes: int
    pool: Pool = "mean"
    hidden: int | None = None  # units of a hidden layer in each classifier; None: no such layer
    after: tuple[int, ...] | None = None  # layers, from 1; None: all. The last is always one
    reads: Literal["layer", "below"] = "layer"  # an exit reads its layer, or mixes all up to it

    def __post_init__(self) -> None:
        check_head(self, self.trunk)
        check_walkable(self.trunk)
        self.exits  # noqa: B018  # checks `after`

    @property
    def exits(self) -> tuple[int, ...]:
        """The layers, from 1, that are followed by a classifier."""
        return exits_after(self.after, len(split(self.trunk.stack.order)))

    def build(self) -> EarlyExitModule:
        return EarlyExitModule(self)


class Exited(NamedTuple):
    """What came of rows that could leave early."""

    scores: Tensor  # (b, classes) of the exit that each row took
    layers: Tensor  # (b,) how many layers each row ran


class EarlyExitModule(Predicts, TrunkModel):
    """Documents (b, n) or (b, n, channels) -> scores (b, classes), of one exit or of all."""

    def __init__(self, config: EarlyExit) -> None:
        super().__init__()
        self.config = config
        self.trunk = config.trunk.build()
        self.exits, layers = config.exits, len(split(config.trunk.stack.order))
        read = range(1, layers + 1) if config.reads == "below" else self.exits
        # The last layer has the trunk's own norm.
        norm = self.trunk.stack.norm
        self.norms = nn.ModuleDict({str(j): copy.deepcopy(norm) for j in read if j < layers})
        self.pools = nn.ModuleDict({str(j): build_pool(config) for j in read})
        width = self._pool(layers).width
        self.heads = nn.ModuleList(
            scoring_head(width, config.hidden, config.classes) for _ in self.exits
        )
        mixed = self.exits if config.reads == "below" else ()
        self.mixes = nn.ParameterList(torch.zeros(j) for j in mixed)

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        marks: Marks | None = None,
    ) -> Tensor:
        """(b, classes) of the last exit, before any softmax."""
        if is_text(x):
            return self.predict(x)
        valid = real_tokens(x, valid, attention_mask)
        if self.config.reads == "below":
            return self.history(x, valid=valid, marks=marks)[:, -1]
        pool = self._pool(self.exits[-1])
        return self.heads[-1](pool(self.trunk, x, valid, marks))

    def history(
        self, x: Tensor, *, valid: Tensor | None = None, marks: Marks | None = None
    ) -> Tensor:
        """The scores of all exits, (b, exits, classes)."""
        views: dict[int, Tensor] = {}
        for layer, h in enumerate(walk(self.trunk, x, valid, marks), start=1):
            self._look(views, layer, h, valid)
        return torch.stack([self._judge(k, views) for k in range(len(self.exits))], dim=1)

    @torch.no_grad()
    def leave(
        self,
        x: Tensor,
        policy: ExitPolicy,
        *,
        valid: Tensor | None = None,
        marks: Marks | None = None,
    ) -> Exited:
        """Scores of the exit at which `policy` lets each row leave; the others run on."""
        h, real = self.trunk.begin(x, valid)
        self.trunk.stack.check_marks(marks, h)
        rows, views = torch.arange(len(x), device=x.device), {}
        history = h.new_empty(len(x), 0, self.config.classes)  # (b, exits so far, classes)
        scores, layers = history.new_empty(len(x), self.config.classes), torch.zeros_like(rows)
        every = layers_of(self.trunk.stack)
        for layer, sublayers in enumerate(every, start=1):
            for sublayer in sublayers:
                h = sublayer(h, StackInputs(real, marks=marks))
            self._look(views, layer, h, valid)
            if layer not in self.exits:
                continue
            found = self._judge(self.exits.index(layer), views).to(history.dtype)
            history = torch.cat((history, found[:, None]), dim=1)
            leaving = policy.leaves(history) if layer < len(every) else torch.ones_like(rows).bool()
            if not leaving.any():
                continue
            scores[rows[leaving]], layers[rows[leaving]] = found[leaving], layer
            stay = (~leaving).nonzero()[:, 0]
            if not len(stay):
                break
            rows, h, history = rows[stay], h[stay], history[stay]
            views = {j: view[stay] for j, view in views.items()}
            real = None if real is None else real[stay]
            valid = None if valid is None else valid[stay]
            marks = rows_of(marks, stay)
        return Exited(scores, layers)

    def _pool(self, layer: int) -> Pooling:
        return cast(Pooling, self.pools[str(layer)])

    def _look(self, views: dict[int, Tensor], layer: int, h: Tensor, valid: Tensor | None) -> None:
        """Keep what exits read of this layer, (b, width)."""
        name = str(layer)
        if name in self.pools:
            norm = self.norms[name] if layer < self.exits[-1] else self.trunk.stack.norm
            registers, tokens = self.trunk.end(norm(h), valid)
            views[layer] = self._pool(layer).of(registers, tokens, valid)

    def _judge(self, k: int, views: dict[int, Tensor]) -> Tensor:
        """The scores (b, classes) of exit number k."""
        if self.config.reads == "layer":
            return self.heads[k](views[self.exits[k]])
        below = torch.stack([views[j] for j in range(1, self.exits[k] + 1)], dim=1)  # (b, j, width)
        weights = self.mixes[k].softmax(0).to(below.dtype)  # (j,)
        return self.heads[k](torch.einsum("j,bjw->bw", weights, below))


@torch.no_grad()
def held_out(model: EarlyExitModule, batches: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """What a policy is fitted on: scores (m, exits, classes) and classes (m,) of batches.

    A batch has `x`, `valid` (or None), `marks` and `y`, as the batches of a task do.
    """
    found = list(_scored(model, batches))
    if not found:
        raise WeftError("there is nothing to fit on: no batches were given")
    scores, classes = zip(*found, strict=True)
    return torch.cat(scores), torch.cat(classes)


def _scored(model: EarlyExitModule, batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    device = next(model.parameters()).device
    for batch in batches:
        valid = None if batch.valid is None else batch.valid.to(device)
        marks = {name: mark.to(device) for name, mark in getattr(batch, "marks", {}).items()}
        scores = model.history(batch.x.to(device), valid=valid, marks=marks)
        yield scores, batch.y.to(device)
