"""What the contract is checked on: small configs, frames, tokens and paddings.

A config is tested small, so that a sequence of some dozens of tokens crosses every edge of it. The
class may say how (`small()`, `variants()`); otherwise large whole numbers are shrunk, and each
on/off setting and each choice gets a variant of its own.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.layers.positions import Alibi, Rope, T5Bias
from weft.mixers.base import Frame, Mixer

DIM, HEADS, LONGEST = 32, 4, 160
NOT_NUMBERS = (torch.nan, torch.inf, torch.finfo(torch.float64).max)  # what padding may hold
_LARGE, _SHRUNK = 16, 8


def small(config_cls: type[Any]) -> Any:
    """A config for tests: `config_cls.small()` if defined, else defaults with large sizes cut."""
    if hasattr(config_cls, "small"):
        return config_cls.small()
    config = config_cls()
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if type(value) is int and value >= _LARGE:
            config = replaced(config, field.name, _SHRUNK) or config
    return config


def variants(config_cls: type[Any]) -> tuple[Any, ...]:
    """`config_cls.variants()` if defined, else `small` and its one-setting changes.

    A setting that is on or off, or a `Literal`, is a choice: each other value makes one variant.
    """
    if hasattr(config_cls, "variants"):
        return tuple(config_cls.variants())
    base = small(config_cls)
    found = [base]
    for name, hint in typing.get_type_hints(config_cls).items():
        if name not in {field.name for field in dataclasses.fields(config_cls)}:
            continue
        options = (True, False) if hint is bool else typing.get_args(hint) if _chooses(hint) else ()
        found += [other for value in options if (other := replaced(base, name, value))]
    return tuple(dict.fromkeys(found))


def replaced(config: Any, name: str, value: Any) -> Any | None:
    """The config with one other setting, or None where its rules refuse it."""
    try:
        return dataclasses.replace(config, **{name: value})
    except WeftError:
        return None


def frames(config: Any, **settings: Any) -> Iterator[Frame]:
    """One frame per direction the traits allow: bidirectional, then causal."""
    for causal, able in ((False, config.traits.bidirectional), (True, config.traits.causal)):
        if able and settings.get("causal", causal) == causal:
            yield Frame(
                **{"dim": DIM, "heads": HEADS, "length": LONGEST, **settings, "causal": causal}
            )


def framings(config: Any, **settings: Any) -> Iterator[Frame]:
    """Frames with grouped keys or positions, as far as the mechanism takes them."""
    for given in ({"kv_heads": 2}, *({"positions": p()} for p in (Rope, Alibi, T5Bias))):
        for frame in frames(config, **settings, **given):
            if refusal(config, frame) is None:
                yield frame


def refusal(config: Any, frame: Frame) -> str | None:
    """Why the mechanism does not build in this frame; None if it does."""
    try:
        config.build(frame)
    except WeftError as error:
        return str(error)
    return None


def build(
    config: Any, frame: Frame, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> Mixer:
    """The module for evaluation, its parameters stirred: a zero would hide a wrong formula."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(17)
        mixer = config.build(frame)
        with torch.no_grad():
            for parameter in mixer.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return mixer.to(device=device, dtype=dtype).eval()


def tokens(
    *shape: int, dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 0
) -> Tensor:
    """Gaussian tokens, the same at each call."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)


def lengths_mask(lengths: list[int], longest: int, device: str = "cpu") -> Tensor:
    """(b, longest): True on the first `lengths[row]` tokens of each row."""
    return torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]


def paddings(lengths: list[int], longest: int, device: str = "cpu") -> dict[str, Tensor]:
    """Masks (b, longest) with this many real tokens per row: on the right, left and inside."""
    right = lengths_mask(lengths, longest)
    generator = torch.Generator().manual_seed(3)
    shuffled = [row[torch.randperm(longest, generator=generator)] for row in right]
    masks = {"right": right, "left": right.flip(1), "inside": torch.stack(shuffled)}
    return {name: mask.to(device) for name, mask in masks.items()}


def describe(config: Any, frame: Frame, detail: str = "") -> str:
    """`name(settings), causal, kv_heads=2`: what a failing check was looking at."""
    parts = [str(config), "causal" if frame.causal else "bidirectional"]
    if frame.kv_heads != frame.heads:
        parts.append(f"kv_heads={frame.kv_heads}")
    if frame.positions is not None:
        parts.append(f"positions={frame.positions}")
    return ", ".join([*parts, detail] if detail else parts)


def _chooses(hint: Any) -> bool:
    return typing.get_origin(hint) is Literal
