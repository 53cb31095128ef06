"""Rows of `make demo` for the documents: `python benchmarks/cases/demo.py runs/demo`.

Time ends a training of the demo, so run it on an idle machine; --condition says what else ran.
"""

import argparse
import json
from pathlib import Path

from weft.rows import append, read

RESULTS = Path(__file__).resolve().parents[1] / "results" / "cpu_passages.jsonl"


def rows_of(folder: Path, condition: str) -> list[dict]:
    """The rows of a finished comparison, with the scores of trivial rules."""
    scores = json.loads((folder / "baselines.json").read_text())
    rules = {f"rule: {name}": score for name, score in scores.items()}
    found = [row for row in read(folder / "rows.jsonl") if row["status"] == "done"]
    return [{**row, **rules, "condition": condition} for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--condition", default="Nothing else ran.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    append(args.out, rows_of(args.folder, args.condition))
    print(f"wrote {args.out}; now: python docs/generate.py --text")


if __name__ == "__main__":
    main()
