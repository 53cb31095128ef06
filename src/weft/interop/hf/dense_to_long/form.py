"""What makes a converted model long: patterns, positions and rotary bases, kept in its config.

The Auto classes set them when a converted folder is loaded (`auto.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from weft.errors import Unsupported, WeftError
from weft.interop.hf.dense_to_long.rotary import has_rotary, keep_sinks_near, set_rotary
from weft.interop.hf.dense_to_long.tiling import position_table, tile_positions, trained_length
from weft.interop.hf.plug.layers import Patterns, made_causal, read_patterns
from weft.interop.hf.plug.near_sinks import split_sinks
from weft.interop.hf.plug.use import use
from weft.patterns import Pattern
from weft.patterns import pattern as parse

Model = TypeVar("Model", bound=PreTrainedModel)

_KEY = "weft"  # of config.json
_ROWS = 256  # on which the reach of a pattern is looked up


@dataclass(frozen=True)
class LongForm:
    """How a model was made long."""

    length: int
    trained: int  # positions of the model that it was made from
    patterns: Mapping[str, str]
    rotary_factor: float = 1.0
    rotary_layers: tuple[int, ...] = ()  # whose base is multiplied


def is_decoder(model: PreTrainedModel) -> bool:
    """Whether it predicts the next token."""
    return model.can_generate() and not model.config.is_encoder_decoder


def texts_of(patterns: Patterns) -> dict[str, str]:
    """Patterns by layer as text, which a config can hold."""
    if isinstance(patterns, Mapping):
        return {str(key): parse(value).spec for key, value in patterns.items()}
    return {"*": parse(patterns).spec}


def far_layers(
    model: PreTrainedModel, patterns: Patterns, trained: int, length: int
) -> tuple[int, ...]:
    """The decoder's layers that read keys at distances the model was not trained for."""
    if not (is_decoder(model) and has_rotary(model)):
        return ()
    read = read_patterns(patterns)
    config: Any = model.config.get_text_config()
    heads = config.num_attention_heads
    each = [made_causal(read.of(None, layer), heads) for layer in range(config.num_hidden_layers)]
    # First tokens beside a window are kept near, so they are not far.
    rest = {own: (split.rest if (split := split_sinks(own)) else own) for own in each}
    far = {own: _reaches(rest[own], heads, trained, length) for own in rest}
    return tuple(layer for layer, own in enumerate(each) if far[own])


def _reaches(pattern: Pattern, heads: int, distance: int, length: int) -> bool:
    """Whether some query reads a key `distance` or more before it."""
    if length <= distance:
        return False
    rows = torch.cat(
        (torch.linspace(distance, length - 1, _ROWS), torch.arange(-_ROWS, 0) + length)
    )
    i = rows.long().clamp(min=distance)[:, None]
    j = torch.arange(length - distance)[None, :]
    each = dict.fromkeys(pattern.head(head, heads) for head in range(heads))
    return any(bool((own.sees(i, j, length) & (i - j >= distance)).any()) for own in each)


def lengthen(model: Model, length: int, patterns: Patterns, *, rotary_factor: float = 1.0) -> Model:
    """The model, in place, for rows of `length` tokens under patterns; its weights stay."""
    trained = trained_length(model)
    if length <= trained:
        raise WeftError(
            f"the model reads {trained:,} tokens already; --length is how long it becomes, so "
            f"more than that; got {length:,}"
        )
    texts = texts_of(patterns)
    far = far_layers(model, texts, trained, length)
    use(model, texts)  # refuses what cannot be under a pattern before anything changes
    if position_table(model) is not None:
        tile_positions(model, length)
    elif has_rotary(model):
        model.config.get_text_config().max_position_embeddings = length
    else:
        raise Unsupported(
            f"{type(model).__name__} has neither a table of positions nor rotary ones, and how it "
            "counts positions otherwise is not known; nothing was changed"
        )
    factor = rotary_factor if far else 1.0
    form = LongForm(length, trained, texts, factor, far if factor > 1 else ())
    return _take(model, form)


def set_form(model: Model, patterns: Patterns, rotary_factor: float) -> Model:
    """Other patterns and another factor for a model that is long already."""
    form, texts = form_of(model), texts_of(patterns)
    assert form is not None
    far = far_layers(model, texts, form.trained, form.length) if rotary_factor > 1 else ()
    factor = rotary_factor if far else 1.0
    return _take(model, LongForm(form.length, form.trained, texts, factor, far))


def form_of(model: PreTrainedModel) -> LongForm | None:
    """How a converted model was made; None: it was not."""
    held = getattr(model.config, _KEY, None)
    if held is None:
        return None
    try:
        return LongForm(**{**held, "rotary_layers": tuple(held["rotary_layers"])})
    except (TypeError, KeyError) as cause:
        raise WeftError(f"the entry {_KEY!r} of config.json is not weft's: {held!r}") from cause


def restore(model: Model) -> Model:
    """Patterns and rotary bases as the config of a converted model says."""
    form = form_of(model)
    if form is None:
        raise WeftError(
            f"the config of this {type(model).__name__} has no entry {_KEY!r}: `weft convert` did "
            "not make it; put it under a pattern by weft.interop.hf.use"
        )
    return _take(model, form)


def _has_sinks(model: PreTrainedModel, patterns: Patterns) -> bool:
    config: Any = model.config.get_text_config()
    rules = read_patterns(patterns).rules
    heads = config.num_attention_heads
    return any(split_sinks(made_causal(rule.pattern, heads)) is not None for rule in rules)


def _take(model: Model, form: LongForm) -> Model:
    if has_rotary(model):
        set_rotary(model, form.rotary_factor, frozenset(form.rotary_layers))
        if is_decoder(model) and _has_sinks(model, form.patterns):
            keep_sinks_near(model)
    use(model, dict(form.patterns))
    setattr(model.config, _KEY, {**asdict(form), "rotary_layers": list(form.rotary_layers)})
    return model
