"""Checks against the plain equation: values, gradients, cross-attention, precisions, lengths.

The truth is `mixer.reference`, which every mechanism writes from its paper's equation. In fp64 the
two must agree to rounding; in lower precision within a budget that the equation itself sets.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.mixers.base import Mixer
from weft.testing import cases
from weft.testing.cases import DIM, describe
from weft.testing.tolerance import (
    assert_close,
    assert_finite,
    assert_identical,
    assert_within_rounding,
)

LENGTHS = (1, 2, 7, 64, 129)
EVERY_LENGTH = (*LENGTHS, 1000)


def check_reference(config: Any, *, lengths: Sequence[int] = LENGTHS, device: str = "cpu") -> None:
    """`forward` is the function that `reference` writes down, at any length, padded or not.

    Grouped keys and position schemes are included wherever the mechanism takes them.
    """
    for frame in cases.frames(config):
        mixer = cases.build(config, frame, device=device)
        for n in lengths:
            compare_forward(mixer, n, device)
        _compare_rounding(mixer, torch.float32, device)
    for frame in cases.framings(config):
        mixer = cases.build(config, frame, device=device)
        compare_forward(mixer, 37, device)


def check_gradients(config: Any, *, length: int = 37, device: str = "cpu") -> None:
    """Gradients of the input and of every parameter are those of the reference."""
    for frame in (*cases.frames(config), *cases.framings(config)):
        compare_gradients(cases.build(config, frame, device=device), length, device)


def check_cross(config: Any, *, device: str = "cpu") -> None:
    """A context of another length: equal to the reference, and its padding changes nothing."""
    for frame in cases.frames(config, causal=False):
        mixer = cases.build(config, frame, device=device)
        for n, m in ((17, 1), (5, 40), (17, 17), (1, 7)):
            what = describe(config, frame, f"n={n}, m={m}")
            x = cases.tokens(3, n, DIM, device=device)
            context = cases.tokens(3, m, DIM, device=device, seed=1)
            y = mixer(x, context=context)
            assert_close(y, mixer.reference(x, None, context), f"{what}: forward and reference")
        for n in (11, 23):  # shorter than the context, and as long
            _compare_context_padding(mixer, n, device)


def check_first_rows(config: Any, *, length: int = 67, device: str = "cpu") -> None:
    """`first_rows` equals the first rows of `forward`; aligned rows need not move."""
    for frame in (*cases.frames(config), *cases.framings(config)):
        mixer = cases.build(config, frame, device=device)
        x = cases.tokens(3, length, DIM, device=device)
        padded = cases.lengths_mask([length, (length + 1) // 2, 9], length, device)
        for valid in (None, padded):
            what = describe(config, frame, f"n={length}{'' if valid is None else ', padded'}")
            whole = mixer(x, valid=valid)
            assert_close(mixer(x, valid=valid, aligned=True), whole, f"{what}: aligned")
            for count in (1, 2, 9):
                first = mixer.first_rows(x, count, valid)
                assert_close(first, whole[:, :count], f"{what}: first rows {count} and forward")


def check_lengths(
    config: Any, *, lengths: Sequence[int] = EVERY_LENGTH, device: str = "cpu"
) -> None:
    """Every length works, forward and backward: no rule of divisibility, no least length."""
    for frame in cases.frames(config, length=max(lengths)):
        mixer = cases.build(config, frame, torch.float32, device)
        for n in lengths:
            what = describe(config, frame, f"n={n}")
            x = cases.tokens(1, n, DIM, dtype=torch.float32, device=device).requires_grad_()
            try:
                y = mixer(x)
            except Exception as error:
                raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
            assert y.shape == x.shape, f"{what}: {tuple(x.shape)} became {tuple(y.shape)}"
            assert_finite(y, what)
            (gradient,) = torch.autograd.grad(y.square().sum(), x)
            assert_finite(gradient, f"{what}: gradient")


def check_half_precision(config: Any, *, device: str = "cpu") -> None:
    """fp16 and bf16 stay finite on large inputs and empty rows, and err as rounding does."""
    for frame in cases.frames(config):
        for dtype in (torch.float16, torch.bfloat16):
            mixer = cases.build(config, frame, dtype, device)
            x = cases.tokens(3, 40, DIM, dtype=dtype, device=device)
            valid = cases.lengths_mask([40, 9, 0], 40, device)
            for scale in (1, 8):
                y = mixer(x * scale, valid=valid)
                what = describe(config, frame, f"{dtype}, inputs of size {scale}")
                assert y.dtype == dtype, f"{what}: the output is {y.dtype}"
                assert_finite(y, what)
            gradients = gradients_of(mixer, x, mixer(x.requires_grad_(), valid=valid), x.detach())
            for name, gradient in gradients.items():
                if gradient is not None:
                    assert_finite(gradient, describe(config, frame, f"{dtype}, gradient of {name}"))
            _compare_rounding(mixer, dtype, device)
    for frame in cases.framings(config):
        for dtype in (torch.float16, torch.bfloat16):
            _compare_rounding(cases.build(config, frame, dtype, device), dtype, device)


def compare_forward(mixer: Mixer, n: int, device: str = "cpu") -> None:
    """`forward` and `reference` at n tokens, without padding and with it."""
    x = cases.tokens(3, n, mixer.frame.dim, device=device)
    what = describe(mixer.config, mixer.frame, f"n={n}")
    with torch.no_grad():
        assert_close(mixer(x), mixer.reference(x), f"{what}: forward and reference")
        valid = cases.lengths_mask(_some_lengths(n), n, device)
        ours, truth = mixer(x, valid=valid), mixer.reference(x, valid)
    assert_close(ours[valid], truth[valid], f"{what}, padded: forward and reference")


def compare_gradients(mixer: Mixer, n: int, device: str = "cpu") -> None:
    """Gradients through `forward` and through `reference` at n tokens, padded."""
    x = cases.tokens(3, n, mixer.frame.dim, device=device).requires_grad_()
    valid = cases.lengths_mask(_some_lengths(n), n, device)
    wanted = cases.tokens(*x.shape, device=device, seed=1) * valid[..., None]
    ours = gradients_of(mixer, x, mixer(x, valid=valid), wanted)
    truth = gradients_of(mixer, x, mixer.reference(x, valid), wanted)
    for name, gradient in ours.items():
        what = describe(mixer.config, mixer.frame, f"n={n}: gradient of {name}")
        assert gradient is not None or name == "x", (
            f"{what}: there is none; a parameter that no output reads breaks data-parallel "
            "training, so leave it out or give it requires_grad=False"
        )
        zero = torch.zeros_like(x if name == "x" else mixer.get_parameter(name))
        found, expected = (zero if x is None else x for x in (gradient, truth[name]))
        assert_close(found, expected, what)


def _compare_rounding(mixer: Mixer, dtype: torch.dtype, device: str) -> None:
    """The same weights in `dtype` and in fp64."""
    n = 64
    low = copy.deepcopy(mixer).to(dtype)
    exact = copy.deepcopy(low).double()
    x = cases.tokens(3, n, DIM, dtype=dtype, device=device)
    valid = cases.lengths_mask(_some_lengths(n), n, device)
    what = describe(mixer.config, mixer.frame, f"n={n}")
    try:
        with torch.no_grad():
            ours, same = low(x, valid=valid), low.reference(x, valid)
            truth = exact.reference(x.double(), valid)
    except RuntimeError as error:
        raise AssertionError(f"{what}, {dtype}: RuntimeError: {error}") from error
    assert_within_rounding(ours[valid], same[valid], truth[valid], what)


def _compare_context_padding(mixer: Mixer, n: int, device: str) -> None:
    """Each row with its padded context against the row with the real tokens of it alone."""
    lengths, longest = [23, 9, 1], 23
    x = cases.tokens(3, n, DIM, device=device)
    context = cases.tokens(3, longest, DIM, device=device, seed=1)
    rows = torch.tensor([True, True, False], device=device)[:, None].expand(3, n)
    for side, mask in cases.paddings(lengths, longest, device).items():
        what = describe(mixer.config, mixer.frame, f"context padded on the {side}")
        y = mixer(x, context=context, context_valid=mask)
        for row in range(3):
            real = context[row : row + 1, mask[row]]
            assert_close(y[row : row + 1], mixer(x[row : row + 1], context=real), what)
        for content in cases.NOT_NUMBERS:
            loud = context.masked_fill(~mask[..., None], content)
            other = mixer(x, context=loud, context_valid=mask)
            assert_identical(other, y, f"{what}, which holds {content}")
        both = mixer(x, valid=rows, context=context, context_valid=mask)
        assert_close(both[:2], y[:2], f"{what}, with padded queries")
    empty = torch.zeros_like(context[..., 0], dtype=torch.bool)
    y = mixer(x, context=context, context_valid=empty)
    assert_finite(y, describe(mixer.config, mixer.frame, "context all padding"))


def _some_lengths(n: int) -> list[int]:
    """Real tokens of three rows: all, about half, one."""
    return [n, (n + 1) // 2, 1]


def gradients_of(mixer: Mixer, x: Tensor, y: Tensor, wanted: Tensor) -> dict[str, Tensor | None]:
    """Of y · wanted, by x and by each parameter; None where y does not read it."""
    sources = {"x": x, **dict(_trainable(mixer))}
    found = torch.autograd.grad((y * wanted).sum(), list(sources.values()), allow_unused=True)
    return dict(zip(sources, found, strict=True))


def _trainable(mixer: Mixer) -> Iterator[tuple[str, Tensor]]:
    return ((name, p) for name, p in mixer.named_parameters() if p.requires_grad)
