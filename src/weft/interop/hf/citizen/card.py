"""The model card of an export: what the model is, its own figures and data, how to use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft import __version__
from weft.models.usage.record import Usage
from weft.use.show import show

_TASKS = {
    "WeftForCausalLM": "text-generation",
    "WeftForMaskedLM": "fill-mask",
    "WeftForSequenceClassification": "text-classification",
    "WeftForSeq2SeqLM": "text2text-generation",
    "WeftModel": "feature-extraction",
}
_AUTO = {
    "WeftForCausalLM": "AutoModelForCausalLM",
    "WeftForMaskedLM": "AutoModelForMaskedLM",
    "WeftForSequenceClassification": "AutoModelForSequenceClassification",
    "WeftForSeq2SeqLM": "AutoModelForSeq2SeqLM",
    "WeftModel": "AutoModel",
}


def model_card(run: Path, out: Path, model: Any) -> str:
    """Markdown with a header that hubs read; every figure is one that the run recorded."""
    kind = type(model).__name__
    usage: Usage | None = getattr(model.weft, "usage", None)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    lines = ["---", "library_name: transformers", f"pipeline_tag: {_TASKS[kind]}"]
    lines += ["tags:", "- weft", "---", "", f"# {out.name}", ""]
    lines += [
        f"A {kind} of {numbers:,} parameters, trained and exported by weft {__version__}.",
        "",
    ]
    lines += ["## What it is, and its figures", "", "```text", _told(run), "```", ""]
    if usage is None:
        lines += ["It was saved without a record of training: no figures are known.", ""]
    elif usage.marks_global:
        lines += [
            "In training, tokens were marked global by the text itself. Transformers does not hand "
            "such marks on: outputs differ from those of `weft predict`.",
            "",
        ]
    lines += ["## Use", "", *_use(model, kind, out, usage), ""]
    if usage is not None and usage.settings:
        lines += ["## Settings of the training", "", "```text", *_flat(usage.settings), "```", ""]
    return "\n".join(lines)


def _told(run: Path) -> str:
    """What `weft show` says, without the lines about using a run in place."""
    lines = show(run).splitlines()
    end = next((i for i, line in enumerate(lines) if line.startswith("use it")), len(lines))
    return "\n".join(line.rstrip() for line in lines[:end])


def _use(model: Any, kind: str, out: Path, usage: Usage | None) -> list[str]:
    auto, name = _AUTO[kind], repr(out.name)
    lines = ["```python", "import weft.interop.hf  # makes the classes known; no remote code"]
    with_text = usage is not None and usage.tokens != "none" and kind != "WeftModel"
    fills = kind == "WeftForMaskedLM" and model.config.mask_token_id is not None
    if with_text and (fills or kind in ("WeftForCausalLM", "WeftForSequenceClassification")):
        text = 'f"a {pipe.tokenizer.mask_token} text"' if fills else '"a text"'
        lines += ["from transformers import pipeline", ""]
        lines += [f"pipe = pipeline({_TASKS[kind]!r}, {name})", f"print(pipe({text}))"]
    else:
        lines += [f"from transformers import {auto}", "", f"model = {auto}.from_pretrained({name})"]
    return [*lines, "```"]


def _flat(settings: dict[str, Any], before: str = "") -> list[str]:
    lines = []
    for key, value in settings.items():
        if isinstance(value, dict):
            lines += _flat(value, f"{before}{key}.")
        else:
            lines.append(f"{before}{key} = {value}")
    return lines
