"""Hugging Face Transformers: weft's attention in its models, weft's models as its own.

    use(model, pattern)     a Transformers model under a pattern, None: as it was
    register(pattern)       the name to give as attn_implementation=
    cache(model)            what `generate` makes for a model under patterns

Importing this package needs Transformers (`pip install 'weft[hf]'`).
"""

from weft.interop.hf import required as _required  # noqa: F401  # first: says what to install
from weft.interop.hf.plug.function import DenseMaskWarning
from weft.interop.hf.plug.layers import LayerPatterns, LayerRule, Patterns
from weft.interop.hf.plug.register import register
from weft.interop.hf.plug.use import cache, patterns_of, use

__all__ = [
    "DenseMaskWarning",
    "LayerPatterns",
    "LayerRule",
    "Patterns",
    "cache",
    "patterns_of",
    "register",
    "use",
]
