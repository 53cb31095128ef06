"""Peak memory in a process of its own: known matrices are seen, a large parent hides nothing."""

import numpy as np
import pytest

from weft.bench import Bench, Case, Setting
from weft.bench.memory import peak_bytes, process_peak
from weft.errors import WeftError

SETTING = Setting(heads=4, head_dim=8)


def test_a_growing_process_is_noticed():
    now = process_peak()
    held = np.ones(now, dtype=np.uint8)
    assert process_peak() >= max(now, held.nbytes)


def test_the_scores_of_dense_weights_are_seen():
    """A synthesizer holds (h, n, n) scores; fused dense attention holds none."""
    n = 1024
    scores = 4 * n * n * 4
    ballast = np.ones(700 * 2**20, dtype=np.uint8)  # more than the child ever holds
    bench = Bench(
        cases=[Case("layer", "full"), Case("layer", "synthesizer")],
        setting=SETTING,
        lengths=[n],
        rounds=1,
        memory=True,
    )
    rows = {r["case"]: r for some in bench.run() for r in some if r["measure"] == "memory"}
    assert ballast.nbytes > scores
    assert scores < rows["synthesizer"]["peak_bytes"] < 40 * scores
    assert rows["full"]["peak_bytes"] < scores
    ratio = rows["synthesizer"]["peak_bytes"] / rows["full"]["peak_bytes"]
    assert rows["synthesizer"]["ratio_to_dense"] == ratio
    assert all(row["median_s"] is None for row in rows.values())


def test_a_process_that_fails_says_why():
    with pytest.raises(WeftError, match=r"separate process failed: .*fnet has no core"):
        peak_bytes(Case("core", "fnet"), SETTING, 8)
