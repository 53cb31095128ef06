"""Learned positions tiled: position p of the long table is position p mod n of the short one.

Longformer (Beltagy et al. 2020, section 5) starts so: local windows then look as they did, except
where two tiles meet.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from weft.errors import Unsupported, WeftError


def position_table(model: PreTrainedModel) -> tuple[nn.Module, str] | None:
    """The module that holds a learned table of positions, and the table's name; None: none."""
    for module in model.modules():
        for name in ("position_embeddings", "wpe"):
            if isinstance(getattr(module, name, None), nn.Embedding):
                return module, name
    return None


def trained_length(model: PreTrainedModel) -> int:
    """How many positions a model was made for."""
    config: Any = model.config.get_text_config()
    if (found := position_table(model)) is not None:
        table: Any = getattr(*found)
        return int(table.num_embeddings) - _offset(table)
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int) or length < 1:
        raise Unsupported(
            f"the config of {type(model).__name__} does not say how many positions it was trained "
            "for (max_position_embeddings), so there is nothing to lengthen"
        )
    return length


def tile_positions(model: PreTrainedModel, length: int) -> None:
    """Repeat the table of positions up to `length`, in place."""
    found = position_table(model)
    if found is None:
        raise Unsupported(f"{type(model).__name__} has no learned table of positions")
    owner, name = found
    old: Any = getattr(owner, name)
    offset = _offset(old)
    rows = old.weight.data[offset:]  # (n, c)
    if length < len(rows):
        raise WeftError(f"the model has {len(rows)} positions; got a length of {length}")
    order = torch.arange(length, device=rows.device) % len(rows)
    weight = torch.cat((old.weight.data[:offset], rows[order]))
    new = nn.Embedding(*weight.shape, padding_idx=old.padding_idx, _weight=weight)
    new.weight.requires_grad_(old.weight.requires_grad)
    setattr(owner, name, new)
    _lengthen_buffers(owner, offset + length)
    model.config.max_position_embeddings = offset + length


def _offset(table: nn.Embedding) -> int:
    """RoBERTa and MPNet count positions from the one after padding."""
    return 0 if table.padding_idx is None else table.padding_idx + 1


def _lengthen_buffers(owner: nn.Module, size: int) -> None:
    """Position numbers and zeros of types that modules keep ready."""
    ids, types = getattr(owner, "position_ids", None), getattr(owner, "token_type_ids", None)
    if isinstance(ids, Tensor):
        owner.register_buffer("position_ids", torch.arange(size, device=ids.device)[None], False)
    if isinstance(types, Tensor):
        owner.register_buffer("token_type_ids", types.new_zeros(1, size), False)
