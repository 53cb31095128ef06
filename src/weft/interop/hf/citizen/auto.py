"""Makes the Auto classes of Transformers find weft's models; importing it registers them."""

from __future__ import annotations

from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from weft.interop.hf.citizen.config import WeftConfig, kind_of
from weft.interop.hf.citizen.models import (
    WeftForCausalLM,
    WeftForMaskedLM,
    WeftForSequenceClassification,
    WeftModel,
    WeftPreTrainedModel,
)
from weft.interop.hf.citizen.seq2seq import WeftForSeq2SeqLM

CLASSES: dict[str, tuple[Any, type[WeftPreTrainedModel]]] = {
    "Model": (AutoModel, WeftModel),
    "ForCausalLM": (AutoModelForCausalLM, WeftForCausalLM),
    "ForMaskedLM": (AutoModelForMaskedLM, WeftForMaskedLM),
    "ForSequenceClassification": (
        AutoModelForSequenceClassification,
        WeftForSequenceClassification,
    ),
    "ForSeq2SeqLM": (AutoModelForSeq2SeqLM, WeftForSeq2SeqLM),
}

AutoConfig.register("weft", WeftConfig, exist_ok=True)
for _auto, _own in CLASSES.values():
    _auto.register(WeftConfig, _own, exist_ok=True)


def class_for(config: Any) -> type[WeftPreTrainedModel]:
    """The class of a model with this weft config."""
    return CLASSES[kind_of(config)][1]
