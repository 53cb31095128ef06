"""What is measured: a module and its inputs, from a name.

    layer     a whole self-attention layer: project, mix, project back
    core      a mixer without its projections
    pattern   `attend` under a pattern
    rival     a layer of another library

A case is its kind and its text, nothing else, so that a separate process can build it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from weft.bench.rivals import RIVALS
from weft.bench.setting import Setting
from weft.errors import Unsupported
from weft.kernels.attend.api import attend
from weft.kernels.dense.reference import dense_attention
from weft.mixers import MIXERS, AttentionMixer, Frame
from weft.patterns import PATTERNS, Causal, Pattern
from weft.patterns import pattern as parse_pattern
from weft.patterns.derive import mask
from weft.testing.cases import build

Kind = Literal["layer", "core", "pattern", "rival"]
BASELINE = "full"


@dataclass(frozen=True)
class Case:
    """One thing to measure."""

    kind: Kind
    name: str  # a spec of a mixer, a pattern or a rival

    @property
    def is_core(self) -> bool:
        """Whether its inputs are q, k and v instead of tokens."""
        return self.kind in ("core", "pattern")

    def build(self, setting: Setting, n: int) -> nn.Module:
        """The module for sequences of n; it may have a `reference`, slow and written out."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setting.seed)
            if self.kind == "pattern":
                made = PatternCore(parse_pattern(self.name), setting.causal)
            elif self.kind == "rival":
                if setting.kv_heads not in (None, setting.heads):
                    raise Unsupported(
                        f"rivals have keys for every head; got kv_heads={setting.kv_heads} with "
                        f"heads={setting.heads}; leave kv_heads out"
                    )
                made = RIVALS.parse(self.name).build(setting, n)
            else:
                config = MIXERS.parse(self.name)
                made = build(config, _frame(setting, n), setting.torch_dtype, setting.device)
                made = Core(made) if self.kind == "core" else Layer(made)
        return made.to(setting.device, setting.torch_dtype)

    def inputs(self, setting: Setting, n: int) -> tuple[Tensor, ...]:
        """Tokens (b, n, c), or q (b, h, n, d), k and v (b, g, n, d); gradients are taken too."""
        shapes = [(setting.batch, n, setting.dim)]
        if self.is_core:
            keys = setting.kv_heads or setting.heads
            shapes = [(setting.batch, h, n, setting.head_dim) for h in (setting.heads, keys, keys)]
        generator = torch.Generator().manual_seed(setting.seed)
        made = (torch.randn(shape, generator=generator) for shape in shapes)
        return tuple(x.to(setting.device, setting.torch_dtype).requires_grad_() for x in made)


class Layer(nn.Module):
    """A mixer with its projections."""

    def __init__(self, mixer: Any) -> None:
        super().__init__()
        self.mixer, self.exact = mixer, mixer.config.traits.exact

    def forward(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        return self.mixer(x)

    def reference(self, x: Tensor) -> Tensor:
        """The mixer's reference."""
        return self.mixer.reference(x)


class Core(nn.Module):
    """A mixer without its projections."""

    def __init__(self, mixer: Any) -> None:
        super().__init__()
        if not isinstance(mixer, AttentionMixer) or type(mixer).mix is not AttentionMixer.mix:
            raise Unsupported(
                f"{mixer.config.name} has no core that is separate from its projections; "
                "measure the layer, or a pattern"
            )
        self.mixer, self.exact = mixer, mixer.config.traits.exact

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(b, h, n, d) three times -> (b, h, n, d)."""
        return self.mixer.attention(q, k, v, None, False)

    def reference(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The mixer's reference."""
        return self.mixer.plain_attention(q, k, v, None, False)


class PatternCore(nn.Module):
    """Attention under a pattern."""

    exact = True

    def __init__(self, pattern: Pattern, causal: bool) -> None:
        super().__init__()
        self.pattern = Causal() & pattern if causal else pattern

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(b, h, n, d) three times -> (b, h, n, d)."""
        return cast(Tensor, attend(q, k, v, self.pattern))

    def reference(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The equation with a dense mask."""
        seen = mask(self.pattern, q.shape[2], heads=q.shape[1], device=q.device)
        return dense_attention(q, k, v, mask=seen)[0]


def choose(
    mixers: str = "", *, patterns: str = "", rivals: str = "", core: bool = False
) -> list[Case]:
    """The cases that lists of specs describe; dense attention is always among them, and first.

    `mixers` and `rivals` take `all` for every one there is.
    """
    layers = _specs(MIXERS, mixers)
    found = [Case("layer", name) for name in (BASELINE, *layers)]
    found += [Case("rival", name) for name in _specs(RIVALS, rivals)]
    if core or patterns:
        found.append(Case("core", BASELINE))
    if core:
        found += [Case("core", name) for name in layers]
    if patterns:
        found += [Case("pattern", str(made)) for made in PATTERNS.parse_list(patterns)]
    return list(dict.fromkeys(found))


def _specs(registry: Any, text: str) -> list[str]:
    if text == "all":
        return list(registry)
    return [str(config) for config in registry.parse_list(text)] if text else []


def _frame(setting: Setting, n: int) -> Frame:
    return Frame(
        dim=setting.dim,
        heads=setting.heads,
        kv_heads=setting.kv_heads,
        causal=setting.causal,
        length=n,
        seed=setting.seed,
    )
