"""weft: every efficient-transformer idea behind one interface.

>>> import weft
>>> str(weft.Sliding(256) | weft.Strided(64))
'sliding(window=256) | strided(stride=64)'
>>> weft.mixer("longformer(window=512)")
Longformer(window=512, dilation=1, global_first=1, global_projections=True)

The names below are loaded when they are first used, so `import weft` alone loads no torch. Every
other mechanism, model part and pattern is in `weft.mixers`, `weft.models` and `weft.patterns`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# What editors and type checkers read; `_HOMES` says the same at run time (tests compare the two).
if TYPE_CHECKING:
    from weft import feedforward, generate, layers, mixers, models, objectives, patterns, training  # noqa: F401
    from weft.errors import Unsupported, WeftError
    from weft.kernels.attend.api import Request, attend
    from weft.layers.embedding import Embedding
    from weft.layers.positions import Alibi, Rope, T5Bias
    from weft.mixers import (
        NSA,
        BigBird,
        Frame,
        FullAttention,
        LinearTransformer,
        Longformer,
        Mixer,
        Perceiver,
        Performer,
        SlidingWindow,
        attention,
        mixer,
    )
    from weft.models import (
        Classifier,
        Decoder,
        Encoder,
        EncoderDecoder,
        LanguageModel,
        Matcher,
        PerceiverIO,
        Stack,
        load,
        preset,
        save,
    )
    from weft.models.planning import plan
    from weft.patterns import (
        Causal,
        Dilated,
        Full,
        Global,
        Keys,
        Pattern,
        PerHead,
        Predicate,
        Sink,
        Sliding,
        Strided,
        pattern,
    )
    from weft.use.advise import advise
    from weft.use.events import predict_events
    from weft.use.fit import fit

_HOMES = {
    "weft.use.advise": "advise",
    "weft.use.events": "predict_events",
    "weft.use.fit": "fit",
    "weft.errors": "Unsupported WeftError",
    "weft.kernels.attend.api": "Request attend",
    "weft.layers.embedding": "Embedding",
    "weft.layers.positions": "Alibi Rope T5Bias",
    "weft.mixers": "BigBird Frame FullAttention LinearTransformer Longformer Mixer NSA Perceiver "
    "Performer SlidingWindow attention mixer",
    "weft.models": "Classifier Decoder Encoder EncoderDecoder LanguageModel Matcher PerceiverIO "
    "Stack load preset save",
    "weft.models.planning": "plan",
    "weft.patterns": "Causal Dilated Full Global Keys Pattern PerHead Predicate Sink Sliding "
    "Strided pattern",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "NSA",
    "Alibi",
    "BigBird",
    "Causal",
    "Classifier",
    "Decoder",
    "Dilated",
    "Embedding",
    "Encoder",
    "EncoderDecoder",
    "Frame",
    "Full",
    "FullAttention",
    "Global",
    "Keys",
    "LanguageModel",
    "LinearTransformer",
    "Longformer",
    "Matcher",
    "Mixer",
    "Pattern",
    "PerHead",
    "Perceiver",
    "PerceiverIO",
    "Performer",
    "Predicate",
    "Request",
    "Rope",
    "Sink",
    "Sliding",
    "SlidingWindow",
    "Stack",
    "Strided",
    "T5Bias",
    "Unsupported",
    "WeftError",
    "advise",
    "attend",
    "attention",
    "fit",
    "load",
    "mixer",
    "pattern",
    "plan",
    "predict_events",
    "preset",
    "save",
]


def _find(name: str) -> Any:
    """A public name or a submodule, loaded when it is first asked for."""
    if name in _HOME_OF:
        value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return value
    if name.startswith("_"):
        raise AttributeError(f"module 'weft' has no attribute {name!r}", name=name)
    if find_spec(f"weft.{name}") is not None:
        return import_module(f"weft.{name}")
    raise AttributeError(_unknown(name), name=name)


if not TYPE_CHECKING:  # else a type checker would take any name for a public one
    __getattr__ = _find


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})


def _unknown(name: str) -> str:
    """Where a name that is not here is to be found, or which one was meant."""
    from weft.registry import suggest

    for home in ("weft.mixers", "weft.models", "weft.patterns"):
        if name in import_module(home).__all__:
            return f"module 'weft' has no attribute {name!r}; it is in {home}"
    return f"module 'weft' has no attribute {name!r}; {suggest(name, __all__)}"
