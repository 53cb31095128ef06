"""Floating-point operations of a model, counted before anything is trained.

Products of matrices and convolutions are counted as 2 per multiplication and addition, by torch's
counter; attention under a pattern as 2·(d + e) for each pair that the pattern lets see each other,
whatever blocks a kernel computes; a Fourier transform of N points as 5·N·log2 N. What is done to
each number by itself (norms, activations, softmax) is not counted. The backward pass has two
products for each one of the forward pass, so training costs three times the forward pass;
recomputation is not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from weft.kernels.attend.parts import AttendOptions
from weft.kernels.planner.context import replaced
from weft.models import Electra, EncoderDecoder, Matcher
from weft.patterns import Pattern
from weft.patterns.derive import visible_pairs

TRAINING = 3  # forward and backward, in forward passes


def flops_per_token(config: Any, length: int) -> float:
    """Of training, forward and backward, for one token of a sequence of full length."""
    documents = 2 if isinstance(config, Matcher) or _two_sided(config) else 1
    return TRAINING * forward_flops(config, length) / (documents * length)


def forward_flops(config: Any, length: int) -> int:
    """Of one forward pass over one sequence; of a matcher or a two-sided model over one pair."""
    try:
        return _counted(config, length, "meta")
    except Exception:  # a mechanism that looks at numbers cannot run without any
        return _counted(config, length, "cpu")


def _counted(config: Any, length: int, device: str) -> int:
    with torch.device(device):
        # Without gradients: torch's counter cannot follow a module that returns its own parameter.
        model = config.build().eval().requires_grad_(False)
        one = one_sequence(config, length)
    pairs = 0

    def counting(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, options: AttendOptions) -> Any:
        nonlocal pairs
        pairs += pattern_flops(pattern, q.shape, v.shape)
        out = q.new_zeros(*q.shape[:3], v.shape[3])
        return (out, q.new_zeros(q.shape[:3])) if options.lse else out

    counter = FlopCounterMode(display=False, custom_mapping=_FURTHER)
    with replaced(counting), torch.no_grad(), counter:
        run_once(model, config, one)
    return counter.get_total_flops() + pairs


def pattern_flops(pattern: Pattern, q: tuple[int, ...], v: tuple[int, ...]) -> int:
    """Queries (b, h, n, d) and values (b, g, m, e): 2·(d + e) for each visible pair."""
    (batch, heads, n, d), (m, e) = q, v[2:]
    if n != m:  # only full() reads another sequence, or from some rows
        return batch * heads * n * m * 2 * (d + e)
    each = Counter(pattern.head(a, heads) for a in range(heads))
    pairs = sum(count * visible_pairs(own, n) for own, count in each.items())
    return batch * pairs * 2 * (d + e)


def parameters(config: Any) -> int:
    """Trained numbers of a model; those that layers share count once."""
    model = without_numbers(config)
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def without_numbers(config: Any) -> nn.Module:
    """The module that a config builds, without memory for its weights where that is possible."""
    try:
        with torch.device("meta"):
            return config.build()
    except Exception:  # a mechanism that looks at numbers cannot be built without any
        return config.build()


def one_sequence(config: Any, length: int) -> Tensor:
    """Zeros that a model of this config takes: ids (1, n), or numbers (1, n, channels)."""
    channels = config.trunk.embedding.channels
    if channels is None:
        return torch.zeros(1, length, dtype=torch.long)
    return torch.zeros(1, length, channels)


def _two_sided(config: Any) -> bool:
    return isinstance(getattr(config, "trunk", None), EncoderDecoder)


def run_once(model: Any, config: Any, one: Tensor) -> Any:
    """A forward pass over rows; of a matcher or a two-sided model over pairs of the same."""
    if isinstance(config, Electra):  # its generator runs besides
        return model(one), model.fill(one)
    if isinstance(config, Matcher):
        return model(one, one)
    return model(one, source=one) if _two_sided(config) else model(one)


def _attention(q: Any, k: Any, v: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    batch, heads, n, d = q
    return 2 * batch * heads * n * k[2] * (d + v[3])


def _fourier(x: Any, dims: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    points = math.prod(x[dim] for dim in dims)
    return round(5 * math.prod(x) * math.log2(max(points, 1)))


def _real_fourier(x: Any, dims: Any, *_: Any, **__: Any) -> int:
    return _fourier(x, dims) // 2


_FURTHER = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._fft_c2c: _fourier,
    torch.ops.aten._fft_r2c: _real_fourier,
}
