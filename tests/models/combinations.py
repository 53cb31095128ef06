"""Models made of every registry at once: axes, which combinations make sense, and what must hold.

An axis is a setting and its values; a combination takes one value of each. `refusal` says in words
why one makes no sense, and then building it must raise. The others must run, learn and decode.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from dataclasses import dataclass

import torch

from weft.feedforward import FEEDFORWARDS
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs import OUTPUTS
from weft.layers.penalty import penalties
from weft.layers.projections.dense import PROJECTIONS
from weft.mixers import Frame
from weft.models import (
    DEPTHS,
    RESIDUALS,
    Classifier,
    Decoder,
    Encoder,
    EncoderDecoder,
    LanguageModel,
    Stack,
    config_from_dict,
    config_to_dict,
    evolved_decoder,
    evolved_encoder,
    sandwich,
)

DIM, HEADS, VOCAB, LENGTH = 16, 4, 12, 7
# A small spec for each entry of each registry: a new entry has to come in here.
SPECS = {
    "feedforward": {
        "dense": "dense(activation='swiglu', expansion=2)",
        "chunked": "chunked(inner=dense(expansion=2), tokens=3)",
        "gate": "gate",
        "gshard": "gshard(experts=4, expansion=1)",
        "moe": "moe(experts=4, top=2, expansion=1)",
        "product_key": "product_key(keys=4, heads=2, top=2, key_dim=4)",
        "sparse": "sparse(block=4, hidden=16, rank=3)",
        "switch": "switch(experts=4, expansion=1)",
        "with_sru": "with_sru(inner=dense(expansion=2), units=4)",
    },
    "residual": {"plain": "plain", "rezero": "rezero", "fixup": "fixup"},
    "depth": {
        "plain": "plain",
        "layer_drop": "layer_drop(rate=0.5)",
        "universal": "universal(steps=3)",
    },
    "output": {
        "linear": "linear",
        "factorised": "factorised(factor=4)",
        "adaptive_softmax": "adaptive_softmax(cutoffs=[4, 8])",
        "mixture_of_softmaxes": "mixture_of_softmaxes(parts=2)",
        "projected": "projected(width=4)",
        "sparse": "sparse(modules=4)",
    },
    "projection": {
        "dense": "dense",
        "multiplicative": "multiplicative(modules=4)",
        "multiplicative_conv": "multiplicative_conv(modules=4)",
    },
}
REGISTRIES = {
    "feedforward": FEEDFORWARDS,
    "residual": RESIDUALS,
    "depth": DEPTHS,
    "output": OUTPUTS,
    "projection": PROJECTIONS,
}


def own(registry) -> tuple[str, ...]:
    """Its entries that are weft's: other tests register twins."""
    return tuple(name for name in registry if registry[name].__module__.startswith("weft."))


@dataclass(frozen=True, kw_only=True)
class Combination:
    """One value of each axis, by name."""

    kind: str = "decoder"
    feedforward: str = "dense"
    residual: str = "plain"
    norm: str = "layer pre"
    depth: str = "plain"
    mixer: str = "full"
    shared: int = 0
    order: str = "layers"
    recompute: str = "nothing"
    projection: str = "dense"
    output: str = "linear"

    def __str__(self) -> str:
        values = dataclasses.asdict(self).items()
        return ",".join(f"{k}={v}".replace(" ", "-") for k, v in values if v != DEFAULTS[k])


DEFAULTS = dataclasses.asdict(Combination())
MAIN = {
    "kind": ("classifier", "decoder", "encoder_decoder"),
    "feedforward": own(FEEDFORWARDS),
    "residual": own(RESIDUALS),
    "norm": ("layer pre", "layer post", "rms pre", "none pre"),
    "depth": own(DEPTHS),
    "mixer": ("full", "sliding_window(window=3)"),
}
AXES = {
    **MAIN,
    "kind": (*MAIN["kind"], "masked", "transparent"),
    "shared": (0, 1),
    "order": ("layers", "sandwich", "weighted", "evolved"),
    "recompute": ("nothing", "checkpoint", "reversible"),
    "projection": own(PROJECTIONS),
    "output": own(OUTPUTS),
}


def refusal(c: Combination) -> str | None:
    """Why a combination makes no sense, as a pattern of all its reasons; None: it does."""
    kind, _, place = c.norm.partition(" ")
    backwards, sparse = c.recompute == "reversible", c.projection != "dense"
    reasons = {
        "fixup takes the place of norms": c.residual == "fixup" and kind != "none",
        "named to_out, at 0": c.residual == "fixup" and sparse,
        "rezero begins as the identity": c.residual == "rezero" and place == "post",
        "cannot be undone": backwards and place == "post",
        "every layer once": backwards and c.depth != "plain",
        "each layer of the encoder separately": backwards and c.kind == "transparent",
        "a fixed number of layers": c.kind == "transparent" and c.depth == "universal",
        "shares its block already": c.shared and c.depth == "universal",
        "one order and one setting": c.shared and c.order == "sandwich",
        "projections of its own": c.order == "evolved" and sparse,
        "dense output projection": c.order == "weighted" and sparse,
        "keeps no state": c.order == "weighted" and c.feedforward == "with_sru",
    }
    return "|".join(reason for reason, holds in reasons.items() if holds) or None


def _stack(c: Combination, decodes: bool, reads: bool) -> Stack:
    kind, _, place = c.norm.partition(" ")
    own = {"mixer": c.mixer, "feedforward": SPECS["feedforward"][c.feedforward]}
    if c.order == "evolved":
        made = evolved_decoder(2, HEADS, c.mixer, context=reads) if decodes else None
        own = made or evolved_encoder(2, c.mixer)
        # An encoder cell has two of its own, which belong to it; a decoder cell has one.
        if decodes:
            own["feedforward"] = SPECS["feedforward"][c.feedforward]
    else:
        layer = {"layers": "scf" if reads else "sf", "weighted": "wc" if reads else "w"}
        own["order"] = layer.get(c.order, "") * 2 or ("ssccff" if reads else sandwich(2, 1))
    projection = PROJECTIONS.parse(SPECS["projection"][c.projection])
    return Stack(
        frame=Frame(dim=DIM, heads=HEADS, length=40, projection=projection),
        norm=Norm(kind=kind, place=place),
        residual=SPECS["residual"][c.residual],
        depth=SPECS["depth"][c.depth],
        shared=c.shared,
        recompute=c.recompute,
        **own,
    )


def config(c: Combination):
    """The config of the model."""
    words = Embedding(vocab=VOCAB, positions="sinusoidal")
    if c.kind in ("classifier", "masked"):
        trunk = Encoder(embedding=words, stack=_stack(c, False, False))
    elif c.kind == "decoder":
        trunk = Decoder(embedding=words, stack=_stack(c, True, False))
    else:
        trunk = EncoderDecoder(
            encoder=Encoder(embedding=words, stack=_stack(c, False, False)),
            decoder=Decoder(embedding=words, stack=_stack(c, True, True)),
            transparent=c.kind == "transparent",
        )
    if c.kind == "classifier":
        return Classifier(trunk=trunk, classes=3)
    output = OUTPUTS.parse(SPECS["output"][c.output])
    return LanguageModel(trunk=trunk, output=output, tied=False)


def check(c: Combination) -> None:
    """Build it, run it, let it learn, decode it, write its config and read it back."""
    made = config(c)
    assert config_from_dict(config_to_dict(made)) == made
    model = stirred(made)
    x = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    extra = {"source": x.flip(1)[:, :5]} if c.kind in ("encoder_decoder", "transparent") else {}
    check_learns(model.train(), x, extra)
    model.eval()
    with torch.no_grad():
        whole = model(x, **extra)
        if c.kind in ("classifier", "masked"):
            check_padding(model, x, whole)
        else:
            check_decodes(model, x, whole, extra)


def stirred(made) -> torch.nn.Module:
    """Away from zeros and ones, but not far: without norms, gates multiply what they are given."""
    torch.manual_seed(0)
    model = made.build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    return model


def check_learns(model, x, extra) -> None:
    """Every parameter gets a finite gradient, and most sublayers one that is not 0."""
    loss = model(x, **extra).square().mean()
    extra_terms = penalties(model)
    (loss if extra_terms is None else loss + extra_terms).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.isfinite().all(), f"the gradient of {name} is not finite"
    assert sum(p.grad.abs().sum() for p in model.parameters()) > 0


def check_decodes(model, x, whole, extra) -> None:
    """Steps of any size give the rows of a forward."""
    state, parts = model.start(len(x), **extra), []
    for part in x.split((2, 1, LENGTH - 3), dim=1):
        y, state = model.step(part, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-7, atol=1e-8)
    assert state.size() == model.state_size(LENGTH)


def check_padding(model, x, whole) -> None:
    """Padding in front of a row changes nothing."""
    valid = torch.ones(2, LENGTH + 2, dtype=torch.bool)
    valid[:, :2] = False
    padded = torch.cat((x.new_zeros(2, 2), x), dim=1)
    got = model(padded, valid=valid)
    got = got if got.dim() == 2 else got[:, 2:]
    torch.testing.assert_close(got, whole, rtol=1e-7, atol=1e-8)


def pairwise(axes: dict[str, tuple], seed: int = 0) -> list[Combination]:
    """Combinations that make sense in which any two values that go together meet; greedy."""
    chance = random.Random(seed)
    names = list(axes)

    def pairs(c: Combination) -> set:
        values = [(name, getattr(c, name)) for name in names]
        return set(itertools.combinations(values, 2))

    pool = []
    for _ in range(4000):
        c = Combination(**{name: chance.choice(values) for name, values in axes.items()})
        if refusal(c) is None:
            pool.append((c, pairs(c)))
    missing = set().union(*(own for _, own in pool))
    chosen = []
    while missing:
        c, own = max(chance.sample(pool, 200), key=lambda each: len(each[1] & missing))
        if own & missing:
            chosen.append(c)
            missing -= own
        else:
            c, own = next(each for each in pool if each[1] & missing)
            chosen.append(c)
            missing -= own
    return chosen
