"""Run folders as `weft compare` writes them, made up: realistic numbers, and cells that failed."""

import json
import math
import random
import struct
import zlib

from weft.rows import append

# name: accuracy, speed and memory relative to dense at 2,048 tokens, growth of time with length
MECHANISMS = {
    "full": (0.412, 1.0, 1.0, 2.0),
    "longformer(window=65)": (0.408, 2.1, 0.41, 1.05),
    "bigbird": (0.405, 1.55, 0.52, 1.1),
    "linformer(rank=64)": (0.366, 2.6, 0.33, 1.0),
    "linear_transformer": (0.341, 3.1, 0.30, 1.0),
    "reformer": (0.382, 0.9, 0.62, 1.1),
    "fnet": (0.318, 4.4, 0.22, 1.05),
}
ENVIRONMENT = {
    "weft": "0.1.0",
    "commit": "0123456789ab",
    "torch": "2.13.0",
    "cuda": None,
    "python": "3.11.9",
    "platform": "Linux-6.1-x86_64",
    "device_name": "A fine CPU",
    "threads": 2,
    "date": "2026-01-02T03:04:05+00:00",
}


def cell(mixer="full", length=2048, seed=0, **changed):
    """One row of rows.jsonl."""
    score, speed, memory, growth = MECHANISMS.get(mixer, (0.4, 1.0, 1.0, 1.0))
    noise = random.Random(f"{mixer} {length} {seed}")
    steps = 6.0 * speed * (2048 / length) ** growth * noise.uniform(0.98, 1.02)
    seen = round(score + noise.gauss(0, 0.006), 4)
    row = {
        "task": "listops",
        "task_spec": f"listops(length={length})",
        "data": "own generator, seed 0",
        "metric": "accuracy",
        "mixer": mixer,
        "label": mixer.partition("(")[0],
        "length": length,
        "seed": seed,
        "cell": f"cells/{mixer.partition('(')[0]}-{length}-{seed}",
        "status": "done",
        "reason": None,
        "valid_score": round(seen + noise.gauss(0, 0.004), 4),
        "test_score": seen,
        "train_score": round(seen + 0.03, 4),
        "steps": 1000,
        "train_seconds": round(1000 / steps, 1),
        "steps_per_second": round(steps, 4),
        "tokens_per_second": round(steps * 32 * length, 1),
        "peak_bytes": int(memory * (1 << 30) * (length / 2048) ** growth),
        "parameters": 1_200_000 if mixer != "linformer(rank=64)" else 1_420_000,
        "flops_per_token": 7.2e6 * (1 + (length / 2048) ** (growth - 1)),
        "target": 0.4,
        "seconds_to_target": round(700 / steps, 1) if score > 0.4 else None,
        "dense": mixer == "full",
        "batch": 32,
        "lr": 0.001,
        "precision": "float32",
        "dim": 128,
        "layers": 4,
        "heads": 4,
        **ENVIRONMENT,
    }
    return {**row, **changed}


def failed(mixer, length, seed, status, reason):
    """A row of a cell that did not finish."""
    gone = ("valid_score", "test_score", "train_score", "steps_per_second", "tokens_per_second")
    more = ("peak_bytes", "train_seconds", "steps", "seconds_to_target")
    changed = dict.fromkeys((*gone, *more))
    return cell(mixer, length, seed, status=status, reason=reason, **changed)


def metrics(row, steps=1000, every=10, evaluate=100):
    """Learning curves that end near the scores of a row."""
    noise = random.Random(f"curve {row['label']} {row['length']} {row['seed']}")
    final = row["valid_score"] or 0.3
    per_step = 1 / (row["steps_per_second"] or 5.0)
    rows = []
    for step in range(every, steps + 1, every):
        seconds, share = round(step * per_step, 2), 1 - math.exp(-4 * step / steps)
        loss = 2.3 - (2.3 - 1.75 + (final - 0.4)) * share
        common = {"step": step, "phase": 0, "seconds": seconds}
        shown = round(loss + noise.gauss(0, 0.06), 4)
        train = {"kind": "train", "loss": shown, "lr": 0.001, "tokens": step * 65536}
        rows.append({**train, "grad_norm": 1.0, **common})
        if step % evaluate == 0:
            score = round(0.1 + (final - 0.1) * share + noise.gauss(0, 0.006), 4)
            valid = {"kind": "valid", "loss": round(loss + 0.04 * share, 4), "score": score}
            rows.append({**valid, **common})
    return rows


def write_rows(folder, rows, *, with_metrics=True):
    """A run folder with these rows, their metrics, grid.json and baselines.json."""
    folder.mkdir(parents=True, exist_ok=True)
    append(folder / "rows.jsonl", rows)
    if with_metrics:
        for row in rows:
            own = folder / row["cell"]
            curve = metrics(row)
            short = curve if row["status"] == "done" else curve[:14]
            append(own / "metrics.jsonl", short)
    mixers = list(dict.fromkeys(row["mixer"] for row in rows))
    grid = {"task": "listops", "mixers": mixers, "training": {"steps": 1000, "batch": 32}}
    (folder / "grid.json").write_text(json.dumps(grid))
    rules = {"majority class": 0.171, "root operator": 0.365}
    (folder / "baselines.json").write_text(json.dumps(rules))
    return folder


def full_run(folder, lengths=(1024, 2048, 4096), seeds=3):
    """Everything that a run can hold."""
    rows = [
        cell(mixer, length, seed)
        for mixer in MECHANISMS
        for length in lengths
        for seed in range(seeds)
    ]
    lost = {
        ("full", 4096): ("out of memory", "needed 18.2 GiB, and the limit is 16 GiB"),
        ("reformer", 4096): ("timed out", "ran past its limit of 10 minutes"),
        ("fnet", 4096): ("failed", "RuntimeError: loss is not finite at step 140 <lr=0.001>"),
    }
    rows = [
        failed(row["mixer"], row["length"], row["seed"], *lost[row["mixer"], row["length"]])
        if (row["mixer"], row["length"]) in lost and (row["label"] != "fnet" or row["seed"] == 1)
        else row
        for row in rows
    ]
    write_rows(folder, rows)
    _add_groups(folder, rows)
    _add_spans(folder, rows)
    _add_pictures(folder)
    published = [
        {"mixer": "full", "score": 0.3637, "source": "Tay et al. 2021, table 1"},
        {"mixer": "longformer", "score": 0.3563, "source": "Tay et al. 2021, table 1"},
    ]
    (folder / "published.json").write_text(json.dumps(published))
    return folder


def _add_groups(folder, rows):
    for row in rows:
        if row["test_score"] is not None:
            for at in range(8):
                middle = 1 - abs(at - 3.5) / 3.5
                share = max(0.1, min(0.98, row["test_score"] * 2.2 - 0.35 * middle))
                right = round(200 * share)
                group = {"group": f"{10 * at}", "count": 200, "right": right}
                append(folder / row["cell"] / "groups.jsonl", [group])


def _add_spans(folder, rows):
    noise = random.Random(0)
    for row in rows:
        if row["label"] in ("full", "longformer", "bigbird") and row["status"] == "done":
            most = 600 if row["label"] == "full" else 150
            found = [
                {
                    "label": row["label"],
                    "length": row["length"],
                    "seed": row["seed"],
                    "layer": layer,
                    "head": head,
                    "span": round(noise.betavariate(1.5 + layer, 4) * most, 2),
                }
                for layer in range(4)
                for head in range(4)
            ]
            append(folder / "spans.jsonl", found)


def _add_pictures(folder):
    (folder / "pictures").mkdir()
    index = []
    for at, (name, width) in enumerate((("full", 64), ("longformer", 5), ("bigbird", 9))):
        (folder / "pictures" / f"{at:02d}-0.png").write_bytes(png(width))
        note = f"sliding({width}): some % of pairs, 2,048 tokens"
        index.append({"label": name, "file": f"{at:02d}-0.png", "pattern": "", "note": note})
    (folder / "pictures" / "pictures.json").write_text(json.dumps(index))


def png(width, size=64):
    """A band of some width, blue on nothing."""
    lines = b"".join(
        b"\0" + b"".join(bytes((64, 128, 200, 255 * (abs(i - j) < width))) for j in range(size))
        for i in range(size)
    )
    header = struct.pack(">IIBBBBB", size, size, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
