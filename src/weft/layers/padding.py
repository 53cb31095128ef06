"""Padding, handled once: any pattern of padding becomes padding on the right, and back.

A mechanism that measures distance by index would see padding inside a sequence as distance. So
real tokens move to the front of their row (in order), the mechanism runs, and results move back:
padding left, right or inside changes nothing.

Which tokens are real is said by `valid`, or by the `attention_mask` of other libraries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.errors import WeftError


def left_align(x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(b, n, ...), (b, n) -> x with real tokens first, its validity, and the order (b, n) taken."""
    order = (~valid).to(torch.uint8).argsort(dim=1, stable=True)  # (b, n)
    return take(x, order), valid.gather(1, order), order


def zero_padding(x: Tensor, valid: Tensor | None) -> Tensor:
    """x (b, n, c) with 0 where a token is not real: 0 times a NaN in padding would be one."""
    return x if valid is None else x.masked_fill(~valid[..., None], 0.0)


def restore(y: Tensor, order: Tensor, valid: Tensor) -> Tensor:
    """Undo `left_align`; padded positions become 0."""
    return take(y, order.argsort(dim=1)).masked_fill(~valid[..., None], 0.0)  # (b, n, c)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Places of x (b, n) or (b, n, c) at index (b, m): (b, m) or (b, m, c)."""
    return x.gather(1, index if x.dim() == 2 else index[..., None].expand(-1, -1, x.shape[-1]))


def real_tokens(x: Tensor, valid: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
    """`valid`, or the same from a mask (b, n) of a tokenizer: 1 or True where a token is real."""
    if attention_mask is None:
        return valid
    if valid is not None:
        raise WeftError("valid and attention_mask both say which tokens are real; give one of them")
    shape = tuple(x.shape[:2])
    if not isinstance(attention_mask, Tensor) or attention_mask.shape != shape:
        got = tuple(getattr(attention_mask, "shape", ())) or attention_mask
        raise WeftError(
            f"attention_mask is a tensor (batch, length) = {shape}, 1 where a token is real; got "
            f"{got}. Which token reads which is said by a pattern, such as Causal() & Sliding(512)"
        )
    if attention_mask.dtype == torch.bool:
        return attention_mask
    _check_zeros_and_ones(attention_mask)
    return attention_mask != 0


def refuse_mask(attention_mask: Tensor | None, instead: str) -> None:
    """A module that reads two sequences cannot know which of them a mask describes."""
    if attention_mask is not None:
        raise WeftError(
            "this model reads two sequences, and attention_mask does not say which it describes; "
            f"give {instead}, booleans (b, n) that are True at real tokens: mask.bool()"
        )


def _check_zeros_and_ones(mask: Tensor) -> None:
    # A value cannot be read while a graph is traced or captured.
    if torch.compiler.is_compiling() or (mask.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    if not ((mask == 0) | (mask == 1)).all():
        raise WeftError(
            "attention_mask is 1 where a token is real and 0 at padding; got values from "
            f"{mask.min().item()} to {mask.max().item()}. A mask that is added to scores, 0 where "
            "a token is real, becomes one by mask == 0"
        )
