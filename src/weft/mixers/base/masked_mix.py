"""Attention under masks that are given at run time and differ from row to row.

    out_i = Σ_j softmax_j(s_ij) v_j   over the j with seen_ij, as far as the mixer's pattern agrees

Training on permutations of a text (`weft.objectives.permuted_lm`, `mpnet`) needs it: who may read
whom is drawn for every row, and the order of the tensor is not that of the text, so
positions are given too. Scores, projections and positions are the mixer's own.

Which mixers can: softmax attention under a pattern of places (`full`, `sliding_window`, ...) with
any of the position schemes but rope2d, and `transformer_xl` both ways, whose relative positions are
XLNet's. Others compress keys, sort tokens or scan them: what a token reads is then not a set of
pairs that a mask could restrict, and they refuse.

Time O(n² c), memory O(h n²): dense, for the few hundred tokens of such training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.errors import Unsupported
from weft.kernels.attend.bias import dense_bias
from weft.kernels.dense.reference import dense_attention
from weft.layers.positions import PositionScheme, Rotary2d
from weft.mixers.base import AttentionMixer, Mixer
from weft.mixers.base.relative import RelativeAttention
from weft.mixers.base.under_pattern import PatternAttention

_NOT_PAIRS = "it is not bidirectional attention over freely chosen pairs of tokens"


def masked_mix(mixer: Mixer, x: Tensor, seen: Tensor, places: Tensor) -> Tensor:
    """x (b, n, c) at places (b, n), token i reads token j where seen (b, n, n) -> (b, n, c)."""
    mixer = check_masked(mixer)
    q, k, v = mixer.project.qkv(x)  # (b, h, n, d), (b, g, n, d) twice
    if isinstance(mixer, RelativeAttention):
        bias = by_place(mixer, q, places)
        q, allowed = q + mixer.content_bias[:, None], seen[:, None]
    else:
        q, k = (turned(mixer.positions, side, places) for side in (q, k))
        i, j = places[:, :, None], places[:, None, :]  # (b, n, 1), (b, 1, n)
        bias = None
        if mixer.positions.biased:
            bias = dense_bias(mixer.positions.at, q.shape[1], i, j).transpose(0, 1)  # (b, h, n, n)
        each = [mixer.pattern.head(a, q.shape[1]) for a in range(q.shape[1])]
        inside = {pattern: pattern.sees(i, j) & seen for pattern in dict.fromkeys(each)}
        allowed = torch.stack([inside[pattern] for pattern in each], dim=1)  # (b, h, n, n)
    out, _ = dense_attention(q, k, v, mask=allowed, bias=bias, dropout=mixer.dropout)
    return mixer.project.out(out)


def check_masked(mixer: Mixer) -> PatternAttention | RelativeAttention:
    """The mixer, refused unless it is attention over pairs of tokens and nothing else."""
    if (
        mixer.frame.causal
        or not isinstance(mixer, PatternAttention | RelativeAttention)
        or not _over_pairs(mixer)
    ):
        reason = _NOT_PAIRS
    elif mixer.project.memory_size:
        reason = "its projections read neighbours too"
    elif isinstance(mixer, PatternAttention) and mixer.pattern.needs_length:
        reason = "its pattern depends on the length of the sequence"
    elif isinstance(mixer.positions, Rotary2d):
        reason = "rope2d places whole pictures; use another position scheme"
    else:
        return mixer
    raise Unsupported(
        f"{mixer.config} cannot read under masks of pairs: {reason}. Patterns over positions can "
        "(full, sliding_window, block_local, ...), and so can transformer_xl"
    )


def _over_pairs(mixer: PatternAttention | RelativeAttention) -> bool:
    if isinstance(mixer, RelativeAttention):
        return mixer.config.traits.exact
    kind = type(mixer)
    return (kind.mix, kind.attention) == (AttentionMixer.mix, PatternAttention.attention)


def turned(positions: PositionScheme, x: Tensor, places: Tensor) -> Tensor:
    """x (b, h, n, d), rotated by places (b, n)."""
    flat = x.transpose(0, 1).flatten(1, 2)[None]  # (1, h, b·n, d)
    return positions.rotate(flat, places.flatten())[0].unflatten(1, places.shape).transpose(0, 1)


def by_place(mixer: RelativeAttention, q: Tensor, places: Tensor) -> Tensor:
    """What relative positions add to the scores of q (b, h, n, d): (b, h, n, n)."""
    n, d = q.shape[2:]
    furthest = n - 1
    distance = torch.arange(-furthest, furthest + 1, device=q.device)  # (p,)
    scores = mixer.by_distance(q + mixer.distance_bias[:, None], distance)  # (b, h, n, p)
    index = places[:, :, None] - places[:, None, :] + furthest  # (b, n, n)
    return scores.gather(-1, index[:, None].expand(-1, q.shape[1], -1, -1)) * d**-0.5
