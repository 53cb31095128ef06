"""Reviews that say good or bad, and a small model trained on them."""

import json
import random

import weft

SMALL = ["model.layers=1", "model.dim=16", "model.heads=2", "training.lr=1e-2"]
TEXTS = ["so good", "bad bad, bad", "good " * 30, "näh, bad"]


def reviews(count: int, labels=(1, 5), seed: int = 0) -> list[dict]:
    draw = random.Random(seed)
    rows = []
    for i in range(count):
        good = draw.random() < 0.5
        word = "good " if good else "bad "
        rows.append({"body": f"{i} {word * draw.randint(1, 9)}", "stars": labels[good]})
    return rows


def fitted(rows, out, **given):
    given = {"text": "body", "label": "stars", "steps": 30, "device": "cpu", **given}
    settings = [*SMALL, *given.pop("settings", [])]
    return weft.fit(rows, mixer="sliding_window(window=9)", out=out, settings=settings, **given)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
