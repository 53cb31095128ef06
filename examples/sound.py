"""Sounds from a table: high or low, from raw samples, and a new recording."""

from pathlib import Path

import numpy as np

import weft
from weft.arena.experiment.runs import run_of
from weft.arena.experiment.settings import experiment
from weft.sound.files import write_wav
from weft.training import train

RATE, SECONDS = 8_000, 0.1
folder = Path("sounds")
folder.mkdir(exist_ok=True)
rng = np.random.default_rng(0)


def tone(high):
    """High or low, in noise."""
    pitch = rng.uniform(1_500, 2_000) if high else rng.uniform(300, 800)
    times = np.arange(int(RATE * SECONDS)) / RATE
    return 0.3 * np.sin(2 * np.pi * pitch * times) + 0.02 * rng.standard_normal(len(times))


lines = ["file,kind"]
for row in range(120):
    write_wav(folder / f"{row}.wav", tone(row % 2), RATE)
    lines.append(f"{row}.wav,{('low', 'high')[row % 2]}")
(folder / "sounds.csv").write_text("\n".join(lines))

own = experiment(
    {
        "task": "sounds(data='sounds/sounds.csv', label='kind', length=800)",
        "model": {
            "trunk": {
                "name": "waveform",
                "front": {
                    "width": 32,
                    "kernels": [10, 8, 4],
                    "strides": [5, 4, 2],
                    "norm": "layer",
                },
                "embedding": {"positions": "sinusoidal"},
                "stack": {"frame": {"dim": 16, "heads": 2}, "order": "sf"},
            }
        },
        "mixer": "sliding_window(window=9)",
        "training": {"steps": 50, "batch": 16, "lr": 5e-3, "warmup": 10, "device": "cpu"},
    }
)
outcome = train(run_of(own), "runs/sounds")
print(f"right on {outcome.best_score:.0%} of the sounds held out for validation")

write_wav(folder / "new.wav", tone(high=True), RATE)
answer = weft.load("runs/sounds").predict("sounds/new.wav", proba=True)
print(answer)
