"""How many bytes a step has to read, and the least time that takes.

    bytes = weights of every layer once + output layer once + rows · (cache + chosen rows)
    floor = bytes / read bandwidth

Of a sparse feed-forward the controller is read whole, and of its two matrices one row in `block`
for each batch row, up to all of them. Scales of int8 rows (4 bytes a row) are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from weft.feedforward.sparse import SparseFeedForward

SIZES = {"float32": 4, "bfloat16": 2, "int8": 1}
BUFFER = 1 << 29  # bytes: far more than any cache holds


def numbers(model: Any, context: int, batch: int = 1) -> dict[str, int]:
    """Numbers read in a step of `batch` rows with `context` tokens in the cache, by part.

    `layers` are the weights of all sublayers, `feedforward` those of feed-forwards among them.
    """
    sublayers = model.trunk.stack.sublayers
    layers = sum(_read(sublayer, batch) for sublayer in sublayers)
    fed = sum(_read(sublayer, batch) for sublayer in sublayers if sublayer.letter == "f")
    own = {parameter.data_ptr(): parameter for parameter in model.output.parameters()}
    if model.config.tied:
        table = model.trunk.embedding.table
        own[table.data_ptr()] = table
    output = sum(parameter.numel() for parameter in own.values())
    cache = batch * model.state_size(context)
    return {"layers": layers, "feedforward": fed, "output": output, "cache": cache}


def step_bytes(
    read: dict[str, int], *, weights: str, cache: str, output: str, times: float = 1.0
) -> int:
    """Bytes of a step; `times` multiplies layers and cache, where only some layers are built."""
    repeated = read["layers"] * SIZES[weights] + read["cache"] * SIZES[cache]
    return round(repeated * times) + read["output"] * SIZES[output]


def _read(sublayer: nn.Module, batch: int) -> int:
    total = sum(parameter.numel() for parameter in sublayer.parameters())
    for body in sublayer.modules():
        if isinstance(body, SparseFeedForward):
            both = body.to_hidden.weight.numel() + body.to_out.weight.numel()
            block = body.config.block
            total -= both - both * min(batch, block) // block
    return total


def reading(size: int) -> Callable[[], object]:
    """A function that reads `size` bytes, by the native library where it runs, else by torch."""
    buffer = torch.ones(size // 4)
    return _native_reader(buffer) or _torch_reader(buffer)


def _native_reader(buffer: torch.Tensor) -> Callable[[], object] | None:
    from weft.native.library import available, call

    if available() is not None:
        return None
    return lambda: call("read", buffer.data_ptr(), buffer.numel())


def _torch_reader(buffer: torch.Tensor) -> Callable[[], object]:
    # A matrix-vector product: torch's kernel with the highest read bandwidth.
    matrix, vector = buffer.view(-1, 4096), torch.ones(4096)
    return lambda: matrix @ vector
