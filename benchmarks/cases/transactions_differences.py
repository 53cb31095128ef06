"""Differences of the trainings of transactions.py, on the same out-of-time clients.

    python benchmarks/cases/transactions_differences.py runs/h200_transactions.jsonl

Of each pair of mechanisms: the difference of their mean Gini over the seeds that both have, and its
standard error when clients are drawn again (all models are asked about the same clients, so most of
what a sample does to a Gini falls out), and over the seeds. Rows are appended to the same file, in
place of those of an earlier call; the scores are read from the .npz beside it.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from weft.files import write_bytes
from weft.rows import read

DRAWS = 200
TABLES = ("main", "shift", "long")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=Path)
    args = parser.parse_args()
    rows = [row for row in read(args.rows) if row["table"] != "difference"]
    with np.load(args.rows.with_suffix(".npz")) as file:
        held = dict(file)
    found = [each for table in TABLES for each in differences(rows, held, table)]
    for row in found:
        print(
            f"{row['one']} − {row['other']}: {row['gini']:+.4f} ± {row['gini error']:.4f} "
            f"by client, {row['seeds']} seeds"
        )
    text = "".join(json.dumps(row) + "\n" for row in [*rows, *found])
    write_bytes(args.rows, text.encode())


def differences(
    rows: list[dict[str, Any]], held: dict[str, np.ndarray], table: str
) -> list[dict[str, Any]]:
    """Rows of all pairs of labels of a table."""
    labels = held["labels-test"] == 1
    own = [row for row in rows if row["table"] == table and row["name"] in held]
    drawn = {
        (row["label"], row["seed"]): ginis_of_draws(held[row["name"]], labels) for row in own
    }  # (1 + DRAWS,): of all clients first
    found = []
    for one, other in combinations(dict.fromkeys(row["label"] for row in own), 2):
        seeds = [seed for label, seed in drawn if label == one and (other, seed) in drawn]
        if not seeds:
            continue
        gaps = np.stack([drawn[one, seed] - drawn[other, seed] for seed in seeds])
        mean = gaps.mean(0)
        found.append(
            {
                "case": "transactions",
                "table": "difference",
                "of": table,
                "one": one,
                "other": other,
                "seeds": len(seeds),
                "gini": float(mean[0]),
                "gini error": float(mean[1:].std(ddof=1)),
                "draws": DRAWS,
                "of seeds": [float(gap) for gap in gaps[:, 0]],
            }
        )
    return found


def ginis_of_draws(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(1 + DRAWS,): Gini of all clients, and of clients drawn again, the same for all models."""
    rng = np.random.Generator(np.random.PCG64(0))
    order = np.argsort(scores, kind="stable")
    _, place = np.unique(scores[order], return_inverse=True)
    found = []
    for draw in range(1 + DRAWS):
        picked = rng.integers(len(labels), size=len(labels)) if draw else np.arange(len(labels))
        copies = np.bincount(picked, minlength=len(labels))[order]
        positive = np.bincount(place, weights=copies * labels[order])
        negative = np.bincount(place, weights=copies * ~labels[order])
        below = np.cumsum(negative) - negative / 2  # ties count half
        found.append(2 * (positive @ below) / (positive.sum() * negative.sum()) - 1)
    return np.array(found)


if __name__ == "__main__":
    main()
