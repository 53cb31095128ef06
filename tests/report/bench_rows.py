"""Rows of a benchmark, made up, for tests of tables and plots."""


def row(case, length, measure="forward", *, kind="layer", median=None, **changed):
    made = {
        "bench": "attention",
        "case": case,
        "kind": kind,
        "measure": measure,
        "length": length,
        "median_s": median,
        "lower_quartile_s": median and 0.9 * median,
        "upper_quartile_s": median and 1.1 * median,
        "rounds": 10,
        "peak_bytes": None,
        "ratio_to_dense": None,
        "error": None,
        "kernels": "sdpa",
        "device": "cpu",
        "device_name": "A fine CPU",
        "dtype": "float32",
        "batch": 2,
        "heads": 4,
        "head_dim": 16,
        "causal": False,
    }
    return {**made, **changed}


def some_rows():
    both = "forward+backward"
    return [
        row("full", 1024, median=0.004, ratio_to_dense=1.0),
        row("longformer", 1024, median=0.001, ratio_to_dense=0.25),
        row("fnet", 1024, error="Unsupported: fnet cannot be causal"),
        row("full", 1024, both, median=0.010, ratio_to_dense=1.0),
        row("longformer", 1024, both, median=0.015, ratio_to_dense=1.5),
        row("fnet", 1024, both, error="Unsupported: fnet cannot be causal"),
        row("full", 4096, median=0.064, ratio_to_dense=1.0),
        row("longformer", 4096, median=0.0042, ratio_to_dense=0.0042 / 0.064),
        row("sliding(window=8) | keys(first=1)", 4096, kind="pattern", median=0.002),
        row("full", 4096, "memory", peak_bytes=3 * 2**20, ratio_to_dense=1.0),
    ]
