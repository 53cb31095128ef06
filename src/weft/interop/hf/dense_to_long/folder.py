"""The folder of a converted model: weights, config, tokenizer, report, rows."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from weft.files import read_object, write_bytes, write_json
from weft.interop.hf.dense_to_long.auto import LONG
from weft.interop.hf.dense_to_long.findings import Findings, rows_of
from weft.interop.hf.dense_to_long.page import report_of
from weft.interop.hf.dense_to_long.source import Original, quiet
from weft.report.page.html import page
from weft.report.page.markdown import markdown
from weft.rows import append

_CARD = """---
library_name: transformers
tags:
- weft
---

"""


def write_folder(original: Original, out: Path, work: Path, found: Findings) -> None:
    """Write everything; config.json comes last, so a folder that has it is complete."""
    new = work / "new"
    shutil.rmtree(new, ignore_errors=True)
    with quiet():
        original.model.save_pretrained(new)
    if original.tokenizer is not None:
        original.tokenizer.model_max_length = found.form.length
        original.tokenizer.save_pretrained(new)
    config = read_object(new / "config.json", "model_type")
    config["base_model_type"] = config["model_type"]
    config |= {"model_type": LONG, "architectures": [f"Long{type(original.model).__name__}"]}
    write_json(new / "config.json", config)
    (new / "rows.jsonl").unlink(missing_ok=True)
    append(new / "rows.jsonl", rows_of(found))
    report = report_of(found)
    write_bytes(new / "report.html", page(report).encode())
    text = markdown(report, "figures")
    write_bytes(new / "README.md", (_CARD + text.text).encode())
    for name, data in text.files.items():
        write_bytes(out / "figures" / name, data)
    for file in sorted(new.iterdir(), key=lambda file: file.name == "config.json"):
        os.replace(file, out / file.name)
