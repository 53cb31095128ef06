"""Cases of single layers: mixers, attention under a pattern, feed-forwards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from hashing import (
    DIM,
    DTYPES,
    HEADS,
    LENGTH,
    LONGEST,
    Named,
    built,
    learned,
    normal,
    padding,
    seed_of,
    stepped,
)
from torch import nn
from weft_names import (
    FEEDFORWARDS,
    MIXERS,
    Alibi,
    Frame,
    Rope,
    T5Bias,
    WeftError,
    attend,
    pattern,
    small,
    variants,
)


def directions(config: Any) -> Iterator[bool]:
    """Causal or not, as declared."""
    if config.traits.bidirectional:
        yield False
    if config.traits.causal:
        yield True


def frame(causal: bool, **settings: Any) -> Frame:
    return Frame(**{"dim": DIM, "heads": HEADS, "length": LONGEST, "causal": causal, **settings})


def mixed(config: Any, frame: Frame, dtype: torch.dtype, words: str, **given: Any) -> dict:
    """A mixer's output with and without gradients, and these; in half precision without alone."""
    seed, length = seed_of(config.name, words), given.pop("length", LENGTH)
    mixer = built(lambda: config.build(frame), seed, dtype, 0.1)
    mixer.train(frame.dropout > 0)
    inputs = [normal(2, length, DIM, seed=seed, dtype=dtype)]
    if given.pop("cross", False):
        inputs.append(normal(2, 41, DIM, seed=seed + 1, dtype=dtype))
        given |= {"context": inputs[1], "context_valid": padding(41)}
    torch.manual_seed(seed)
    with torch.no_grad():
        alone = mixer(inputs[0], **given)
    if dtype == torch.bfloat16:
        return {"output": [alone]}
    for x in inputs:
        x.requires_grad_()
    found = learned(mixer, [mixer(inputs[0], **given)], inputs, seed)
    return {**found, "output": [*found["output"], alone]}


# Since the digests were recorded; compared with Transformers in tests/interop/checkpoints.
LATER = {
    "bigbird(block=4, random=1, published=true)",
    "nystromformer(landmarks=5, iterations=3, kernel=3, shared_start=true)",
}


def every_variant() -> Iterator[tuple[Any, bool, str]]:
    """Each variant of each mixer in each direction it has, and both in words."""
    for name in MIXERS:
        for config in variants(MIXERS[name]):
            for causal in () if str(config) in LATER else directions(config):
                yield config, causal, f"{config}, {'causal' if causal else 'both ways'}"


def mixers(precision: str) -> Named:
    """Forward and backward of every variant, with and without padding."""
    dtype = {**DTYPES, "bfloat16": torch.bfloat16}[precision]
    for config, causal, name in every_variant():
        for padded in (False, True):
            given = {"valid": padding(LENGTH)} if padded else {}
            words = f"{causal} {padded}"

            def case(config=config, causal=causal, words=words, given=given) -> dict:
                return mixed(config, frame(causal), dtype, words, **given)

            yield f"{name}{', padded' if padded else ''}", case


def framed_mixers() -> Named:
    """Grouped keys, positions, projections, dropout, contexts and marks, where they are taken."""
    framings = {
        "grouped keys": {"kv_heads": 2},
        "rope": {"positions": Rope()},
        "alibi": {"positions": Alibi()},
        "t5": {"positions": T5Bias()},
        "multiplicative": {"projection": "multiplicative(modules=4)"},
        "multiplicative_conv": {"projection": "multiplicative_conv(modules=8)"},
        "dropout": {"dropout": 0.2},
    }
    for (config, causal, name), label in product(every_variant(), framings):
        if label.startswith("mult") and config != small(type(config)):
            continue
        within = frame(causal, **framings[label])
        try:
            config.build(within)
        except WeftError:
            continue

        def case(config=config, within=within, words=f"{causal} {label}") -> dict:
            return mixed(config, within, torch.float32, words, valid=padding(LENGTH))

        yield f"{name}, {label}", case
    yield from marked_mixers()


def marked_mixers() -> Named:
    """What a mixer takes besides its tokens."""
    for config, causal, name in every_variant():
        if config.traits.cross and not causal:

            def crossed(config=config) -> dict:
                return mixed(config, frame(False), torch.float32, "cross", cross=True)

            yield f"{name}, context", crossed
        for mark in config.build(frame(causal)).marks:
            if mark == "is_global" and causal:
                continue  # a causal one refuses them
            values = torch.arange(LENGTH).expand(2, -1) // 25
            values = values == 1 if mark == "is_global" else values

            def case(config=config, causal=causal, given=(mark, values)) -> dict:
                marks = dict([given])
                return mixed(config, frame(causal), torch.float32, f"marks {causal}", **marks)

            yield f"{name}, {mark}", case


def decoding() -> Named:
    """Prompts, single tokens and longer steps of every variant that decodes."""
    for (config, causal, name), precision in product(every_variant(), DTYPES):
        if causal and config.traits.state is not None:

            def case(config=config, dtype=DTYPES[precision]) -> dict:
                seed = seed_of(config.name, "decoding")
                mixer = built(lambda: config.build(frame(True)), seed, dtype, 0.1).eval()
                return stepped(mixer, normal(2, LENGTH, DIM, seed=seed, dtype=dtype))

            yield f"{name}, {precision}", case


def long_mixers() -> Named:
    """Default settings on 1,100 tokens, a longer sequence, and the plain equation."""
    for name in MIXERS:
        for label, config in (("small", small(MIXERS[name])), ("default", MIXERS[name]())):
            for causal in directions(config):
                direction = "causal" if causal else "both ways"

                def case(config=config, causal=causal) -> dict:
                    within = frame(causal, length=1100)
                    given = {"length": 1100, "valid": padding(1100)}
                    return mixed(config, within, torch.float32, f"long {causal}", **given)

                def reference(config=config, causal=causal) -> dict:
                    seed = seed_of(config.name, "reference", causal)
                    make = lambda: config.build(frame(causal))  # noqa: E731
                    mixer = built(make, seed, torch.float64, 0.1).eval()
                    with torch.no_grad():
                        x = normal(2, LENGTH, DIM, seed=seed)
                        return {"output": [mixer.reference(x, padding(LENGTH).sort(1)[0].flip(1))]}

                yield f"{name}, {label}, {direction}", case
                if label == "small":
                    yield f"{name}, reference, {direction}", reference


# Attention under a pattern

PATTERNS = (
    *("full", "causal", "sliding(9)", "causal & sliding(150)", "strided(16)", "dilated(9, 3)"),
    *("same_block(32)", "block_neighbours(32)", "global(3) | sliding(30)", "sink(4) | sliding(40)"),
    *("causal & random_blocks(32, 3)", "columns(16, 2)", "segments([200, 300, 200])"),
    *("window2d(28, 3)", "shifted_window(28, 7, 3)", "axis(28)", "axis(28, 'y') & causal"),
    "per_head(sliding(64), causal)",
)


def attention() -> Named:
    """`attend` under patterns, by the kernels of a CPU, with what calls may add."""
    packed = torch.arange(700).expand(2, -1) // 190
    extras: dict[str, dict] = {
        "plain": {},
        "padded": {"valid": padding(700)},
        "packed": {"segments": packed},
        "dropped": {"dropout": 0.2},
        "continued": {},
    }
    for spec, kernel, extra in product(PATTERNS, ("auto", "dense", "gather"), extras):
        if extra != "plain" and kernel != "auto":
            continue

        def case(spec=spec, kernel=kernel, extra=extra) -> dict:
            seed, queries = seed_of("attend", extra), 150 if extra == "continued" else 700
            shapes = ((2, HEADS, queries, 8), (2, 2, 700, 8), (2, 2, 700, 8))
            qkv = [
                normal(*shape, seed=seed + i, dtype=torch.float32).requires_grad_()
                for i, shape in enumerate(shapes)
            ]
            torch.manual_seed(seed)
            y = attend(*qkv, pattern(spec), kernel=kernel, **extras[extra])
            return learned(nn.Module(), [y], qkv, seed)

        yield f"{spec}, {kernel}, {extra}", case


# Feed-forwards, as in the tests of models: a small spec for each entry of a registry

SPECS = {
    "dense": ["dense(activation='swiglu', expansion=2)"],
    "chunked": ["chunked(inner=dense(expansion=2), tokens=3)"],
    "gshard": ["gshard(experts=4, expansion=1)", "gshard(experts=4, group=6, second='always')"],
    "moe": ["moe(experts=4, top=2, expansion=1)", "moe(experts=4, top=2, noisy=false, load=0.0)"],
    "product_key": ["product_key(keys=4, heads=2, top=2, key_dim=4)"],
    "sparse": ["sparse(block=4, hidden=16, rank=3)"],
    "switch": ["switch(experts=4, expansion=1)"],
    "with_sru": ["with_sru(inner=dense(expansion=2), units=4)"],
}


def feedforwards() -> Named:
    """Every entry and its variants, in training and in evaluation."""
    for name in FEEDFORWARDS:
        own = [FEEDFORWARDS.parse(spec) for spec in SPECS.get(name, ())]
        configs = dict.fromkeys([*variants(FEEDFORWARDS[name]), *own])
        for config, precision, mode in product(configs, DTYPES, ("train", "eval")):

            def case(name=name, config=config, dtype=DTYPES[precision], mode=mode) -> dict:
                seed = seed_of(name, mode)
                module = built(lambda: config.build(DIM), seed, dtype, 0.1)
                module.train(mode == "train")
                x = normal(2, LENGTH, DIM, seed=seed, dtype=dtype).requires_grad_()
                torch.manual_seed(seed)
                return learned(module, [module(x, valid=padding(LENGTH))], [x], seed)

            yield f"{config}, {mode}, {precision}", case
