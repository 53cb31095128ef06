"""Stacks of sublayers from an order string.

    "sfsfsf"     the ordinary transformer: self-mixing, feed-forward, three times
    "sscff..."   any order: 's' self-mixing, 'c' cross-attention to a context, 'f' feed-forward
    sandwich(16, 6)   s^6 (sf)^10 f^6, Press et al. 2020, https://arxiv.org/abs/1911.03864

Per-layer settings: `mixer` is one config for every 's', or a tuple with exactly one for each
(`(A(), B()) * 3` alternates two mechanisms); each mixer also knows its number, `frame.layer`.

Initialisation: each part sets itself up (matrices as torch.nn.Linear does: U(±1/√inputs)). With
norms before the sublayers, the matrices that write into the residual stream (`to_out`) are then
multiplied by 1/√(number of sublayers), so that the stream's variance does not grow with depth
(GPT-2's rule); after a norm there is nothing to keep small.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.feedforward import FEEDFORWARDS, Dense
from weft.layers.norm import Norm
from weft.mixers import MIXERS, Frame, Mixer, State
from weft.models.recompute import checkpointed
from weft.models.reversible import merge, reversible
from weft.models.sublayer import (
    CrossSublayer,
    FeedForwardSublayer,
    Given,
    SelfSublayer,
    Sublayer,
)


def sandwich(layers: int, ends: int) -> str:
    """The order s^k (sf)^(n−k) f^k of n layers with k = `ends`; letters count as in "sf"·n."""
    if not 0 <= ends <= layers:
        raise WeftError(f"a sandwich of {layers} layers has 0 to {layers} ends; got {ends}")
    return "s" * ends + "sf" * (layers - ends) + "f" * ends


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The body of a model; mechanisms come in as configs or as spec strings."""

    frame: Frame  # widths, heads, positions inside attention, attention dropout, longest sequence
    order: str = "sf" * 6
    mixer: Any = "full"  # one config, or a tuple with one for each 's'
    cross: Any = "full"  # for every 'c'
    feedforward: Any = field(default_factory=Dense)  # for every 'f'
    norm: Norm = field(default_factory=Norm)
    dropout: float = 0.0  # on the embedding, on what each sublayer adds, inside feed-forwards
    # What backward computes again instead of storing; "reversible" also changes the function.
    recompute: Literal["nothing", "checkpoint", "reversible"] = "nothing"

    def __post_init__(self) -> None:
        _check_order(self.order)
        _parse(self, "mixer", MIXERS)
        _parse(self, "cross", MIXERS)
        _parse(self, "feedforward", FEEDFORWARDS)
        layers = self.order.count("s")
        if isinstance(self.mixer, tuple) and len(self.mixer) != layers:
            raise WeftError(
                f"order {self.order!r} has {layers} 's' sublayers, so mixer is one config or a "
                f"tuple of {layers}; got {len(self.mixer)}"
            )
        if "c" in self.order and not self.cross.traits.cross:
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
        self._check_recompute()

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

    @property
    def mixers(self) -> tuple[Any, ...]:
        """One mixer config for each 's'."""
        same = (self.mixer,) * self.order.count("s")
        return self.mixer if isinstance(self.mixer, tuple) else same

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
        self.sublayers = nn.ModuleList(_build_sublayers(config, frame, causal))
        pre = config.norm.place == "pre"
        self.norm = config.norm.build(frame.dim) if pre else nn.Identity()
        if pre:
            _shrink_outputs(self.sublayers)
        _tie(self.mixers)

    @property
    def mixers(self) -> list[Mixer]:
        """The mixers of the 's' sublayers, in order."""
        return [sub.body for sub in self.sublayers if isinstance(sub, SelfSublayer)]

    def forward(
        self,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
    ) -> Tensor:
        """(b, n, c) -> (b, n, c); 'c' sublayers read the context (b, m, c)."""
        given = Given(valid, context, context_valid)
        if self.config.recompute == "reversible":
            return self.norm(reversible(self.sublayers, x, given))
        checkpoints = self.config.recompute == "checkpoint" and torch.is_grad_enabled()
        for sublayer in self.sublayers:
            x = checkpointed(sublayer, x, given) if checkpoints else sublayer(x, given)
        return self.norm(x)

    def start(self, batch: int = 1) -> list[State | None]:
        """An empty state for each sublayer that keeps one."""
        return [
            sub.body.start(batch) if isinstance(sub, SelfSublayer) else None
            for sub in self.sublayers
        ]

    def step(
        self, x: Tensor, states: list[State | None], given: Given
    ) -> tuple[Tensor, list[State | None]]:
        """The next tokens (b, n, c) -> (b, n, c), and the states after them."""
        following = []
        wide = torch.promote_types(x.dtype, torch.float32)
        a = b = x.to(wide) if self.config.recompute == "reversible" else x
        for sublayer, state in zip(self.sublayers, states, strict=True):
            branch, state = sublayer.step(b.to(x.dtype), given, state)
            following.append(state)
            if self.config.recompute == "reversible":
                a, b = b, a + branch
            else:
                b = sublayer.join(b, branch)
        if self.config.recompute == "reversible":
            b = merge(a, b).to(x.dtype)
        return self.norm(b), following


def _check_order(order: str) -> None:
    unknown = sorted(set(order) - set("scf"))
    if unknown:
        raise WeftError(
            "an order is made of 's' (self-mixing), 'c' (cross-attention) and 'f' (feed-forward); "
            f"got {', '.join(map(repr, unknown))} in {order!r}"
        )
    if "s" not in order:
        raise WeftError(
            f"an order needs at least one 's', or no token meets another; got {order!r}"
        )


def _parse(config: Stack, name: str, registry: Any) -> None:
    """Replace a spec string by its config, `"a, b"` by a tuple, and check what was given."""
    value = getattr(config, name)
    if isinstance(value, str):
        parsed = registry.parse_list(value)
        value = parsed[0] if len(parsed) == 1 else tuple(parsed)
    elif isinstance(value, list | tuple):
        value = tuple(registry.parse(item) if isinstance(item, str) else item for item in value)
    if isinstance(value, tuple) and name != "mixer":
        raise WeftError(f"{name} is one config for all of its sublayers; got {len(value)}")
    for item in value if isinstance(value, tuple) else (value,):
        if not hasattr(item, "build"):
            raise WeftError(f"{name} is a {registry.family} config or a spec string; got {item!r}")
    object.__setattr__(config, name, value)


def _build_sublayers(config: Stack, frame: Frame, causal: bool) -> list[Sublayer]:
    built: list[Sublayer] = []
    mixers = iter(config.mixers)
    around = (config.norm, frame.dim, config.dropout)
    for letter in config.order:
        layer = sum(sub.letter == letter for sub in built)
        if letter == "s":
            own = dataclasses.replace(frame, causal=causal, layer=layer)
            built.append(SelfSublayer(next(mixers).build(own), *around))
        elif letter == "c":
            # Distances between two sequences mean nothing, so positions inside attention stay out.
            own = dataclasses.replace(frame, layer=layer, positions=None)
            built.append(CrossSublayer(config.cross.build(own), *around))
        else:
            body = config.feedforward.build(frame.dim, config.dropout, frame.bias)
            built.append(FeedForwardSublayer(body, *around))
    return built


@torch.no_grad()
def _shrink_outputs(sublayers: nn.ModuleList) -> None:
    """Scale the matrices named `to_out`, which write into the residual stream."""
    for name, module in sublayers.named_modules():
        if name.rpartition(".")[2] == "to_out" and isinstance(module, nn.Linear):
            module.weight.mul_(len(sublayers) ** -0.5)


def _tie(mixers: list[Mixer]) -> None:
    """Let configs that share parameters across layers do so: `tie(mixers)` of each config class."""
    for kind in dict.fromkeys(type(mixer.config) for mixer in mixers):
        if hasattr(kind, "tie"):
            kind.tie([mixer for mixer in mixers if type(mixer.config) is kind])
