"""A whole benchmark, small: rows for every case, numbers only for right ones."""

import json
import subprocess

import pytest
import torch
from typer.testing import CliRunner

from weft.bench import Bench, Case, Setting, choose
from weft.bench import cases as case_module
from weft.cli import app
from weft.environment import ROOT, commit, environment
from weft.errors import WeftError
from weft.mixers import MIXERS
from weft.report import read

SETTING = Setting(heads=2, head_dim=8)
SMALL = "sliding_window(window=8)"


def rows_of(**settings):
    bench = Bench(**{"setting": SETTING, "lengths": [48], "rounds": 2, **settings})
    return [row for some in bench.run() for row in some]


def test_dense_is_always_measured_and_first():
    assert choose("") == [Case("layer", "full")]
    assert choose(f"{SMALL}, full, {SMALL}") == [Case("layer", "full"), Case("layer", SMALL)]
    every = [c.name for c in choose("all") if c.kind == "layer"]
    assert every[0] == "full"
    assert {name.partition("(")[0] for name in every} == set(MIXERS)
    with_cores = choose(SMALL, patterns="sliding(4), strided(2)", core=True)
    assert with_cores[2:] == [
        Case("core", "full"),
        Case("core", SMALL),
        Case("pattern", "sliding(window=4)"),
        Case("pattern", "strided(stride=2)"),
    ]


def test_rows():
    rows = rows_of(cases=choose(SMALL, patterns="sliding(4)"), lengths=[48, 16])
    assert [(r["length"], r["measure"], r["kind"], r["case"]) for r in rows] == [
        (n, measure, kind, case)
        for n in (48, 16)
        for measure in ("forward", "forward+backward")
        for kind, case in (
            ("layer", "full"),
            ("layer", SMALL),
            ("core", "full"),
            ("pattern", "sliding(window=4)"),
        )
    ]
    assert len({tuple(row) for row in rows}) == 1, "every row has the same keys"
    for row in rows:
        assert row["error"] is None
        assert row["lower_quartile_s"] <= row["median_s"] <= row["upper_quartile_s"]
        kind = "layer" if row["kind"] == "layer" else "core"
        (dense,) = [
            other["median_s"]
            for other in rows
            if (other["case"], other["kind"]) == ("full", kind)
            and (other["length"], other["measure"]) == (row["length"], row["measure"])
        ]
        assert row["ratio_to_dense"] == row["median_s"] / dense
        assert row["rounds"] == 2
        assert row["torch"] == torch.__version__
        assert (row["dtype"], row["dim"], row["heads"]) == ("float32", 16, 2)
        assert 0 <= row["gate_error_share"] <= 1


def test_a_wrong_case_gets_a_reason_and_no_number(monkeypatch):
    right = case_module.Layer.forward

    def wrong_for_windows(self, x):
        return right(self, x) * (1.01 if self.mixer.config.name == "sliding_window" else 1.0)

    monkeypatch.setattr(case_module.Layer, "forward", wrong_for_windows)
    dense, wrong = rows_of(cases=choose(SMALL))[:2]
    assert dense["median_s"] is not None
    assert wrong["median_s"] is None
    assert wrong["ratio_to_dense"] is None
    assert wrong["error"].startswith("wrong output: error")


def test_a_case_that_cannot_be_built_gets_a_reason():
    cases = [*choose("fnet"), Case("core", "fnet")]
    rows = rows_of(cases=cases, setting=Setting(heads=2, head_dim=8, causal=True))
    reasons = {(row["kind"], row["case"]): row["error"] for row in rows}
    assert reasons["layer", "full"] is None
    assert "Unsupported: fnet cannot be causal" in reasons["layer", "fnet"]
    assert "Unsupported: fnet" in reasons["core", "fnet"]
    assert all(row["median_s"] is None for row in rows if row["case"] == "fnet")


def test_a_case_without_a_core_says_so():
    (row,) = [r for r in rows_of(cases=choose("fnet", core=True)) if r["kind"] == "core"][1:2]
    assert row["error"] == (
        "Unsupported: fnet has no core that is separate from its projections; "
        "measure the layer, or a pattern"
    )


def test_a_case_that_runs_out_of_memory_gets_a_reason(monkeypatch):
    right, calls = case_module.Layer.forward, []

    def breaks_at_last(self, x):
        if self.mixer.config.name == "sliding_window":
            calls.append(x.requires_grad and torch.is_grad_enabled() and x.shape[0] == 2)
            if len(calls) > 4:
                raise torch.OutOfMemoryError("tried to allocate 99 GiB")
        return right(self, x)

    monkeypatch.setattr(case_module.Layer, "forward", breaks_at_last)
    rows = rows_of(cases=choose(SMALL), setting=Setting(heads=2, head_dim=8, batch=2))
    by_case = {(row["case"], row["measure"]): row for row in rows}
    broken = by_case[SMALL, "forward+backward"]
    assert broken["error"] == "OutOfMemoryError: tried to allocate 99 GiB"
    assert broken["median_s"] is None
    assert by_case["full", "forward+backward"]["median_s"] is not None


def test_progress_counts_to_the_end():
    told = []
    bench = Bench(cases=choose(SMALL), setting=SETTING, lengths=[16, 32], rounds=3)
    bench.progress = told.append
    list(bench.run())
    assert len(told) == bench.steps == 2 * (2 + 2 * 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"lengths": []}, r"lengths=\[\]"),
        ({"lengths": [0]}, r"lengths=\[0\]"),
        ({"graph": True}, "graphs are captured on CUDA only"),
    ],
    ids=str,
)
def test_what_a_benchmark_refuses(settings, message):
    with pytest.raises(WeftError, match=message):
        rows_of(cases=choose(SMALL), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "tpu"}, "device is one of cpu, cuda; got 'tpu'"),
        ({"dtype": "int8"}, "dtype is one of float32.*got 'int8'"),
        ({"heads": 0}, "heads=0"),
    ],
    ids=str,
)
def test_what_a_setting_refuses(settings, message):
    with pytest.raises(WeftError, match=message):
        Setting(**settings)


def test_cuda_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(WeftError, match="torch sees none; use device=cpu"):
        Setting(device="cuda")


def test_inputs_and_weights_are_seeded():
    case = Case("layer", "full")
    first, again = case.build(SETTING, 8), case.build(SETTING, 8)
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(case.inputs(SETTING, 8)[0], case.inputs(SETTING, 8)[0])


@pytest.mark.parametrize("case", [Case("pattern", "sliding(9)"), Case("core", "full")], ids=str)
def test_a_causal_core_hides_the_future(case):
    module = case.build(Setting(heads=2, head_dim=8, causal=True), 32)
    q, k, v = (x.detach() for x in case.inputs(SETTING, 32))
    changed = [x.clone() for x in (k, v)]
    for x in changed:
        x[:, :, 20:] += 1.0
    assert torch.equal(module(q, k, v)[:, :, :20], module(q, *changed)[:, :, :20])
    assert not torch.equal(module(q, k, v)[:, :, 20:], module(q, *changed)[:, :, 20:])


def test_environment():
    found = environment("cpu")
    assert found["threads"] == torch.get_num_threads()
    assert found["cuda"] is None
    assert found["device_name"]
    if (ROOT / ".git").exists():
        git = ["git", "rev-parse", "HEAD"]
        head = subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout
        assert head.startswith(commit().removesuffix("+"))
    json.dumps(found)


def test_the_command(tmp_path):
    out = tmp_path / "rows.jsonl"
    args = ["bench", "attention", "--device", "cpu", "--lengths", "16,32", "--heads", "2"]
    args += ["--head-dim", "8", "--rounds", "2", "--mixers", f"{SMALL}, fnet", "--causal"]
    done = CliRunner().invoke(app, [*args, "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = read(out)
    assert len(rows) == 2 * 2 * 3
    assert {row["case"] for row in rows} == {"full", SMALL, "fnet"}
    assert all(not isinstance(value, list | dict) for row in rows for value in row.values())
    assert out.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    for text in ("faster", "slower", "as fast"):
        if text in done.output:
            break
    else:
        pytest.fail(f"nothing is compared with dense attention: {done.output}")
    assert "fnet at 16, 32: Unsupported: fnet cannot be causal" in done.output
    assert CliRunner().invoke(app, [*args, "--out", str(out)]).exit_code == 0
    assert len(read(out)) == 2 * len(rows)


def test_the_plot_goes_where_asked(tmp_path):
    plot = tmp_path / "plots" / "speed.svg"
    args = ["bench", "attention", "--device", "cpu", "--lengths", "16", "--heads", "1"]
    args += ["--head-dim", "8", "--rounds", "1", "--mixers", "full", "--plot", str(plot)]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    assert "<svg" in plot.read_text()[:1000]
