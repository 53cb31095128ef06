"""`convert`: a dense Transformers model becomes a long, sparse one, trained on and measured.

    settings = Conversion(length=4096, pattern="sliding(256) | keys(first=4)", minutes=5)
    weft.interop.hf.convert("bert-base", "bert-4096", settings, train="texts/")
    AutoModelForMaskedLM.from_pretrained("bert-4096")        # after import weft.interop.hf

Learned positions are tiled, rotary bases of layers that read beyond the trained length multiplied,
by the factor that is best on the user's text. Then training goes on with the model's own loss. The
folder holds the model, its tokenizer, a report and its rows. A killed conversion goes on when the
same call is made again.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.files import locked, read_object, write_json
from weft.interop.hf.dense_to_long.findings import Findings
from weft.interop.hf.dense_to_long.folder import write_folder
from weft.interop.hf.dense_to_long.settings import Conversion, ConversionListener
from weft.interop.hf.dense_to_long.stages import WORK, ConversionRun

SETTINGS = "convert.json"


def convert(
    model: str | Path,
    out: str | Path,
    settings: Conversion,
    *,
    train: str | Path | None = None,
    held_out: str | Path | None = None,
    listener: ConversionListener | None = None,
) -> Findings:
    """Write the long model to `out`; returns what was measured.

    `train` is text: a file, a folder of files, JSON lines with "text". Without `held_out`, some of
    it is held out. Without `train`, nothing is trained.
    """
    out = Path(out)
    if settings.minutes is None and settings.steps is None and train is not None:
        raise WeftError("training takes minutes= or steps=; without train= nothing is trained")
    if train is None and (settings.minutes is not None or settings.steps is not None):
        raise WeftError("minutes= and steps= are of a training: give train=, a text to train on")
    told = _described(model, settings, train, held_out)
    fresh = _check_place(out, told)
    with locked(out / WORK / "lock", wait=False) as free:
        if not free:
            raise WeftError(f"another process is converting a model into {out}")
        write_json(out / SETTINGS, told)
        run = ConversionRun(
            Path(model), out, settings, train, held_out, listener or ConversionListener()
        )
        try:
            found = run.findings()
        except WeftError:
            if fresh:  # refused: the folder can be given again with other settings
                shutil.rmtree(out)
            raise
        write_folder(run.original, out, out / WORK, found)
    # The run is finished: what it would go on from is no longer needed.
    shutil.rmtree(out / WORK)
    return found


def _described(model: Any, settings: Conversion, train: Any, held_out: Any) -> dict[str, Any]:
    files = {"model": model, "train": train, "held_out": held_out}
    own = {key: None if path is None else str(path) for key, path in files.items()}
    return json.loads(json.dumps({"convert": own | asdict(settings)}))


def _check_place(out: Path, told: dict[str, Any]) -> bool:
    """Whether the folder is new; else this very conversion was stopped there."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return True
    if not (out / SETTINGS).is_file():
        raise WeftError(f"{out} exists and is not empty; give a folder of the conversion's own")
    own, before = told["convert"], read_object(out / SETTINGS, "convert")["convert"]
    if other := sorted(key for key in own if own[key] != before.get(key)):
        raise WeftError(
            f"{out} is of another conversion: it differs in {', '.join(other)}; give another "
            "folder, or the same settings to go on"
        )
    if not (out / WORK).exists():
        raise WeftError(f"{out} is finished: read {out / 'report.html'}, or give another folder")
    return False
