"""Which published architectures are read, by the `model_type` of their config.json.

A reader gets the settings of a checkpoint and the head that it has, and returns the config of the
weft model and the table of names:

    @reads("bert", heads=("MaskedLM", "SequenceClassification", "Model"))
    def bert(c, head): return Import(config, Names(rows, prefix="bert."))

`head` is what follows the model's name in the class that wrote the checkpoint: "MaskedLM" of
BertForMaskedLM, "Model" of BertModel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from weft.errors import Unsupported, suggest
from weft.interop.hf.checkpoints.names import Names

# The file of each architecture; a file is imported when a checkpoint asks for it.
FILES = {
    "bert": "bert",
    "roberta": "bert",
    "xlm-roberta": "bert",
    "electra": "electra",
    "mpnet": "mpnet",
    "longformer": "longformer",
    "fnet": "fnet",
    "albert": "albert",
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "gemma": "llama",
    "gemma3_text": "llama",
    "t5": "seq2seq.t5",
    "bart": "seq2seq.bart",
    "mbart": "seq2seq.bart",
    "vit": "pictures.vit",
    "xlnet": "xlnet",
    "modernbert": "modernbert",
    "big_bird": "big_bird",
    "led": "seq2seq.led",
    "bigbird_pegasus": "seq2seq.bigbird_pegasus",
    "nystromformer": "nystromformer",
    "imagegpt": "pictures.imagegpt",
    "switch_transformers": "seq2seq.switch_transformers",
    "swin": "pictures.swin",
    "longt5": "seq2seq.longt5",
}
# Those that are known and not read, and why.
REFUSED = {
    "reformer": "its two reversible streams leave the layers side by side, where weft's leave as "
    "their mean",
    "funnel": "its attention sets the first token apart and tells segments apart, and measures "
    "distances between pooled tokens in tokens; weft's funnel does none of the three",
    "pegasus_x": "its global tokens have norms of their own in every layer, where weft's registers "
    "share those of the tokens",
    "perceiver": "its latents are wider than its inputs and its values wider than its keys, where "
    "weft's perceiver has one width",
    "canine": "it hashes characters into an embedding of eight tables and joins neighbours by "
    "convolutions before and after its layers, which no weft model does",
    "swinv2": "its windows attend by cosines with a learned temperature and biases from a network, "
    "where weft's Swin attends by products and a table of biases",
    "yoso": "weft has no attention by sampled Bernoulli hashes (You Only Sample Almost Once)",
    "mra": "weft has no multi-resolution attention that refines chosen blocks of averaged scores",
    "transfo-xl": "Transformers no longer has its classes",
    "mega": "Transformers no longer has its classes",
}


@dataclass(frozen=True)
class Import:
    """What a reader makes of a checkpoint's settings."""

    config: Any  # of the weft model
    names: Names


@dataclass(frozen=True)
class Reader:
    """How one architecture is read."""

    model_type: str
    heads: tuple[str, ...]
    read: Callable[[Any, str], Import]
    note: str = ""  # what differs, for the table of the docs


READERS: dict[str, Reader] = {}
Read = Callable[[Any, str], Import]


def reads(model_type: str, *, heads: tuple[str, ...], note: str = "") -> Callable[[Read], Read]:
    """Register the reader of an architecture."""

    def add(read: Read) -> Read:
        READERS[model_type] = Reader(model_type, heads, read, note)
        return read

    return add


def check_known(model_type: str) -> None:
    """Refuse an architecture that is not read, with those that are."""
    if model_type in REFUSED:
        raise Unsupported(
            f"{model_type!r} is known, and its checkpoints are not read: {REFUSED[model_type]}. "
            "Run it in Transformers (weft.interop.accelerate knows Reformer and Funnel there), or "
            f"read one of {', '.join(sorted(FILES))}"
        )
    if model_type == "weft_long":
        raise Unsupported(
            "this model was made by weft convert, and its patterns would be lost here; run it in "
            "Transformers, or read the model that it was made from"
        )
    if model_type not in FILES:
        raise Unsupported(f"no reader for model_type {model_type!r}; {suggest(model_type, FILES)}")


def reader_of(model_type: str, head: str) -> Reader:
    """The reader of an architecture, which has to know the head."""
    check_known(model_type)
    import_module(f"weft.interop.hf.checkpoints.families.{FILES[model_type]}")
    reader = READERS[model_type]
    if head not in reader.heads:
        raise Unsupported(
            f"checkpoints of {model_type!r} are read with the heads {', '.join(reader.heads)}; "
            f"got {head!r}: give head= one of them to read the rest of the weights without it"
        )
    return reader


def readers() -> dict[str, Reader]:
    """All readers by model_type."""
    for file in dict.fromkeys(FILES.values()):
        import_module(f"weft.interop.hf.checkpoints.families.{file}")
    return {name: READERS[name] for name in FILES}
