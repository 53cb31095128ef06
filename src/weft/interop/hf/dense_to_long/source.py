"""The model that is converted, and its tokenizer: a Transformers folder, or a .gguf file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)

from weft.errors import Unsupported, WeftError, suggest
from weft.interop.hf.checkpoints.files import read_table, weights_of
from weft.interop.hf.dense_to_long.auto import LONG

# Files that hold the words of a tokenizer.
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)
# Heads of pre-training that the model a checkpoint is read as has no place for.
_LEFT_OUT = ("pooler", "seq_relationship", "position_ids", "inv_freq")


class Original(NamedTuple):
    """What a conversion starts from."""

    model: PreTrainedModel
    tokenizer: Any  # None: the folder has none
    left_out: tuple[str, ...]  # weights that this model has no place for


def read_original(path: str | Path, head: str | None, dtype: torch.dtype) -> Original:
    """The model of a folder or a .gguf file, in `eval` mode; `head` as MaskedLM or Model."""
    path = Path(path)
    if path.suffix == ".gguf" or (path.is_dir() and _only_gguf(path)):
        return _read_gguf(path, dtype)
    if not path.is_dir():
        raise WeftError(f"there is no folder {str(path)!r}; give one with config.json and weights")
    settings, architecture = _settings(path)
    weights_of(path)  # refuses files that are cut short, and pickles of more than tensors
    made = _class_of(settings, architecture, head)
    model, told = _loaded(made, path, settings, dtype)
    if missing := sorted(told["missing_keys"]):
        raise WeftError(
            f"{path} lacks weights of {made.__name__}: {', '.join(missing[:5])}"
            f"{' and others' if len(missing) > 5 else ''}; give the head that it has (--head): "
            "Model reads the body alone"
        )
    if mismatched := told["mismatched_keys"]:
        raise WeftError(f"{path} has weights of other sizes than its config: {mismatched}")
    extra = sorted(told["unexpected_keys"])
    unknown = [name for name in extra if not any(part in name for part in _LEFT_OUT)]
    if unknown and head is None:
        raise WeftError(
            f"{path} has weights that {made.__name__} has no place for: {', '.join(unknown[:5])}; "
            "give --head to leave them out"
        )
    return Original(in_precision(model, dtype).eval(), _tokenizer(path), tuple(extra))


def in_precision(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Parameters in this precision; buffers hold rotary frequencies and stay as they are."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.tie_weights()
    model.config.dtype = dtype
    return model


def _only_gguf(folder: Path) -> bool:
    return not (folder / "config.json").is_file() and any(folder.glob("*.gguf"))


def _settings(folder: Path) -> tuple[Any, str]:
    """The config of a folder, and the class that its weights were saved by."""
    path = folder / "config.json"
    if not path.is_file():
        raise WeftError(f"{folder} is not a model of Hugging Face: it has no config.json")
    table = read_table(path)
    kind = table.get("model_type")
    if kind == LONG:
        raise WeftError(f"{folder} was converted already; convert the model that it was made from")
    if kind == "weft" or (kind is None and "model" in table):
        raise Unsupported(
            f"{folder} is a model of weft's own: its settings name the mixer of each layer, and a "
            "longer one is trained from them; weft convert takes models of Transformers"
        )
    if not isinstance(kind, str):
        raise WeftError(
            f'{path} has no model_type; write it in, as "model_type": "bert", and give --head, as '
            "MaskedLM, where it has no architectures"
        )
    if kind not in CONFIG_MAPPING:
        known = suggest(kind, CONFIG_MAPPING.keys())
        raise Unsupported(f"Transformers has no model of model_type {kind!r}; {known}")
    try:
        settings = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as cause:  # of many kinds, by the checks of each config class
        raise WeftError(f"{path} is not a config that Transformers reads: {cause}") from cause
    return settings, (table.get("architectures") or [""])[0]


def _class_of(settings: Any, architecture: str, head: str | None) -> Any:
    """The class that reads a checkpoint: pre-training heads are read as the language model."""
    own = "CausalLM" if architecture.endswith("LMHeadModel") else architecture.partition("For")[2]
    wanted = head or ("MaskedLM" if own == "PreTraining" else own or "Model")
    auto = getattr(
        transformers, "AutoModel" if wanted == "Model" else f"AutoModelFor{wanted}", None
    )
    found = None if auto is None else auto._model_mapping.get(type(settings), None)
    if not isinstance(found, type):
        raise Unsupported(
            f"{settings.model_type} has no head {wanted!r} in Transformers; --head is CausalLM, "
            "MaskedLM, SequenceClassification, TokenClassification or Model"
        )
    return found


def _loaded(made: Any, path: Path, settings: Any, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    given: dict[str, Any] = {"local_files_only": True, "output_loading_info": True}
    try:
        with quiet():  # what it would report is refused or said by us
            return made.from_pretrained(path, config=settings, dtype=dtype, **given)
    except (ValueError, OSError, RuntimeError) as cause:
        raise WeftError(f"{path} cannot be read as {made.__name__}: {cause}") from cause


@contextmanager
def quiet() -> Iterator[None]:
    """Without reports, warnings and bars of Transformers."""
    told, bars = transformers.logging, transformers.logging.is_progress_bar_enabled()
    verbosity = told.get_verbosity()
    told.set_verbosity_error()
    told.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        told.set_verbosity(verbosity)
        if bars:
            told.enable_progress_bar()


def _tokenizer(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        return None  # Transformers would make one without words
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception:  # folders without one end in many kinds of errors
        return None


def _read_gguf(path: Path, dtype: torch.dtype) -> Original:
    """Transformers dequantises it."""
    files = [path] if path.suffix == ".gguf" else sorted(path.glob("*.gguf"))
    if len(files) != 1 or not files[0].is_file():
        raise WeftError(f"{path}: one .gguf file is read; found {len(files)}, or it is not there")
    (file,) = files
    given: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **given)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **given)
    except ImportError as cause:
        raise WeftError(f"a .gguf file needs further packages: {cause}") from cause
    except Exception as cause:  # gguf's reader raises many kinds on a damaged file
        raise WeftError(f"{file} cannot be read, is it cut short? {cause}") from cause
    # Dequantised already; Transformers would refuse to save what it calls quantised.
    model.hf_quantizer = None
    model.config.__dict__.pop("quantization_config", None)
    return Original(in_precision(model, dtype).eval(), tokenizer, ())
