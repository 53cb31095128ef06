"""What a model's answer about a sound or a sequence rests on, as rows that the report draws.

sound    a spectrogram of the samples that were read, and the influence of each frame
dna      the bases, and the influence of each: a token's is shared out to its bases
"""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.arena.analysis.explain import explain
from weft.arena.experiment.runs import rows_of
from weft.arena.experiment.settings import read_experiment
from weft.arena.tasks.base import Split
from weft.arena.tasks.dna.base import DnaTask
from weft.arena.tasks.sound.base import SoundTask
from weft.dna.bases import Kmers, letters_of
from weft.errors import Unsupported
from weft.files import write_json
from weft.models import load
from weft.pictures.drawing import png
from weft.sound.spectrum import log_mel

NAME = "drawn.json"  # in the folder of a run
DARK, BRIGHT = np.array([14, 20, 52]), np.array([255, 224, 120])  # of a spectrogram
QUIET = 1e-3  # share of spectral levels that are drawn as darkest


def can_draw(task: Any) -> bool:
    """Whether documents of this task are drawn one by one."""
    return isinstance(task, SoundTask | DnaTask)


def write_documents(
    run: str | Path,
    first: int = 3,
    split: Split = "test",
    device: str | torch.device = "cpu",
) -> list[dict[str, Any]]:
    """The first documents of a split, each as a row, kept where the run's report reads them."""
    run = Path(run)
    experiment = read_experiment(run)
    task: Any = experiment.task
    if not can_draw(task):
        raise Unsupported(f"sounds and DNA are drawn one by one; got the task {task.name!r}")
    model, rows, labels = load(run, device), rows_of(experiment, split), task.labels
    found = []
    for row in range(min(first, len(rows))):
        batch = rows.batch(np.array([row])).to(device)
        answer = explain(model, batch)
        own = {
            "name": f"{split} {row + 1}",
            "answer": str(labels[answer.answer]),
            "probability": answer.probability,
            "label": str(labels[int(rows.classes[row])]),
        }
        draw: Any = _sound if isinstance(task, SoundTask) else _bases
        found.append(own | draw(task, rows, row, answer.influence))
    write_json(run / NAME, found)
    return found


def _sound(task: Any, rows: Any, row: int, influence: np.ndarray) -> dict[str, Any]:
    """A spectrogram, 40 bands high, the highest above, as a PNG in base64."""
    samples = np.asarray(rows.rows[row], dtype=np.float64).reshape(-1)
    levels = log_mel(samples, task.rate)
    low, high = np.quantile(levels, QUIET), levels.max()
    share = ((levels - low) / max(high - low, 1e-9)).clip(0, 1).T[::-1, :, None]
    image = (DARK + (BRIGHT - DARK) * share).round().astype(np.uint8)  # (40, frames, 3)
    return {
        "kind": "sound",
        "seconds": len(samples) / task.rate,
        "image": b64encode(png(image)).decode(),
        "influence": influence.tolist(),
    }


def _bases(task: Any, rows: Any, row: int, influence: np.ndarray) -> dict[str, Any]:
    kmers = task.kmers
    letters = letters_of(kmers.bases(rows.rows[row][: task.length]))
    return {
        "kind": "dna",
        "letters": letters,
        "influence": shared_out(influence, kmers, len(letters)).tolist(),
    }


def shared_out(influence: np.ndarray, kmers: Kmers, count: int) -> np.ndarray:
    """Influences of tokens (n,) as influences of bases (count,): sums stay the same."""
    found = np.zeros(count)
    for token, value in enumerate(influence):
        found[token * kmers.step : token * kmers.step + kmers.k] += value / kmers.k
    return found
