"""Hugging Face Transformers: weft's attention in its models, weft's models as its own.

    load(folder)            a published checkpoint, or a model in memory, as a weft model
    patches(pictures, 16)   what an imported ViT reads; pixels(pictures): an imported Swin
    use(model, pattern)     a Transformers model under a pattern, None: as it was
    register(pattern)       the name to give as attn_implementation=
    cache(model)            what `generate` makes for a model under patterns
    to_transformers(model)  a weft model as a Transformers model
    export(run, out)        the same as a folder, with tokenizer and model card
    convert(model, out, Conversion(length=4096, pattern=...))   a dense model made long and sparse

The Auto classes of Transformers find weft's models once this package is imported.

Importing this package needs Transformers (`pip install transformers accelerate`).
"""

from weft.interop.hf import required as _required  # noqa: F401  # first: says what to install
from weft.interop.hf.checkpoints.families.pictures.swin import pixels
from weft.interop.hf.checkpoints.families.pictures.vit import patches
from weft.interop.hf.checkpoints.load import load
from weft.interop.hf.citizen.auto import class_for
from weft.interop.hf.citizen.config import WeftConfig
from weft.interop.hf.citizen.export import export, to_transformers
from weft.interop.hf.citizen.models import (
    WeftForCausalLM,
    WeftForMaskedLM,
    WeftForSequenceClassification,
    WeftModel,
)
from weft.interop.hf.citizen.seq2seq import WeftForSeq2SeqLM
from weft.interop.hf.dense_to_long.convert import convert
from weft.interop.hf.dense_to_long.findings import Findings
from weft.interop.hf.dense_to_long.settings import Conversion, ConversionListener
from weft.interop.hf.plug.function import DenseMaskWarning
from weft.interop.hf.plug.layers import LayerPatterns, LayerRule, Patterns
from weft.interop.hf.plug.register import register
from weft.interop.hf.plug.use import cache, patterns_of, use

__all__ = [
    "Conversion",
    "ConversionListener",
    "DenseMaskWarning",
    "Findings",
    "LayerPatterns",
    "LayerRule",
    "Patterns",
    "WeftConfig",
    "WeftForCausalLM",
    "WeftForMaskedLM",
    "WeftForSeq2SeqLM",
    "WeftForSequenceClassification",
    "WeftModel",
    "cache",
    "class_for",
    "convert",
    "export",
    "load",
    "patches",
    "patterns_of",
    "pixels",
    "register",
    "to_transformers",
    "use",
]
