"""`use(model, pattern)`: any Transformers model that dispatches its attention, under a pattern.

    weft.interop.hf.use(model, "sliding(512) | keys(first=4)")
    weft.interop.hf.use(model, {"*": "sliding(512)", "4,9,14": "full()"})
    weft.interop.hf.use(model, None)                                        # as it was

Weights stay as they are. A pattern narrows self-attention: what the model itself does not let a
token read (the future, padding, other documents, beyond its own window) stays hidden. `generate`
takes a cache that drops what no later token can read.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from weft.errors import Unsupported, WeftError
from weft.interop.hf.plug.cache import PatternCache
from weft.interop.hf.plug.function import PatternAttentionFunction
from weft.interop.hf.plug.layers import LayerPatterns, Patterns, made_causal, read_patterns
from weft.interop.hf.plug.modules import note_places
from weft.interop.hf.plug.register import function_for, registered
from weft.kernels.planner.context import outside_graphs

Model = TypeVar("Model", bound=PreTrainedModel)

_PREPARES = "_prepare_cache_for_generation"  # how `generate` makes a cache
_BEFORE = "_attention_before_weft"  # of a model: what `use(model, None)` sets again


def use(model: Model, patterns: Patterns | None) -> Model:
    """The same model, its self-attention under patterns; None: under its own attention again."""
    if not isinstance(model, PreTrainedModel):
        raise WeftError(
            "use takes a Transformers model; got "
            f"{type(model).__name__}. A function of q, k and v is weft.attend"
        )
    if patterns is None:
        return _restored(model)
    read = read_patterns(patterns)
    _check_dispatch(model)
    _check_scores(model)
    read.check_layers(note_places(model), bool(model.config.is_encoder_decoder))
    _check_decoder(model, read)
    function = function_for(read)
    model.__dict__.setdefault(_BEFORE, _implementations(model))
    model.set_attn_implementation(function.name)
    _set_parts(model, function.name)
    _check_set(model, function.name)
    model.__dict__[_PREPARES] = partial(_prepare_cache, model)
    _check_first_forward(model, function)
    return model


def patterns_of(model: PreTrainedModel) -> LayerPatterns:
    """The patterns that a model runs under."""
    function = registered(_implementation(model))
    if function is None:
        raise WeftError(
            "this model runs under its own attention, for which Transformers has caches; put it "
            'under a pattern first: weft.interop.hf.use(model, "sliding(512)")'
        )
    return function.patterns


def cache(model: PreTrainedModel) -> Any:
    """An empty cache for `past_key_values=`, which keeps what the model's patterns can still read.

    `generate` makes one by itself for a model that `use` put under patterns.
    """
    own = PatternCache(model.config, patterns_of(model))
    if not model.config.is_encoder_decoder:
        return own
    return EncoderDecoderCache(own, DynamicCache(config=model.config.get_text_config(decoder=True)))


def _restored(model: Model) -> Model:
    before = model.__dict__.pop(_BEFORE, None)
    if before is not None:
        model.__dict__.pop(_PREPARES, None)
        model.set_attn_implementation(before)
        for part in model.modules():
            if isinstance(part, PreTrainedModel) and registered(_implementation(part)):
                part.set_attn_implementation(before[""])
    return model


def _implementation(model: PreTrainedModel) -> str:
    return str(model.config.get_text_config(decoder=True)._attn_implementation)


def _implementations(model: PreTrainedModel) -> dict[str, Any]:
    """The attention of a model and of its parts, as `set_attn_implementation` takes it."""
    own: dict[str, Any] = {"": model.config._attn_implementation}
    for name in model.config.sub_configs:
        if (part := getattr(model.config, name, None)) is not None:
            own[name] = part._attn_implementation
    return own


def _check_dispatch(model: PreTrainedModel) -> None:
    """Refuse a model, or a part of one, that computes attention in its own code."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and not part._can_set_attn_implementation():
            raise Unsupported(
                f"{type(part).__name__} computes its attention in its own code and would not call "
                "weft's; run it as it is, or build its like from weft's own mixers: longformer, "
                "bigbird, reformer and others, which `weft mixers` lists"
            )


def _check_scores(model: PreTrainedModel) -> None:
    cap = getattr(model.config.get_text_config(), "attn_logit_softcapping", None)
    if cap is not None:
        raise Unsupported(
            f"{type(model).__name__} caps its scores (attn_logit_softcapping={cap}), which the "
            "kernels under patterns do not; the model can run under its own attention alone"
        )


def _check_decoder(model: PreTrainedModel, read: LayerPatterns) -> None:
    """A pattern that reads only ahead is refused before anything runs."""
    decodes = any(
        getattr(module, "is_causal", False) is True and "Attention" in type(module).__name__
        for module in model.modules()
    )
    if not decodes:
        return
    heads = model.config.get_text_config(decoder=True).num_attention_heads
    for rule in read.rules:
        if rule.side != "encoder":
            made_causal(rule.pattern, heads)


def _set_parts(model: PreTrainedModel, name: str) -> None:
    """Older versions leave out parts whose config is of the model's own class (T5's two sides)."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and part.config._attn_implementation != name:
            part.set_attn_implementation(name)


def _check_set(model: PreTrainedModel, name: str) -> None:
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and part.config._attn_implementation != name:
            raise Unsupported(
                f"{type(part).__name__} stays under {part.config._attn_implementation!r}: "
                "Transformers does not set its attention from outside"
            )


def _check_first_forward(model: PreTrainedModel, function: PatternAttentionFunction) -> None:
    """Raise after the first forward pass if no attention module called the function."""
    before = function.calls

    @outside_graphs
    def check(module: Any, given: Any, result: Any) -> None:
        handle.remove()
        if _implementation(module) == function.name and function.calls == before:
            raise Unsupported(
                f"{type(module).__name__} did not call the attention that was set, so the pattern "
                "had no effect; run it as it is: weft.interop.hf.use(model, None)"
            )

    handle = model.register_forward_hook(check)


def _prepare_cache(model: Any, *given: Any, **named: Any) -> Any:
    """What `generate` does, then our cache in the place of the one that it made."""
    kwargs: dict[str, Any] = named["model_kwargs"] if "model_kwargs" in named else given[1]
    generation: Any = named["generation_config"] if "generation_config" in named else given[0]
    brought = kwargs.get("past_key_values") is not None
    done = getattr(type(model), _PREPARES)(model, *given, **named)
    made = kwargs.get("past_key_values")
    inner = made.self_attention_cache if isinstance(made, EncoderDecoderCache) else made
    plain = type(inner) is DynamicCache and not inner.offloading
    if brought or not plain or _goes_back(generation, given, named):
        return done
    own = PatternCache(model.config, patterns_of(model))
    if isinstance(made, EncoderDecoderCache):
        kwargs["past_key_values"] = EncoderDecoderCache(own, made.cross_attention_cache)
    else:
        kwargs["past_key_values"] = own
    return done


def _goes_back(generation: Any, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether this generation takes tokens back, for which every key is needed."""
    mode = named.get("generation_mode", given[2] if len(given) > 2 else "")
    assisted = "assisted" in str(getattr(mode, "value", mode))
    return bool(assisted or getattr(generation, "is_assistant", False))
