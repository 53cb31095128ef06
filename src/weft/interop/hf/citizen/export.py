"""A weft model as a Transformers model, and as a folder that Transformers reads.

model = weft.interop.hf.to_transformers(weft.load("runs/reviews"))
weft.interop.hf.export("runs/reviews", "exported")
AutoModelForSequenceClassification.from_pretrained("exported")    # after import weft.interop.hf
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from weft.errors import WeftError
from weft.interop.hf.citizen.auto import class_for
from weft.interop.hf.citizen.card import model_card
from weft.interop.hf.citizen.config import config_for
from weft.interop.hf.citizen.tokenizer import tokenizer_for
from weft.models import load
from weft.models.usage.record import Usage

SHARD = "5GB"  # of weights in a file, at most


def to_transformers(model: Any, usage: Usage | None = None) -> PreTrainedModel:
    """The same weft model, its weights shared, as a model of Transformers."""
    usage = getattr(model, "usage", None) if usage is None else usage
    config = config_for(model.config, usage)
    tokenizer = tokenizer_for(usage, config.mask_token_id)
    if tokenizer is not None:
        config.pad_token_id = tokenizer.pad_token_id
    made = class_for(model.config)(config, model)
    if (generation := getattr(made, "generation_config", None)) is not None:
        generation.pad_token_id = config.pad_token_id
    return made.train(model.training)


def export(run: str | Path, out: str | Path, *, shard: str = SHARD) -> Path:
    """Write the model of a run, or a saved model, with its tokenizer and a model card.

    The folder appears when it is complete; one that exists is not written into.
    """
    run, out = Path(run), Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WeftError(f"{out} exists and is not empty; give a folder of the export's own")
    model: Any = load(run)
    made = to_transformers(model)
    made.config.architectures = [type(made).__name__]
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        new = scratch / "new"
        made.save_pretrained(new, max_shard_size=shard)
        tokenizer = tokenizer_for(getattr(model, "usage", None), made.config.mask_token_id)
        if tokenizer is not None:
            tokenizer.save_pretrained(new)
        (new / "README.md").write_text(model_card(run, out, made), encoding="utf-8")
        if out.is_dir():
            out.rmdir()
        new.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return out
