"""`python -m weft.bench.child JOB`: one memory measurement, in a separate process."""

from __future__ import annotations

import json
import sys

from weft.bench.cases import Case
from weft.bench.memory import cpu_peak
from weft.bench.setting import Setting


def main(text: str) -> None:
    """Print the bytes that one pass of the job needs."""
    job = json.loads(text)
    case = Case(job["kind"], job["name"])
    print(cpu_peak(case, Setting(**job["setting"]), job["length"]))


if __name__ == "__main__":
    main(sys.argv[1])
