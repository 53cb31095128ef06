"""A run folder for each kind of report: made up, but for the rows of decoding, which are ours."""

import json
import random
import shutil
from pathlib import Path

from run_folders import ENVIRONMENT, cell, full_run, metrics, write_rows

from weft.report import write_report
from weft.rows import append

DECODE = Path(__file__).parents[3] / "benchmarks" / "results" / "decode.jsonl"
LABELS = ["very dissatisfied", "dissatisfied", "neutral", "satisfied", "very satisfied"]


def comparison(folder):
    """Seven mechanisms, three lengths, three seeds, everything that a cell can leave."""
    full_run(folder)
    for place in (folder / "cells").iterdir():
        (place / "classes.json").write_text(json.dumps(class_scores(str(place.name))))
    return write_report(folder)


def classifier(folder):
    """A training on a table with text labels."""
    _training(folder, "accuracy", 0.62)
    usage = {
        "task": "table",
        "data": "reviews_of_the_last_quarter.csv (sha256 0123456789ab), 12,000 rows: body as bytes",
        "columns": {"text": "body", "label": "satisfaction"},
    }
    (folder / "best" / "usage.json").write_text(json.dumps(usage))
    scores = {"split": "test", "metric": "accuracy", "score": 0.6171, "count": 256}
    scores |= {"rows of the split": 1200, **class_scores("one")}
    scores["trivial rules"] = {"majority class": 0.31, "length of the text": 0.335}
    (folder / "scores.json").write_text(json.dumps(scores))
    return write_report(folder)


def language_model(folder):
    """A training scored in bits per byte."""
    _training(folder, "bits per byte", 2.31)
    usage = {"task": "language", "data": "language: text.txt, 400,000 bytes", "columns": {}}
    (folder / "best" / "usage.json").write_text(json.dumps(usage))
    return write_report(folder)


def ablation(folder):
    """A base and modifications with long names."""
    rows = [cell("full", 512, seed, label="base", cell=f"cells/{seed}") for seed in range(3)]
    write_rows(folder, rows)
    names = ["base", "GeGLU", "RMSNorm", "no positions", "norm after the sublayer, not before"]
    names += ["12 layers, feed-forward of twice the width, 3 heads", "window of 9"]
    found = []
    for at, name in enumerate(names):
        loss = 2.2 + 0.05 * (at * 5 % 7 - 3)
        found.append(
            {
                "label": name,
                "base": name == "base",
                "early_loss": loss,
                "early_std": 0.02,
                "seeds": 3,
                "steps": 200,
                "parameters": 25_000 + at,
                "change": f'norm.kind = "{name}"',
                "published_early": loss + 0.1 * (at % 3),
                "published_source": "Narang et al. 2021, table 1",
                "metric": "accuracy",
                "quality": 0.4 - 0.01 * at,
            }
        )
    append(folder / "ablation.jsonl", found)
    return write_report(folder)


def decoding(folder):
    """Rows of `weft bench decode`."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_report(shutil.copy(DECODE, folder / "decode.jsonl"))


PAGES = {
    "comparison": comparison,
    "classifier": classifier,
    "language model": language_model,
    "ablation": ablation,
    "decoding": decoding,
}


def class_scores(seed):
    """Five classes with confusions, and a reliability curve."""
    noise = random.Random(seed)
    classes = []
    for at, label in enumerate(LABELS):
        row = {name: noise.randrange(90) for name in LABELS} | {label: 500 + 37 * at}
        own = {"label": label, "count": sum(row.values()), "predicted as": row}
        shares = {key: round(noise.uniform(0.4, 0.9), 4) for key in ("precision", "recall", "f1")}
        classes.append({**own, **shares})
    bins = [
        {"confidence": (at + 0.5) / 15, "accuracy": max(0.0, (at - 1.0) / 15), "count": 10 * at}
        for at in range(3, 15)
    ]
    return {
        "macro F1": 0.61,
        "calibration error": 0.09,
        "classes": classes,
        "reliability": bins,
    }


def _training(folder, metric, score):
    (folder / "best").mkdir(parents=True)
    row = cell("sliding_window", 512, 0, valid_score=score)
    found = [{**own, "metric": metric} if own["kind"] == "valid" else own for own in metrics(row)]
    append(folder / "metrics.jsonl", found)
    done = {
        "status": "done",
        "steps": 1000,
        "seconds": 240.5,
        "score": score,
        "best_score": score,
        "best_step": 900,
        "steps_per_second": 4.2,
        "tokens_per_second": 5e4,
        "peak_bytes": 3 << 28,
        "parameters": 120_000,
        "model": "best",
    }
    (folder / "done.json").write_text(json.dumps(done))
    settings = {"stages": [{"settings": {"lr": 1e-3}}], **ENVIRONMENT}
    (folder / "settings.json").write_text(json.dumps(settings))
    mixer = {"name": "sliding_window", "window": 33}
    own = {"task": "language", "model": {"trunk": {"stack": {"mixer": mixer}}}}
    (folder / "experiment.json").write_text(json.dumps(own))
