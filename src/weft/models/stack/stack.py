"""Stacks of sublayers from an order string.

    "sfsfsf"     the ordinary transformer: self-mixing, feed-forward, three times
    "sscff..."   any order of letters (`models/stack/order.py`)

Around them: how branches join the stream (`residual`), how layers are passed through (`depth`) and
which of them share their parameters (`shared`).

Per-layer settings: `mixer` is one config for every 's', or several that take turns ("a, b"
alternates two mechanisms; as many as there are layers: one for each); each mixer also knows its
number, `frame.layer`. `feedforward` is the same for every 'f' ("dense, switch": experts at every
other layer).

Initialisation: each part sets itself up (matrices as torch.nn.Linear does: U(±1/√inputs)), then
the residual connection adapts it. With a plain one and norms before the sublayers, the matrices
that write into the stream (`to_out`) are multiplied by 1/√(number of sublayers), so that its
variance does not grow with depth (GPT-2's rule); after a norm there is nothing to keep small.
"""

from __future__ import annotations

import dataclasses
from dataclasses import InitVar, field
from itertools import accumulate
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from weft.config import config
from weft.errors import Unsupported, WeftError
from weft.feedforward import Dense, FeedForwardConfig
from weft.layers.marks import Marks
from weft.layers.norm import Norm
from weft.layers.padding import real_tokens
from weft.layers.positions import PositionConfig
from weft.mixers import MIXERS, Frame, FullAttention, Mixer, MixerConfig, State
from weft.models.stack.assemble import build_sublayers, check_shared, share_positions, tie
from weft.models.stack.depth import DepthConfig, Every, PassageInputs
from weft.models.stack.known_marks import check_known
from weft.models.stack.order import (
    CROSSING,
    FEEDING,
    MIXING,
    check_order,
    count,
    repeated,
    split,
)
from weft.models.stack.recompute import checkpointed
from weft.models.stack.residual import Plain, ResidualConfig
from weft.models.stack.reversible import merge, reversible
from weft.models.stack.sublayer import StackInputs, Sublayer

# Settings that may differ from sublayer to sublayer, and the letters of those sublayers.
_PER_LAYER = {
    "mixer": MIXING,
    "feedforward": FEEDING,
    "layer_heads": MIXING,
    "layer_numbers": MIXING,
    "layer_positions": MIXING,
}


@config
class Stack:
    """The body of a model; mechanisms come in as configs or as spec strings."""

    frame: Frame  # widths, heads, positions inside attention, attention dropout, longest sequence
    order: str = "sf" * 6
    layers: InitVar[int | None] = None  # repeats a layer of the order so often; None: as it is
    # One config for all 's', or several that take turns; of the feed-forward, for all 'f'.
    mixer: MixerConfig | tuple[MixerConfig, ...] = field(default_factory=FullAttention)
    cross: MixerConfig = field(default_factory=FullAttention)  # for every 'c'
    feedforward: FeedForwardConfig | tuple[FeedForwardConfig, ...] = field(default_factory=Dense)
    norm: Norm = field(default_factory=Norm)
    residual: ResidualConfig = field(default_factory=Plain)  # how a branch joins the stream
    depth: DepthConfig = field(default_factory=Every)  # how layers are passed through
    shared: int = 0  # groups of layers with the same parameters; 0: each layer has its own
    dropout: float = 0.0  # on the embedding, on what each sublayer adds, inside feed-forwards
    # Of each 's': its heads, and the number that its mixer knows. None: the frame's; 0, 1, 2 ...
    layer_heads: tuple[int, ...] | None = None
    layer_numbers: tuple[int, ...] | None = None
    # Positions inside attention of each 's', as two rotary bases that take turns. None: the frame's
    layer_positions: tuple[PositionConfig | None, ...] | None = None
    # What backward computes again instead of storing; "reversible" also changes the function.
    recompute: Literal["nothing", "checkpoint", "reversible"] = "nothing"

    def __post_init__(self, layers: int | None) -> None:
        if layers is not None:
            object.__setattr__(self, "order", repeated(self.order, layers))
        check_order(self.order)
        for name, letters in _PER_LAYER.items():
            object.__setattr__(self, name, self._in_turns(name, letters))
        if count(self.order, CROSSING) and not self.cross.traits.cross:
            able = [name for name in MIXERS if MIXERS[name]().traits.cross]
            raise Unsupported(
                f"'c' sublayers read a context, and {self.cross.name} cannot; "
                f"set cross= to one that can: {', '.join(able)}"
            )
        if self.frame.causal or self.frame.layer:
            raise WeftError(
                "causal and layer of a stack's frame are set by the model (Encoder, Decoder); got "
                f"causal={self.frame.causal}, layer={self.frame.layer}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise WeftError(f"dropout is in [0, 1); got {self.dropout}")
        self.residual.check(self.norm)
        check_shared(self)
        self._check_recompute()
        self._check_heads()

    def _in_turns(self, name: str, letters: str) -> Any:
        """A tuple with an entry for each sublayer: those given, again and again."""
        given, sublayers = getattr(self, name), count(self.order, letters)
        if not isinstance(given, tuple):
            return given
        if not given or sublayers % len(given):
            raise WeftError(
                f"order {self.order!r} has {sublayers} {letters[0]!r} sublayers, whose {name} take "
                f"turns, so their number divides {sublayers}; got {len(given)}"
            )
        return given * (sublayers // len(given))

    def _check_recompute(self) -> None:
        if self.recompute == "reversible" and self.norm.place == "post":
            raise WeftError(
                "a norm after the residual sum cannot be undone, so reversible stacks take "
                "Norm(place='pre'); got place='post'"
            )
        if self.recompute == "reversible" and not isinstance(self.depth, Every):
            raise Unsupported(
                "a reversible stack passes every layer once, in two streams; set depth='plain' or "
                f"recompute='checkpoint', got depth={self.depth}"
            )

    def _check_heads(self) -> None:
        group = self.frame.heads // self.frame.kv_heads
        if any(h < 1 or h % group for h in self.layer_heads or ()):
            raise WeftError(
                f"heads of a layer are multiples of the {group} query heads that share a key head, "
                f"at least that many; got layer_heads={self.layer_heads}"
            )

    def check_first_rows(self) -> None:
        """Refuse a stack whose last layer needs all of its rows."""
        behind = self.order.rpartition("s")[2]
        used = self.feedforwards[len(self.feedforwards) - len(behind) :]
        rules = {
            "the last sublayer that mixes is an 's', and feed-forwards follow it": (
                "s" in self.order and set(behind) <= {"f"},
                f"order={self.order!r}",
            ),
            "its feed-forwards share nothing among tokens": (
                all(each.traits.tokenwise for each in used),
                f"feedforward={', '.join(map(str, used))}",
            ),
            "every layer is passed once": (isinstance(self.depth, Every), f"depth={self.depth}"),
            "there is one stream": (
                self.recompute != "reversible",
                f"recompute={self.recompute!r}",
            ),
        }
        for rule, (holds, got) in rules.items():
            if not holds:
                raise Unsupported(
                    f"unused rows can be left out where {rule}; got {got}; set trimmed=false"
                )

    def framed(self, frame: Frame, layer: int) -> Frame:
        """The frame of mixer number `layer`: with the heads that it has."""
        number = layer if self.layer_numbers is None else self.layer_numbers[layer]
        if self.layer_positions is not None:
            frame = dataclasses.replace(frame, positions=self.layer_positions[layer])
        if self.layer_heads is None:
            return dataclasses.replace(frame, layer=number)
        heads = self.layer_heads[layer]
        shared = heads * frame.kv_heads // frame.heads
        return dataclasses.replace(frame, layer=number, heads=heads, kv_heads=shared)

    @property
    def mixers(self) -> tuple[Any, ...]:
        """One mixer config for each 's'."""
        same = (self.mixer,) * count(self.order, MIXING)
        return self.mixer if isinstance(self.mixer, tuple) else same

    @property
    def feedforwards(self) -> tuple[Any, ...]:
        """One feed-forward config for each 'f'."""
        same = (self.feedforward,) * count(self.order, FEEDING)
        return self.feedforward if isinstance(self.feedforward, tuple) else same

    def build(self, *, causal: bool = False, registers: int = 0) -> StackModule:
        """The module; registers are tokens that every sequence holds besides its own."""
        return StackModule(self, causal, registers)


class StackModule(nn.Module):
    """(b, n, c) -> (b, n, c) through all sublayers, and a last norm if norms come before them."""

    def __init__(self, config: Stack, causal: bool, registers: int = 0) -> None:
        super().__init__()
        frame = config.frame
        if frame.length is not None:
            frame = dataclasses.replace(frame, length=frame.length + registers)
        self.config, self.causal, self.registers = config, causal, registers
        built = build_sublayers(config, frame, causal)
        unique = list(dict.fromkeys(built))
        self.sublayers = nn.ModuleList(unique)  # each once, however often it runs
        self.path = tuple(unique.index(sub) for sub in built) * config.depth.repeats
        repeated = config.depth.repeats > 1
        sizes = [len(built)] * config.depth.repeats if repeated else map(len, split(config.order))
        ends = list(accumulate(sizes))
        self.layers = [range(a, b) for a, b in zip([0, *ends], ends, strict=False)]
        parts = [[self.running[i] for i in layer] for layer in self.layers]
        self.depth = config.depth.build(frame.dim, parts, causal)
        self.norm = config.norm.build(frame.dim) if config.norm.place != "post" else nn.Identity()
        config.residual.prepare([sub.body for sub in unique], len(self.path), config.norm)
        tie([sub.mixer for sub in unique if sub.mixer is not None])
        share_positions([sub.mixer for sub in unique if sub.mixer is not None])

    @property
    def running(self) -> list[Sublayer]:
        """The sublayers as they run; `layers` are ranges of it."""
        return [cast(Sublayer, self.sublayers[i]) for i in self.path]

    @property
    def mixers(self) -> list[Mixer]:
        """The mixers of the sublayers as they run."""
        return [sub.mixer for sub in self.running if sub.mixer is not None]

    @property
    def reads(self) -> int:
        """How many of the sublayers that run read a context."""
        return sum(sub.letter in CROSSING for sub in self.running)

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
        seen: Tensor | None = None,
        places: Tensor | None = None,
        taps: list[Tensor] | None = None,
        aligned: bool = False,
        first_rows: int | None = None,
        marks: Marks | None = None,
    ) -> Tensor:
        """(b, n, c) -> (b, n, c); 'c' sublayers read the context (b, m, c).

        A context (b, reads, m, c) holds one for each sublayer that reads. Where `seen` (b, n, n) is
        given it says who reads whom, of tokens at `places` (b, n). `taps` takes what enters the
        first layer and what leaves each. `aligned`: real tokens stand first in each row. With
        `first_rows` only that many rows are computed, all real and aligned: (b, first_rows, c);
        the config says whether that can be (`check_first_rows`). Each of the `marks` goes to the
        mixers that know it: (b, n − registers), of the tokens after the registers.
        """
        valid = real_tokens(x, valid, attention_mask)
        self.check_marks(marks, x, seen)
        given = StackInputs(valid, context, context_valid, seen, places, aligned)
        given = given._replace(marks=marks or None)
        if self.config.recompute == "reversible":
            return self.norm(reversible(self.running, x, given))
        checkpoints = self.config.recompute == "checkpoint" and torch.is_grad_enabled()
        run = checkpointed if checkpoints else _run
        givens = self._givens(given)
        if first_rows is not None:
            last = max(i for i, sub in enumerate(self.running) if sub.mixer is not None)
            givens[last] = givens[last]._replace(first_rows=first_rows)
            givens[last + 1 :] = [StackInputs()] * (len(givens) - last - 1)
        runs = list(zip(self.running, givens, strict=True))

        def through(x: Tensor, layer: int) -> Tensor:
            for i in self.layers[layer]:
                x = run(runs[i][0], x, runs[i][1])
            return x

        if taps is not None:
            taps.append(x)
        return self.norm(self.depth(x, through, PassageInputs(valid, context, seen=taps)))

    def check_marks(self, marks: Marks | None, x: Tensor, seen: Tensor | None = None) -> None:
        """Refuse marks that no mixer of this stack knows, or that do not fit x (b, n, c)."""
        if not marks:
            return
        configs = [mixer.config for mixer in self.mixers]
        check_known(marks, configs, (len(x), x.shape[1] - self.registers))
        if seen is not None:
            raise Unsupported(f"{', '.join(marks)}: who reads whom is given already, by a mask")

    def start(self, batch: int = 1) -> list[State | None]:
        """An empty state for each run of a sublayer that keeps one."""
        return [sub.start(batch) for sub in self.running]

    def state_size(self, tokens: int) -> int:
        """Numbers per batch row that the states hold after this many tokens."""
        return sum(sub.state_size(tokens) for sub in self.running)

    def step(
        self, x: Tensor, states: list[State | None], given: StackInputs
    ) -> tuple[Tensor, list[State | None]]:
        """The next tokens (b, n, c) -> (b, n, c), and the states after them."""
        if self.config.recompute == "reversible":
            return self._step_reversible(x, states, given)
        following = list(states)
        runs = list(zip(self.running, self._givens(given), strict=True))

        def through(x: Tensor, layer: int) -> Tensor:
            for i in self.layers[layer]:
                sublayer, own = runs[i]
                branch, following[i] = sublayer.step(x, own, states[i])
                x = sublayer.join(x, branch)
            return x

        position = next((state.position for state in states if state is not None), 0)
        return self.norm(self.depth(x, through, PassageInputs(position=position))), following

    def _step_reversible(
        self, x: Tensor, states: list[State | None], given: StackInputs
    ) -> tuple[Tensor, list[State | None]]:
        following = []
        a = b = x.to(torch.promote_types(x.dtype, torch.float32))
        for sublayer, state in zip(self.running, states, strict=True):
            branch, state = sublayer.step(b.to(x.dtype), given, state)
            following.append(state)
            a, b = b, a + branch
        return self.norm(merge(a, b).to(x.dtype)), following

    def _givens(self, given: StackInputs) -> list[StackInputs]:
        """What each run may read: contexts (b, reads, m, c) are dealt out."""
        if given.context is None or given.context.dim() == 3:
            return [given] * len(self.path)
        numbers = accumulate(sub.letter in CROSSING for sub in self.running)
        return [given._replace(context=given.context[:, max(i - 1, 0)]) for i in numbers]


def _run(sublayer: Sublayer, x: Tensor, given: StackInputs) -> Tensor:
    return sublayer(x, given)
