"""Checks of a projection: parts of one answer, decoding, what it reads, attention around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.layers.projections.dense import PROJECTIONS
from weft.mixers.base import MIXERS, Frame, Traits
from weft.registry import Registry
from weft.testing import cases, contract, promises
from weft.testing.cases import DIM, HEADS
from weft.testing.tolerance import assert_close, assert_identical

PIECES = ((13,), (1,) * 13, (5, 8), (1, 7, 2, 3))
# Checks of a mixer that hold for a config of the registry alone, or read a context.
OF_THE_MIXER = ("round_trip", "refusals", "cross", "compile", "long_sequences", "lengths", "shapes")


@dataclass(frozen=True)
class Projected:
    """A mechanism inside frames with another projection: a mixer for the checks of mixers."""

    inner: Any
    projection: Any

    @property
    def name(self) -> str:
        """The mechanism's."""
        return self.inner.name

    @property
    def traits(self) -> Traits:
        """The mechanism's."""
        return self.inner.traits

    def __str__(self) -> str:
        return f"{self.inner} on {self.projection}"

    def build(self, frame: Frame) -> Any:
        """The mechanism's module, with this projection."""
        return self.inner.build(dataclasses.replace(frame, projection=self.projection))


def check_parts(config: Any) -> None:
    """`qkv` has heads, `q`, `k` and `v` are its parts, `out` gives back (b, n, c)."""
    for causal in (True, False):
        module, x = built(config, causal), cases.tokens(2, 11, DIM)
        whole = module.qkv(x)
        for name, part in zip("qkv", whole, strict=True):
            found = tuple(part.shape)
            assert found == (2, HEADS, 11, DIM // HEADS), f"{config}: {name} is {found}"
        for name, part in zip("kv", whole[1:], strict=True):
            assert_close(getattr(module, name)(x), part, f"{config}: {name} and qkv")
        if not config.neighbours:
            assert_close(module.q(x), whole[0], f"{config}: q and qkv")
        found = tuple(module.out(whole[0]).shape)
        assert found == tuple(x.shape), f"{config}: out gives {found}, not {tuple(x.shape)}"


def check_reads(config: Any) -> None:
    """Causal, it reads no later token; without `neighbours`, no other token at all."""
    x, other = cases.tokens(1, 12, DIM), cases.tokens(1, 12, DIM, seed=1)
    later = torch.cat((x[:, :7], other[:, 7:]), dim=1)
    for name, a, b in zip("qkv", *(built(config, True).qkv(z) for z in (x, later)), strict=True):
        assert_identical(b[:, :, :7], a[:, :, :7], f"{config}: causal, {name} of earlier tokens")
    if config.neighbours:
        return
    module = built(config, False)
    alone = [module.qkv(token) for token in x.split(1, dim=1)]
    for at, whole in enumerate(module.qkv(x)):
        what = f"{config}: neighbours is False, {'qkv'[at]} of each token alone"
        assert_close(torch.cat([one[at] for one in alone], dim=2), whole, what)


def check_steps(config: Any, *, pieces: Sequence[Sequence[int]] = PIECES) -> None:
    """Any split into steps gives `qkv`; the memory is as large as said."""
    for split in pieces:
        module = built(config, True)
        compare_steps(module, cases.tokens(2, sum(split), DIM), split, str(config))


def check_grouped_keys(config: Any) -> None:
    """Fewer key heads are made, or refused by a WeftError."""
    frame = Frame(dim=DIM, heads=HEADS, kv_heads=2, projection=config)
    try:
        module = config.build(frame).double()
    except WeftError:
        return
    shapes = [tuple(part.shape[:2]) for part in module.qkv(cases.tokens(3, 5, DIM))]
    assert shapes == [(3, HEADS), (3, 2), (3, 2)], f"{config}: kv_heads=2 gives {shapes}"


def check_attention(config: Any, *, mixer: str = "full") -> None:
    """Attention around it keeps the contract of its mechanism."""
    projected = Projected(cases.small(MIXERS[mixer]), config)
    for name, check in contract.checks_for(projected):
        if name not in OF_THE_MIXER:
            check()


def check_round_trip(config: Any, *, registry: Registry = PROJECTIONS) -> None:
    """config -> dict -> JSON -> config and config -> str -> config."""
    promises.check_round_trip(config, registry=registry)


CHECKS: dict[str, Callable[..., None]] = {
    "parts": check_parts,
    "reads": check_reads,
    "steps": check_steps,
    "grouped_keys": check_grouped_keys,
    "attention": check_attention,
    "round_trip": check_round_trip,
}


def built(config: Any, causal: bool) -> Any:
    """The module in float64, its parameters stirred."""
    frame = Frame(dim=DIM, heads=HEADS, causal=causal, projection=config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module: nn.Module = config.build(frame).double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def compare_steps(module: Any, x: Tensor, pieces: Sequence[int], what: str) -> None:
    """`step` and `keys` over the pieces of x (b, n, c) against `qkv` of the whole."""
    whole, memory, parts, keys = module.qkv(x), module.start(len(x)), [], []
    for piece in x.split(list(pieces), dim=1):
        k, v, kept = module.keys(piece, memory)
        made, memory = module.step(piece, memory)
        keys.append((k, v))
        parts.append(made)
        held = 0 if memory is None else memory[0].numel()
        says = module.memory_size
        assert held == says, f"{what}: the memory holds {held} numbers, memory_size says {says}"
        if memory is not None:
            assert_identical(kept, memory, f"{what}: memory after keys and after step")
    for at, name in enumerate("qkv"):
        joined = torch.cat([made[at] for made in parts], dim=2)
        assert_close(joined, whole[at], f"{what}: {name} in steps of {list(pieces)} and at once")
    for at, name in enumerate("kv"):
        joined = torch.cat([made[at] for made in keys], dim=2)
        assert_close(joined, whole[at + 1], f"{what}: keys, {name} in steps and at once")
