"""Longformer, and the encoder of LED: the window and the leading global tokens in one pass.

Global tokens read everything by matrices of their own. Few of them need no keys and values of all
tokens: for a global query q, with the matrices W_k and W_v of a head,

    q · (W_k x_j + b_k)     =  (W_kᵀ q) · x_j + q · b_k
    Σ_j p_j (W_v x_j + b_v) =  W_v (Σ_j p_j x_j) + b_v Σ_j p_j

Global tokens that do not lead their rows take weft's mixer, which merges window and globals.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.interop.hf.twins.lean import BartLayerTwin, EncoderTwin, Twin
from weft.interop.hf.twins.registry import (
    Family,
    Pass,
    bert_like,
    forward_by,
    noted,
    refuse_maps,
    register,
)
from weft.kernels.attend.api import attend
from weft.layers.projections.dense import join_heads, side_by_side, split_heads
from weft.mixers import Frame, Longformer
from weft.patterns import Full, Keys, Pattern, Sliding


class Marks(NamedTuple):
    """What one pass has: padding, and how many leading tokens are global (None: others are)."""

    padded: bool
    leading: int | None


class WindowTwin(Twin):
    """The forward of Longformer's attention, by weft, over the matrices of one module."""

    def __init__(self, theirs: Any, shared: Pass) -> None:
        self.theirs, self.shared = theirs, shared
        window: int = theirs.one_sided_attn_window_size + 1
        config = Longformer(window=window, global_first=0)
        frame = Frame(dim=theirs.embed_dim, heads=theirs.num_heads, dropout=theirs.dropout)
        self.window = Sliding(window)
        self.mixer = config.build(frame)
        project: Any = self.mixer.project
        project.to_q, project.to_k, project.to_v = theirs.query, theirs.key, theirs.value
        project.to_out = nn.Identity()  # theirs follows outside
        self.mixer.to_q_global = theirs.query_global
        self.mixer.to_k_global = theirs.key_global
        self.mixer.to_v_global = theirs.value_global

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        is_index_masked: Tensor | None = None,
        is_index_global_attn: Tensor | None = None,
        is_global_attn: bool | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, ...]:
        """(b, n, c) -> (b, n, c), in a tuple, as Transformers' modules return it."""
        refuse_maps(output_attentions)
        marks = Marks(False, 0)
        if is_index_masked is not None:
            given = is_index_global_attn if is_global_attn else None
            marks = self.shared.once(is_index_masked, lambda: _marks(is_index_masked, given))
        valid = ~is_index_masked if marks.padded and is_index_masked is not None else None
        if marks.leading is None:
            self.mixer.train(self.theirs.training)
            return (self.mixer(hidden_states, valid=valid, is_global=is_index_global_attn),)
        return (self._leading(hidden_states, valid, marks.leading),)

    def _leading(self, x: Tensor, valid: Tensor | None, count: int) -> Tensor:
        """The first `count` tokens of each row are global."""
        theirs = self.theirs
        maps = (theirs.query, theirs.key, theirs.value)
        q, k, v = (split_heads(y, theirs.num_heads) for y in side_by_side(x, maps))
        drop = theirs.dropout if theirs.training else 0.0
        pattern: Pattern = self.window | Keys(first=count) if count else self.window
        out = attend(q, k, v, pattern, valid=valid, dropout=drop)
        rows = _global_rows(theirs, x, valid, count, drop) if count else None
        stored, first = out.detach(), None if rows is None else rows.detach()
        joined = _finish(out, rows, valid)
        return self.shared.notes.note(joined, lambda: _finish(stored, first, valid))


def _marks(masked: Tensor, is_global: Tensor | None) -> Marks:
    """One wait for the device."""
    n = masked.shape[1]
    if is_global is None:
        return Marks(bool(masked.any()), 0)
    counts = is_global.sum(1)  # (b,)
    first = torch.arange(n, device=masked.device) < counts.max()
    plain = (is_global == first).all()
    padded, most, leads = torch.stack((masked.any(), counts.max(), plain)).tolist()
    return Marks(bool(padded), int(most) if leads else None)


def _finish(out: Tensor, rows: Tensor | None, valid: Tensor | None) -> Tensor:
    """(b, h, n, d) and global rows (b, g, c) -> (b, n, c), 0 where padded."""
    joined = join_heads(out)
    if rows is not None:
        joined = torch.cat((rows, joined[:, rows.shape[1] :]), dim=1)
    return joined if valid is None else joined * valid[..., None]


def _global_rows(theirs: Any, x: Tensor, valid: Tensor | None, count: int, drop: float) -> Tensor:
    """What the first `count` tokens read of all tokens: (b, n, c) -> (b, count, c)."""
    h, d = theirs.num_heads, theirs.head_dim
    to_q, to_k, to_v = theirs.query_global, theirs.key_global, theirs.value_global
    q = split_heads(to_q(x[:, :count]), h)  # (b, h, g, d)
    if count * h > x.shape[2]:
        k, v = (split_heads(y, h) for y in side_by_side(x, (to_k, to_v)))
        return join_heads(attend(q, k, v, Full(), valid=valid, dropout=drop))
    q = q * d**-0.5
    w_k, w_v = (each.weight.unflatten(0, (h, d)) for each in (to_k, to_v))  # (h, d, c)
    asked = torch.einsum("bhgd,hdc->bhgc", q, w_k).flatten(1, 2)  # (b, h·g, c)
    added = torch.einsum("bhgd,hd->bhg", q, to_k.bias.unflatten(0, (h, d)))
    scores = asked @ x.transpose(1, 2) + added.flatten(1)[..., None]  # (b, h·g, n)
    scores = scores.float()
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None], torch.finfo(scores.dtype).min)
    weights = F.dropout(scores.softmax(-1).to(x.dtype), drop)
    read = (weights @ x).unflatten(1, (h, count))  # (b, h, g, c)
    out = torch.einsum("bhgc,hdc->bhgd", read, w_v)
    total = weights.sum(-1).unflatten(1, (h, count))  # 1, but for dropout
    out = out + total[..., None] * to_v.bias.unflatten(0, (h, 1, d))
    return join_heads(out)


ATTENTION = forward_by(WindowTwin)
register(
    "longformer",
    Family(
        ("Longformer",),
        {"LongformerSelfAttention": ATTENTION},
        around=bert_like("Longformer", "ff_chunk"),
    ),
)
register(
    "led",
    Family(
        ("LED",),
        {"LEDEncoderSelfAttention": ATTENTION},
        around={"LEDEncoderLayer": noted(BartLayerTwin), "LEDEncoder": noted(EncoderTwin)},
    ),
)
