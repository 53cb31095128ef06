"""`weft bench decode` on tiny models: what is counted, how it is scaled, what is refused."""

import json
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from weft.bench.decode_bytes import numbers, reading, step_bytes
from weft.bench.decode_gate import agreement
from weft.bench.decode_paths import TOTAL, NativePath, TorchPath
from weft.bench.decode_run import Contender, DecodeBench, _marked
from weft.bench.decode_setting import DecodeSetting, feedforward_setting, preset_setting
from weft.bench.decode_weights import fill, hollow
from weft.bench.llama import tensors, units
from weft.cli import app
from weft.errors import WeftError
from weft.models.presets import PRESETS, Shape, dense_twin, sparse_twin
from weft.native import available
from weft.report.tables.decode import decode_parts_table, decode_table
from weft.rows import read

SHAPE = Shape(dim=32, layers=3, heads=2, modules=4)
needs_native = pytest.mark.skipif(available() is not None, reason=str(available()))


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setitem(PRESETS, "tiny", partial(sparse_twin, SHAPE, vocab=40))
    monkeypatch.setitem(PRESETS, "tiny_dense", partial(dense_twin, SHAPE, vocab=40))


def setting(**settings) -> DecodeSetting:
    return preset_setting("tiny", **{"block": 8, "context": 12, "rounds": 3, **settings})


def small(**settings) -> DecodeBench:
    chosen = {"dense": ("torch",), "sparse": ("torch",), "buffer": 1 << 16}
    bench = {key: settings.pop(key) for key in (*chosen, "llama") if key in settings}
    return DecodeBench(setting=setting(**settings), **{**chosen, **bench})


def test_numbers_of_a_dense_model():
    """By hand: four matrices and a feed-forward of 4·dim, biases, norms; keys and values."""
    c, layers, vocab, context = 32, 3, 40, 12
    layer = 4 * (c * c + c) + 2 * 4 * c * c + 4 * c + c + 2 * 2 * c
    got = numbers(hollow(setting().dense), context)
    assert got["layers"] == layers * layer
    assert got["feedforward"] == layers * (2 * 4 * c * c + 4 * c + c + 2 * c)
    assert got["output"] == vocab * c
    assert got["cache"] == layers * 2 * c * context


@pytest.mark.parametrize(("batch", "share"), [(1, 1 / 8), (3, 3 / 8), (8, 1), (50, 1)])
def test_numbers_of_a_sparse_feedforward(batch, share):
    """The controller whole, and of both matrices a row in eight for each batch row."""
    c, hidden, rank = 32, 6 * 32, 16
    whole = c * rank + rank * hidden + hidden + c + 2 * c
    got = numbers(hollow(setting().sparse), 12, batch)
    assert got["feedforward"] == 3 * (whole + 2 * c * hidden * share)


def test_bytes_by_precision():
    counted = {"layers": 100, "cache": 10, "output": 1000, "feedforward": 0}
    chosen = {"weights": "float32", "cache": "bfloat16", "output": "int8"}
    assert step_bytes(counted, **chosen) == 100 * 4 + 10 * 2 + 1000
    assert step_bytes(counted, times=2.5, **chosen) == round(420 * 2.5) + 1000


def test_hollow_models_have_no_memory_until_filled():
    model = hollow(setting().dense)
    shares = {p.untyped_storage().nbytes() / (4 * p.numel()) for p in model.parameters()}
    assert min(shares) < 0.7
    matrix = model.trunk.stack.sublayers[1].body.to_hidden.weight
    assert len(matrix.unique(dim=0)) == len(matrix)
    ids, before = torch.tensor([[3, 5]]), {n: p.clone() for n, p in model.named_parameters()}
    scores = model.next_scores(ids, model.start(1))[0]
    fill(model)
    for name, parameter in model.named_parameters():
        assert parameter.is_contiguous()
        assert torch.equal(parameter, before[name])
        assert parameter.untyped_storage().nbytes() == 4 * parameter.numel()
    torch.testing.assert_close(model.next_scores(ids, model.start(1))[0], scores)
    assert model.output.parameters is not None
    assert scores.std() > 0.01


def test_a_torch_clock_knows_its_parts():
    path = TorchPath(hollow(setting(batch=2).sparse), setting(batch=2))
    got = path.clock()
    assert set(got) == {"embed", "attention", "feedforward", "logits", "pick", TOTAL}
    assert sum(value for name, value in got.items() if name != TOTAL) <= got[TOTAL]
    assert path.state.position == 10  # context − rounds tokens read, and one decoded
    assert "step" not in vars(path.model.trunk.stack.sublayers[0])
    assert "forward" not in vars(path.model.trunk.embedding)


@needs_native
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_native_clock_knows_its_parts(kind):
    chosen = setting(batch=3)
    path = NativePath(hollow(getattr(chosen, kind)), chosen)
    assert path.state.lengths == [9, 9, 9]  # context − rounds
    got = path.clock()
    assert path.state.lengths == [10, 10, 10]
    assert got["feedforward"] > 0
    assert ("controller" in got) == (kind == "sparse")


@needs_native
def test_the_gate_bites():
    model = hollow(setting().sparse)
    path = NativePath(model, setting())
    assert agreement(path, model) > 0.999
    other = hollow(setting().sparse, seed=5)
    with pytest.raises(WeftError, match="native and torch disagree"):
        agreement(path, other)


def test_layers_are_multiplied_and_the_output_is_added_once():
    """Of 3 layers 2 are timed: what they take counts 1.5 times."""
    bench = small(timed=2)
    reading_ = {"attention": 4.0, "feedforward": 6.0, "logits": 5.0, TOTAL: 16.0}
    assert bench._seconds(reading_) == pytest.approx(5.0 + 1.5 * 11.0)
    whole = small()
    assert whole._seconds(reading_) == pytest.approx(16.0)
    alone = DecodeBench(setting=feedforward_setting(2048, 64), buffer=1 << 16)
    assert alone.setting.timed == 4
    assert alone._seconds({**reading_, "controller": 2.0}) == pytest.approx(8.0 / 4)


def test_rows_hold_everything():
    rows = small(timed=2, weights="float32").run()
    assert [row["case"] for row in rows] == ["dense torch", "sparse torch"]
    for row in rows:
        assert row["error"] is None
        assert row["counts"]
        assert row["scaled"]
        assert (row["layers_timed"], row["layers"], row["context"]) == (2, 3, 12)
        assert row["floor_ms"] == pytest.approx(row["bytes"] / row["bandwidth_gb_s"] / 1e6)
        assert row["time_over_floor"] == pytest.approx(row["ms"] / row["floor_ms"])
        assert row["lower_quartile_ms"] <= row["ms"] <= row["upper_quartile_ms"]
        assert row["ms_feedforward"] > 0
        assert {"device_name", "threads", "torch", "date"} <= row.keys()
    assert rows[0]["ratio"] == 1.0
    assert rows[1]["ratio"] == pytest.approx(rows[0]["ms"] / rows[1]["ms"])
    # One layer's numbers are half of those of two, so 3 layers are read.
    full = numbers(hollow(setting().dense), 12)
    chosen = {"weights": "float32", "cache": "float32", "output": "float32"}
    assert rows[0]["bytes"] == step_bytes(full, **chosen)


def test_the_better_dense_model_counts():
    def row(session, kind, ms):
        return {"session": session, "kind": kind, "ms": ms, "ratio": None}

    rows = _marked(
        [
            row("dense torch", "dense", 100.0),
            row("dense torch", "sparse", 10.0),
            row("dense native", "dense", 60.0),
            row("dense native", "sparse", 12.0),
            row("dense native", "llama.cpp", None),
        ]
    )
    assert [row["ratio"] for row in rows] == [1.0, 10.0, 1.0, 5.0, None]
    assert [row["counts"] for row in rows] == [False, False, True, True, False]


def test_what_cannot_run_is_said():
    rows = small(dense=("torch",), llama=("q4_0", "q5"), timed=None, sparse=("torch",)).run()
    reasons = {row["case"]: row["error"] for row in rows}
    assert "one of f32, f16, q8_0, q4_0; got 'q5'" in reasons["llama.cpp q5"]
    try:
        import llama_cpp  # noqa: F401  # is it here?
    except ImportError:
        missing = "llama-cpp-python, which cannot be imported here (No module named 'llama_cpp')"
        assert missing in reasons["llama.cpp q4_0"]
    assert reasons["sparse torch"] is None
    int8 = small(weights="int8").run()
    assert "no int8 weights" in int8[0]["error"]
    assert decode_table(int8).title == "nothing was measured"
    huge = small(batch=10**12).run()
    assert "GiB, and" in huge[0]["error"]
    assert "are free; time fewer layers" in huge[0]["error"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: setting(weights="int4"), "weights is one of .* got 'int4'"),
        (lambda: setting(batch=0), "batch is a whole number of at least 1"),
        (lambda: setting(timed=4), "at most 3 layers|of 3 layers at most"),
        (lambda: preset_setting("tiny_dense"), "has no dense twin"),
        (lambda: preset_setting("tinny"), "no preset named 'tinny'"),
        (lambda: small(dense=("cuda",)), "a path is one of torch, native; got 'cuda'"),
        (lambda: small(sparse=()), "at least"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(WeftError, match=message):
        call()


def test_reading_reads():
    assert reading(1 << 16)() is not None


def test_figures_have_no_powers_of_ten():
    base = small().run()[0]
    row = {**base, "ms": 1523.7, "lower_quartile_ms": 1500.0, "upper_quartile_ms": 1530.0}
    cells = decode_table([row | {"bytes": 3_624_000_000}]).cells[0]
    assert cells[3] == "1,524 ±1%"
    assert cells[5] == "3,624 MB"


def test_a_llama_has_as_many_parameters():
    for dim in (2048, 4096, 9216):
        gated = 3 * dim * units(dim)
        assert abs(gated / (8 * dim * dim) - 1) < 0.03
    shapes = dict(tensors(512, 2, 100))
    assert shapes["blk.1.ffn_down.weight"] == (512, units(512))
    assert len(shapes) == 3 + 2 * 9


def test_a_gguf_file_holds_the_shape(tmp_path):
    gguf = pytest.importorskip("gguf", reason="its reader checks our files")
    from weft.bench.llama import write_gguf

    parameters = write_gguf(tmp_path / "m.gguf", setting().dense, "q8_0", 64)
    found = gguf.GGUFReader(tmp_path / "m.gguf")
    assert sum(int(t.n_elements) for t in found.tensors) == parameters
    assert {t.name for t in found.tensors} == {name for name, _ in tensors(32, 3, 40)}


@needs_native
def test_the_verb(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.bench.decode_run.reading", lambda size: reading(1 << 16))
    before = torch.get_num_threads()
    args = ["bench", "decode", "--preset", "tiny", "--block", "8", "--context", "6"]
    args += ["--rounds", "2", "--batches", "1,2", "--threads", "1", "--cache", "bfloat16"]
    try:
        done = CliRunner().invoke(app, [*args, "--out", str(tmp_path / "rows.jsonl")])
        assert done.exit_code == 0, done.output
        rows = read(tmp_path / "rows.jsonl")
        assert len(rows) == 8
        assert {row["batch"] for row in rows} == {1, 2}
        assert all(row["error"] is None for row in rows), [row["error"] for row in rows]
        native = [row for row in rows if row["path"] == "native"]
        assert {row["cache"] for row in native} == {"bfloat16"}
        assert all(row["agreement"] > 0.9 for row in native)
        assert "sparse native" in done.output
        assert "controller" in done.output
        plain = CliRunner().invoke(app, [*args, "--json"])
        assert [json.loads(line)["case"] for line in plain.stdout.splitlines()] == [
            row["case"] for row in rows
        ]
    finally:
        torch.set_num_threads(before)


def test_tables_say_what_was_multiplied():
    rows = small(timed=2).run()
    table = decode_table(rows)
    assert any("batch 1: 2 of 3 layers timed and multiplied" in note for note in table.notes)
    assert table.cells[0][4] == "dense"
    assert table.cells[1][4].endswith("×")
    parts = decode_parts_table(rows)
    assert len(parts.cells) == 2
    for row, cells in zip(rows, parts.cells, strict=True):
        shown = dict(part.rsplit(" ", 1) for part in cells[2].split(", "))
        assert set(shown) == {"embed", "attention", "feedforward", "logits", "pick"}
        assert float(shown["feedforward"]) == pytest.approx(row["ms_feedforward"], rel=0.01)
        assert list(map(float, shown.values())) == sorted(map(float, shown.values()))[::-1]


def test_a_turn_wakes_the_threads_and_times_the_second_token():
    times = iter([{TOTAL: 9.0}, {TOTAL: 1.0}, {TOTAL: 8.0}, {TOTAL: 2.0}])
    one = Contender(kind="dense", path="torch", clock=lambda: next(times), parameters=1)
    one.turn()
    one.turn()
    assert [reading[TOTAL] for reading in one.readings] == [1.0, 2.0]
