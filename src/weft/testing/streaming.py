"""Checks of decoding: any split of the tokens equals `forward`; the state is as small as said."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from weft.mixers.base import Frame, Mixer, State
from weft.testing import cases
from weft.testing.cases import DIM, describe
from weft.testing.tolerance import assert_close, assert_finite


def check_streaming(config: Any, *, length: int = 67, device: str = "cpu") -> None:
    """One by one, all at once and in random pieces, `step` gives what `forward` gives."""
    for frame in cases.frames(config, causal=True):
        mixer = cases.build(config, frame, device=device)
        x = cases.tokens(2, length, DIM, device=device)
        with torch.no_grad():
            whole = mixer(x)
            for pieces in splits(length):
                _compare_pieces(mixer, x, pieces, whole)
            _check_two_streams(mixer, x, whole)
            _check_select(mixer, x, whole)
        _check_half_steps(config, frame, device)
    for frame in cases.framings(config, causal=True):
        mixer = cases.build(config, frame, device=device)
        x = cases.tokens(2, length, DIM, device=device)
        with torch.no_grad():
            _compare_pieces(
                mixer, x, [length // 2, 1, 1, 1, 20, length - length // 2 - 23], mixer(x)
            )


def check_state_size(config: Any, *, length: int = 45, device: str = "cpu") -> None:
    """`state_size(t)` is what the state holds after t tokens; no larger storage hides behind.

    Counted in numbers per batch row, after each single token and after longer pieces.
    """
    for frame in (*cases.frames(config, causal=True), *cases.framings(config, causal=True)):
        mixer = cases.build(config, frame, torch.float32, device)
        x = cases.tokens(2, length, DIM, dtype=torch.float32, device=device)
        state = mixer.start(2)
        _same_size(mixer, state, 0)
        with torch.no_grad():
            for pieces in ([7, 1, 20], [length]):
                _, state = feed(mixer, x, pieces)
                _same_size(mixer, state, sum(pieces))
            if frame.positions is not None:
                continue
            state = mixer.start(2)
            for t in range(length):
                _, state = mixer.step(x[:, t : t + 1], state)
                _same_size(mixer, state, t + 1)
            _no_hidden_storage(mixer, state, length)


def splits(length: int) -> list[list[int]]:
    """Ways to cut a sequence: into ones, not at all, a prompt and then ones, two at random."""
    prompt = length // 2
    found = [[1] * length, [length], [prompt, *[1] * (length - prompt)]]
    draw = random.Random(length)
    for largest in (5, 30):
        pieces: list[int] = []
        while sum(pieces) < length:
            pieces.append(min(draw.randint(1, largest), length - sum(pieces)))
        found.append(pieces)
    return found


def feed(mixer: Mixer, x: Tensor, pieces: list[int]) -> tuple[Tensor, State]:
    """Give x to `step` piece by piece: the outputs joined, and the last state."""
    state, outputs, at = mixer.start(len(x)), [], 0
    for size in pieces:
        y, state = mixer.step(x[:, at : at + size], state)
        outputs.append(y)
        at += size
    return torch.cat(outputs, dim=1), state


def _compare_pieces(mixer: Mixer, x: Tensor, pieces: list[int], whole: Tensor) -> None:
    length = x.shape[1]
    what = describe(mixer.config, mixer.frame, f"n={length} in pieces {_short(pieces)}")
    y, state = feed(mixer, x, pieces)
    assert_close(y, whole, f"{what}: step and forward")
    assert state.position == length, (
        f"{what}: the state counts {state.position} tokens, {length} were given"
    )


def _check_two_streams(mixer: Mixer, x: Tensor, whole: Tensor) -> None:
    """Two streams in turns: a state is the state, nothing else is."""
    states, outputs = [mixer.start(1), mixer.start(1)], [[], []]
    for t in range(0, x.shape[1], 3):
        for row in range(2):
            y, states[row] = mixer.step(x[row : row + 1, t : t + 3], states[row])
            outputs[row].append(y)
    joined = torch.cat([torch.cat(pieces, dim=1) for pieces in outputs])
    what = describe(mixer.config, mixer.frame, "two streams in turns")
    assert_close(joined, whole, f"{what}: step and forward")


def _check_select(mixer: Mixer, x: Tensor, whole: Tensor) -> None:
    """`State.select` moves everything a row remembers."""
    half = x.shape[1] // 2
    rows = torch.tensor([1, 0, 1], device=x.device)
    _, state = feed(mixer, x[:, :half], [half])
    y, _ = mixer.step(x[rows, half:], state.select(rows))
    what = describe(mixer.config, mixer.frame, "rows reordered by State.select")
    assert_close(y, whole[rows, half:], what)


def _check_half_steps(config: Any, frame: Frame, device: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        mixer = cases.build(config, frame, dtype, device)
        with torch.no_grad():
            x = cases.tokens(2, 20, DIM, dtype=dtype, device=device)
            y, _ = feed(mixer, x, [9, *[1] * 11])
        what = describe(config, frame, f"steps in {dtype}")
        assert y.dtype == dtype, f"{what}: the output is {y.dtype}"
        assert_finite(y, what)


def _same_size(mixer: Mixer, state: State, count: int) -> None:
    declared, held = mixer.state_size(count), state.size()
    assert held == declared, (
        f"{describe(mixer.config, mixer.frame)}: after {count} tokens the state holds {held} "
        f"numbers per row, state_size says {declared}"
    )


def _no_hidden_storage(mixer: Mixer, state: State, count: int) -> None:
    tensors = state.tensors().values()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    seen = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert sum(storages.values()) <= 2 * seen + 4096, (
        f"{describe(mixer.config, mixer.frame)}: after {count} tokens the state shows {seen} bytes "
        f"but keeps {sum(storages.values())} alive; copy the part that is needed"
    )


def _short(pieces: list[int]) -> str:
    return str(pieces) if len(pieces) < 8 else f"[{', '.join(map(str, pieces[:6]))}, ...]"
