"""Model files: written whole, read with suspicion. Damaged ones are refused and never crash."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from native_models import VOCAB, small_model, sparse_model

from weft import native
from weft.errors import Unsupported, WeftError
from weft.feedforward import Dense

needs_compiler = pytest.mark.skipif(native.available() is not None, reason="no C++ compiler")


def continued(model, prompt):
    return model.generate(prompt, 12)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_folder_comes_back(tmp_path, dtype):
    source = sparse_model()
    native.export(source, tmp_path / "model", dtype=dtype, cache="bfloat16", output="int8")
    native.export(source, tmp_path / "model", dtype=dtype)  # replaces the first
    assert sorted(f.name for f in (tmp_path / "model").iterdir()) == ["config.json", "model.weft"]
    prompt = torch.randint(VOCAB, (2, 3))
    there = native.compile(source, dtype=dtype)
    assert torch.equal(continued(native.load(tmp_path / "model"), prompt), continued(there, prompt))
    assert [f.name for f in tmp_path.iterdir()] == ["model"]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(WeftError, match="something other than a native model"):
        native.export(small_model(), tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float16"}, "weights is stored as float32, bfloat16, int8; got 'float16'"),
        ({"cache": "int4"}, "cache is stored as"),
        ({"parts": {"*.out": "fp8"}}, "parts"),
    ],
    ids=["weights", "cache", "parts"],
)
def test_an_unknown_dtype_is_refused(settings, message):
    with pytest.raises(WeftError, match=message):
        native.compile(small_model(), **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"mixer": "longformer(window=4)"},
        {"positions": "alibi"},
        {"feedforward": "switch"},
    ],
    ids=["mixer", "positions", "feedforward"],
)
def test_what_the_library_lacks_is_refused_by_name(settings):
    from weft.feedforward import FEEDFORWARDS
    from weft.layers.positions import POSITIONS

    for name, registry in (("positions", POSITIONS), ("feedforward", FEEDFORWARDS)):
        if name in settings:
            settings = {name: registry.parse(settings[name])}
    with pytest.raises(Unsupported, match="native decoding has"):
        native.compile(small_model(**settings))


def test_parts_choose_their_precision():
    model = small_model(feedforward=Dense(activation="relu"))
    plan = native.WeightPrecision(
        weights="bfloat16", parts={"3.*": "int8", "*.attention.out": "float32"}
    )
    assert plan.of("3.feedforward.hidden") == "int8"
    assert plan.of("0.attention.out") == "float32"
    assert plan.of("1.feedforward.hidden") == "bfloat16"
    if native.available() is None:
        parts = native.compile(model, dtype="bfloat16", parts={"3.*": "int8"}).parts()
        assert parts["3.feedforward.hidden"]["dtype"] == "int8"
        assert parts["1.feedforward.hidden"]["dtype"] == "bfloat16"


@needs_compiler
def test_wrong_input_is_refused():
    model = native.compile(small_model(added="learned", length=20))
    with pytest.raises(WeftError, match="learned positions for 20"):
        model.generate(torch.zeros(1, 15, dtype=torch.long), 10)
    state = model.start(1)
    with pytest.raises(WeftError, match="21 tokens, but the model has positions for 20"):
        state.feed([[0] * 21])
    assert state.lengths == [0]
    with pytest.raises(WeftError, match="ids run from 0 to"):
        state.feed([[VOCAB]])
    with pytest.raises(WeftError, match="ids run from 0 to"):
        model.generate(torch.full((1, 2), -1), 1)
    with pytest.raises(WeftError, match="new ids are integers"):
        model.step(torch.zeros(2, 1, dtype=torch.long), state)
    with pytest.raises(WeftError, match="at least one token"):
        state.feed([[]])
    with pytest.raises(WeftError, match="300 tokens"):
        state.feed([[0] * 300])
    assert state.lengths == [0]
    with pytest.raises(WeftError, match="at least 1 thread"):
        native.set_threads(0)


@pytest.mark.parametrize("name", ["config.json", "model.weft"])
def test_a_missing_or_foreign_file_is_refused(tmp_path, name):
    folder = native.export(small_model(), tmp_path / "model")
    (folder / name).write_text('{"native": 7}')
    with pytest.raises(WeftError):
        native.load(folder)
    (folder / name).unlink()
    with pytest.raises(WeftError, match=f"it has no {name}"):
        native.load(folder)


# Runs in a child: a crash there is a failed test here. Every damaged file is either refused with a
# WeftError, or (where the damage is a number that no check can know) it loads and decodes.
FUZZ = """
import sys, struct
import numpy as np
from weft.errors import WeftError
from weft.native import file
from weft.native.model import NativeModel
from weft.native.rebuilt import Description
from pathlib import Path

random = np.random.default_rng(3)


def attempt(description, data):
    buffer = file.in_memory(max(len(data), 1))
    buffer[: len(data)] = data.tobytes()
    try:
        model = NativeModel(description, buffer, len(data))
    except WeftError as error:
        assert "not a model file" in str(error), error
        return "refused"
    try:
        state = model.start(1)
        state.feed([[1, 2, 3]])
    except WeftError:
        return "refused"
    return "ran"


def sealed(data, tables):
    value = file.checksum(data[16:tables].tobytes())
    data[8:16] = np.frombuffer(struct.pack("<Q", value), dtype=np.uint8)
    return data


def damaged(folder):
    description = Description.read(folder / "config.json")
    whole = np.fromfile(folder / "model.weft", dtype=np.uint8)
    tables = file.FileOffsets(list(description.stored), description.sublayers).tables
    assert attempt(description, whole) == "ran"
    lengths = [0, 1, 7, 8, 16, 100, 143, 144, 200, tables, len(whole) - 1]
    for length in lengths + random.integers(0, len(whole), 40).tolist():
        assert attempt(description, whole[:length]) == "refused", length
    for _ in range(60):  # as damage happens: the checksum finds it
        data = whole.copy()
        data[random.integers(0, tables)] ^= 1 << random.integers(8)
        assert attempt(description, data) == "refused"
    huge = whole.copy()
    huge[16:24] = 255
    assert attempt(description, sealed(huge, tables)) == "refused"
    found = {"refused": 0, "ran": 0}
    for _ in range(400):  # as an attacker would: the checksum fits
        data = whole.copy()
        for _ in range(random.integers(1, 4)):
            at = int(random.integers(16, tables))
            if random.random() < 0.5:
                data[at] = random.integers(256)
            else:
                word = int(random.choice([0, 1, 3, 2**31 - 1, 2**31, 2**32 - 1]))
                at -= at % 4
                data[at : at + 4] = np.frombuffer(struct.pack("<I", word), dtype=np.uint8)
        found[attempt(description, sealed(data, tables))] += 1
    return found


for path in sys.argv[1:]:
    found = damaged(Path(path))
    print(found["refused"], found["ran"])
"""


@needs_compiler
def test_damaged_files_are_refused_and_never_crash(tmp_path):
    dense, sparse = small_model(added="learned", length=20), sparse_model()
    folders = [
        native.export(dense, tmp_path / "dense"),
        native.export(sparse, tmp_path / "sparse", dtype="int8"),
    ]
    command = [sys.executable, "-c", FUZZ, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"
    for line in done.stdout.splitlines():
        refused, ran = map(int, line.split())
        assert refused > 150
        assert ran > 0


# The config says fewer words than the file has: scores of 48 would be written into room for 2.
EDITED = """
import json, sys
from pathlib import Path
import torch
from weft import native
from weft.errors import WeftError

folder = Path(sys.argv[1])
written = (folder / "config.json").read_text()
for path, value, message in json.loads(sys.argv[2]):
    values = json.loads(written)
    place = values
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(values))
    try:
        model = native.load(folder)
    except WeftError as error:
        assert message in str(error), error
    else:
        for _ in range(100):
            model.generate(torch.zeros(1, 1, dtype=torch.long), 2)
        sys.exit(f"loaded in spite of {path} = {value}")
"""
CHANGES = (
    (["vocab"], 2, "vocab is 2 in the one and 48 in the other"),
    (["vocab"], 48.0, "vocab is 48.0 in the one"),
    (["limit"], 2, "limit is 2"),
    (["cache"], "int8", "cache is int8 in the one"),
    (["cache"], [], "cache is [] in the one"),
    (["sublayers"], 1, "sublayers is 1"),
    (["stored", 0, "rows"], 2, "record of embedding"),
    (["stored", 0, "rows"], 48.0, "record of embedding"),
    (["stored", 0, "rows"], -2, "record of embedding"),
    (["stored", 0, "rows"], "48", "no model file holds"),
    (["stored", 0, "dtype"], "int8", "record of embedding"),
    (["stored", 0, "dtype"], "int4", "no model file holds"),
    (["stored"], [], "number of tensors"),
)


@pytest.mark.parametrize("compiler", [pytest.param("native", marks=needs_compiler), "torch"])
def test_an_edited_description_is_refused(tmp_path, compiler):
    folder = native.export(small_model(added="learned", length=20), tmp_path / "model")
    command = [sys.executable, "-W", "ignore", "-c", EDITED, str(folder), json.dumps(CHANGES)]
    hidden = {"CXX": "no-such-compiler", "WEFT_CACHE": str(tmp_path / "empty")}
    environment = os.environ if compiler == "native" else {**os.environ, **hidden}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"


@needs_compiler
def test_buffers_are_sized_by_the_file_alone(tmp_path):
    folder = native.export(small_model(), tmp_path / "model")
    model = native.load(folder)
    description = dataclasses.replace(model.description, vocab=2)
    assert native.NativeModel(description, model.buffer, model.size).vocab == VOCAB


PLAIN = """
import sys, warnings
warnings.simplefilter("error")
from pathlib import Path
import torch
from weft import native
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    model = native.load(Path(sys.argv[1]))
    native.load(Path(sys.argv[1]))
assert [str(w.message) for w in said] and len(said) == 1, said
assert "slower than native" in str(said[0].message) and "g++" in str(said[0].message)
print(type(model).__name__, model.generate(torch.tensor([[1, 2, 3]]), 30).tolist())
"""


def test_without_a_compiler_torch_decodes_the_same_and_says_so(tmp_path):
    source = sparse_model()
    folder = native.export(source, tmp_path / "model", dtype="int8")
    hidden = {"CXX": "no-such-compiler", "WEFT_CACHE": str(tmp_path / "empty"), "PATH": "/nowhere"}
    environment = {**os.environ, **hidden}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(folder)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kind, tokens = done.stdout.split(" ", 1)
    assert kind == "LanguageModelModule"
    if native.available() is None:
        found = native.load(folder).generate(torch.tensor([[1, 2, 3]]), 30)
        assert str(found.tolist()) == tokens.strip()


def test_the_sources_are_in_the_package():
    folder = Path(native.__file__).parent / "cpp"
    assert {"api.cpp", "kernels.cpp", "model.cpp", "step.cpp"} <= {f.name for f in folder.iterdir()}
