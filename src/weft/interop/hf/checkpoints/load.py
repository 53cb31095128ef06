"""`load`: a published checkpoint, or a Transformers model in memory, as a weft model.

The model is an ordinary weft model: it is saved and loaded by weft, trains, decodes step by step.
What it computes is what Transformers computes, to rounding (tests compare logits and gradients),
with the padding anywhere: weft counts positions over real tokens.

Order: the config is read and the names and shapes of all weights are checked against it before any
memory is taken; then tensors are read one by one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from weft.errors import Unsupported, WeftError
from weft.interop.hf.checkpoints.files import SafeWeights, read_table, weights_of
from weft.interop.hf.checkpoints.mask_token import mask_in, with_mask_token
from weft.interop.hf.checkpoints.names import converted
from weft.interop.hf.checkpoints.registry import Import, check_known, reader_of
from weft.interop.hf.checkpoints.usage import usage_of
from weft.models.registry import ModelConfig


def load(
    source: str | Path | nn.Module,
    *,
    dtype: torch.dtype | None = None,
    head: str | None = None,
    mask_id: int | None = None,
    tokenizer: Any = None,
) -> nn.Module:
    """The weft model of a folder of Hugging Face, a .gguf file, or a Transformers model.

    `dtype` is that of the weights: float32 for files, that of the model for a model. `head`
    overrides which head the checkpoint has, as "MaskedLM"; "Model" reads the body alone. `mask_id`
    is the id of the mask token, where neither config nor tokenizer say it; `tokenizer` that of a
    model in memory: it comes along, as a folder's own does.
    """
    if isinstance(source, nn.Module):
        return _from_module(source, dtype, head, mask_id, tokenizer)
    if tokenizer is not None:
        raise WeftError("a folder has its tokenizer in it; give tokenizer= with a model in memory")
    path = Path(source)
    if path.suffix == ".gguf" or (path.is_dir() and not _has_weights(path)):
        return _from_gguf(path, dtype, head, mask_id)
    if not path.is_dir():
        raise WeftError(f"there is no folder {str(path)!r}; give one with config.json and weights")
    settings, found_head = _settings(path)
    reading = reading_of(settings, head or found_head)
    weights = _of_head(weights_of(path), reading, head)
    usage = usage_of(path, settings, reading.config)
    reading = with_mask_token(reading, settings, mask_in(path, usage.tokenizer), mask_id)
    model = _filled(reading, weights, dtype or torch.float32)
    cast(Any, model).usage = usage
    return model


def _settings(folder: Path) -> tuple[Any, str]:
    """The Transformers config of a folder, and the head of its checkpoint."""
    path = folder / "config.json"
    if not path.is_file():
        raise WeftError(f"{folder} is not a model of Hugging Face: it has no config.json")
    table = read_table(path)
    kind = table.get("model_type")
    if not isinstance(kind, str):
        raise WeftError(
            f"{path} has no model_type, which says how the weights are named; write it in, as "
            '"model_type": "bert", and give head= (--head), as MaskedLM, where it has no '
            "architectures"
        )
    check_known(kind)
    architectures = table.get("architectures") or [""]
    if not isinstance(architectures, list) or not isinstance(architectures[0], str):
        raise WeftError(
            f'{path}: architectures is a list of names, as ["BertForMaskedLM"]; got '
            f"{architectures!r:.80}"
        )
    rest = {key: value for key, value in table.items() if key != "model_type"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings = AutoConfig.for_model(kind, **rest)
    except Exception as cause:  # of many kinds, by the checks of each config class
        raise WeftError(f"{path} is not a config that Transformers reads: {cause}") from cause
    return settings, head_of(architectures[0])


def head_of(architecture: str) -> str:
    """What follows the model's name in a class name: "MaskedLM" of BertForMaskedLM."""
    for mark in ("WithLMHead", "LMHead"):
        if mark in architecture:
            return "LMHead"
    _, found, head = architecture.partition("For")
    return head if found else "Model"


def reading_of(settings: Any, head: str) -> Import:
    """The config and the names of a checkpoint with these settings."""
    reader = reader_of(settings.model_type, head)
    try:
        return reader.read(settings, head)
    except AttributeError as cause:
        raise WeftError(
            f"the config of {settings.model_type!r} lacks a setting: {cause}"
        ) from cause


def _of_head(
    weights: Mapping[str, Tensor], reading: Import, head: str | None
) -> Mapping[str, Tensor]:
    """The weights of the body alone, where that was asked for and others are in the file."""
    prefix = reading.names.prefix
    if head != "Model" or not prefix or not any(name.startswith(prefix) for name in weights):
        return weights
    names = [name for name in weights if name.startswith(prefix)]
    if isinstance(weights, SafeWeights):
        return SafeWeights({name: weights.files[name] for name in names})
    return {name: weights[name] for name in names}


def _from_module(
    source: nn.Module,
    dtype: torch.dtype | None,
    head: str | None,
    mask_id: int | None = None,
    tokenizer: Any = None,
) -> nn.Module:
    settings = getattr(source, "config", None)
    if settings is None or not hasattr(settings, "model_type"):
        raise WeftError(f"a Transformers model has a config; got {type(source).__name__}")
    if getattr(settings, "base_model_type", None) is not None:
        raise Unsupported(
            f"{type(source).__name__} was made by weft convert: its patterns would be lost here; "
            "run it in Transformers, or read the model that it was made from"
        )
    reading = reading_of(settings, head or head_of(type(source).__name__))
    weights = _of_head(source.state_dict(), reading, head)
    usage = None if tokenizer is None else usage_of(None, settings, reading.config, tokenizer)
    told = getattr(tokenizer, "mask_token_id", None)
    reading = with_mask_token(reading, settings, told, mask_id)
    own = next(iter(source.parameters()))
    made = _filled(reading, weights, dtype or own.dtype).to(own.device)
    if usage is not None:
        cast(Any, made).usage = usage
    return made


def _filled(reading: Import, weights: Mapping[str, Tensor], dtype: torch.dtype) -> nn.Module:
    """The model of a reading with these weights, in `eval` mode."""
    config: ModelConfig = reading.config
    shapes = weights.shapes() if isinstance(weights, SafeWeights) else weights
    with torch.device("meta"):
        try:
            empty = config.build()
        except RuntimeError as cause:  # sizes that not even a shape can have
            raise WeftError(f"config and weights belong to different models: {cause}") from cause
        converted(reading.names, _without_memory(shapes), _tensors(empty))
    model: nn.Module = config.build()
    wanted = _tensors(model)
    with torch.no_grad():
        for name, tensor in converted(reading.names, weights, wanted).items():
            kept = wanted[name]
            kept.data = tensor.detach().to(kept.device, dtype, copy=True).contiguous()
    return model.to(dtype).eval()


def _without_memory(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in weights.items()}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, each once, under its first name."""
    names: dict[Tensor, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(tensor, name)
    return {name: tensor for tensor, name in names.items()}


def _has_weights(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _from_gguf(
    path: Path, dtype: torch.dtype | None, head: str | None, mask_id: int | None
) -> nn.Module:
    """A .gguf file, which Transformers dequantises."""
    files = [path] if path.suffix == ".gguf" else sorted(path.glob("*.gguf"))
    if len(files) != 1 or not files[0].is_file():
        raise WeftError(
            f"{path} is not a model of Hugging Face: it has no config.json, nor one .gguf file; "
            f"found {len(files)} of them"
        )
    (file,) = files
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given = {"gguf_file": file.name, "local_files_only": True}
    try:
        model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **given)
    except ImportError as cause:
        raise WeftError(f"a .gguf file needs further packages: {cause}") from cause
    except Exception as cause:  # gguf's reader raises many kinds on a damaged file
        raise WeftError(f"{file} cannot be read, is it cut short? {cause}") from cause
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **given)
    return _from_module(model, dtype, head, mask_id, tokenizer)
