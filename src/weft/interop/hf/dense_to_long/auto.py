"""Converted models in the Auto classes of Transformers, so that none is silently dense.

The config.json of a converted model has the model_type "weft_long", and keeps the one that it was
made from as `base_model_type`. Transformers alone refuses it; after `import weft.interop.hf` its
classes are those of the base, which set patterns, rotary bases and first tokens when they load.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from weft.errors import WeftError, suggest
from weft.interop.hf.dense_to_long.form import restore

LONG = "weft_long"
_AUTO = (
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForPreTraining",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
    "AutoModelForMultipleChoice",
)


class LongConfig(PreTrainedConfig):
    """What config.json of a converted model is read by; gives the config of its own base."""

    model_type = LONG

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **given: Any) -> Any:
        """A config of the base's class, under our model_type."""
        _refuse_other_attention(given)
        base = str(config_dict.get("base_model_type"))
        if base not in CONFIG_MAPPING:
            known = suggest(base, CONFIG_MAPPING.keys())
            raise WeftError(f"config.json was made from the model_type {base!r}; {known}")
        return long_config(CONFIG_MAPPING[base]).from_dict(config_dict, **given)


class LongModel:
    """What the classes of converted models add to those of their base."""

    @classmethod
    def from_pretrained(cls, *given: Any, **named: Any) -> Any:
        """As Transformers, then patterns and rotary bases as the config says."""
        _refuse_other_attention(named)
        found = super().from_pretrained(*given, **named)  # type: ignore[misc]
        restore(found[0] if isinstance(found, tuple) else found)
        return found

    @classmethod
    def _from_config(cls, *given: Any, **named: Any) -> Any:
        _refuse_other_attention(named)
        return restore(super()._from_config(*given, **named))  # type: ignore[misc]


def _refuse_other_attention(named: dict[str, Any]) -> None:
    if (wanted := named.get("attn_implementation")) is not None:
        raise WeftError(
            "a converted model runs under the patterns of its config; leave out "
            f"attn_implementation={wanted!r}, and call weft.interop.hf.use(model, None) afterwards "
            "for dense attention"
        )


@cache
def long_config(base: Any) -> Any:
    """The config class of models converted from this one; registers their model classes."""
    made = type(f"Long{base.__name__}", (_LongConfigOf, base), {"model_type": LONG})
    for name in _AUTO:
        auto = getattr(transformers, name)
        own = auto._model_mapping.get(base, None)
        if isinstance(own, type):
            auto.register(made, long_model(own, made), exist_ok=True)
    return made


class _LongConfigOf:
    """Before the base's config class: instances answer with the model_type of the base.

    Transformers looks weights' names and tokenizers up by it; files get the class's own.
    """

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **given: Any) -> Any:
        made = super().from_dict(config_dict, **given)  # type: ignore[misc]
        own = made[0] if isinstance(made, tuple) else made
        own.__dict__["model_type"] = config_dict["base_model_type"]
        return made


def long_model(base: Any, config: Any) -> Any:
    """The model class of a base, with our way of loading."""
    # Transformers reads the source of a class's module to see whether its attention can be set.
    own = {"config_class": config, "__module__": base.__module__}
    return type(f"Long{base.__name__}", (LongModel, base), own)


AutoConfig.register(LONG, LongConfig, exist_ok=True)
