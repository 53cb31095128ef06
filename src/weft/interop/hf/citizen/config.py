"""`config.json` of a weft model in the form of Transformers, with weft's own config inside."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from weft.errors import Unsupported, WeftError
from weft.models import (
    Classifier,
    Decoder,
    Encoder,
    EncoderDecoder,
    LanguageModel,
    PerceiverIO,
    SwinTransformer,
    config_from_dict,
    config_to_dict,
)
from weft.models.registry import LAST
from weft.models.usage.record import Usage
from weft.plugins import modules_of, way_out


class WeftConfig(PreTrainedConfig):
    """A weft model: `weft` is its config as a saved weft model has it, the rest repeats it."""

    model_type = "weft"

    weft: dict[str, Any] | None = None
    weft_modules: list[str] | None = None  # modules outside weft that define parts of it
    marks: dict[str, str] | None = None  # rules that mark tokens by their ids
    answer_offset: float = 0.0  # a regression's answer is offset + scale · output
    answer_scale: float = 1.0
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    max_position_embeddings: int | None = None
    pad_token_id: int | None = None
    mask_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    tie_word_embeddings: bool = True


def weft_config(config: WeftConfig) -> Any:
    """The weft config inside."""
    if not config.weft:
        raise WeftError(
            "this config.json has no weft model in it (the key 'weft'); write the folder again by "
            "`weft export hf RUN OUT`"
        )
    try:
        return config_from_dict(config.weft)
    except WeftError as error:
        raise WeftError(
            f"{error}{way_out(config.weft_modules or [], 'the exported folder')}"
        ) from error


def kind_of(config: Any) -> str:
    """What Transformers calls a model with this weft config: the end of the class's name."""
    if isinstance(config, LanguageModel):
        if isinstance(config.trunk, EncoderDecoder):
            return "ForSeq2SeqLM"
        return "ForCausalLM" if isinstance(config.trunk, Decoder) else "ForMaskedLM"
    if isinstance(config, Classifier):
        return "ForSequenceClassification"
    if isinstance(config, Encoder | Decoder | PerceiverIO | SwinTransformer):
        return "Model"
    raise Unsupported(
        f"Transformers has no class for a weft {type(config).__name__}; these can be exported: "
        "language models, classifiers, regressions, encoders and decoders"
    )


def config_for(config: Any, usage: Usage | None = None) -> WeftConfig:
    """The config of a weft model with this weft config and usage."""
    kind = kind_of(config)
    trunk = getattr(config, "trunk", config)
    reader = trunk.encoder if isinstance(trunk, EncoderDecoder) else trunk
    vocab = trunk.embedding.vocab
    if vocab is None:
        raise Unsupported("a model of values instead of tokens has no form in Transformers")
    stack = getattr(reader, "stack", None)
    made = WeftConfig(
        weft=config_to_dict(config),
        weft_modules=list(modules_of(config)) or None,
        vocab_size=vocab,
        hidden_size=trunk.dim,
        num_hidden_layers=None if stack is None else stack.order.count("s"),
        num_attention_heads=None if stack is None else stack.frame.heads,
        max_position_embeddings=None if stack is None else stack.frame.length,
        is_encoder_decoder=kind == "ForSeq2SeqLM",
        **(_labels(config, usage) if kind == "ForSequenceClassification" else {}),
    )
    if kind == "ForSeq2SeqLM":  # as the objective sequence_to_sequence numbers them
        made.decoder_start_token_id, made.eos_token_id = vocab - 1, vocab - 2
    if kind == "ForMaskedLM" and config.mask_id is not None:
        made.mask_token_id = vocab - 1 if config.mask_id == LAST else config.mask_id
    if usage is not None and usage.marks:
        made.marks = dict(usage.marks)
    return made


def _labels(config: Any, usage: Usage | None) -> dict[str, Any]:
    """Names of the classes, or what turns an output into a number."""
    if usage is not None and usage.kind == "regress":
        scales = {"answer_offset": usage.offset, "answer_scale": usage.scale}
        return {"num_labels": 1, "problem_type": "regression", **scales}
    names = usage.labels if usage is not None and usage.labels else range(config.classes)
    labels = {place: str(name) for place, name in enumerate(names)}
    return {"id2label": labels, "label2id": {name: place for place, name in labels.items()}}
