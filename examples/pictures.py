"""Pictures: learn to draw stripes pixel by pixel, complete one, and probe the layers."""

from pathlib import Path

import numpy as np

import weft
from weft.arena.experiment.runs import run_of
from weft.arena.experiment.settings import experiment
from weft.generate import Sampling
from weft.pictures.coding import coding_of
from weft.pictures.drawing import grid, write_png
from weft.training import linear_probe, train
from weft.use.draw import completed, sampled

SIDE = 4
rng = np.random.default_rng(0)
DARK, BRIGHT = (40, 90, 190), (240, 220, 90)
pictures = np.zeros((200, SIDE, SIDE, 3), np.uint8)
labels = np.arange(200) % 2
for picture, upright in zip(pictures, labels, strict=True):
    stripes = (np.arange(SIDE) + rng.integers(2)) % 2 == 0
    picture[:] = np.where((stripes if upright else stripes[:, None])[..., None], BRIGHT, DARK)
pictures += rng.integers(0, 16, pictures.shape, dtype=np.uint8)  # no two are equal
np.savez("stripes.npz", x=pictures, y=np.array(["across", "upright"])[labels])

own = experiment(
    {
        "task": "pictures(data='stripes.npz', form='palette', colours=2)",
        "objective": "pixel_lm",
        "model": {
            "trunk": {
                "name": "encoder",
                "embedding": {"positions": "learned"},
                "stack": {"frame": {"dim": 32, "heads": 2}, "order": "sf"},
            }
        },
        "mixer": f"sparse_transformer(stride={SIDE})",
        "training": {"steps": 80, "batch": 32, "lr": 5e-3, "warmup": 10, "device": "cpu"},
    }
)
outcome = train(run_of(own), "runs/stripes")
model = weft.load("runs/stripes")
coding = coding_of(model.usage.pictures)

write_png(Path("given.png"), pictures[0])
rows = completed(model, coding, [Path("given.png")], 0.5, Sampling(temperature=1.0, seed=0))
drawn = sampled(model, coding, 5, Sampling(temperature=1.0, seed=0))
write_png(Path("runs/stripes.png"), grid([*rows, *drawn], columns=5, scale=16))

batches = [own.task.load(split).batch(np.arange(32)) for split in ("train", "test")]
read = [[run_of(own).stages[0].objective.read(model, batch)] for batch in batches]
probe = linear_probe(model, *read, layer=1)
print(f"{outcome.best_score:.2f} bits a pixel; layer 1 tells {probe.accuracy:.0%} of the stripes")
