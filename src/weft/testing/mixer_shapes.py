"""Shape comments of a mixer hold while it runs: forward, backward, padded, crossing, decoding."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from weft.mixers.base import Frame
from weft.testing.cases import frames, lengths_mask, refusal, tokens
from weft.testing.shapes import ShapeTrace, checked_shapes

# Sizes that differ from each other, so that one letter cannot pass for another.
SIZES = {"dim": 20, "heads": 4, "head_dim": 6}


def check_shapes(config: Any, *, files: Iterable[Path | str] | None = None) -> None:
    """No shape comment is wrong, in the files of the config and its module or in those given."""
    trace = traced(config, files)
    assert not trace.problems, f"{config}: " + "\n".join(dict.fromkeys(trace.problems))


def traced(config: Any, files: Iterable[Path | str] | None = None) -> ShapeTrace:
    """What the comments say while the mixer runs in every frame that it takes."""
    chosen = [*frames(config, **SIZES), *frames(config, **SIZES, kv_heads=2)]
    able = [frame for frame in chosen if refusal(config, frame) is None]
    assert able, f"{config}: no frame to run in"
    if files is None:
        files = {file for one in (config, config.build(able[0])) for file in _source(type(one))}
    with checked_shapes(files) as trace:
        for frame in able:
            _exercise(config, frame)
    return trace


def _source(kind: type[Any]) -> list[str]:
    """The file that defines a class; none where it was typed into a session."""
    try:
        file = inspect.getfile(kind)
    except (TypeError, OSError):
        return []
    return [file] if Path(file).is_file() else []


def _exercise(config: Any, frame: Frame) -> None:
    mixer = config.build(frame)
    x = tokens(3, 23, frame.dim, dtype=torch.float32).requires_grad_()
    mixer(x).sum().backward()
    mixer(x, valid=lengths_mask([23, 9, 0], 23)).sum().backward()
    if config.traits.cross and not frame.causal:
        context = tokens(3, 11, frame.dim, dtype=torch.float32)
        mixer(x, context=context, context_valid=lengths_mask([11, 5, 2], 11))
    if config.traits.state is not None and frame.causal:
        _, state = mixer.step(x[:, :13], mixer.start(3))
        mixer.step(x[:, 13:14], state)
