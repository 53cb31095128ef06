"""Early exit while decoding: a token stops at the first layer that is sure of the next one.

    scores_j = output(norm(h_j)) after layer j, with the norm and the output of the last layer
    the token leaves after the first layer j at which a policy (`exit_policy`) lets it go, and
    its h_j is the input of every layer above: their keys and values come from it

So later tokens find a state at every layer, whichever layers earlier tokens ran. Tokens that come
several at a time (a prompt) run all layers. Rows of a batch decide for themselves; one that has
left keeps its h_j, and the layers above run until the last row has left, so time is saved where
all rows leave early: most with one row.

Papers: Elbayad et al. 2019, section 3.2 (copied states), https://arxiv.org/abs/1910.10073;
Schuster et al. 2022, section 3 (CALM), https://arxiv.org/abs/2207.07061
Differs from CALM: confidence is the best token's probability, or any other exit policy. A conformal
rule is calibrated on tokens after true prefixes (`token_history`); its promise is for such tokens,
not for text that the model itself has gone on with.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import Unsupported
from weft.layers.marks import Marks
from weft.models.exits.policy import ExitPolicy
from weft.models.stack.layerwise import check_walkable, exits_after, walk
from weft.models.stack.sublayer import StackInputs
from weft.models.trunks.decoder import Decoder, DecoderModule, DecoderState

Score = Callable[[Tensor], Tensor]


def leaving_early(model: Any, policy: ExitPolicy, after: tuple[int, ...] | None = None) -> Any:
    """A language model with the same weights whose tokens leave early when it decodes.

    `after` are the layers, from 1, with an exit; None: all. `trunk.layers_run` counts.
    """
    check_token_exits(model.config.trunk)
    early = copy.copy(model)
    early._modules = dict(model._modules)  # else both would get the new trunk
    early.trunk = ExitingDecoder(model.trunk, model.scores, policy, after)
    return early


def check_token_exits(trunk: Any) -> None:
    """Refuse a trunk (its config) whose tokens cannot leave early."""
    if not isinstance(trunk, Decoder):
        raise Unsupported(
            "tokens leave early while a Decoder writes them; got "
            f"{type(trunk).__name__}. For whole documents use EarlyExit"
        )
    check_walkable(trunk)


class ExitingDecoder(DecoderModule):
    """A decoder, with the modules of another, that may stop between its layers."""

    def __init__(
        self,
        trunk: DecoderModule,
        scores: Score,
        policy: ExitPolicy,
        after: tuple[int, ...] | None,
    ) -> None:
        nn.Module.__init__(self)
        self.config, self.dim, self.policy = trunk.config, trunk.dim, policy
        self._modules = dict(trunk._modules)
        self.exits = exits_after(after, len(trunk.stack.layers))
        self.layers_run: list[Tensor] = []  # of each token so far: (b,), on the device
        # Not a submodule: the output belongs to the language model.
        self._scores = scores

    def step(
        self, x: Tensor, state: DecoderState, *, marks: Marks | None = None
    ) -> tuple[Tensor, DecoderState]:
        """One new token (b, 1), which may leave early, or several, which do not -> (b, n, c)."""
        if x.shape[1] != 1 or marks:
            return super().step(x, state, marks=marks)
        h = self.enter(self.embedding(x, start=state.position))  # (b, 1, c)
        h, layers = self._through(h, state)
        y = self.stack.norm(h)
        return y, dataclasses.replace(state, layers=layers, position=state.position + 1)

    def _through(self, h: Tensor, state: DecoderState) -> tuple[Tensor, list[Any]]:
        """The stream h (b, 1, c) where each row left it, and the states of all sublayers."""
        left = torch.zeros(len(h), dtype=torch.bool, device=h.device)
        run = torch.full((len(h),), len(self.stack.layers), device=h.device)
        states, history, given = list(state.layers), [], StackInputs()
        running = self.stack.running
        for layer, span in enumerate(self.stack.layers, start=1):
            if bool(left.all()):
                for place in span:
                    states[place] = running[place].absorb(h, given, states[place])
                continue
            for place in span:
                sublayer = running[place]
                branch, states[place] = sublayer.step(h, given, states[place])
                h = torch.where(left[:, None, None], h, sublayer.join(h, branch))
            if layer in self.exits[:-1]:
                history.append(self._scores(self.stack.norm(h[:, 0])))  # (b, vocab)
                leaving = self.policy.leaves(torch.stack(history, dim=1)) & ~left
                run[leaving], left = layer, left | leaving
        self.layers_run.append(run)
        return h, states


def token_history(
    model: Any,
    ids: Tensor,
    *,
    valid: Tensor | None = None,
    marks: Marks | None = None,
    after: tuple[int, ...] | None = None,
) -> Tensor:
    """Scores of every exit for every token of known text: (b, n) -> (b, n, exits, vocab)."""
    trunk = model.trunk
    exits = exits_after(after, len(trunk.stack.layers))
    found = [
        model.scores(trunk.end(trunk.stack.norm(h), valid)[1])
        for layer, h in enumerate(walk(trunk, ids, valid, marks), start=1)
        if layer in exits
    ]
    return torch.stack(found, dim=2)
