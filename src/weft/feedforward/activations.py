"""The nonlinearity between the matrices of a feed-forward: an activation, or a gate.

    relu max(0, x) · gelu x·Φ(x) · gelu_tanh its tanh form, as in GPT-2 · silu = swish x·σ(x)
    quick_gelu x·σ(1.702 x) · tanh
    elu, selu · sigmoid · softplus ln(1 + eˣ) · squared_relu max(0, x)²

    gate:  act(x W) ∘ (x V),   act = sigmoid (glu), gelu (geglu), relu (reglu), silu (swiglu),
                               gelu_tanh (geglu_tanh), identity (liglu, the bilinear one)

A gate needs a third matrix. `two_thirds(hidden)` is the width at which the three have as many
parameters as the two of an activation with `hidden` units.

Paper: Shazeer 2020, GLU variants improve transformer, https://arxiv.org/abs/2002.05202
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from weft.errors import WeftError
from weft.registry import suggest

Activation = Callable[[Tensor], Tensor]


def squared_relu(x: Tensor) -> Tensor:
    """max(0, x)² (So et al. 2021, Primer, https://arxiv.org/abs/2109.08668)."""
    return F.relu(x).square()


def quick_gelu(x: Tensor) -> Tensor:
    """x·σ(1.702 x) (Hendrycks, Gimpel 2016, https://arxiv.org/abs/1606.08415)."""
    return x * F.sigmoid(1.702 * x)


def identity(x: Tensor) -> Tensor:
    """Return x."""
    return x


ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swish": F.silu,
    "elu": F.elu,
    "selu": F.selu,
    "sigmoid": F.sigmoid,
    "softplus": F.softplus,
    "squared_relu": squared_relu,
    "quick_gelu": quick_gelu,
    "tanh": F.tanh,
}
GATES: dict[str, Activation] = {
    "glu": F.sigmoid,
    "geglu": F.gelu,
    "geglu_tanh": partial(F.gelu, approximate="tanh"),
    "reglu": F.relu,
    "swiglu": F.silu,
    "liglu": identity,
}


def activation_of(name: str) -> Activation:
    """The function of an activation or of a gate's first half; a miss suggests the near ones."""
    known = ACTIVATIONS | GATES
    if name not in known:
        raise WeftError(f"no activation named {name!r}; {suggest(name, known)}")
    return known[name]


def two_thirds(hidden: int) -> int:
    """Units of a gate that has the parameters of `hidden` plain units: 3072 -> 2048."""
    return max(1, round(2 * hidden / 3))


def check_width(activation: str, expansion: float, hidden: int | None) -> None:
    """Raise unless these settings of a config are valid."""
    activation_of(activation)
    if not expansion > 0:
        raise WeftError(f"expansion is hidden units per channel, above 0; got {expansion}")
    if hidden is not None and hidden < 1:
        raise WeftError(f"hidden counts units, at least 1; got hidden={hidden}")


def width(expansion: float, hidden: int | None, dim: int) -> int:
    """Hidden units: `hidden` where it is given, else expansion · dim."""
    return hidden or max(1, round(expansion * dim))


def divided(name: str, count: int, ways: int) -> int:
    """The share of one of `ways` ranks, of units that tensor parallel splits evenly."""
    if count % ways:
        raise WeftError(
            f"tp splits {name} evenly: {name}={count} is not a multiple of tp={ways}; change "
            "[training.mesh] tp, or the feed-forward"
        )
    return count // ways
