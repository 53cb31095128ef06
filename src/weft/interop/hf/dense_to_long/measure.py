"""What is measured of a model before and after it is made long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from weft.errors import WeftError
from weft.files import replacing
from weft.interop.hf.dense_to_long.losses import TokenLosses, loss_by_position
from weft.interop.hf.dense_to_long.text import Ends

_SHORT = 128  # tokens of a short text, at most
_TEXTS = 16  # short texts whose vectors are compared, at most

Tensors = dict[str, Tensor]


def measured(
    model: PreTrainedModel,
    held: Tensor,
    losses: TokenLosses | None,
    ends: Ends,
    short: int,
    lengths: Mapping[str, int | None],
) -> Tensors:
    """Losses by position for each way of reading (a piece's length), and vectors of short texts."""
    found = {"short": text_vectors(model, held, ends, short)}
    if losses is not None:
        for name, chunk in lengths.items():
            found[name] = loss_by_position(model, held, losses, chunk, ends)
    return found


@torch.no_grad()
def text_vectors(model: PreTrainedModel, held: Tensor, ends: Ends, short: int) -> Tensor:
    """Mean hidden units of pieces of `short` tokens: (texts, c)."""
    model.eval()
    body: Any = model.base_model
    size = max(1, short - ends.count)
    pieces = [piece for row in held for piece in row[ends.inside(row)].split(size)]
    step = max(1, len(pieces) // _TEXTS)
    found = []
    for piece in [piece for piece in pieces if len(piece) == size][::step][:_TEXTS]:
        ids = ends.around(piece)[None].long().to(model.device)
        found.append(body(input_ids=ids).last_hidden_state[0].float().mean(0).cpu())
    return torch.stack(found)


def short_length(trained: int, length: int) -> int:
    """Tokens of a short text: well inside what the model was trained for."""
    return max(2, min(_SHORT, trained // 2, length))


def cosines(before: Tensor, after: Tensor) -> Tensor:
    """Of the vectors (t, c) of short texts: (t,)."""
    return F.cosine_similarity(before, after, dim=1)


def stage(folder: Path, name: str, make: Callable[[], Tensors]) -> Tensors:
    """What a stage found; one that was done before a kill is read, not done again."""
    path = folder / f"{name}.safetensors"
    if path.is_file():
        try:
            return load_file(path)
        except SafetensorError as cause:
            raise WeftError(f"{path} cannot be read; remove it and run again: {cause}") from cause
    found = {key: value.contiguous() for key, value in make().items()}
    with replacing(path) as scratch:
        save_file(found, scratch)
    return found
