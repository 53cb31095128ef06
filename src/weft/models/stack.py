"""Stacks of sublayers from an order string.

    "sfsfsf"     the ordinary transformer: self-mixing, feed-forward, three times
    "sscff..."   any order of letters (`models/order.py`)

Around them: how branches join the stream (`residual`), how layers are passed through (`depth`) and
which of them share their parameters (`shared`).

Per-layer settings: `mixer` is one config for every 's', or a tuple with exactly one for each
(`(A(), B()) * 3` alternates two mechanisms); each mixer also knows its number, `frame.layer`.
`feedforward` is the same for every 'f' (`(Dense(), Switch()) * 3`: experts at every other layer).

Initialisation: each part sets itself up (matrices as torch.nn.Linear does: U(±1/√inputs)), then
the residual connection adapts it. With a plain one and norms before the sublayers, the matrices
that write into the stream (`to_out`) are multiplied by 1/√(number of sublayers), so that its
variance does not grow with depth (GPT-2's rule); after a norm there is nothing to keep small.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.feedforward import FEEDFORWARDS, Dense
from weft.layers.norm import Norm
from weft.mixers import MIXERS, Frame, Mixer, State
from weft.models.assemble import build_sublayers, check_shared, tie
from weft.models.depth import DEPTHS, Every
from weft.models.order import CROSSING, FEEDING, MIXING, check_order, count, split
from weft.models.recompute import checkpointed
from weft.models.residual import RESIDUALS
from weft.models.reversible import merge, reversible
from weft.models.sublayer import Given, Sublayer

# Settings that may differ from sublayer to sublayer, and the letters of those sublayers.
_PER_LAYER = {"mixer": MIXING, "feedforward": FEEDING}


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The body of a model; mechanisms come in as configs or as spec strings."""

    frame: Frame  # widths, heads, positions inside attention, attention dropout, longest sequence
    order: str = "sf" * 6
    mixer: Any = "full"  # one config, or a tuple with one for each 's'
    cross: Any = "full"  # for every 'c'
    feedforward: Any = field(default_factory=Dense)  # one config, or a tuple with one for each 'f'
    norm: Norm = field(default_factory=Norm)
    residual: Any = "plain"  # how a branch joins the stream: plain, rezero, fixup
    depth: Any = "plain"  # how layers are passed through: plain, layer_drop, universal
    shared: int = 0  # groups of layers with the same parameters; 0: each layer has its own
    dropout: float = 0.0  # on the embedding, on what each sublayer adds, inside feed-forwards
    # Of each 's': its heads, and the number that its mixer knows. None: the frame's; 0, 1, 2 ...
    heads: tuple[int, ...] | None = None
    numbers: tuple[int, ...] | None = None
    # What backward computes again instead of storing; "reversible" also changes the function.
    recompute: Literal["nothing", "checkpoint", "reversible"] = "nothing"

    def __post_init__(self) -> None:
        check_order(self.order)
        _parse(self, "mixer", MIXERS)
        _parse(self, "cross", MIXERS)
        _parse(self, "feedforward", FEEDFORWARDS)
        _parse(self, "residual", RESIDUALS)
        _parse(self, "depth", DEPTHS)
        for name, letters in _PER_LAYER.items():
            given, layers = getattr(self, name), count(self.order, letters)
            if isinstance(given, tuple) and len(given) != layers:
                raise WeftError(
                    f"order {self.order!r} has {layers} {letters[0]!r} sublayers, so {name} is one "
                    f"config or a tuple of {layers}; got {len(given)}"
                )
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

    def _check_recompute(self) -> None:
        if self.recompute not in ("nothing", "checkpoint", "reversible"):
            raise WeftError(
                "recompute is 'nothing', 'checkpoint' or 'reversible'; "
                f"got recompute={self.recompute!r}"
            )
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
        for name in ("heads", "numbers"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.mixers):
                raise WeftError(
                    f"{name} has one entry for each of {len(self.mixers)} mixers; got {given}"
                )
        if any(h < 1 or h % group for h in self.heads or ()):
            raise WeftError(
                f"heads of a layer are multiples of the {group} query heads that share a key head, "
                f"at least that many; got heads={self.heads}"
            )

    def check_front(self) -> None:
        """Refuse a stack whose last rows have to be computed though no one reads them."""
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
                    f"the rows that no one reads can be left out where {rule}; got {got}; "
                    "set trimmed=false"
                )

    def framed(self, frame: Frame, layer: int) -> Frame:
        """The frame of mixer number `layer`: with the heads that it has."""
        number = layer if self.numbers is None else self.numbers[layer]
        if self.heads is None:
            return dataclasses.replace(frame, layer=number)
        heads = self.heads[layer]
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
    """(b, n, c) -> (b, n, c) through all sublayers, and a last norm if norms stand before them."""

    def __init__(self, config: Stack, causal: bool, registers: int = 0) -> None:
        super().__init__()
        frame = config.frame
        if frame.length is not None:
            frame = dataclasses.replace(frame, length=frame.length + registers)
        self.config, self.causal = config, causal
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
        pre = config.norm.place == "pre"
        self.norm = config.norm.build(frame.dim) if pre else nn.Identity()
        config.residual.prepare([sub.body for sub in unique], len(self.path), config.norm)
        tie([sub.mixer for sub in unique if sub.mixer is not None])

    @property
    def running(self) -> list[Sublayer]:
        """The sublayers as they run; `layers` are ranges of it."""
        return [self.sublayers[i] for i in self.path]

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
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
        seen: Tensor | None = None,
        places: Tensor | None = None,
        taps: list[Tensor] | None = None,
        aligned: bool = False,
        front: int | None = None,
    ) -> Tensor:
        """(b, n, c) -> (b, n, c); 'c' sublayers read the context (b, m, c).

        A context (b, reads, m, c) holds one for each sublayer that reads. Where `seen` (b, n, n) is
        given it says who reads whom, of tokens at `places` (b, n). `taps` takes what enters the
        first layer and what leaves each. `aligned`: real tokens stand first in each row. With
        `front` only so many rows are wanted, all of them real and aligned: (b, front, c); the
        config says whether that can be (`check_front`).
        """
        given = Given(valid, context, context_valid, seen, places, aligned)
        if self.config.recompute == "reversible":
            return self.norm(reversible(self.running, x, given))
        checkpoints = self.config.recompute == "checkpoint" and torch.is_grad_enabled()
        run = checkpointed if checkpoints else _run
        givens = self._givens(given)
        if front is not None:
            last = max(i for i, sub in enumerate(self.running) if sub.mixer is not None)
            givens[last] = givens[last]._replace(front=front)
            givens[last + 1 :] = [Given()] * (len(givens) - last - 1)
        runs = list(zip(self.running, givens, strict=True))

        def through(x: Tensor, layer: int) -> Tensor:
            for i in self.layers[layer]:
                x = run(runs[i][0], x, runs[i][1])
            return x

        if taps is not None:
            taps.append(x)
        return self.norm(self.depth(x, through, valid=valid, context=context, seen=taps))

    def start(self, batch: int = 1) -> list[State | None]:
        """An empty state for each run of a sublayer that keeps one."""
        return [sub.start(batch) for sub in self.running]

    def state_size(self, tokens: int) -> int:
        """Numbers per batch row that the states hold after this many tokens."""
        return sum(sub.state_size(tokens) for sub in self.running)

    def step(
        self, x: Tensor, states: list[State | None], given: Given
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
        return self.norm(self.depth(x, through, position=position)), following

    def _step_reversible(
        self, x: Tensor, states: list[State | None], given: Given
    ) -> tuple[Tensor, list[State | None]]:
        following = []
        a = b = x.to(torch.promote_types(x.dtype, torch.float32))
        for sublayer, state in zip(self.running, states, strict=True):
            branch, state = sublayer.step(b.to(x.dtype), given, state)
            following.append(state)
            a, b = b, a + branch
        return self.norm(merge(a, b).to(x.dtype)), following

    def _givens(self, given: Given) -> list[Given]:
        """What each run may read: contexts (b, reads, m, c) are dealt out."""
        if given.context is None or given.context.dim() == 3:
            return [given] * len(self.path)
        numbers = accumulate(sub.letter in CROSSING for sub in self.running)
        return [given._replace(context=given.context[:, max(i - 1, 0)]) for i in numbers]


def _run(sublayer: Sublayer, x: Tensor, given: Given) -> Tensor:
    return sublayer(x, given)


def _parse(config: Stack, name: str, registry: Any) -> None:
    """Replace a spec string by its config, `"a, b"` by a tuple, and check what was given."""
    value = getattr(config, name)
    if isinstance(value, str):
        parsed = registry.parse_list(value)
        value = parsed[0] if len(parsed) == 1 else tuple(parsed)
    elif isinstance(value, list | tuple):
        value = tuple(registry.parse(item) if isinstance(item, str) else item for item in value)
    if isinstance(value, tuple) and name not in _PER_LAYER:
        raise WeftError(f"{name} is one config for all of its sublayers; got {len(value)}")
    for item in value if isinstance(value, tuple) else (value,):
        if not hasattr(item, "build"):
            raise WeftError(f"{name} is a {registry.family} config or a spec string; got {item!r}")
    object.__setattr__(config, name, value)
