"""What comes along with the weights: labels, and the tokenizer as one tokenizer.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.models.heads.document import Classifier
from weft.models.heads.language_model import LanguageModel
from weft.models.usage.record import TOKENIZER, Usage


def usage_of(folder: Path | None, settings: Any, config: Any, tokenizer: Any = None) -> Usage:
    """How the model is used: its kind, labels, tokenizer and longest text."""
    text = _tokenizer(folder, tokenizer)
    labels: tuple[str, ...] = ()
    kind = "encode"
    if isinstance(config, Classifier):
        kind = "classify"
        named = {int(i): name for i, name in (settings.id2label or {}).items()}
        labels = tuple(named.get(i, str(i)) for i in range(config.classes))
        labels = labels if len(set(labels)) == len(labels) else ()
    elif isinstance(config, LanguageModel):
        kind = "language"
    return Usage(
        kind=kind,
        task=f"imported {settings.model_type}",
        data="weights of a published checkpoint",
        labels=labels,
        tokens=TOKENIZER if text is not None else "none",
        tokenizer=text,
        length=_length(settings),
    )


def _length(settings: Any) -> int:
    longest = getattr(settings, "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest > 0 else 0


def _tokenizer(folder: Path | None, tokenizer: Any) -> str | None:
    """The tokenizer as the text of tokenizer.json; None where the folder has none that fits."""
    if tokenizer is None and folder is not None:
        if (folder / TOKENIZER).is_file():
            return (folder / TOKENIZER).read_text(encoding="utf-8")
        tokenizer = _by_transformers(folder)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return None if backend is None else backend.to_str()


def _by_transformers(folder: Path) -> Any:
    """The tokenizer that Transformers makes of older files; None where it cannot."""
    older = (
        "vocab.txt",
        "vocab.json",
        "spiece.model",
        "tokenizer.model",
        "sentencepiece.bpe.model",
    )
    if not any((folder / name).is_file() for name in older):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError, ImportError, KeyError, TypeError):
        return None
