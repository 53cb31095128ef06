"""Training all exits at once: the losses of the classifiers after several layers, summed.

    loss = Σ_k w_k loss_k,    equal:  w_k = 1  (Sledgehammer),    depth:  w_k = k / Σ k  (PABEE)

Around `classify` and `regress` the model gets heads between its layers
(`models/exits/early_exit.py`). Around `causal_lm` nothing is added: the output of the last layer
learns to read the earlier ones too, so that tokens can leave early while decoding
(`models/exits/decoding.py`). Evaluation scores the last exit, the full model, as the inner
objective does.

Papers: Schwartz et al. 2020, https://arxiv.org/abs/2004.07453 (equal, reads="below"); Zhou et al.
2020, https://arxiv.org/abs/2006.04152 (depth)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.models import EarlyExit
from weft.models.exits.decoding import check_token_exits
from weft.models.stack.layerwise import exits_after, walk
from weft.objectives.base import OBJECTIVES, Head, Loss, Metric, ObjectiveConfig
from weft.objectives.batch import Batch, ModelInputs
from weft.objectives.causal_lm import CausalLM, summed, token_loss
from weft.objectives.classify import Classify
from weft.objectives.regress import Regress


@OBJECTIVES.register("early_exit")
@dataclass(frozen=True, kw_only=True)
class EarlyExits:
    """The loss of `of` at every exit."""

    of: ObjectiveConfig = field(default_factory=Classify)  # classify, regress or causal_lm
    after: tuple[int, ...] | None = None  # layers, from 1, with an exit; None: all
    reads: Literal["layer", "below"] = "layer"  # classify: its layer, or a mix of all up to it
    weights: Literal["equal", "depth"] = "equal"

    def __post_init__(self) -> None:
        if not isinstance(self.of, Classify | Regress | CausalLM):
            raise WeftError(
                f"exits are trained for classify, regress or causal_lm; got of={self.of}"
            )
        if isinstance(self.of, CausalLM) and self.reads != "layer":
            raise WeftError("tokens leave with one layer's stream: causal_lm has reads='layer'")

    @property
    def metric(self) -> Metric:
        """That of the inner objective."""
        return self.of.metric

    def build(self, trunk: Any, head: Head | None = None) -> Any:
        """A classifier with exits, or a language model on a decoder that has them anyway."""
        if isinstance(self.of, CausalLM):
            model = self.of.build(trunk, head)
            check_token_exits(model.trunk)
            return model
        plain = self.of.build(trunk, head or Head())
        given = {name: getattr(plain, name) for name in ("trunk", "classes", "pool", "hidden")}
        return EarlyExit(after=self.after, reads=self.reads, **given)

    def loss(self, model: Any, batch: Batch, generator: torch.Generator) -> Loss:
        """Of all exits in training, of the last one in evaluation; the last one's answers count."""
        if not model.training:
            return self.of.loss(model, batch, generator)
        if isinstance(self.of, CausalLM):
            return summed([self._token_loss(model, each) for each in batch.documents()])
        history = model.history(batch.x, **batch.given)  # (b, exits, classes)

        def loss_of(scores: Tensor) -> Loss:
            return self.of.loss(lambda x, **given: scores, batch, generator)

        return self._weighted([loss_of(scores) for scores in history.unbind(1)])

    def _token_loss(self, model: Any, document: ModelInputs) -> Loss:
        trunk, (ids, valid, marks) = model.trunk, document
        exits = exits_after(self.after, len(trunk.stack.layers))
        known = None if valid is None else valid[:, 1:] & valid[:, :-1]  # (b, n − 1)
        losses = []
        for layer, h in enumerate(walk(trunk, ids, valid, marks), start=1):
            if layer in exits:
                hidden = trunk.end(trunk.stack.norm(h), valid)[1]  # (b, n, c)
                losses.append(token_loss(model.scores(hidden)[:, :-1], ids[:, 1:], known))
        return self._weighted(losses)

    def _weighted(self, losses: list[Loss]) -> Loss:
        number = range(1, len(losses) + 1)
        weights = [1.0 if self.weights == "equal" else k / sum(number) for k in number]
        total = sum(w * loss.total for w, loss in zip(weights, losses, strict=True))
        return losses[-1]._replace(total=total)
