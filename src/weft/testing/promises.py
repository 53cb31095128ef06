"""Checks of what surrounds the numbers: seeds, compilation, settings, refusals."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException

from weft.config import write
from weft.errors import Unsupported, WeftError
from weft.layers.positions import Alibi, Rope, T5Bias
from weft.mixers.base import MIXERS, Frame
from weft.registry import Registry
from weft.testing import cases
from weft.testing.cases import DIM, HEADS, LONGEST, describe
from weft.testing.tolerance import assert_close, assert_finite, assert_identical


def check_reproducibility(config: Any, *, device: str = "cpu") -> None:
    """A seed, or a checkpoint, determines the output; dropout is off in eval."""
    for frame in cases.frames(config):
        what = describe(config, frame)
        x = cases.tokens(2, 43, DIM, dtype=torch.float32, device=device)
        first, again = (_seeded(config, frame, seed=5, device=device) for _ in range(2))
        for name, value in first.state_dict().items():
            assert_identical(again.state_dict()[name], value, f"{what}: built twice, {name}")
        with torch.no_grad():
            y = first(x)
            assert_identical(first(x), y, f"{what}: two forwards")
            assert_identical(again(x), y, f"{what}: built twice from one seed")
            other = _seeded(config, frame, seed=6, device=device)
            other.load_state_dict(first.state_dict())
            assert_identical(other(x), y, f"{what}: another build, the same state_dict")
            dropping = dataclasses.replace(frame, dropout=0.5)
            other = _seeded(config, dropping, seed=6, device=device)
            other.load_state_dict(first.state_dict())
            assert_identical(other(x), y, f"{what}: dropout=0.5 in eval")
            assert_finite(other.train()(x), f"{what}: dropout=0.5 in training")


def check_compile(config: Any, *, backend: str = "eager", device: str = "cpu") -> None:
    """`torch.compile(fullgraph=True)` takes it whole, and the result is the same."""
    for frame in cases.frames(config):
        mixer = cases.build(config, frame, torch.float32, device)
        x = cases.tokens(2, 40, DIM, dtype=torch.float32, device=device)
        valid = cases.lengths_mask([40, 11], 40, device)
        torch._dynamo.reset()
        compiled = torch.compile(mixer, fullgraph=True, backend=backend)
        for mask in (None, valid):
            what = describe(config, frame, "compiled" if mask is None else "compiled, padded")
            try:
                y = compiled(x, valid=mask)
            except TorchDynamoException as error:
                raise AssertionError(f"{what}: {error}") from error
            assert_close(y, mixer(x, valid=mask), what, tolerance=1e-5)
    torch._dynamo.reset()


def check_round_trip(config: Any, *, registry: Registry = MIXERS) -> None:
    """config -> dict -> JSON -> config and config -> str -> config, for every setting changed."""
    for one in (config, *altered(config)):
        compare_forms(one, registry)


def compare_forms(config: Any, registry: Registry) -> None:
    """config -> dict -> JSON -> config and config -> str -> config."""
    settings = json.loads(json.dumps(write(config)))
    try:
        read, parsed = registry.read(settings), registry.parse(str(config))
    except WeftError as error:
        raise AssertionError(f"{config} cannot be read back: {error}") from error
    assert read == config, f"{config}: its dict {settings} reads back as {read!r}, not {config!r}"
    assert parsed == config, f"{str(config)!r} reads back as {parsed!r}, not {config!r}"
    assert hash(parsed) == hash(config), f"{config}: equal configs have different hashes"


def check_positions(config: Any, *, device: str = "cpu") -> None:
    """A position scheme that is given acts, or is refused: it is never ignored."""
    for frame in cases.frames(config):
        x = cases.tokens(1, 9, DIM, device=device)
        plain = cases.build(config, frame, device=device)
        for positions in (Rope(), Alibi(), T5Bias()):
            given = dataclasses.replace(frame, positions=positions)
            if cases.refusal(config, given) is not None:
                continue
            placed = cases.build(config, given, device=device)
            placed.load_state_dict(plain.state_dict(), strict=False)
            with torch.no_grad():
                same = torch.allclose(placed(x), plain(x), rtol=0, atol=1e-9)
            assert not same, (
                f"{describe(config, given)}: the positions change nothing; use them, or raise "
                "Unsupported where the mechanism has no place for them"
            )


def check_refusals(config: Any, *, device: str = "cpu") -> None:
    """What the traits deny is refused by name, and a missing or short length by a clear error."""
    traits = config.traits
    assert traits.causal or traits.bidirectional, f"{config}: traits allow no direction at all"
    assert traits.causal or traits.state is None, f"{config}: traits name a state, but not causal"
    if not traits.causal:
        _refuses(config, "causal=True", lambda: config.build(_frame(causal=True)))
    if not traits.bidirectional:
        _refuses(config, "causal=False", lambda: config.build(_frame(causal=False)))
    for frame in cases.frames(config):
        mixer = cases.build(config, frame, torch.float32, device)
        x = cases.tokens(1, 9, DIM, dtype=torch.float32, device=device)
        if not traits.cross:
            _refuses(config, "a context", lambda m=mixer, x=x: m(x, context=x))
        if traits.state is None or not frame.causal:
            _refuses(config, "start", lambda m=mixer: m.start(1))
            _refuses(config, "state_size", lambda m=mixer: m.state_size(1))
        _takes_or_refuses_length(config, dataclasses.replace(frame, length=None), 9, device)
        _takes_or_refuses_length(config, dataclasses.replace(frame, length=16), 17, device)


def altered(config: Any) -> Iterator[Any]:
    """The config with each setting in turn moved off its value, where its own rules allow it."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        moves: tuple[Any, ...] = ()
        if isinstance(value, bool):
            moves = (not value,)
        elif isinstance(value, int | float):
            moves = (value * 2, value + 1, value / 2 if isinstance(value, float) else value // 2)
        elif isinstance(value, tuple):
            moves = (value + value[-1:], value[:1])
        found = (cases.replaced(config, field.name, move) for move in moves if move != value)
        yield from (one for one in found if one is not None)


def _frame(causal: bool) -> Frame:
    return Frame(dim=DIM, heads=HEADS, length=LONGEST, causal=causal)


def _seeded(config: Any, frame: Frame, seed: int, device: str) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return config.build(frame).to(device).eval()


def _refuses(config: Any, what: str, run: Callable[[], Any]) -> None:
    error = _raised(run)
    assert error is not None, f"{config}: its traits deny {what}, but it was accepted"
    assert isinstance(error, Unsupported), (
        f"{config}: {what} has to raise Unsupported; it raised {type(error).__name__}: {error}"
    )
    assert config.name in str(error), f"{config}: the refusal of {what} does not name it: {error}"


def _takes_or_refuses_length(config: Any, frame: Frame, n: int, device: str) -> None:
    what = describe(config, frame, f"frame.length={frame.length}, n={n}")
    x = cases.tokens(1, n, DIM, dtype=torch.float32, device=device)
    error = _raised(lambda: config.build(frame).to(device).eval()(x))
    assert error is None or isinstance(error, WeftError), (
        f"{what}: has to work or to raise WeftError; it raised {type(error).__name__}: {error}"
    )
    assert error is None or "length" in str(error), (
        f"{what}: the error does not speak of the length: {error}"
    )


def _raised(run: Callable[[], Any]) -> Exception | None:
    try:
        run()
    except Exception as error:
        return error
    return None
