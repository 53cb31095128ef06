"""Cases of whole models, objectives and short trainings."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from hashing import (
    DIM,
    DTYPES,
    HEADS,
    VOCAB,
    Named,
    built,
    ids,
    learned,
    padding,
    seed_of,
    stepped,
)
from torch import Tensor
from weft_names import (
    DEPTHS,
    MIXERS,
    MODELS,
    OUTPUTS,
    RESIDUALS,
    Alibi,
    Classifier,
    ConditionalMasked,
    Decoder,
    EarlyExit,
    Electra,
    Embedding,
    Encoder,
    EncoderDecoder,
    Frame,
    Funnel,
    LanguageModel,
    Matcher,
    Norm,
    Perceiver,
    PowerBert,
    Rope,
    Stack,
    T5Bias,
    evolved_decoder,
    evolved_encoder,
    sandwich,
    small,
)

TOKENS = 22


def stack(**settings: Any) -> Stack:
    """Two layers of full attention, or what the settings say; `frame` holds those of the frame."""
    inside = settings.pop("frame", {})
    frame = Frame(**{"dim": DIM, "heads": HEADS, "length": 48, "dropout": 0.1, **inside})
    return Stack(frame=frame, **{"order": "sfsf", "mixer": "full", "dropout": 0.1, **settings})


def embedding(**settings: Any) -> Embedding:
    return Embedding(**{"vocab": VOCAB, "positions": "sinusoidal", **settings})


def encoder(kind: Any = Encoder, embed: dict | None = None, own: dict | None = None, **settings):
    return kind(embedding=embedding(**embed or {}), stack=stack(**settings), **own or {})


def decoder(embed: dict | None = None, **settings: Any) -> Decoder:
    return encoder(Decoder, embed, **settings)


def both(embed: dict | None = None, cell: dict | None = None, **settings: Any) -> EncoderDecoder:
    writes = decoder(**cell or {"order": "scfscf"})
    return EncoderDecoder(encoder=encoder(embed=embed), decoder=writes, **settings)


REGISTER = {"registers": 1}


def trunks() -> dict[str, Any]:
    """Encoders and decoders, one setting at a time."""
    found: dict[str, Any] = {"encoder": encoder(), "decoder": decoder()}
    for label, settings in {
        "registers": {"embed": {"registers": 2}},
        "learned positions": {"embed": {"positions": "learned"}},
        "factor": {"embed": {"factor": 6}},
        "cutoffs": {"embed": {"cutoffs": (5, 11)}},
        "rms post": {"norm": Norm(kind="rms", place="post")},
        "layer post": {"norm": Norm(place="post")},
        "no norm, rezero": {"norm": Norm(kind="none"), "residual": "rezero"},
        "no norm, fixup": {"norm": Norm(kind="none"), "residual": "fixup"},
        "universal": {"depth": "universal(steps=3)"},
        "universal, learned": {"depth": "universal(steps=3, adaptive=false, signal='learned')"},
        "layer_drop": {"depth": "layer_drop(rate=0.5)"},
        "shared": {"shared": 1},
        "sandwich": {"order": sandwich(2, 1)},
        "weighted": {"order": "ww"},
        "checkpoint": {"recompute": "checkpoint"},
        "reversible": {"recompute": "reversible"},
        "conv projection": {"frame": {"projection": "multiplicative_conv(modules=8)"}},
        "experts": {"feedforward": "dense(activation='geglu'), switch(experts=4)"},
        "remembering feed-forward": {"feedforward": "with_sru(units=4)"},
        "rope, grouped": {"frame": {"positions": Rope(), "kv_heads": 2}},
        "alibi": {"frame": {"positions": Alibi()}},
        "t5": {"frame": {"positions": T5Bias()}},
    }.items():
        found |= {
            f"encoder, {label}": encoder(**settings),
            f"decoder, {label}": decoder(**settings),
        }
    found["encoder, levels"] = encoder(embed={"rbf_levels": 5})
    found["encoder, evolved"] = encoder(**evolved_encoder(1))
    found["decoder, evolved"] = decoder(**evolved_decoder(1, HEADS, context=False))
    return found


def whole_models() -> dict[str, Any]:
    """Every kind of the registry."""
    marked, deep = encoder(embed=REGISTER), encoder(order="sfsfsf")
    return {
        **{
            f"classifier, {pool}": Classifier(trunk=encoder(), classes=3, pool=pool)
            for pool in ("mean", "max", "last", "attention")
        },
        "classifier, trimmed": Classifier(
            trunk=marked, classes=3, pool="first", hidden=7, trimmed=True
        ),
        "classifier, decoder": Classifier(trunk=decoder(), classes=3, pool="last"),
        "matcher": Matcher(trunk=marked, pool="first"),
        "early_exit": EarlyExit(trunk=deep, classes=3),
        "early_exit, below": EarlyExit(trunk=deep, classes=3, reads="below", after=(1, 3)),
        "funnel": encoder(Funnel, REGISTER),
        "funnel, max": encoder(Funnel, own={"pool": "max", "blocks": 2, "decoder": ""}),
        "power_bert": encoder(PowerBert, REGISTER, {"keep": (0.75, 0.5)}),
        "power_bert, soft": encoder(
            PowerBert, own={"keep": (0.75, 0.5), "extract": "soft", "bins": 8}
        ),
        "perceiver": Perceiver(
            embedding=embedding(),
            frame=Frame(dim=DIM, heads=HEADS),
            **{"latents": 6, "layers": 2, "repeats": 2, "outputs": 5},
        ),
        "electra": Electra(trunk=encoder(), share=0.5),
        "encoder_decoder": both(),
        "encoder_decoder, transparent": both(transparent=True, shares_embedding=True),
        "encoder_decoder, evolved": both(cell=evolved_decoder(1, HEADS)),
        "conditional_masked": ConditionalMasked(trunk=both(embed=REGISTER), longest=30),
        "language_model, encoder": LanguageModel(trunk=encoder()),
        "language_model, decoder": LanguageModel(trunk=decoder()),
        "language_model, encoder_decoder": LanguageModel(trunk=both()),
        **{
            f"language_model, {spec}": LanguageModel(
                trunk=decoder(), tied=False, output=OUTPUTS.parse(spec)
            )
            for spec in SCORED
        },
    }


SCORED = (
    *("linear", "factorised(factor=4)", "adaptive_softmax(cutoffs=[4, 8])"),
    *("mixture_of_softmaxes(parts=2)", "sparse(modules=4)"),
)


def answers(config: Any, model: Any, seed: int) -> list[Tensor]:
    """All that a model gives for tokens, as its kind is called."""
    x, other, valid = ids(2, TOKENS, seed=seed), ids(2, 17, seed=seed + 1), padding(TOKENS)
    trunk = getattr(config, "trunk", config)
    if isinstance(trunk, EncoderDecoder):
        given = {"source": other, "source_valid": padding(17), "valid": valid}
        found = [model(x, **given)]
        if isinstance(config, ConditionalMasked):
            found.append(model.encode(other, padding(17)).lengths)
        return found
    if isinstance(config, Matcher):
        return [model(x, other, first_valid=valid, second_valid=padding(17))]
    found = [model(x, valid=valid), model(x)]
    if isinstance(config, EarlyExit):
        found.append(model.history(x, valid=valid))
    if isinstance(config, Electra):
        found.append(model.fill(x, valid=valid))
    if isinstance(config, LanguageModel):
        found.append(model(x, valid=valid, targets=x.roll(-1, 1), chosen=valid).loss)
    return found


def configs() -> dict[str, Any]:
    """Trunks of all settings, trunks of all mixers, and every kind of model."""
    mixed = {}
    for name in MIXERS:
        config = small(MIXERS[name])
        kind = Decoder if config.traits.causal else Encoder
        if config.traits.bidirectional:
            mixed[f"encoder of {name}"] = encoder(mixer=config)
        if kind is Decoder:
            mixed[f"decoder of {name}"] = decoder(mixer=config)
    return {**trunks(), **whole_models(), **mixed}


def models(precision: str) -> Named:
    """Forward and backward in evaluation, and in training with dropout."""
    for (name, config), mode in product(configs().items(), ("eval", "train")):

        def case(name=name, config=config, mode=mode) -> dict:
            seed = seed_of(name, mode)
            model = built(config.build, seed, DTYPES[precision], 0.03).train(mode == "train")
            torch.manual_seed(seed)
            with torch.no_grad():
                alone = answers(config, model, seed)
            found = learned(model, answers(config, model, seed), [], seed)
            return {**found, "output": [*found["output"], *alone]}

        yield f"{name}, {mode}", case


def generation() -> Named:
    """Steps of decoders and what language models write, greedily and at random."""
    for name, config in configs().items():
        if isinstance(config, Decoder) and _streams(config):

            def case(name=name, config=config) -> dict:
                seed = seed_of(name, "steps")
                model = built(config.build, seed, torch.float32, 0.03).eval()
                return stepped(model, ids(2, TOKENS, seed=seed), (9, 1, 1, 1, 6, 4))

            yield f"{name}, steps", case
        if isinstance(config, LanguageModel) and not isinstance(config.trunk, Encoder):

            def text(name=name, config=config) -> dict:
                seed = seed_of(name, "text")
                model = built(config.build, seed, torch.float32, 0.2).eval()
                prompts, across = ids(2, 5, seed=seed), isinstance(config.trunk, EncoderDecoder)
                given = {"source": ids(2, 7, seed=seed + 1)} if across else {}
                drawn = {"temperature": 0.8, "top_k": 7, "seed": seed}
                ways = ({}, drawn, {"beams": 3})
                return {"output": [model.generate(prompts, 12, **way, **given) for way in ways]}

            yield f"{name}, text", text


def _streams(config: Any) -> bool:
    return all(mixer.traits.state is not None for mixer in config.stack.mixers)


# Since the digests were recorded; tests of their own compare them with an independent truth.
LATER = {
    "multimodal_perceiver",
    "projected",
    "strand_classifier",
    "swin_transformer",
    "unit_predictor",
    "waveform",
}


def left_out() -> set[str]:
    """The entries of the registries of models that no case has."""
    found = list(configs().values())
    found += [each.trunk for each in found if hasattr(each, "trunk")]
    stacks = [each.stack for each in found if hasattr(each, "stack")]
    found += [part for each in stacks for part in (each.depth, each.residual)]
    found += [each.output for each in found if hasattr(each, "output")]
    return {*MODELS, *DEPTHS, *RESIDUALS, *OUTPUTS} - {each.name for each in found} - LATER
